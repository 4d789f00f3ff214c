// The interface through which strategies read the data file.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace lmdbio::bench {

/// Bytes [offset, offset + bytes) of a file.
struct Span {
  std::uint64_t offset = 0, bytes = 0;
  std::uint64_t end() const noexcept { return offset + bytes; }
};

/// A value, as bytes of the file.
struct Place {
  std::uint64_t offset = 0, bytes = 0;
};

/// Counters of direct requests.
struct IoCounters {
  std::uint64_t requests = 0, bytes = 0;
  unsigned most_in_flight = 0;
  /// Numbers of requests of up to 4 KiB, 64 KiB, 256 KiB and 1 MiB, and of larger ones.
  std::array<std::uint64_t, 5> by_size{};

  void count(std::uint64_t request_bytes, std::size_t in_flight) noexcept {
    constexpr std::uint64_t kClasses[] = {4096, 65536, 262144, 1048576};
    ++requests;
    bytes += request_bytes;
    const auto at = std::lower_bound(std::begin(kClasses), std::end(kClasses), request_bytes);
    ++by_size[static_cast<std::size_t>(at - std::begin(kClasses))];
    most_in_flight = std::max(most_in_flight, static_cast<unsigned>(in_flight));
  }
};

/// One thread.
class Storage {
 public:
  /// Offsets, sizes and addresses of direct reads must be multiples of this.
  static constexpr std::size_t kAlignment = 4096;

  virtual ~Storage() = default;
  virtual std::uint64_t bytes() const = 0;
  /// Copies a value from a mapping of the file, by page faults.
  virtual void copy_mapped(Place value, std::byte* to) = 0;
  /// Starts one direct request.  Both ends of `span` must be aligned.  The request ends at the end of the
  /// file.
  virtual void start(Span span, std::byte* to) = 0;
  /// Waits until all started requests are done.  Ends the program if a read fails.
  virtual void wait() = 0;
  virtual IoCounters counters() const = 0;
};

}  // namespace lmdbio::bench
