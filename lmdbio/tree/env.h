// The engine's part of an environment: a window over the file, and the table of open databases.
#pragma once

#include <atomic>
#include <bit>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lmdbio/ahead/environment_file.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/result.h"
#include "lmdbio/base/zeroed_array.h"
#include "lmdbio/format/compare.h"
#include "lmdbio/format/meta_view.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/window/window.h"

namespace lmdbio::tree {

class PrefetchFile;

/// Number of databases that exist without being opened: free and main.
inline constexpr unsigned kCoreDbs = 2;
inline constexpr unsigned kFreeDbi = 0, kMainDbi = 1;
/// kPersistentFlags masks the persistent flags of a database record. kSlotValid marks an exported slot in the
/// same word (MDB_VALID in stock).
inline constexpr unsigned kPersistentFlags = 0x7fff, kSlotValid = 0x8000;

/// A slot of the environment's database table.  All transactions share the table.  As in stock, dbi_open,
/// dbi_close, set_compare and set_dupsort change it; programs serialize these calls (lmdb.h).
///
/// An unused slot consists of zero bytes.
struct Dbx {
  char* name;    ///< owned by the environment; null: not open
  bool ordered;  ///< key_order is set; the main database gets its order at the first dbi_open
  format::Comparator key_order, dup_order;

  bool named() const noexcept { return name != nullptr; }
};

/// Checks whether stock LMDB can open the file without crashing on its metas.  It checks the page size,
/// because stock divides by it and uses it to find the second meta.  The file must have at least two whole
/// pages.  In the newest meta it checks the last page, with which stock calculates, and the transaction id,
/// which decides the meta that stock uses.  Returns MDB_INVALID or MDB_CORRUPTED and names the bad field in
/// `why`.  Returns OK for files that cannot be read, and for metas that stock itself rejects.  Sets `version`
/// to that of page 0 (format::is_meta_of).
Status prove_metas(const File& file, std::span<char> why, std::optional<format::Version>& version) noexcept;
inline Status prove_metas(const File& file, std::span<char> why) noexcept {
  std::optional<format::Version> ignored;
  return prove_metas(file, why, ignored);
}

/// Differences between releases of 0.9 that a program can see.  The default is the newest release.  See
/// docs/abi.md.
struct Behaviour {
  bool dup_edges_keep_eof = false;  ///< before 0.9.30: MDB_FIRST_DUP and LAST_DUP leave a cursor at its end
  bool no_data_no_dups = false;     ///< before 0.9.27: moves without data leave the duplicates unset
  bool lost_dbi_is_not_found = false;  ///< before 0.9.32: a named database that is gone gives MDB_NOTFOUND

  /// Returns the behaviour of release 0.9.`patch`.
  static constexpr Behaviour of_release(int patch) noexcept { return {patch < 30, patch < 27, patch < 32}; }
  /// Returns the behaviour of release 1.0.
  static constexpr Behaviour of_1_0() noexcept { return {true, false, false}; }
};

/// The records of both meta pages, for one caller.  They lie in the mapping or, if the file is not mapped, in
/// a copy that this object owns.
class MetaCopies {
 public:
  const std::byte* const (&records() const noexcept)[2] { return records_; }

 private:
  friend class Env;
  std::unique_ptr<std::byte[]> bytes_;
  const std::byte* records_[2]{};
};

class Env {
 public:
  struct Options {
    format::PageFormat pages;
    std::uint64_t map_bytes;  ///< the map size
    unsigned max_dbs;         ///< upper limit on named databases
    bool no_readahead;
    Behaviour behaviour{};
    std::uint64_t last_pg =
        ~std::uint64_t{0} - 1;      ///< last page in use; the file's pages after it need not be mapped
    const char* name = "database";  ///< name of the file in messages; copied
    FileIdentity id{};              ///< of the open file; inode 0: queried from the descriptor
    std::string path{};             ///< absolute; empty: queried from the descriptor
  };

