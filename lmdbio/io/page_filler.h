// Reads pieces of a file into the page cache in large requests, regardless of the kernel's read-ahead.
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
#include "lmdbio/io/range_reader.h"
#include "lmdbio/io/residency.h"

namespace lmdbio {

/// Fills the page cache with MADV_POPULATE_READ (Linux 5.14), in a mapping of its own with MADV_HUGEPAGE.
/// This reads 2 MiB at once, in requests as large as the file system accepts (Linux 5.18), and copies
/// nothing.  Buffered reads, in contrast, request read_ahead_kb at a time, one request after the other, and
/// copy each byte.  The first fill tests whether the kernel does this: it requests one page, and measures how
/// many pages the kernel reads.
class PageFiller final : public RangeReader {
 public:
  /// Preferred size and alignment of large fills, in bytes.
  static constexpr std::size_t kPiece = std::size_t{2} << 20;
  enum class Bytes : bool {
    unwanted,  ///< the destination has unspecified contents afterwards
    copied,    ///< the bytes are copied to the destination, as by a read
  };

  /// Makes a filler for `file`, which must outlive it and must be open for buffered reads.  Fails with an
  /// errno if the file cannot be mapped.  Later, the descriptor is needed only for ranges that the kernel
  /// does not fill.
  static Result<std::unique_ptr<PageFiller>> make(const File& file, Bytes bytes) noexcept;

  /// Reads the bytes from `offset` on into the page cache.  Returns the number of bytes, as pread(2), or a
  /// negative errno.  Ranges that cannot be filled are read instead: small pieces, ranges beyond the end that
  /// the file had in make(), and all ranges on an old kernel.  Blocks.  Any thread; allocates nothing.
  long fill(std::uint64_t offset, MutableBytes to) noexcept override;

  unsigned threads() const noexcept override;
  /// Returns false if this kernel is known not to fill the page cache.
  bool works() const noexcept { return trust_.load(std::memory_order_relaxed) != Trust::refused; }

 private:
  enum class Trust : unsigned char { unknown, proven, refused };

  PageFiller(const File& file, Mapping map, std::uint64_t size, Bytes bytes) noexcept;
  bool populate(std::uint64_t offset, std::size_t bytes) noexcept;
  bool prove(std::uint64_t offset, std::size_t bytes) noexcept;

  const int fd_;
  const Mapping map_;
  const std::uint64_t size_;  ///< of the file, as it was, in bytes
  const Bytes bytes_;
  const Residency residency_;
  std::atomic<Trust> trust_{Trust::unknown};
};

/// Makes an engine whose reads are fills, with `depth` in flight.  Errors: as PageFiller::make and
/// threads_engine.
Result<std::unique_ptr<IoEngine>> populate_engine(const File& file, unsigned depth, PageFiller::Bytes bytes,
                                                  EventCount* results = nullptr) noexcept;

/// Reads the pages of a mapping that are not resident, and creates the page table entries of all, in one
/// system call.  Returns false if that did not work.  Later accesses then cause page faults.
bool fault_pages_in(std::byte* at, std::size_t bytes) noexcept;

}  // namespace lmdbio
