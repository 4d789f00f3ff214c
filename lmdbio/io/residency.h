// How much of a file is in the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lmdbio/io/file.h"

namespace lmdbio {

/// Asks by the best way that this system has and tells the truth to this user.  Threads may share one.
class Residency {
 public:
  enum class Sampling : bool { no, yes };

  /// `fd`: a regular file opened for reading, without O_DIRECT.  Where the number has become another file's,
  /// nothing tells any more.  With sampling, where nothing else tells, a few single bytes are tried by
  /// preadv2(RWF_NOWAIT): that also starts read-ahead where it finds nothing, so what was asked about tends
  /// to be there the next time.
  explicit Residency(int fd, Sampling sampling = Sampling::yes) noexcept;
  /// For a kept file, which outlives this.  `programs_fd`: the program's descriptor of the same file, or -1:
  /// as long as it is one, cachestat costs no change of threads.
  Residency(const File& file, int programs_fd, Sampling sampling = Sampling::yes) noexcept;

  /// As `other`, for who has the program's descriptor `programs_fd` of the file, or -1.
  Residency(const Residency& other, int programs_fd, Sampling sampling) noexcept;

  /// Of the bytes [offset, offset + bytes) that are inside the file now, the share that is in the page cache,
  /// 0 to 1, in whole pages; none if none is inside, or nothing tells (any more).  cachestat costs well below
  /// 0.1 ms per 4 MiB, mincore a few times that.  `mapped`: the file's first byte in a shared mapping that
  /// reaches as far, or null: mincore then maps the range for the time of the call.  Allocates nothing.
  std::optional<double> share(std::uint64_t offset, std::uint64_t bytes,
                              const std::byte* mapped = nullptr) const noexcept;
  /// All of these bytes are in the page cache and none of their pages waits for its read or has failed it,
  /// which share() counts as there.  False as well where mincore(2), which tells, tells this user nothing.
  /// `mapped` as in share(), not null.
  bool is_read(std::uint64_t offset, std::uint64_t bytes, const std::byte* mapped) const noexcept;
  /// The call that tells: "cachestat", "mincore", "preadv2" (samples), "" if none does.
  const char* how() const noexcept;
  /// It may read from the file.
  bool samples() const noexcept { return way_ == Way::sampling; }

 private:
  enum class Way : unsigned char { none, cachestat, mincore, sampling };
  std::optional<double> ask(int fd, std::uint64_t size, std::uint64_t offset, std::uint64_t bytes,
                            const std::byte* mapped) const noexcept;
  void choose(int fd, Sampling sampling) noexcept;

  const File* file_ = nullptr;  ///< null: fd_ is enough
  int fd_;                      ///< with a file_: the program's
  FileIdentity id_;             ///< of both
  Way way_ = Way::none;
  bool mincore_is_true_ = false;  ///< to whom this was at the start, and is as long as that is
  unsigned uid_ = 0;
};

}  // namespace lmdbio