  /// Opens an environment over `fd`, which the caller owns and keeps open as long as the environment.
  static Result<std::unique_ptr<Env>> open(int fd, const Options& options);
  /// Opens an environment over a file that cannot be mapped.  Its pages are read into memory when they are
  /// needed, and stay there while a transaction runs.
  static Result<std::unique_ptr<Env>> open_unmapped(int fd, const Options& options);
  /// Opens an environment over the caller's bytes, which must outlive it.
  static Result<std::unique_ptr<Env>> over(Bytes bytes, const Options& options);

  ~Env();
  Env(const Env&) = delete;
  Env& operator=(const Env&) = delete;

  /// Starts a change of the map size; remap() completes it.  Keeps the old window for running transactions.
  /// If `idle`, no transaction runs, and the old window and earlier ones are released at once.  As with
  /// mdb_env_set_mapsize, no other thread may begin a transaction meanwhile.
  void retire_window(bool idle) noexcept;
  /// Makes the window for transactions that begin later.  Pages up to `last_pg` are in use (see
  /// Window::shared).  After a failure there is no window, and no transaction can begin.
  Status remap(std::uint64_t map_bytes, std::uint64_t last_pg = ~std::uint64_t{0} - 1);

  /// Returns the file as read-ahead sees it.
  ahead::EnvironmentFile& file() noexcept { return file_; }
  const ahead::EnvironmentFile& file() const noexcept { return file_; }
  /// Returns the state of the file for prefetches (txn_prefetch.h).  The first call creates it.  Returns
  /// nullptr if values are not prefetched.  Any thread.
  std::shared_ptr<PrefetchFile> prefetch_file(std::uint64_t used_pages) noexcept;
  /// Called when a transaction of snapshot `txnid` begins, before it reads anything.  The snapshot uses
  /// `used_pages`.  On ENOMEM the transaction must not begin.
  Status new_snapshot(std::uint64_t txnid, std::uint64_t used_pages) noexcept;

  /// Returns nullptr after a failed remap().
  const window::Window* window() const noexcept { return file_.window().get(); }
  /// Returns the first `pages` pages of the window. outgrown() must have found the window long enough.
  window::WindowView view(std::uint64_t pages) const noexcept {
    window::Window& w = *file_.window();
    const window::WindowView seen = w.view(pages);
    // Another thread may be trying to shorten the window.  grow() waits until that has ended.
    if (seen.pages() >= pages || !w.grow(pages << page_shift())) [[likely]]
      return seen;
    return w.view(pages);
  }
  /// Returns the number of the current window.  Each window of an environment has its own number, unique in
  /// the process, even if environments share the window.  Never 0.
  std::uint32_t window_number() const noexcept { return window_number_; }
  struct Metas {
    const std::byte* records[2];
  };
  /// Returns the records of the metas in the window, as Window::metas(); null pointers if the file cannot be
  /// mapped.
  Metas metas() const noexcept {
    const std::byte* const first = window() != nullptr && !unmapped() ? window()->metas() : nullptr;
    return {{first, first != nullptr ? first + pages_.size : nullptr}};
  }
  bool unmapped() const noexcept { return file_.unmapped(); }
  /// Sets `out` to the current metas.  The metas of an unmapped file are read from the file.  Any thread.
  Status read_metas(MetaCopies& out) const noexcept;
  format::PageFormat pages() const noexcept { return pages_; }
  std::size_t page_size() const noexcept { return pages_.size; }
  unsigned page_shift() const noexcept { return static_cast<unsigned>(std::countr_zero(pages_.size)); }
  const Behaviour& behaviour() const noexcept { return behaviour_; }
  /// Returns the number of slots of the table, kCoreDbs included.
  unsigned max_dbs() const noexcept { return max_dbs_; }

  /// Returns the number of pages that the file held when `txnid` was first seen.  Makes no system call while
  /// `txnid` is unchanged.
  std::uint64_t file_pages(std::uint64_t txnid) noexcept {
    const std::uint64_t seen = seen_.load(std::memory_order_relaxed);
    if (seen >> kPageBits == (txnid & kTxnidMask)) [[likely]]
      return seen & kPageMask;
    return learn_file_pages(txnid);
  }

