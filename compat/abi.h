// Common parts of all entry points.  Each entry point serves our own handles and forwards other calls to
// stock LMDB.
#pragma once

#include "compat/functions.h"
#include "compat/handle.h"
#include "compat/stock.h"

#define LMDBIO_ABI __attribute__((visibility("default")))

/// Calls the real library's function, for a handle that is not ours or for no handle.  Yields `absent` if
/// there is no real library, or if it lacks the function.
#define LMDBIO_FORWARD_FROM(return_address, name, absent, ...)                                     \
  [&]() __attribute__((noinline, cold)) {                                                          \
    const ::lmdbio::compat::Stock* const real = ::lmdbio::compat::stock_of_handle(return_address); \
    return real != nullptr && real->name != nullptr ? real->name(__VA_ARGS__) : absent;            \
  }                                                                                                \
  ()
#define LMDBIO_FORWARD(name, absent, ...) \
  LMDBIO_FORWARD_FROM(__builtin_return_address(0), name, absent, __VA_ARGS__)
