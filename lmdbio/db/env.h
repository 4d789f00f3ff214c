// An environment as the engine sees it: a window over the file and the table of open databases.
#pragma once

#include <atomic>
#include <bit>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lmdbio/base/log.h"
#include "lmdbio/base/result.h"
#include "lmdbio/base/zeroed_array.h"
#include "lmdbio/cache/file_cache.h"
#include "lmdbio/cache/window.h"
#include "lmdbio/db/compare.h"
#include "lmdbio/format/meta_view.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/io/residency.h"

namespace lmdbio::db {

class PrefetchFile;
class UnmappedFile;

/// Databases that exist without being opened: free and main.
inline constexpr unsigned kCoreDbs = 2;
inline constexpr unsigned kFreeDbi = 0, kMainDbi = 1;
/// Persistent flags of a database record; MDB_VALID marks an exported slot beside them.
inline constexpr unsigned kPersistentFlags = 0x7fff, kSlotValid = 0x8000;

/// A slot of the environment's database table.  Shared by all transactions; changed as stock changes it:
/// by dbi_open, dbi_close, set_compare and set_dupsort, which programs serialize (lmdb.h).
///
/// Zero bytes are an unused slot.
struct Dbx {
  char* name;    ///< owned by the environment; null: not open
  bool ordered;  ///< key_order was set: for the main database that waits for the first dbi_open
  Comparator key_order, dup_order;

  bool named() const noexcept { return name != nullptr; }
};

/// Whether the real library can open a file without dying of its metas: their page size (it divides by it,
/// and takes it for where the second one lies), two whole pages, the newest one's last page (it multiplies
/// and subtracts) and transaction id (it tells which of the two is meant).  Not ok: MDB_INVALID or
/// MDB_CORRUPTED, and the field in `why`. A file that cannot be read, and metas that stock refuses itself,
/// are not judged.
Status prove_metas(const File& file, std::span<char> why) noexcept;

/// What differed between releases of 0.9, where a program can see it.  Default: the newest.  docs/abi.md.
struct Behaviour {
  bool dup_edges_keep_eof = false;  ///< before 0.9.30, MDB_FIRST_DUP and LAST_DUP leave a cursor at its end
  bool no_data_no_dups = false;     ///< before 0.9.27, moves without data leave the duplicates unset
  bool lost_dbi_is_not_found = false;  ///< before 0.9.32, a named database that is gone is MDB_NOTFOUND

  /// Of release 0.9.`patch`.
  static constexpr Behaviour of_release(int patch) noexcept { return {patch < 30, patch < 27, patch < 32}; }
};

/// Both metas, for one caller: those of the mapping, or where there is none a copy of its own.
class MetaCopies {
 public:
  const std::byte* const (&pages() const noexcept)[2] { return pages_; }

 private:
  friend class Env;
  std::unique_ptr<std::byte[]> bytes_;
  const std::byte* pages_[2]{};
};

class Env {
 public:
  struct Options {
    std::size_t page_size;    ///< bytes, a power of two
    std::uint64_t map_bytes;  ///< the map size
    unsigned max_dbs;         ///< named databases at most
    bool no_readahead;
    Behaviour behaviour{};
    std::uint64_t last_pg =
        ~std::uint64_t{0} - 1;      ///< in use; what lies behind it in the file need not be mapped
    const char* name = "database";  ///< of the file, for messages; copied
    FileIdentity id{};              ///< what the descriptor is now; no inode: it is asked
    std::string path{};             ///< absolute; empty: it is asked
  };

  /// Over `fd`, borrowed: it stays open as long as the environment.
  static Result<std::unique_ptr<Env>> open(int fd, const Options& options);
  /// The same for a file that cannot be mapped: its pages are read into memory as they are needed, and stay
  /// there while a transaction runs.
  static Result<std::unique_ptr<Env>> open_unmapped(int fd, const Options& options);
  /// Over the caller's bytes, which outlive the environment.
  static Result<std::unique_ptr<Env>> over(Bytes bytes, const Options& options);

  ~Env();
  Env(const Env&) = delete;
  Env& operator=(const Env&) = delete;

  /// A new map size: retire_window, then remap.  The old window is kept for transactions that run, unless
  /// `idle`: then it and older ones go at once.  Not while another thread begins a transaction (as
  /// mdb_env_set_mapsize).
  void retire_window(bool idle) noexcept;
  /// For transactions that begin later.  Pages up to `last_pg` are in use: see Window::shared.  On failure
  /// there is no window, and no transaction can begin.
  Status remap(std::uint64_t map_bytes, std::uint64_t last_pg = ~std::uint64_t{0} - 1);

