#include "lmdbio/ranks/payload.h"

#include <sys/mman.h>

#include <cstdlib>

#include "lmdbio/base/align.h"

namespace lmdbio::ranks {

std::byte* PayloadMemory::allocate(std::size_t size) noexcept {
  if (!take(size)) return nullptr;
  const bool huge = size >= 2 * kHugePage;
  void* const bytes = huge ? std::aligned_alloc(kHugePage, align_up(size, kHugePage)) : std::malloc(size);
  if (bytes == nullptr) give_back(size);
  if (huge && bytes != nullptr) (void)::madvise(bytes, size, MADV_HUGEPAGE);  // a failure costs speed only
  return static_cast<std::byte*>(bytes);
}

void PayloadMemory::release(std::byte* bytes, std::size_t size) noexcept {
  std::free(bytes);
  give_back(size);
}

}  // namespace lmdbio::ranks
