// System V shared memory, which the processes of one user on a node share.
//
// A file in /dev/shm is not suitable: if a process truncates a mapped file, or /dev/shm is full, each access
// to the mapping raises SIGBUS.  A segment never changes its size, and needs neither a descriptor nor
// /dev/shm (docs/decisions/0013).
#pragma once

#include <sys/ipc.h>
#include <sys/shm.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lmdbio/base/result.h"

namespace lmdbio::node {

/// An attached segment, for reading and writing unless stated otherwise.  Forked children do not inherit it.
/// No fork may happen while a segment is being attached, so hold the lock that the fork handler takes
/// (node/table.h).
class Segment {
 public:
  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  /// Attaches the segment with that key.  Errors: ENOENT if there is none; EACCES if another user made it, or
  /// if other users may open it.
  static Result<Segment> open(key_t key) noexcept;
  /// Attaches the segment with that number, for reading only.  Errors: as open(), and EINVAL or EIDRM if it
  /// does not exist any more.
  static Result<Segment> open_read_only(int id) noexcept;
  /// Attaches the segment with that number, for reading and writing.  Errors as open_read_only().
  static Result<Segment> open_number(int id) noexcept;
  /// Makes and attaches a new segment of zeros.  Errors: EEXIST if the key is in use; others as shmget(2).
  static Result<Segment> make(key_t key, std::size_t bytes) noexcept;
  /// Makes a segment that other processes cannot find by a key.  The kernel frees it when no process has it
  /// attached any more.
  static Result<Segment> make_unnamed(std::size_t bytes) noexcept;

  std::byte* data() const noexcept { return data_; }
  /// Returns the size that the segment was made with, in bytes.
  std::size_t size() const noexcept { return size_; }
  int id() const noexcept { return id_; }
  /// Returns when the segment was made, in seconds since 1970.
  std::int64_t made_at() const noexcept { return made_at_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

  /// Returns how often it is attached, in all processes; 0 if that is not known.
  std::uint64_t attachments() const noexcept;
  /// True if only this process has it attached, and only once.
  bool is_alone() const noexcept { return attachments() == 1; }
  /// Removes its key.  The kernel frees the segment when no process has it attached any more.
  void remove() noexcept;
  /// True if it was removed.
  bool is_removed() const noexcept;
  /// Forgets the segment in a forked child, in which it is not attached.
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

/// True if the segment with that number, made by this user at that time, is attached somewhere.
bool is_attached(int id, std::int64_t made_at) noexcept;

/// A segment of this user, attached or not.
struct SegmentFacts {
  int id;
  key_t key;
  std::size_t bytes;
  std::uint64_t attached;  ///< number of attachments now
  bool was_attached;       ///< was attached at some time
  std::int64_t made_at;    ///< seconds since 1970
  std::int64_t left_at;    ///< when it was detached last, seconds since 1970; 0 if never
  pid_t maker;             ///< the process that made it; 0 if that is not in this PID namespace
};
/// Lists all segments of this user.  May throw bad_alloc.
std::vector<SegmentFacts> own_segments();

}  // namespace lmdbio::node
