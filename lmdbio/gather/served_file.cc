#include "lmdbio/gather/served_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "lmdbio/base/config.h"
#include "lmdbio/base/log.h"
#include "lmdbio/cache/codec.h"
#include "lmdbio/cache/image.h"
#include "lmdbio/cache/packed_range.h"

namespace lmdbio::gather {

namespace {

/// A request lies in one of these pieces of a file: a server asks one other server for it.
constexpr std::uint64_t kPiece = std::uint64_t{4} << 20;
/// Pieces of the file that are examined, and how much of each.
constexpr unsigned kSamples = 16;
constexpr std::uint64_t kSampleBytes = std::uint64_t{64} << 10;

/// Returns the path of the open file, or "".
std::string path_of(const File& file) {
  char path[PATH_MAX];
  ssize_t n = -1;
  (void)file.with_fd([&](int fd) noexcept {
    char link[32];
    (void)std::snprintf(link, sizeof link, "/proc/thread-self/fd/%d", fd);
    n = ::readlink(link, path, sizeof path);
  });
  return n > 0 && static_cast<std::size_t>(n) < sizeof path ? std::string(path, static_cast<std::size_t>(n))
                                                            : std::string();
}

bool is_in_page_cache(const OpenFile& file, std::uint64_t bytes) noexcept {
  const Residency residency = file.residency(-1, Residency::Sampling::no);
  unsigned resident = 0;
  for (unsigned i = 0; i < kSamples; ++i)
    if (residency.share(bytes / kSamples * i, std::min(kSampleBytes, bytes)).value_or(0) > 0.5) ++resident;
  return resident > kSamples / 2;
}

}  // namespace

std::shared_ptr<ServedFile> ServedFile::get(const std::shared_ptr<const OpenFile>& file, const char* path,
                                            std::uint64_t snapshot,
                                            const std::shared_ptr<cache::Image>& image) noexcept {
  if (file->local() || config().node == NodeMode::off) return nullptr;
  const std::shared_ptr<node::Service> service = node::Service::get();
  if (service == nullptr) return nullptr;
  try {
    cache::DatabaseState state{file, path, snapshot};
    const auto contents = cache::contents_of(state);
    if (!contents || is_in_page_cache(*file, state.used_bytes)) return nullptr;
    const std::string full = path_of(file->base());
    if (full.empty()) return nullptr;
    const node::ServedState served{*contents, snapshot, state.page_bytes, state.used_bytes};
    std::shared_ptr<ServedFile> made(new ServedFile(service, full, served, image));
    if (made->is_open() || !made->refused_) return made;
    log_line(LogLevel::info,
             "%s: the server of this node does not serve the file, because it sees another one", path);
    return nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// Announces the file if that has not been done yet.  Returns whether it is done.
bool ServedFile::is_open() noexcept {
  if (number_.load(std::memory_order_acquire) != kNotOpen) return true;
  if (refused_.load(std::memory_order_relaxed)) return false;
  if (opening_.exchange(true)) return false;  // another thread announces it
  const Result<node::Service::Opened> opened = service_->open(path_, state_);
  if (opened) {
    // Else the images of all nodes would have all of the file.
    if (opened.value().stores && image_ != nullptr) image_->leave_to_server();
    number_.store(opened.value().file, std::memory_order_release);
  } else if (opened.error().raw() == ENOTSUP) {
    refused_.store(true, std::memory_order_relaxed);
  }
  opening_.store(false);
  return opened.has_value();
}

// Returns how many bytes of a range the server has brought.  Decompresses them.
std::size_t ServedFile::take(const node::Service::Range& range) noexcept {
  const std::size_t n = range.result ? range.result.value() : 0;
  if (n == 0 || !range.packed) return n;
  const std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[n]);
  if (memory == nullptr) return 0;
  std::memcpy(memory.get(), range.to.data(), n);
  const Result<cache::PackedRange> packed = cache::PackedRange::parse({memory.get(), n});
  if (!packed || packed.value().at() != range.offset % kPiece || packed.value().bytes() > range.to.size())
    return 0;
  cache::Scratch scratch;
  const std::size_t plain = packed.value().bytes();
  return packed.value().unpack(packed.value().at(), range.to.first(plain), scratch).ok() ? plain : 0;
}

std::size_t ServedFile::read(std::uint64_t offset, MutableBytes to) noexcept {
  if (!is_open()) return 0;
  std::size_t done = 0;
  while (done < to.size()) {
    const std::uint64_t at = offset + done;
    const std::size_t most =
        std::min({to.size() - done, node::kServiceBytes, static_cast<std::size_t>(kPiece - at % kPiece)});
    node::Service::Range range{at, to.subspan(done, most)};
    service_->read(number_, state_, {&range, 1});
    const std::size_t n = take(range);
    done += n;
    if (n < most) break;
  }
  read_ += done;
  return done;
}

void ServedFile::read(std::span<RangeReader::Range> ranges) noexcept {
  static_assert(RangeReader::kMostAtOnce <= node::Service::kAtOnce);
  if (!is_open()) return;
  std::array<node::Service::Range, RangeReader::kMostAtOnce> asked;
  std::array<RangeReader::Range*, RangeReader::kMostAtOnce> of;
  std::size_t n = 0;
  for (RangeReader::Range& r : ranges) {
    const bool in_a_piece = r.offset % kPiece + r.to.size() <= kPiece && r.to.size() <= node::kServiceBytes;
    if (in_a_piece && n < asked.size()) {
      of[n] = &r;
      asked[n++] = {r.offset, r.to};
    } else {
      r.result = static_cast<long>(read(r.offset, r.to));
    }
  }
  service_->read(number_, state_, std::span(asked).first(n));
  for (std::size_t i = 0; i < n; ++i) {
    of[i]->result = static_cast<long>(take(asked[i]));
    read_ += static_cast<std::uint64_t>(of[i]->result);
  }
}

}  // namespace lmdbio::gather