  /// These functions log damage of the page that contains `at`, of page `p`, and of the overflow run at page
  /// `p`.  The first line of an environment has level warning, further ones debug.  Any thread.
  void report_damage(const window::WindowView& view, const char* what, const std::byte* at) noexcept;
  void report_damage(const window::WindowView& view, format::Pgno p) noexcept;
  void report_bad_run(const window::WindowView& view, format::Pgno p, std::uint64_t bytes) noexcept;
  const char* name() const noexcept { return file_.name(); }

  /// Returns whether a snapshot up to page `last_pg` does not fit in the window, because a writer has
  /// enlarged the map.  First grows the window if that is possible.
  bool outgrown(std::uint64_t last_pg) const noexcept {
    if (file_.fd() < 0) return false;
    if (last_pg >= window()->capacity() >> page_shift()) return true;
    const std::uint64_t bytes = (last_pg + 1) << page_shift();
    return window()->hold(bytes) < bytes && !file_.window()->grow(bytes);
  }

  Dbx& dbx(unsigned dbi) noexcept { return dbx_[dbi]; }
  /// Returns the flags of an exported slot (kPersistentFlags | kSlotValid), or 0 if the slot is not exported.
  std::uint16_t& slot_flags(unsigned dbi) noexcept { return slot_flags_[dbi]; }
  /// Returns one past the highest exported slot.
  unsigned num_dbs() const noexcept { return num_dbs_.load(std::memory_order_relaxed); }
  /// Called by the one thread that opens databases (lmdb.h).  Other threads may begin and end transactions
  /// meanwhile.
  void raise_num_dbs(unsigned n) noexcept {
    if (n > num_dbs()) num_dbs_.store(n, std::memory_order_relaxed);
  }
  /// Names a slot with a copy of `name`.  Returns false if memory is short.
  bool name_dbi(unsigned dbi, const char* name) noexcept;
  /// Implements mdb_dbi_close.
  void close_dbi(unsigned dbi) noexcept;

 private:
  Env(int fd, const FileIdentity& id, const Options& options, bool unmapped = false);
  std::uint64_t learn_file_pages(std::uint64_t txnid) noexcept;
  std::uint64_t length_without_descriptor(std::uint64_t txnid) noexcept;
  LogLevel damage_level() noexcept;
  void adopt_window(std::shared_ptr<window::Window> window) noexcept;

  // One word has the low 24 bits of a transaction id and the number of the file's pages.  So no thread pairs
  // the id of one snapshot with the file length of another one.  A reader that sleeps through exactly 2^24
  // commits uses the old length. 0: nothing seen yet.
  static constexpr unsigned kPageBits = 40;
  static constexpr std::uint64_t kPageMask = (std::uint64_t{1} << kPageBits) - 1, kTxnidMask = (1u << 24) - 1;

  ahead::EnvironmentFile file_;
  const format::PageFormat pages_;
  const unsigned max_dbs_;
  const Behaviour behaviour_;
  std::atomic<bool> reported_{false};
  std::atomic<unsigned> num_dbs_{kCoreDbs};
  unsigned named_end_ = kCoreDbs;  ///< one past the highest slot that ever had a name
  std::uint32_t window_number_ = 0;
  std::shared_ptr<const OpenFile> opened_;  ///< unmapped file: open descriptors
  std::vector<std::shared_ptr<window::Window>> old_;
  /// Owned.  Replaced without a lock, by compare-and-exchange.
  std::atomic<std::shared_ptr<PrefetchFile>*> prefetch_file_{nullptr};
  std::atomic<std::uint64_t> seen_{0};
  ZeroedArray<Dbx> dbx_;
  ZeroedArray<std::uint16_t> slot_flags_;
};

}  // namespace lmdbio::tree
