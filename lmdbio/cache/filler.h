// The thread that writes to an image what was offered.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/futex.h"

namespace lmdbio::cache {

/// Returns how long a thread should pause, in ns, after it ran for `ran_ns`, and waited for a processor
/// `waits` times, for `waited_ns` in all.  Waits of more than 1 ms on average mean that others use all
/// processors: then the thread uses at most a 20th of one.
constexpr std::int64_t pause_after(std::int64_t ran_ns, std::int64_t waited_ns, std::int64_t waits) noexcept {
  constexpr std::int64_t kPart = 20, kLongest = 1'000'000'000, kShort = 1'000'000;
  return waited_ns > waits * kShort ? std::min(ran_ns, kLongest / kPart) * kPart : 0;
}

/// Writes pieces of a file in a thread of the private table: bytes in memory, or bytes that the page cache
/// has.  Any thread may add pieces; a forked child must not use its parent's filler.
///
/// The thread pauses while all processors are busy.  It has the priority of other threads: a thread of low
/// priority would delay the end of the process by seconds, and all threads that wait for a lock that it
/// holds. It keeps the owner of the file alive during a piece, and ends when the owner is gone.
class Filler {
 public:
  /// Upper limit on the bytes that wait to be written: a half of the 8 MiB that the cache may take in all.
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20;
  /// Upper limits on the pieces, and on the bytes of pieces in the page cache, that wait to be written.
  static constexpr std::size_t kMostPieces = std::size_t{1} << 15, kMostCached = std::size_t{64} << 20;
  /// Pieces in the page cache that follow each other are joined up to this size, in bytes.
  static constexpr std::size_t kMostJoined = std::size_t{1} << 20;
  /// Writes one piece.
  using Write = void (*)(void* context, std::uint64_t offset, Bytes bytes) noexcept;
  /// Writes a piece that the page cache has.
  using Copy = void (*)(void* context, std::uint64_t offset, std::size_t bytes) noexcept;
  /// Called when there is nothing to write.  Returns after how many ns to call it again, if nothing comes.
  using Idle = std::int64_t (*)(void* context) noexcept;
  /// Does one piece of longer work on what was written, and calls interrupted() meanwhile.  Returns false if
  /// there is none, or if it was interrupted.
  using Work = bool (*)(void* context) noexcept;

  /// Starts the thread.  `owner` owns `context`.  Returns nullptr if there is no thread or no memory.
  static std::shared_ptr<Filler> start(Write write, Copy copy, Idle idle, Work work, void* context,
                                       std::weak_ptr<const void> owner) noexcept;
  /// Ends the thread after the current piece.
  void end() noexcept {
    ending_ = true;
    wake_.notify();
    hurry_.notify();
  }

  /// Returns memory for a piece, or nullptr if too much is waiting.
  std::unique_ptr<std::byte[]> take(std::size_t bytes) noexcept;
  /// Adds a piece in memory from take().
  void add(std::uint64_t offset, std::unique_ptr<std::byte[]> memory, std::size_t bytes) noexcept;
  /// Adds a piece that the page cache has.  Returns false if too much is waiting.
  bool add_cached(std::uint64_t offset, std::size_t bytes) noexcept;
  /// Makes the thread call Work until there is none: before it writes further pieces, unless many wait, or a
  /// thread waits for them.
  void ask() noexcept {
    asked_ = true;
    wake_.notify_one();
  }
  /// Writes pieces if many wait.  Returns whether the work should end soon, and go on later.  Only for Work.
  bool interrupted() noexcept;
  /// Gives memory from take() back.
  void give_back(std::size_t bytes) noexcept { wrote(waiting_, bytes); }
  enum class Idleness : unsigned char { unimportant, awaited };
  /// Waits until everything is written and no Work is in progress, or until this time (CLOCK_MONOTONIC).
  /// `awaited`: also until Idle has found nothing to do.
  void flush_until(std::int64_t end_ns, Idleness idleness = Idleness::unimportant) noexcept;
  /// Keeps the owner of the file alive until everything is written that was offered before.
  void keep(std::shared_ptr<const void> owner) noexcept;
  /// Ends Work for good, and waits until none is in progress, or until this time.
  void stop_work(std::int64_t end_ns) noexcept;

 private:
  struct Piece {
    std::uint64_t offset;
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes;
    bool is_cached() const noexcept { return memory == nullptr; }
  };
  Filler(Write write, Copy copy, Idle idle, Work work, void* context,
         std::weak_ptr<const void> owner) noexcept
      : write_(write), copy_(copy), idle_(idle), work_(work), context_(context), owner_(std::move(owner)) {}
  static void* run(void* self) noexcept;
  void serve() noexcept;
  void pause(std::int64_t ns) noexcept;
  void store(Piece piece) noexcept;
  bool is_behind() const noexcept { return waiting_ > kMostBytes / 4 || cached_ > kMostCached / 4; }
  bool store_next() noexcept;
  bool work_more() noexcept;
  bool push(Piece piece) noexcept;
  void wrote(std::atomic<std::size_t>& waiting, std::size_t bytes) noexcept {
    if (waiting.fetch_sub(bytes) == bytes) done_.notify();
  }

  const Write write_;
  const Copy copy_;
  const Idle idle_;
  const Work work_;
  void* const context_;
  const std::weak_ptr<const void> owner_;
  EventCount wake_, done_, hurry_;
  std::atomic<std::size_t> waiting_{0};  ///< bytes of memory that was taken and not given back yet
  std::atomic<std::size_t> cached_{0};   ///< bytes of other pieces that are not written yet
  std::atomic<bool> ending_{false};
  std::atomic<bool> asked_{false};    ///< there may be Work
  std::atomic<bool> working_{false};  ///< Work is in progress
  bool is_paced_ = false;             ///< the thread pauses, because others use the processors
  /// Calls of flush_until() that wait for idleness, and the last of them after which Idle found nothing to
  /// do.
  std::atomic<unsigned> awaited_{0}, idle_seen_{0};
  std::atomic<unsigned> flushing_{0};  ///< threads in flush_until(), and calls of stop_work()
  std::mutex mutex_;
  std::deque<Piece> pieces_;          ///< guarded by mutex_
  std::shared_ptr<const void> kept_;  ///< guarded by mutex_; see keep()
};

}  // namespace lmdbio::cache
