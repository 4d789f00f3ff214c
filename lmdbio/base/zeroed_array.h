// Arrays of many plain elements that are mostly unused.  Unused elements take no memory beyond the kernel's
// zero page.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

namespace lmdbio {

struct FreeDeleter {
  void operator()(void* p) const noexcept { std::free(p); }
};

/// An array that is owned like a unique_ptr.
template <class T>
using ZeroedArray = std::unique_ptr<T[], FreeDeleter>;

/// Returns `n` >= 1 elements, with all bytes zero.  Throws bad_alloc.
template <class T>
ZeroedArray<T> zeroed_array(std::size_t n) {
  static_assert(std::is_trivially_destructible_v<T>);
  void* const p = std::calloc(n, sizeof(T));
  if (p == nullptr) throw std::bad_alloc();
  return ZeroedArray<T>(static_cast<T*>(p));
}

}  // namespace lmdbio
