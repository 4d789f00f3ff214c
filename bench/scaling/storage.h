// The file as strategies read it, and the clock: what a simulator takes the place of.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace lmdbio::bench {

/// Bytes [offset, offset + bytes) of a file.
struct Span {
  std::uint64_t offset = 0, bytes = 0;
  std::uint64_t end() const noexcept { return offset + bytes; }
};

/// What direct requests came to.
struct IoCounters {
  std::uint64_t requests = 0, bytes = 0;
  unsigned most_in_flight = 0;
  /// Requests of up to 4 KiB, 64 KiB, 256 KiB, 1 MiB, more.
  std::array<std::uint64_t, 5> by_size{};
};

/// One thread.
class Storage {
 public:
  /// Of a direct read: offsets, sizes and memory are multiples of it.
  static constexpr std::size_t kAlignment = 4096;

  virtual ~Storage() = default;
  virtual std::uint64_t bytes() const = 0;
  /// The file's first byte in a mapping; reading from it takes page faults.
  virtual const std::byte* mapped() = 0;
  /// Starts one request, aligned at both ends, cut to the end of the file.
  virtual void start(Span span, std::byte* to) = 0;
  /// Until all that was started is there.  Ends the program if a read fails.
  virtual void wait() = 0;
  virtual IoCounters counters() const = 0;
};

/// What a strategy needs of the machine.
class World {
 public:
  virtual ~World() = default;
  virtual std::unique_ptr<Storage> open(const std::string& file) = 0;
  virtual double seconds() const = 0;
  virtual void sleep(double seconds) = 0;
};

/// This machine.  Reads are in flight together by io_uring if it is there, else one after the other: there
/// are no threads.
std::unique_ptr<World> real_world();

}  // namespace lmdbio::bench
