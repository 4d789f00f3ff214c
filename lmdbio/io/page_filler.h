// Brings pieces of a file into the page cache in large requests, whatever the kernel's read-ahead is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/base/result.h"
#include "lmdbio/io/file.h"
#include "lmdbio/io/io_engine.h"
#include "lmdbio/io/residency.h"

namespace lmdbio {

/// Reads through the page cache ask storage for read_ahead_kb at a time, one request after the other, and
/// copy each byte.  MADV_POPULATE_READ (Linux 5.14) in a mapping of its own with MADV_HUGEPAGE brings 2 MiB
/// at once, in requests as large as the file system takes (Linux 5.18), and copies nothing.  The first fill
/// tells whether it does: one page is asked for, and what comes with it is counted.
class PageFiller {
 public:
  /// What large fills should be multiples of, and as large as.
  static constexpr std::size_t kPiece = std::size_t{2} << 20;
  enum class Bytes : bool {
    unwanted,  ///< the memory that a read is given holds nothing in particular afterwards
    copied,    ///< as a read leaves them
  };

  /// Of `file`, which outlives it, and is open for reads through the page cache.  An errno: it cannot be
  /// mapped.  No descriptor is needed for fills, but for what the kernel does not fill.
  static Result<std::unique_ptr<PageFiller>> make(const File& file, Bytes bytes) noexcept;

  /// As pread(2), with a negative errno: the bytes from `offset` on are in the page cache afterwards.  What
  /// cannot be brought so (a small piece, an old kernel, beyond the end as it was) is read.  Blocks.  Any
  /// thread; allocates nothing.
  long fill(std::uint64_t offset, MutableBytes to) noexcept;

  /// How many should be filling at once.
  unsigned threads() const noexcept;
  /// This kernel does it, as far as is known.
  bool works() const noexcept { return trust_.load(std::memory_order_relaxed) != Trust::refused; }

 private:
  enum class Trust : unsigned char { unknown, proven, refused };

  PageFiller(const File& file, Mapping map, std::uint64_t size, Bytes bytes) noexcept;
  bool populate(std::uint64_t offset, std::size_t bytes) noexcept;
  bool prove(std::uint64_t offset, std::size_t bytes) noexcept;

  const int fd_;
  const Mapping map_;
  const std::uint64_t size_;  ///< of the file, as it was
  const Bytes bytes_;
  const Residency residency_;
  std::atomic<Trust> trust_{Trust::unknown};
};

/// An engine whose reads are fills, `depth` of them at once.  Errors: as PageFiller::make and threads_engine.
Result<std::unique_ptr<IoEngine>> populate_engine(const File& file, unsigned depth, PageFiller::Bytes bytes,
                                                  EventCount* results = nullptr) noexcept;

/// Brings the page table entries of a mapping's pages, which are in the page cache, in one system call. Where
/// that cannot be had, page faults do it.
void fault_pages_in(std::byte* at, std::size_t bytes) noexcept;

}  // namespace lmdbio
