// Tells how much of a file is in the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lmdbio/io/file.h"

namespace lmdbio {

/// Probes the page cache with the best system call that works here and tells this user the truth.  Any
/// thread.
class Residency {
 public:
  enum class Sampling : bool { no, yes };

  /// `fd`: a regular file that is open for reading, without O_DIRECT.  Once its number belongs to another
  /// file, probes return no result.  With sampling, if no other call works, probes read a few single bytes
  /// with preadv2(RWF_NOWAIT).  Such a read also starts read-ahead for a missing page, so a range that was
  /// probed tends to be resident the next time.
  explicit Residency(int fd, Sampling sampling = Sampling::yes) noexcept;
  /// For a kept file, which must outlive this object.  `programs_fd`: the program's descriptor of the same
  /// file, or -1.  While that descriptor is open on the file, cachestat(2) costs no context switch.
  Residency(const File& file, int programs_fd, Sampling sampling = Sampling::yes) noexcept;

  /// Copies `other` for a caller that has the program's descriptor `programs_fd` of the file, or -1.  With
  /// Sampling::no, the copy never samples, even if `other` does.
  Residency(const Residency& other, int programs_fd, Sampling sampling) noexcept;

  /// Returns the resident share, 0 to 1, of the bytes [offset, offset + bytes) that are inside the file now,
  /// in whole pages.  Returns nullopt if none is inside, or if no call works (any more).  cachestat(2) takes
  /// well below 0.1 ms per 4 MiB, mincore(2) a few times that.  `mapped`: the address of the file's first
  /// byte in a shared mapping that includes the range, or null.  If it is null, mincore(2) needs a temporary
  /// mapping of the range.  Allocates nothing.
  std::optional<double> share(std::uint64_t offset, std::uint64_t bytes,
                              const std::byte* mapped = nullptr) const noexcept;
  /// Returns the share of these bytes that are in the page cache and have been read, in whole pages.  A page
  /// does not count while its read is in progress, or if its read has failed; share() counts such a page as
  /// resident.  Needs mincore(2), but no descriptor.  Returns nullopt if mincore(2) does not tell this user
  /// the truth.  `mapped`: as in share(), but not null.
  std::optional<double> share_read(std::uint64_t offset, std::uint64_t bytes,
                                   const std::byte* mapped) const noexcept;
  /// Returns true if share_read() is 1.
  bool is_read(std::uint64_t offset, std::uint64_t bytes, const std::byte* mapped) const noexcept {
    return share_read(offset, bytes, mapped) == 1.0;
  }
  /// Returns the name of the system call in use: "cachestat", "mincore", "preadv2" (samples); "" if none
  /// works.
  const char* how() const noexcept;
  /// True if probes may read from the file.
  bool samples() const noexcept { return way_ == Way::sampling; }

 private:
  enum class Way : unsigned char { none, cachestat, mincore, sampling };
  std::optional<double> ask(int fd, std::uint64_t size, std::uint64_t offset, std::uint64_t bytes,
                            const std::byte* mapped) const noexcept;
  void choose(int fd, Sampling sampling) noexcept;

  const File* file_ = nullptr;  ///< if null, fd_ is used
  int fd_;                      ///< if file_ is set: the program's descriptor, or -1
  FileIdentity id_;             ///< of the file; size and mtime are not set
  Way way_ = Way::none;
  bool mincore_is_true_ = false;  ///< for the effective user uid_, at the start
  unsigned uid_ = 0;
};

}  // namespace lmdbio
