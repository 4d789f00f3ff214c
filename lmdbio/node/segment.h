// System V shared memory: what the processes of one user on a node share.
//
// Not a file in /dev/shm: whoever truncates a file that is mapped makes each access to it a SIGBUS, and a
// full /dev/shm does the same.  A segment has its size for good, and needs neither a descriptor nor /dev/shm
// (docs/decisions/0013).
#pragma once

#include <sys/ipc.h>
#include <sys/shm.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lmdbio/base/result.h"

namespace lmdbio::node {

/// One that is attached, for reading and writing unless it says otherwise.  Not inherited by forks: attach
/// with no fork going on, which is to say with the lock held that the fork handler takes (node/table.h).
class Segment {
 public:
  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  /// The segment with that key.  ENOENT: there is none.  EACCES: it was made by another user, or others than
  /// this user may open it.
  static Result<Segment> open(key_t key) noexcept;
  /// The segment with that number, for reading alone.  Errors as open(); EINVAL, EIDRM: there is none any
  /// more.
  static Result<Segment> open_read_only(int id) noexcept;
  /// The same for reading and writing.
  static Result<Segment> open_number(int id) noexcept;
  /// A new one, of zeros.  EEXIST: there is one.  Others: as shmget(2).
  static Result<Segment> make(key_t key, std::size_t bytes) noexcept;
  /// One that nobody else can find by a key, and that goes with the last process that has it attached.
  static Result<Segment> make_unnamed(std::size_t bytes) noexcept;

  std::byte* data() const noexcept { return data_; }
  /// Bytes, as it was made.
  std::size_t size() const noexcept { return size_; }
  int id() const noexcept { return id_; }
  /// When it was made, seconds since 1970.
  std::int64_t made_at() const noexcept { return made_at_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

  /// No process has it attached but this one, which has it once.
  bool is_alone() const noexcept;
  /// It has no key any more, and goes with the last process that has it attached.
  void remove() noexcept;
  /// It was removed.
  bool is_removed() const noexcept;
  /// In a forked child, where it is not attached.
  void forget() noexcept { data_ = nullptr; }

 private:
  Segment(std::byte* data, int id, const shmid_ds& facts) noexcept;
  static Result<Segment> attach(int id, int flags) noexcept;
  bool look_up(shmid_ds& facts) const noexcept;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int id_ = -1;
  std::int64_t made_at_ = 0;
};

/// The segment with that number, made then, is attached somewhere.
bool is_attached(int id, std::int64_t made_at) noexcept;

/// A segment of this user, attached or not.
struct SegmentFacts {
  int id;
  key_t key;
  std::size_t bytes;
  std::uint64_t attached;  ///< times, now
  bool was_attached;       ///< ever
  std::int64_t made_at;    ///< seconds since 1970
  std::int64_t left_at;    ///< likewise, when it was detached last; 0: never
};
/// All of this user's.  May throw bad_alloc.
std::vector<SegmentFacts> own_segments();

}  // namespace lmdbio::node
