// The real LMDB library: found by rule, opened once, called through a table.
#pragma once

#include <cerrno>

#include "compat/functions.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::compat {

/// The releases of LMDB whose functions LMDBIO exports.  Programs built against one series cannot use a
/// library of another one, and each series refuses the files of the other.
enum class Series : unsigned char {
  v09,    ///< 0.9.0 to 0.9.69
  v10,    ///< 1.0.x
  other,  ///< programs get its own handles
};

/// One real library, which is the one that a program was built against.  A function that it lacks is null:
/// those of LMDBIO_EACH_10_FUNCTION in 0.9, and mostly py-lmdb's two.  Never freed.
struct Stock {
#define LMDBIO_POINTER(name) decltype(&::mdb_##name) name;
  LMDBIO_EACH_FUNCTION(LMDBIO_POINTER)
  LMDBIO_EACH_10_FUNCTION(LMDBIO_POINTER)
  LMDBIO_EACH_PY_FUNCTION(LMDBIO_POINTER)
#undef LMDBIO_POINTER
  Series series;
  int patch;  ///< the last number of its version
  const char* path;

  /// Returns the format of the files that this library opens.  Not for Series::other.
  format::Version format() const noexcept {
    return series == Series::v10 ? format::Version::v10 : format::Version::v09;
  }
  /// Returns the code of writes to a read-only environment or transaction.
  int read_only_error() const noexcept {
    constexpr int kIsReadOnly = -30770;  // MDB_IS_READONLY of 1.0's lmdb.h
    return series == Series::v10 ? kIsReadOnly : EACCES;
  }
};

/// The names by which a caller knows LMDB's functions.  Modules that contain two versions rename both.
enum class Names : unsigned char {
  plain,  ///< mdb_*, or mdb09_* for 0.9
  v10,    ///< mdb10_* for 1.0
};

/// The caller of a function that got no handle of ours.
struct Caller {
  const Stock* stock = nullptr;  ///< its real library; null: there is none (logged once)
  bool own_handles = false;      ///< it needs that library's own handles: see has_inlined_calls()
};
/// Returns the caller by a call's `return_address` and the name of the called function.  The real library is
/// the first of these: LMDBIO_STOCK_LIB, unless the caller's own object contains an LMDB of another series;
/// the caller's own object if it defines mdb_env_create under one of `names`; the next one in the search
/// order; one that the caller's object is linked to; liblmdb.so.0; liblmdb.so.1; lmdbio/stock/liblmdb.so.0
/// beside this library.  The last five need plain names.  A caller with inlined calls always gets its own.
/// Any thread; preserves errno.
Caller caller_at(const void* return_address, Names names = Names::plain) noexcept;

/// Returns the real library for a call with a stock handle.  If the process has only one real library, it is
/// that one.
const Stock* stock_of_handle(const void* return_address, Names names = Names::plain) noexcept;

/// For atfork: between the two calls no other thread is inside a look-up.
void lock_stock() noexcept;
void unlock_stock() noexcept;

}  // namespace lmdbio::compat
