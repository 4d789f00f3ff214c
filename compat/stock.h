// The real LMDB library: found by rule, opened once, called through a table.
#pragma once

#include "compat/functions.h"

namespace lmdbio::compat {

/// One real library.  A function that it lacks (mostly py-lmdb's two) is null.  Never freed.
struct Stock {
#define LMDBIO_POINTER(name) decltype(&::mdb_##name) name;
  LMDBIO_EACH_FUNCTION(LMDBIO_POINTER)
  LMDBIO_EACH_PY_FUNCTION(LMDBIO_POINTER)
#undef LMDBIO_POINTER
  const void* base;  ///< load address; identifies the library
  int patch;         ///< of its version 0.9.patch
  bool supported;    ///< LMDBIO exports all functions of this version
  const char* path;
};

/// The caller of a function that got no handle of ours.
struct Caller {
  const Stock* stock = nullptr;  ///< its real library; null: there is none (logged once)
  bool own_handles = false;      ///< it needs that library's own handles: see has_inlined_calls()
};
/// Returns the caller by a call's `return_address`.  The real library is the first of these:
/// LMDBIO_STOCK_LIB; the caller's own object if it defines mdb_env_create; the next one in the search order;
/// liblmdb.so.0.  A caller with inlined calls always gets its own.  Any thread; preserves errno.
Caller caller_at(const void* return_address) noexcept;

/// Returns the real library for a call with a stock handle.  If the process has only one real library, it is
/// that one.
const Stock* stock_of_handle(const void* return_address) noexcept;

/// For atfork: between the two calls no other thread is inside a look-up.
void lock_stock() noexcept;
void unlock_stock() noexcept;

}  // namespace lmdbio::compat
