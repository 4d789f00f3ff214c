#include "lmdbio/window/touched.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "lmdbio/base/mapping.h"
#include "lmdbio/base/unique_fd.h"

namespace lmdbio::window {

namespace {

// See Documentation/admin-guide/mm/pagemap.rst in the Linux source.  All users may read these bits.
constexpr std::uint64_t kPresent = std::uint64_t{1} << 63, kOfFile = std::uint64_t{1} << 61;

std::optional<std::uint64_t> entry(int fd, std::uintptr_t page) noexcept {
  std::uint64_t bits;
  if (::pread(fd, &bits, sizeof bits, static_cast<off_t>(page * sizeof bits)) != sizeof bits) return {};
  return bits;
}

}  // namespace

TouchedPages TouchedPages::open() noexcept {
  TouchedPages made;
  made.table_ = PrivateTable::get();
  if (made.table_ == nullptr || !made.table_->call([&made]() noexcept { made.open_here(); })) return {};
  made.generation_ = PrivateTable::generation();
  return made;
}

void TouchedPages::open_here() noexcept {
  UniqueFd fd(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!fd) return;
  page_shift_ = static_cast<unsigned>(std::countr_zero(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))));
  // Checks two pages whose state is known, because an imitation of /proc may report anything.
  const Result<Mapping> full = Mapping::zeroed(1), empty = Mapping::reserve(1, 1);
  if (!full || !empty) return;
  *static_cast<volatile std::byte*>(full.value().data()) = std::byte{1};
  const auto page = [this](const Mapping& m) noexcept {
    return reinterpret_cast<std::uintptr_t>(m.data()) >> page_shift_;
  };
  const auto touched = entry(fd.get(), page(full.value())), untouched = entry(fd.get(), page(empty.value()));
  if (!touched || !untouched || (*touched & (kPresent | kOfFile)) != kPresent || (*untouched & kPresent) != 0)
    return;
  fd_ = fd.release();
}

TouchedPages::TouchedPages(TouchedPages&& other) noexcept
    : table_(std::move(other.table_)),
      fd_(std::exchange(other.fd_, -1)),
      page_shift_(other.page_shift_),
      generation_(other.generation_) {}

TouchedPages::~TouchedPages() {
  if (*this) (void)table_->call([fd = fd_]() noexcept { UniqueFd(fd).reset(); });
}

TouchedPages::operator bool() const noexcept { return fd_ >= 0 && generation_ == PrivateTable::generation(); }

void TouchedPages::look(std::span<const std::byte* const> addresses, std::span<Page> pages) const noexcept {
  std::fill(pages.begin(), pages.end(), Page::unknown);
  if (!*this) return;
  (void)table_->call([&]() noexcept {
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      if (addresses[i] == nullptr) continue;
      const auto bits = entry(fd_, reinterpret_cast<std::uintptr_t>(addresses[i]) >> page_shift_);
      if (!bits) continue;
      pages[i] = (*bits & kPresent) == 0  ? Page::absent
                 : (*bits & kOfFile) != 0 ? Page::touched
                                          : Page::unknown;
    }
  });
}

TouchedPages::Page TouchedPages::look(const std::byte* address) const noexcept {
  Page page;
  look({&address, 1}, {&page, 1});
  return page;
}

}  // namespace lmdbio::window
