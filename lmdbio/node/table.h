// The node table: what processes of one user that read the same file tell each other.
//
// The table is advice.  If it is lost, stale, full or overwritten, processes read chunks twice, or wait in
// vain for a while.  No answer depends on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "lmdbio/node/layout.h"
#include "lmdbio/node/segment.h"

namespace lmdbio::node {

/// The membership of this process in the table of one file.  Any thread.
class Table {
 public:
  /// Removes tables and chunk files that killed processes of this user have left.  Only the first call does
  /// this.  It takes two or three microseconds if there is no shared memory.
  static void remove_dead() noexcept;
  /// Joins the table of `file`.  If there is none, removes dead tables and makes it.  `window_bytes`: size
  /// that the file may grow to.  nullptr: the file cannot be shared here, for the reason in `why`.  Blocks
  /// only for system calls on shared memory.  Call with the registry locked.
  static std::shared_ptr<Table> join(const TableIdentity& file, std::uint64_t window_bytes,
                                     Status& why) noexcept;
  /// Leaves the table; the last process removes it.  If this process keeps chunk files, by its last
  /// note_memory(), and walks of other processes go on, those find the files for one second, and remove them
  /// then.
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  /// True in a forked child, which has this object from its parent.  Only this function and the destructor
  /// are allowed there.
  bool is_inherited() const noexcept { return inherited_.load(std::memory_order_relaxed); }

  /// Claims a chunk.  True: this process must read the chunk, and `out` is for release(); also for a chunk
  /// without a word.  False: another process is reading it.
  bool claim(std::uint32_t chunk, std::uint32_t tag, ClaimValue& out) noexcept;
  /// Ends a claim.  `good`: the chunk was read.  `took_ns`: time since the claim.
  void release(std::uint32_t chunk, ClaimValue mine, bool good, std::int64_t took_ns) noexcept;
  /// Ends a claim instead of release(): nothing was read, and any process may claim the chunk.
  void unclaim(std::uint32_t chunk, ClaimValue mine) noexcept;
  /// Ends a claim instead of release(): the chunk was there already.
  void found(std::uint32_t chunk, ClaimValue mine) noexcept;
  /// As claim(), for a chunk that is read into a chunk file.  Look::filled: claimer_life() tells which
  /// process keeps it.  A chunk without a word gives Look::mine, and has_word() tells this.
  Look claim_file(std::uint32_t chunk, std::uint32_t tag, ClaimValue& out) noexcept;
  /// Claims a filled chunk that is no longer kept by the process that filled it.  True: this process must
  /// read it now.
  bool claim_gone(std::uint32_t chunk, ClaimValue& filled) noexcept;
  bool has_word(std::uint32_t chunk) const noexcept { return chunk < chunks_; }
  /// Returns the Row::life of the process that made that claim; 0: it has left.
  std::uint64_t claimer_life(ClaimValue value) const noexcept;
  /// Returns the Row::life of this process.
  std::uint64_t life() const noexcept { return life_; }
  /// Notes how much memory this process may use, in bytes, and how many chunk files it keeps or reads into.
  void note_memory(std::uint64_t limit, std::uint32_t files) noexcept;

  /// Facts about the other processes that have the file open.  They wrote these themselves, so they may be
  /// anything.
  struct Others {
    unsigned processes = 0;
    std::uint64_t files = 0;                       ///< chunk files that they keep or have left behind
    std::uint64_t least_limit = ~std::uint64_t{};  ///< smallest limit of their memory, in bytes
    /// Chunks that their walks are about to reach; none if `last` is less than `first`.
    std::uint32_t first = 1, last = 0;
  };
  /// Returns facts about the other processes.  A killed process counts for up to 0.1 s; then its chunk files
  /// are removed.  Files that were left behind are removed after kLeftBehind, with `short_of_memory` at
  /// once.
  Others others(bool short_of_memory) noexcept;

  /// Waits for the process that has claimed the chunk.  The claim becomes void if that process makes no
  /// progress for four times as long as the faster of the two processes needs for a chunk (50 ms to 2 s), or
  /// if the chunk takes four times that in all.  Signals are allowed meanwhile, and a handler may fork:
  /// is_inherited() tells.
  Ended wait(std::uint32_t chunk, std::uint32_t tag) noexcept;

  /// Notes that a walk of this process is in that chunk, and that its program uses `share`/1000 of what it
  /// reaches.
  void note_walk(std::uint32_t chunk, std::uint32_t share, bool backward = false) noexcept;
  /// Returns the sum, in 1/1000, of the shares that walks of other processes near that chunk use.  May be
  /// more than 1000, since several walks may use the same bytes.
  std::uint32_t use_of_others(std::uint32_t chunk) const noexcept;

  /// Lock and unlock the registry, also around a fork.  No table is joined while it is locked.
  static void lock_registry() noexcept;
  static void unlock_registry() noexcept;
  /// For a forked child, with the registry locked: all tables belong to the parent.
  static void forget_all() noexcept;
  /// Leaves all tables at the end of a process that has not closed its files, since no later call would
  /// remove them.
  static void leave_all() noexcept;
  /// True if processes that have left tables left chunk files that no process reaches any more.  Any thread.
  static bool has_nobodys_files() noexcept;
  /// Removes those chunk files.  For threads whose descriptors no program closes.
  static void remove_nobodys_files() noexcept;

 private:
  struct Registry;
  Table(Segment segment, const TableIdentity& file, std::uint64_t life) noexcept;
  bool take_row() noexcept;
  bool leave() noexcept;
  Header& header() const noexcept { return *reinterpret_cast<Header*>(segment_.data()); }
  Row& row(unsigned at) const noexcept { return reinterpret_cast<Row*>(segment_.data() + kRowsAt)[at]; }
  Row& row() const noexcept { return row(row_); }
  std::uint64_t* word(std::uint32_t chunk) const noexcept {
    return reinterpret_cast<std::uint64_t*>(segment_.data() + kClaimsAt) + chunk;
  }
  bool is_going(Claimer claimer) const noexcept;
  void look_for_dead(bool short_of_memory) noexcept;
  static void count(std::atomic<std::uint64_t>& n) noexcept { n.fetch_add(1, std::memory_order_relaxed); }

  Segment segment_;
  const TableIdentity file_;
  const std::uint64_t chunks_;  ///< number of words
  const std::uint64_t life_;
  unsigned row_ = 0;
  bool has_row_ = false, joined_ = false;
  Claimer me_{};
  std::atomic<bool> inherited_{false};
  std::atomic<std::int64_t> looked_ns_{0};  ///< when dead processes were looked for
  /// For a row: its progress when this process waited for it in vain (0: never), and until when it does not
  /// wait for it again.
  struct Stalled {
    std::atomic<std::uint64_t> progress{0};
    std::atomic<std::int64_t> until_ns{0};
  };
  Stalled stalled_[kRows];
};

}  // namespace lmdbio::node
