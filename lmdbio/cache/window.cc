#include "lmdbio/cache/window.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

namespace lmdbio::cache {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}

Result<Window> Window::map(int fd, std::uint64_t length, std::size_t page_size, bool no_readahead) noexcept {
  Result<Mapping> mapping = Mapping::map_file(fd, length, kHugePage);
  if (!mapping) return mapping.error();
  Window w;
  w.mapping_ = std::move(mapping).value();
  w.base_ = w.mapping_.data();
  w.length_ = length;
  w.shift_ = static_cast<unsigned>(std::countr_zero(page_size));
  if (no_readahead) (void)::madvise(w.mapping_.data(), w.mapping_.size(), MADV_RANDOM);  // advice: may fail
  return w;
}

Window Window::over(Bytes bytes, std::size_t page_size) noexcept {
  Window w;
  w.base_ = bytes.data();
  w.length_ = bytes.size();
  w.shift_ = static_cast<unsigned>(std::countr_zero(page_size));
  return w;
}

WindowView Window::view(std::uint64_t pages) const noexcept {
  return {base_, shift_, std::min(pages, length_ >> shift_)};
}

}  // namespace lmdbio::cache
