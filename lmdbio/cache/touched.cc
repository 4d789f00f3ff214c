#include "lmdbio/cache/touched.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <optional>

#include "lmdbio/base/mapping.h"

namespace lmdbio::cache {

namespace {

// Documentation/admin-guide/mm/pagemap.rst; all users see these.
constexpr std::uint64_t kPresent = std::uint64_t{1} << 63, kOfFile = std::uint64_t{1} << 61;

std::optional<std::uint64_t> entry(int fd, std::uintptr_t page) noexcept {
  std::uint64_t bits;
  if (::pread(fd, &bits, sizeof bits, static_cast<off_t>(page * sizeof bits)) != sizeof bits) return {};
  return bits;
}

}  // namespace

TouchedPages TouchedPages::open() noexcept {
  TouchedPages made;
  UniqueFd fd(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!fd) return made;
  made.page_shift_ =
      static_cast<unsigned>(std::countr_zero(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))));
  // Two pages whose state is known: what imitates /proc may answer anything.
  const Result<Mapping> full = Mapping::zeroed(1), empty = Mapping::reserve(1, 1);
  if (!full || !empty) return made;
  *static_cast<volatile std::byte*>(full.value().data()) = std::byte{1};
  const auto page = [&made](const Mapping& m) noexcept {
    return reinterpret_cast<std::uintptr_t>(m.data()) >> made.page_shift_;
  };
  const auto touched = entry(fd.get(), page(full.value())), untouched = entry(fd.get(), page(empty.value()));
  if (!touched || !untouched || (*touched & (kPresent | kOfFile)) != kPresent || (*untouched & kPresent) != 0)
    return made;
  made.fd_ = std::move(fd);
  made.process_ = ::getpid();
  return made;
}

TouchedPages::operator bool() const noexcept { return fd_ && process_ == ::getpid(); }

TouchedPages::Page TouchedPages::look(const std::byte* address) const noexcept {
  if (!fd_) return Page::unknown;
  const auto bits = entry(fd_.get(), reinterpret_cast<std::uintptr_t>(address) >> page_shift_);
  if (!bits) return Page::unknown;
  if ((*bits & kPresent) == 0) return Page::absent;
  return (*bits & kOfFile) != 0 ? Page::touched : Page::unknown;
}

}  // namespace lmdbio::cache