  /// Walks may be read ahead of: there is a file, worth it, and the configuration lets us.
  bool reads_ahead() const noexcept { return reads_ahead_; }
  /// Why not; a literal.
  const char* no_read_ahead_reason() const noexcept { return why_reads_ahead_; }
  /// As MDB_NORDAHEAD.
  bool no_readahead() const noexcept { return no_readahead_; }
  /// As Residency::share().  May open the file (read_ahead).
  std::optional<double> cached_share(std::uint64_t offset, std::uint64_t bytes,
                                     const cache::WindowView& view) noexcept;
  /// How long a read of one byte takes, nanoseconds; none: it fails.  May open the file.
  std::optional<std::int64_t> time_read(std::uint64_t offset, const cache::WindowView& view) noexcept;
  /// The cache of chunks under the present window; made at the first call, for a snapshot of `used_pages`.
  /// Null: there can be none.  Any thread.
  std::shared_ptr<cache::FileCache> read_ahead(std::uint64_t used_pages) noexcept;
  /// The one under the window of `view`, of a transaction that runs.
  std::shared_ptr<cache::FileCache> read_ahead(const cache::WindowView& view) noexcept;
  /// Of `file`, the environment's, and of other windows on an unmapped file.
  cache::ReadStats read_stats(const cache::FileCache& file) noexcept;
  cache::AccessCounters access_counters(const cache::FileCache& file) noexcept;
  /// What reading ahead came to; none: nobody has asked for it.
  std::shared_ptr<cache::FileCache> read_ahead_so_far() const noexcept;
  /// How values are read that transactions are told of (txn_prefetch.h); made at the first call.  Null: they
  /// are not. Any thread.
  std::shared_ptr<PrefetchFile> prefetch_file(std::uint64_t used_pages) noexcept;
  /// A transaction of `txnid` begins, of which the database uses `used_pages`, and has read nothing yet.
  /// ENOMEM: it must not.
  Status new_snapshot(std::uint64_t txnid, std::uint64_t used_pages) noexcept;

  /// Null after a remap that failed.
  const cache::Window* window() const noexcept { return window_.get(); }
  /// The first `pages` pages of the window, which was found to be long enough (outgrown()).
  cache::WindowView view(std::uint64_t pages) const noexcept {
    const cache::WindowView seen = window_->view(pages);
    // Another thread was trying whether it can be shorter; grow() waits for that.
    if (seen.pages() >= pages || !window_->grow(pages << page_shift())) [[likely]]
      return seen;
    return window_->view(pages);
  }
  /// Another number for each window of the process, also for one that environments share; never 0.
  std::uint32_t window_number() const noexcept { return window_number_; }
  struct Metas {
    const std::byte* pages[2];
  };
  /// Of the window, as Window::metas(); null where the file cannot be mapped.
  Metas metas() const noexcept {
    const std::byte* const first = window_ != nullptr && !unmapped_ ? window_->metas() : nullptr;
    return {{first, first != nullptr ? first + page_size_ : nullptr}};
  }
  /// Of the file, in the program's table; -1: the caller's bytes.
  int fd() const noexcept { return fd_; }
  /// Where the file can be opened anew, in a table of our own.
  Origin origin() const noexcept { return {fd_, path_.empty() ? nullptr : path_.c_str(), id_}; }
  bool unmapped() const noexcept { return unmapped_; }
  /// The metas as they are now: those of an unmapped file are read.  Any thread.
  Status read_metas(MetaCopies& out) const noexcept;
  /// Null: the file is mapped, or as window().
  UnmappedFile* unmapped_file() const noexcept { return unmapped_file_.get(); }
  std::size_t page_size() const noexcept { return page_size_; }
  unsigned page_shift() const noexcept { return static_cast<unsigned>(std::countr_zero(page_size_)); }
  const Behaviour& behaviour() const noexcept { return behaviour_; }
  /// Slots of the table, kCoreDbs included.
  unsigned max_dbs() const noexcept { return max_dbs_; }

  /// Pages that the file holds, as learnt when `txnid` was first seen: no system call while it is unchanged.
  std::uint64_t file_pages(std::uint64_t txnid) noexcept {
    const std::uint64_t seen = seen_.load(std::memory_order_relaxed);
    if (seen >> kPageBits == (txnid & kTxnidMask)) [[likely]]
      return seen & kPageMask;
    return learn_file_pages(txnid);
  }

