// The real LMDB: found by rule, opened once, called through a table.
#pragma once

#include "compat/functions.h"

namespace lmdbio::compat {

/// One real library.  A function that it lacks (py-lmdb's two, mostly) is null.  Never freed.
struct Stock {
#define LMDBIO_POINTER(name) decltype(&::mdb_##name) name;
  LMDBIO_EACH_FUNCTION(LMDBIO_POINTER)
  LMDBIO_EACH_PY_FUNCTION(LMDBIO_POINTER)
#undef LMDBIO_POINTER
  const void* base;  ///< where the library is loaded: its identity
  int patch;         ///< of its version 0.9.patch
  bool supported;    ///< its mdb_version is one whose functions are all exported here
  const char* path;
};

/// Where a call comes from that carries no handle of ours.
struct Caller {
  const Stock* stock = nullptr;  ///< its real library; null: there is none (logged once)
  bool own_handles = false;      ///< it needs that library's own handles: see has_inlined_calls()
};
/// By a call's `return_address`.  The real library: LMDBIO_STOCK_LIB; else the caller's own object if it
/// defines mdb_env_create itself; else the next one in the search order; else liblmdb.so.0.  Any thread;
/// errno preserved.
Caller caller_at(const void* return_address) noexcept;

/// The same for a call with a stock handle: with only one real library in the process, that one.
const Stock* stock_of_handle(const void* return_address) noexcept;

/// For atfork: no other thread is inside a look-up between the two.
void lock_stock() noexcept;
void unlock_stock() noexcept;

}  // namespace lmdbio::compat
