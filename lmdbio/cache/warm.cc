#include "lmdbio/cache/warm.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "lmdbio/base/in_parallel.h"
#include "lmdbio/cache/piece.h"
#include "lmdbio/io/private_table.h"

namespace lmdbio::cache {

namespace {

constexpr unsigned kRequests = 8;  ///< in flight
/// How often, and at what interval, a chunk is looked at that another process is storing.
constexpr unsigned kTries = 100;
constexpr std::chrono::milliseconds kBetween{10};

class Warmer {
 public:
  Warmer(Image& image, bool (*progress)(void*, std::uint64_t, std::uint64_t) noexcept, void* context) noexcept
      : image_(image), progress_(progress), context_(context) {}

  void chunk(std::uint64_t c) noexcept {
    if (ends_) return;
    const std::uint64_t bytes = image_.bytes_in(c);
    if (image_.has_stored(c)) {
      ++before_;
      bytes_before_ += bytes;
      return advance(bytes);
    }
    fill(c * kChunkBytes, bytes);
    // Another process may be storing the chunk.
    for (unsigned tries = 0;
         tries < kTries && !ends_ && image_.stopped() == nullptr && c < image_.chunks_wanted(); ++tries) {
      image_.finish(c);
      if (image_.has_stored(c)) break;
      std::this_thread::sleep_for(kBetween);
    }
    if (!image_.has_stored(c)) return;
    ++added_;
    bytes_added_ += bytes;
  }
  Warmed result() const noexcept {
    return {before_, added_, bytes_before_, bytes_added_, read_, Status::from_kernel(-failed_)};
  }

 private:
  void fill(std::uint64_t offset, std::uint64_t bytes) noexcept {
    Piece piece;
    for (std::uint64_t at = 0; at < bytes && !ends_; at += Piece::kBytes) {
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(Piece::kBytes, bytes - at));
      if (image_.wants(offset + at, n)) {  // else another process was faster, or there is no room
        if (const Status st = piece.read(*image_.database().file, offset + at, n); !st.ok()) return fail(st);
        read_ += n;
        image_.note_read(n);
        if (!image_.add(offset + at, piece.bytes())) ends_ = true;
      }
      advance(n);
    }
  }
  void advance(std::uint64_t bytes) noexcept {
    const std::uint64_t done = done_.fetch_add(bytes) + bytes;
    if (!progress_(context_, done, image_.database().used_bytes)) ends_ = true;
  }
  void fail(Status st) noexcept {
    int none = 0;
    (void)failed_.compare_exchange_strong(none, st.raw());
    ends_ = true;
  }

  Image& image_;
  bool (*const progress_)(void*, std::uint64_t, std::uint64_t) noexcept;
  void* const context_;
  std::atomic<bool> ends_{false};
  std::atomic<int> failed_{0};
  std::atomic<std::uint64_t> before_{0}, added_{0}, bytes_before_{0}, bytes_added_{0}, read_{0}, done_{0};
};

}  // namespace

Warmed warm(Image& image, bool (*progress)(void*, std::uint64_t, std::uint64_t) noexcept,
            void* context) noexcept {
  image.note_read(0);  // the time begins
  Warmer warmer(image, progress, context);
  (void)in_parallel(image.bytes() / kChunkBytes, kRequests, [&warmer](std::size_t c) noexcept {
    (void)PrivateTable::run([&]() noexcept { warmer.chunk(c); });  // its descriptors are in that table
  });
  return warmer.result();
}

}  // namespace lmdbio::cache
