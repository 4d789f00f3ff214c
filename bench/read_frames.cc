// Reads a compressed image of the cache (docs/format.md) and decompresses its frames with two threads: the
// least that a job with the cache has to do.  Verifies no checksums.  Prints the seconds, and the XOR of all
// 8-byte words of the database.
//
//   read_frames NAME.data NAME.table
#include <fcntl.h>
#include <inttypes.h>
#include <lz4.h>
#include <unistd.h>
#include <zstd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "bench/common.h"
#include "bench/xor_bytes.h"

namespace lmdbio::bench {
namespace {

constexpr std::size_t kChunk = 4 << 20, kFrame = 64 << 10, kPitch = kChunk + 4096, kHeader = 792;

template <class T>
T at(const std::vector<char>& bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, &bytes.at(offset + sizeof value - 1) + 1 - sizeof value, sizeof value);
  return value;
}

struct Image {
  int data;
  std::vector<char> table;
};

// Reverses a delta or a shuffle.
void undo(unsigned filter, std::size_t width, const unsigned char* in, unsigned char* out, std::size_t n) {
  const std::size_t items = n / width;
  if (filter == 2) {
    std::memcpy(out, in, n);
    for (std::size_t row = width; row < n; row += width) {
      const std::size_t bytes = std::min(width, n - row);
      for (std::size_t i = 0; i < bytes; ++i)
        out[row + i] = static_cast<unsigned char>(out[row + i] + out[row + i - width]);
    }
    return;
  }
  for (std::size_t b = 0; b < width; ++b)
    for (std::size_t i = 0; i < items; ++i) out[i * width + b] = in[b * items + i];
  std::memcpy(out + items * width, in + items * width, n - items * width);
}

std::uint64_t read_chunk(const Image& image, std::size_t chunk, std::vector<char>& stored, ZSTD_DCtx* zstd) {
  alignas(64) static thread_local unsigned char plain[kFrame], filtered[kFrame];
  const auto bytes = at<std::uint32_t>(image.table, 4096 + 16 * chunk + 8);
  stored.resize(bytes);
  if (::pread(image.data, stored.data(), bytes, static_cast<off_t>(chunk * kPitch)) != bytes)
    die("chunk %zu: missing", chunk);
  const auto codec = at<unsigned char>(stored, 16), filter = at<unsigned char>(stored, 17);
  std::size_t from = kHeader, left = at<std::uint32_t>(stored, 12);
  std::uint64_t sum = 0;
  for (std::size_t frame = 0; left > 0; ++frame) {
    const std::size_t n = std::min(left, kFrame), packed = at<std::uint32_t>(stored, 24 + 4 * frame);
    if (from + packed > bytes) die("chunk %zu: too short", chunk);
    const void* result = stored.data() + from;
    if (packed != n) {
      unsigned char* const to = filter != 0 ? filtered : plain;
      const std::size_t made = codec == 1 ? static_cast<std::size_t>(LZ4_decompress_safe(
                                                stored.data() + from, reinterpret_cast<char*>(to),
                                                static_cast<int>(packed), static_cast<int>(n)))
                                          : ZSTD_decompressDCtx(zstd, to, n, stored.data() + from, packed);
      if (made != n) die("chunk %zu: damaged", chunk);
      if (filter != 0) undo(filter, at<std::uint16_t>(stored, 18), filtered, plain, n);
      result = plain;
    }
    sum ^= xor_bytes(result, n);
    from += packed;
    left -= n;
  }
  return sum;
}

int run(const char* data, const char* table) {
  const std::uint64_t start = clock_ns();
  Image image{::open(data, O_RDONLY | O_CLOEXEC), {}};
  const int fd = ::open(table, O_RDONLY | O_CLOEXEC);
  const off_t size = fd < 0 ? -1 : ::lseek(fd, 0, SEEK_END);
  if (image.data < 0 || size < 0) die_errno("open");
  image.table.resize(static_cast<std::size_t>(size));
  if (::pread(fd, image.table.data(), image.table.size(), 0) != size) die_errno("read");
  if (image.table.size() < 4096 || image.table[36] == 0) die("the image is not compressed");
  const std::size_t chunks = (image.table.size() - 4096) / 16;
  std::atomic<std::size_t> next{0};
  std::atomic<std::uint64_t> sum{0};
  const auto work = [&] {
    std::vector<char> stored;
    ZSTD_DCtx* const zstd = ZSTD_createDCtx();
    for (std::size_t c; (c = next++) < chunks;) sum ^= read_chunk(image, c, stored, zstd);
    ZSTD_freeDCtx(zstd);
  };
  std::thread other(work);
  work();
  other.join();
  std::printf("{\"seconds\": %.6f, \"sum\": \"%016" PRIx64 "\"}\n",
              static_cast<double>(clock_ns() - start) * 1e-9, sum.load());
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) {
  if (argc != 3) lmdbio::bench::die("usage: read_frames NAME.data NAME.table");
  return lmdbio::bench::run(argv[1], argv[2]);
}
