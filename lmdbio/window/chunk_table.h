// Records which chunks of a window are private memory.  The states of a chunk and their legal changes:
//
//              start                finish: published
//   file ------------------> filling ----------------> resident
//    ^                          | finish: stale, failed    |
//    +--------------------------+--------------------------+ reclaim, advance
//
// A chunk's bytes are valid for every snapshot up to the newest one that was known when its read started.
// The reason: no writer overwrites pages of a snapshot that is in use, and a transaction that begins later
// uses the newest snapshot.  Therefore each read carries the generation of the table.  A new snapshot
// raises the generation and gives resident chunks back to the file before any transaction reads that
// snapshot.  finish() discards reads of an older generation.  A test runs all interleavings of this code:
// tests/unit/window_chunk_table_test.cc.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <utility>
#include <vector>

#include "lmdbio/base/mapping.h"
#include "lmdbio/base/result.h"

namespace lmdbio::window {

/// The number of a piece of a window.  Its byte offset is the number times the chunk size.
enum class ChunkIndex : std::uint32_t {};
constexpr std::uint32_t raw(ChunkIndex i) noexcept { return static_cast<std::uint32_t>(i); }

enum class ChunkState : unsigned char { file, filling, resident };

/// Publishes and restores pieces of a window.  Implemented for a Window, and by a model in tests.
template <class T>
concept ChunkPlaces = requires(T places, ChunkIndex i) {
  { places.publish(i) } -> std::same_as<bool>;  ///< false: nothing has changed
  { places.restore(i) } -> std::same_as<bool>;  ///< false: nothing has changed
  { places.restore_all() } -> std::same_as<bool>;
};

/// For chunks that are not published.  All calls fail.
struct NoPlaces {
  bool publish(ChunkIndex) noexcept { return false; }
  bool restore(ChunkIndex) noexcept { return false; }
  bool restore_all() noexcept { return false; }
};

/// The states of all chunks of a window.  Has no lock of its own: only one thread may change it at a time.
class ChunkTable {
 public:
  /// Shows whether the snapshot has changed during a read.  start() returns the generation, and finish()
  /// compares it.
  enum class Generation : std::uint64_t {};

  /// Makes a table of `chunks` chunks, at least 1, all in state `file`.  Reserves addresses, which get memory
  /// as chunks are used.  Errors: as Mapping::zeroed().
  static Result<ChunkTable> make(std::uint32_t chunks) noexcept {
    Result<Mapping> states = Mapping::zeroed(chunks);
    if (!states) return states.error();
    ChunkTable t;
    t.states_ = std::move(states).value();
    t.chunks_ = chunks;
    return t;
  }

  std::uint32_t chunks() const noexcept { return chunks_; }
  /// Returns the state that the chunk had a moment ago.  Any thread, without the lock.  A chunk beyond the
  /// last one is in state `file`.
  ChunkState state(ChunkIndex i) const noexcept {
    if (raw(i) >= chunks_) [[unlikely]]
      return ChunkState::file;
    return static_cast<ChunkState>(std::atomic_ref(states_.data()[raw(i)]).load(std::memory_order_relaxed));
  }
  /// Resident chunks in the order in which they were published.
  const std::vector<ChunkIndex>& residents() const noexcept { return residents_; }
  Generation generation() const noexcept { return generation_; }
  std::uint64_t newest_snapshot() const noexcept { return newest_; }

  /// Begins a read of a chunk in state `file`.  May throw bad_alloc: nothing has changed then.
  Generation start(ChunkIndex i) {
    residents_.reserve(residents_.size() + filling_ + 1);
    ++filling_;
    set(i, ChunkState::filling);
    return generation_;
  }
  /// Ends a read.  Returns true if the chunk is resident now.  `good`: all bytes were read.
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
  /// Gives a resident chunk back to the file.  Returns false if there is no memory for that; the chunk stays
  /// then.
  template <ChunkPlaces Places>
  bool reclaim(ChunkIndex i, Places&& places) noexcept {
    if (!places.restore(i)) return false;
    set(i, ChunkState::file);
    std::erase(residents_, i);
    return true;
  }
  /// Called when a transaction of `snapshot` begins, before it reads anything.  If the snapshot is new, calls
  /// drop_all().  On ENOMEM the transaction must not begin.
  template <ChunkPlaces Places>
  Status advance(std::uint64_t snapshot, Places&& places) noexcept {
    if (snapshot <= newest_) return {};
    if (const Status st = drop_all(places); !st.ok()) return st;
    newest_ = snapshot;
    return {};
  }
  /// Gives all resident chunks back to the file.  Chunks that are being read will not be published.  On
  /// ENOMEM the resident chunks stay.
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
  /// In a forked child: puts chunks that the parent was reading back into state `file`.
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

}  // namespace lmdbio::window
