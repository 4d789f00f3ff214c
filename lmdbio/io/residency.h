// How much of a file is in the page cache.
#pragma once

#include <cstdint>
#include <optional>

namespace lmdbio {

/// Asks by the best way that this system has and tells the truth to this user.  Threads may share one.
class Residency {
 public:
  enum class Sampling : bool { no, yes };

  /// `fd`: a regular file opened for reading, without O_DIRECT; it outlives this.  With sampling, where
  /// nothing else tells, a few single bytes are tried by preadv2(RWF_NOWAIT): that also starts read-ahead
  /// where it finds nothing, so what was asked about tends to be there the next time.
  explicit Residency(int fd, Sampling sampling = Sampling::yes) noexcept;

  /// Of the bytes [offset, offset + bytes) that are inside the file now, the share that is in the page cache,
  /// 0 to 1, in whole pages; none if none is inside, or nothing tells (any more).  cachestat costs well below
  /// 0.1 ms per 4 MiB, mincore (which maps the range for the time of the call) a few times that.  Allocates
  /// nothing.
  std::optional<double> share(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  /// The call that tells: "cachestat", "mincore", "preadv2" (samples), "" if none does.
  const char* how() const noexcept;

 private:
  enum class Way : unsigned char { none, cachestat, mincore, sampling };
  int fd_;
  Way way_ = Way::none;
};

}  // namespace lmdbio
