// What every entry point needs.  Each entry: a handle of ours -> its work; else the real library.
#pragma once

#include "compat/functions.h"
#include "compat/handle.h"
#include "compat/stock.h"

#define LMDBIO_ABI __attribute__((visibility("default")))

/// The real library's function for a call with a handle that is not ours, or without one; `absent` is the
/// answer where no real library exists.
#define LMDBIO_FORWARD_FROM(return_address, name, absent, ...)                                     \
  [&]() __attribute__((noinline, cold)) {                                                          \
    const ::lmdbio::compat::Stock* const real = ::lmdbio::compat::stock_of_handle(return_address); \
    return real != nullptr && real->name != nullptr ? real->name(__VA_ARGS__) : absent;            \
  }()
#define LMDBIO_FORWARD(name, absent, ...) \
  LMDBIO_FORWARD_FROM(__builtin_return_address(0), name, absent, __VA_ARGS__)
