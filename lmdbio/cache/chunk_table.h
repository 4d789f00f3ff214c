// Which pieces of a window hold private memory: the states of chunks and their legal changes, nothing else.
//
//              start                finish: published
//   file ------------------> filling ----------------> resident
//    ^                          | finish: stale, failed    |
//    +--------------------------+--------------------------+ reclaim, advance
//
// A chunk's bytes are good for every snapshot up to the newest one known when its fill started: pages of a
// snapshot that somebody holds are not written, and who begins later holds the newest.  So a fill carries the
// generation of the table, a new snapshot raises it, sends what is resident back to the file before it is
// read, and finish() drops what was started before.  Proved by running all interleavings of this code:
// tests/unit/cache_chunk_table_test.cc.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <utility>
#include <vector>

#include "lmdbio/base/mapping.h"
#include "lmdbio/base/result.h"

namespace lmdbio::cache {

/// A piece of a window; its byte offset is index x chunk size.
enum class ChunkIndex : std::uint32_t {};
constexpr std::uint32_t raw(ChunkIndex i) noexcept { return static_cast<std::uint32_t>(i); }

enum class ChunkState : unsigned char { file, filling, resident };

/// How pieces change places: a Window, or a test's model of one.
template <class T>
concept ChunkPlaces = requires(T places, ChunkIndex i) {
  { places.publish(i) } -> std::same_as<bool>;  ///< false: nothing has changed
  { places.restore(i) } -> std::same_as<bool>;  ///< likewise
  { places.restore_all() } -> std::same_as<bool>;
};

/// Of chunks that are not published.
struct NoPlaces {
  bool publish(ChunkIndex) noexcept { return false; }
  bool restore(ChunkIndex) noexcept { return false; }
  bool restore_all() noexcept { return false; }
};

/// No lock of its own: calls of all threads come one after the other.
class ChunkTable {
 public:
  /// Told by start(), asked for by finish().
  enum class Generation : std::uint64_t {};

  /// States of `chunks` chunks, 1 or more: addresses that get memory as chunks are used.
  static Result<ChunkTable> make(std::uint32_t chunks) noexcept {
    Result<Mapping> states = Mapping::zeroed(chunks);
    if (!states) return states.error();
    ChunkTable t;
    t.states_ = std::move(states).value();
    t.chunks_ = chunks;
    return t;
  }

  std::uint32_t chunks() const noexcept { return chunks_; }
  /// Any thread, without the lock: as it was at some time just now.  There is none beyond the last: the
  /// file's.
  ChunkState state(ChunkIndex i) const noexcept {
    if (raw(i) >= chunks_) [[unlikely]]
      return ChunkState::file;
    return static_cast<ChunkState>(std::atomic_ref(states_.data()[raw(i)]).load(std::memory_order_relaxed));
  }
  /// In the order in which they were published.
  const std::vector<ChunkIndex>& residents() const noexcept { return residents_; }
  Generation generation() const noexcept { return generation_; }
  std::uint64_t newest_snapshot() const noexcept { return newest_; }

  /// A read of the chunk begins: from state file.  May throw bad_alloc, nothing changed.
  Generation start(ChunkIndex i) {
    residents_.reserve(residents_.size() + filling_ + 1);
    ++filling_;
    set(i, ChunkState::filling);
    return generation_;
  }
  /// It has ended.  True: the chunk is resident.  `good`: all bytes were read.
  template <ChunkPlaces Places>
  bool finish(ChunkIndex i, Generation started, bool good, Places&& places) noexcept {
    --filling_;
    if (!good || started != generation_ || !places.publish(i)) {
      set(i, ChunkState::file);
      return false;
    }
    set(i, ChunkState::resident);
    residents_.push_back(i);
    return true;
  }
  /// A resident chunk goes back to the file.  False: no memory for that, it stays.
  template <ChunkPlaces Places>
  bool reclaim(ChunkIndex i, Places&& places) noexcept {
    if (!places.restore(i)) return false;
    set(i, ChunkState::file);
    std::erase(residents_, i);
    return true;
  }
  /// A transaction of `snapshot` begins; it has read nothing yet.  ENOMEM: it must not.
  template <ChunkPlaces Places>
  Status advance(std::uint64_t snapshot, Places&& places) noexcept {
    if (snapshot <= newest_) return {};
    if (const Status st = drop_all(places); !st.ok()) return st;
    newest_ = snapshot;
    return {};
  }
  /// All that is resident goes back to the file, and what is being read is not published.
  template <ChunkPlaces Places>
  Status drop_all(Places&& places) noexcept {
    generation_ = Generation{static_cast<std::uint64_t>(generation_) + 1};
    for (const ChunkIndex i : residents_) {
      if (!places.restore(i)) {
        if (!places.restore_all()) return Status::from_errno(ENOMEM);
        break;
      }
    }
    for (const ChunkIndex i : residents_) set(i, ChunkState::file);
    residents_.clear();
    return {};
  }
  /// In a forked child: the parent's reads are not its own.
  void forget_fills() noexcept {
    generation_ = Generation{static_cast<std::uint64_t>(generation_) + 1};
    for (std::uint32_t i = 0; filling_ > 0 && i < chunks_; ++i) {
      if (state(ChunkIndex{i}) != ChunkState::filling) continue;
      set(ChunkIndex{i}, ChunkState::file);
      --filling_;
    }
  }

 private:
  ChunkTable() = default;
  void set(ChunkIndex i, ChunkState s) noexcept {
    std::atomic_ref(states_.data()[raw(i)]).store(static_cast<std::byte>(s), std::memory_order_relaxed);
  }

  Mapping states_;
  std::uint32_t chunks_ = 0;
  std::vector<ChunkIndex> residents_;
  std::size_t filling_ = 0;
  Generation generation_{};
  std::uint64_t newest_ = 0;
};

}  // namespace lmdbio::cache
