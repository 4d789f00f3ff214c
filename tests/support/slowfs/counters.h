// What a slow file system was asked and did.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>

namespace lmdbio::slowfs {

// FUSE requests by kind.  The control files' own are not counted.
#define LMDBIO_SLOWFS_OPS(X)                                                                           \
  X(lookup)                                                                                            \
  X(getattr)                                                                                           \
  X(setattr)                                                                                           \
  X(readlink)                                                                                          \
  X(mkdir) X(mknod) X(unlink) X(rmdir) X(symlink) X(rename) X(link) X(open) X(create) X(read) X(write) \
      X(flush) X(release) X(fsync) X(fallocate) X(lseek) X(opendir) X(readdir) X(releasedir) X(statfs) \
          X(getlk) X(setlk)
// Things done on purpose.
#define LMDBIO_SLOWFS_FAULTS(X) \
  X(read_error)                 \
  X(read_short)                 \
  X(read_hang)                  \
  X(direct_io_open) X(direct_refused) X(create_refused) X(write_open_refused) X(lock_refused) X(lock_hang)

enum class Op : unsigned {
#define LMDBIO_X(name) k_##name,
  LMDBIO_SLOWFS_OPS(LMDBIO_X)
#undef LMDBIO_X
      kCount
};
enum class Fault : unsigned {
#define LMDBIO_X(name) k_##name,
  LMDBIO_SLOWFS_FAULTS(LMDBIO_X)
#undef LMDBIO_X
      kCount
};

/// Any thread.  A reset beside counting threads may keep or lose what they count meanwhile.
class Counters {
 public:
  using Number = std::atomic<std::uint64_t>;

  void count(Op op) noexcept { ++ops_[static_cast<unsigned>(op)]; }
  void count(Fault fault) noexcept { ++faults_[static_cast<unsigned>(fault)]; }
  /// A read request of `bytes` that begins; read_ended() when it is answered.
  void read_begins(std::uint64_t bytes, bool direct) noexcept;
  void read_ended(std::uint64_t bytes) noexcept;
  /// A lookup, until it is answered.
  void lookup_begins() noexcept { raise(lookups_in_flight_, lookups_in_flight_max_); }
  void lookup_ended() noexcept { --lookups_in_flight_; }
  /// The number of a read request that faults are for: 1 for the first since the last reset.
  std::uint64_t number_read() noexcept { return ++numbered_; }

  void reset() noexcept;
  nlohmann::json json() const;

  Number written_bytes{0};
  Number locks_granted{0}, locks_conflicts{0}, locks_waited{0}, unlocks{0};

 private:
  static void raise(Number& in_flight, Number& most) noexcept;
  template <class E>
  using Table = std::array<Number, static_cast<unsigned>(E::kCount)>;
  Table<Op> ops_{};
  Table<Fault> faults_{};
  std::array<Number, 65> read_sizes_{};  // [i]: of more than 2^(i-1) and at most 2^i bytes
  Number read_bytes_{0}, direct_reads_{0}, numbered_{0}, in_flight_{0}, in_flight_max_{0};
  Number lookups_in_flight_{0}, lookups_in_flight_max_{0};
};

}  // namespace lmdbio::slowfs
