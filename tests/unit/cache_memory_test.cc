// The memory that the cache takes beyond what its users have: the queue, compression, decompression.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "lmdbio/cache/image.h"
#include "lmdbio/cache/image_format.h"
#include "tests/support/cache_file.h"
#include "tests/support/chunk_data.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LMDBIO_OTHER_MALLOC
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LMDBIO_OTHER_MALLOC
#endif
#endif

namespace {

std::atomic<std::int64_t> allocated{0}, most_allocated{0};

}  // namespace

#ifndef LMDBIO_OTHER_MALLOC
namespace {

void* counted(void* p) noexcept {
  if (p == nullptr) return p;
  const auto bytes = static_cast<std::int64_t>(::malloc_usable_size(p));
  const std::int64_t now = allocated.fetch_add(bytes) + bytes;
  for (std::int64_t most = most_allocated; most < now && !most_allocated.compare_exchange_weak(most, now);) {
  }
  return p;
}

void uncounted(void* p) noexcept {
  if (p != nullptr) allocated -= static_cast<std::int64_t>(::malloc_usable_size(p));
}

}  // namespace

// Replace those of glibc, in the libraries as well.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);

void* malloc(std::size_t n) noexcept { return counted(__libc_malloc(n)); }
void* calloc(std::size_t n, std::size_t bytes) noexcept { return counted(__libc_calloc(n, bytes)); }
void* realloc(void* p, std::size_t n) noexcept {
  uncounted(p);
  void* const moved = __libc_realloc(p, n);
  (void)counted(moved == nullptr && n != 0 ? p : moved);
  return moved;
}
void* memalign(std::size_t alignment, std::size_t n) noexcept {
  return counted(__libc_memalign(alignment, n));
}
void* aligned_alloc(std::size_t alignment, std::size_t n) noexcept {
  return counted(__libc_memalign(alignment, n));
}
int posix_memalign(void** out, std::size_t alignment, std::size_t n) noexcept {
  *out = counted(__libc_memalign(alignment, n));
  return *out == nullptr ? ENOMEM : 0;
}
void free(void* p) noexcept {
  uncounted(p);
  __libc_free(p);
}
}
#endif

namespace lmdbio::cache {
namespace {

using testing::CacheDatabase;

constexpr std::size_t kMib = std::size_t{1} << 20;
constexpr std::size_t kBytes = 32 * kMib, kPiece = kMib, kRead = 100'000;
constexpr std::int64_t kMostBytes = 8 * kMib;
constexpr unsigned kOffering = 4, kReading = 8;

const bool is_set = [] {
  ::setenv("LMDBIO_CACHE_CODEC", "zstd-3", 0);
  (void)testing::cache_parent();
  (void)::testing::AddGlobalTestEnvironment(new testing::CacheParent);
  return true;
}();

class MemoryTest : public testing::CacheCase {};

// Threads offer pieces as fast as they can, while the filler compresses chunks and all decoders are in use.
// The filler pauses while other threads want the processors, so the threads wait for it now and then.  In
// most runs the queue is full and refuses pieces.  The filler may also be fast enough for all of them, so the
// test does not wait for a refused piece.
TEST_F(MemoryTest, StaysWithinItsLimit) {
#ifdef LMDBIO_OTHER_MALLOC
  GTEST_SKIP() << "the sanitizer has a malloc of its own";
#endif
  const CacheDatabase db(kBytes);
  db.write(2 * CacheDatabase::kPage,
           test::chunk_data(test::ChunkData::counts, kBytes - 2 * CacheDatabase::kPage, 1));
  std::vector<std::byte> want(kBytes);
  ASSERT_EQ(::pread(db.fd(), want.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
  std::vector<std::vector<std::byte>> buffers(kReading, std::vector<std::byte>(kRead));
  std::atomic<bool> begins{false}, ends{false};
  std::atomic<std::uint64_t> reads{0}, wrong{0};
  std::shared_ptr<Image> image;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kOffering; ++t)
    threads.emplace_back([&, t] {
      begins.wait(false);
      for (std::size_t at = t * kPiece; !ends; at = (at + kPiece) % kBytes)
        if (image->offer(at, Bytes(want).subspan(at, kPiece)); at == 0) image->flush();
    });
  for (unsigned t = 0; t < kReading; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      begins.wait(false);
      while (!ends) {
        const std::size_t at = random() % (kBytes - kRead);
        const bool read = image->read(at, buffers[t]);
        image->flush();
        if (!read) continue;
        ++reads;
        if (std::memcmp(buffers[t].data(), want.data() + at, kRead) != 0) ++wrong;
      }
    });
  const std::int64_t before = allocated;
  most_allocated = before;
  image = db.image();
  EXPECT_NE(image, nullptr);
  ends = image == nullptr;
  begins = true;
  begins.notify_all();
  if (!ends) testing::wait_for(*image, [&] { return image->share() == 1 && reads > 50; });
  ends = true;
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_LE(most_allocated - before, kMostBytes);
  RecordProperty("bytes", std::to_string(most_allocated - before));
  if (image != nullptr) RecordProperty("skipped", std::to_string(image->counts().skipped));
}

}  // namespace
}  // namespace lmdbio::cache