  /// Log what is wrong with the page that `at` lies in, with page `p`, with an overflow run: one line for an
  /// environment at warning level, further ones at debug.  Any thread.
  void report_damage(const cache::WindowView& view, const char* what, const std::byte* at) noexcept;
  void report_damage(const cache::WindowView& view, format::Pgno p) noexcept;
  void report_bad_run(const cache::WindowView& view, format::Pgno p, std::uint64_t bytes) noexcept;
  const char* name() const noexcept { return name_.c_str(); }

  /// A snapshot up to page `last_pg` does not fit the window, which cannot grow: a writer has made the map
  /// larger.
  bool outgrown(std::uint64_t last_pg) const noexcept {
    if (fd_ < 0) return false;
    if (last_pg >= window_->capacity() >> page_shift()) return true;
    const std::uint64_t bytes = (last_pg + 1) << page_shift();
    return window_->hold(bytes) < bytes && !window_->grow(bytes);
  }

  Dbx& dbx(unsigned dbi) noexcept { return dbx_[dbi]; }
  /// Flags of an exported slot (kPersistentFlags | kSlotValid), 0 if none.
  std::uint16_t& slot_flags(unsigned dbi) noexcept { return slot_flags_[dbi]; }
  /// One past the highest exported slot.
  unsigned num_dbs() const noexcept { return num_dbs_.load(std::memory_order_relaxed); }
  /// By the one thread that opens databases (lmdb.h), while others begin and end transactions.
  void raise_num_dbs(unsigned n) noexcept {
    if (n > num_dbs()) num_dbs_.store(n, std::memory_order_relaxed);
  }
  /// A slot gets a name, a copy of `name`.  False: out of memory.
  bool name_dbi(unsigned dbi, const char* name) noexcept;
  /// mdb_dbi_close.
  void close_dbi(unsigned dbi) noexcept;

 private:
  Env(int fd, const FileIdentity& id, const Options& options, const ReadDecision& lookups,
      bool unmapped = false);
  const Residency* residency() noexcept;
  std::uint64_t learn_file_pages(std::uint64_t txnid) noexcept;
  std::uint64_t length_without_descriptor(std::uint64_t txnid) noexcept;
  LogLevel damage_level() noexcept;
  void adopt_window(std::shared_ptr<cache::Window> window) noexcept;
  void close_read_ahead() noexcept;

  // One word, so that no thread pairs one id with another's length: the low bits of a transaction id (a
  // reader that sleeps through exactly 2^24 commits keeps its length) and pages.  0: nothing seen.
  static constexpr unsigned kPageBits = 40;
  static constexpr std::uint64_t kPageMask = (std::uint64_t{1} << kPageBits) - 1, kTxnidMask = (1u << 24) - 1;

  const int fd_;  ///< -1: the caller's bytes.  The program's: it may close it, and put another file there
  const FileIdentity id_;   ///< of the file
  const std::string path_;  ///< absolute; empty: not known
  const std::size_t page_size_;
  const unsigned max_dbs_;
  const bool no_readahead_;
  const Behaviour behaviour_;
  const std::string name_;
  std::atomic<bool> reported_{false};
  std::atomic<unsigned> num_dbs_{kCoreDbs};
  unsigned named_end_ = kCoreDbs;  ///< one past the highest slot that ever had a name
  std::uint32_t window_number_ = 0;
  std::atomic<const Residency*> residency_{nullptr};  ///< owned; made when it is first needed
  const bool reads_ahead_, unmapped_;
  const char* const why_reads_ahead_;
  std::shared_ptr<const OpenFile> opened_;  ///< of an unmapped file
  std::shared_ptr<cache::Window> window_;   ///< of an unmapped file: the first one
  std::unique_ptr<UnmappedFile> unmapped_file_;
  std::vector<std::shared_ptr<cache::Window>> old_;
  // Owned; replaced under no lock: by the one thread that changes the map size, or by compare and exchange.
  std::atomic<std::shared_ptr<cache::FileCache>*> read_ahead_{nullptr};
  std::atomic<std::shared_ptr<PrefetchFile>*> prefetch_file_{nullptr};  ///< likewise
  std::atomic<std::uint64_t> newest_{0};                                ///< snapshot
  std::atomic<std::uint64_t> seen_{0};
  ZeroedArray<Dbx> dbx_;
  ZeroedArray<std::uint16_t> slot_flags_;
};

}  // namespace lmdbio::db
