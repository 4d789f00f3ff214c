// One snapshot of a database, for several threads.
#pragma once

#include <lmdb.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lmdbio/files/database.h"

namespace lmdbio::fuse {

/// A transaction with a cursor, for one thread at a time.
class View {
 public:
  View(const files::Database& database, MDB_txn* txn);
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() { close(); }

  /// Functions return 0, MDB_NOTFOUND, or another error.  After an error of LMDB (below 0), the view is not
  /// usable until repair(); after a failed read (errno), it is.
  /// Goes to the first record whose key is not less than `key`; to the first one if `key` is empty.
  int seek(std::string_view key) noexcept;
  /// Goes to the first record after `key`, all values of which are left out.
  int seek_after(std::string_view key) noexcept;
  int next() noexcept;
  std::string_view key() const noexcept { return files::bytes_of(key_); }  ///< at the position
  /// Finds the first value of a key, without reading it, and without a change of the position.
  int find(std::string_view key, std::string_view& value) noexcept;
  /// Sets `value` to the value of a key, and reads it, ahead of further calls if their keys are in order.  It
  /// is valid until the view is destroyed.
  int get(std::string_view key, std::string_view& value) noexcept;
  bool is_usable() const noexcept { return usable_; }
  /// Makes a view usable that met a damaged page.  Returns false if that is impossible.
  bool repair() noexcept;

 private:
  int open_cursors() noexcept;
  void close_cursors() noexcept;
  void close() noexcept;
  int told(int rc) noexcept;
  int move(MDB_cursor_op op) noexcept;

  const files::Database& database_;
  MDB_txn* txn_;
  /// The walk has a cursor of its own, which takes no values, so that none are read ahead.  A single search
  /// reads none either.
  MDB_cursor *cursor_ = nullptr, *search_ = nullptr;
  bool usable_ = true, placed_ = false;
  MDB_val key_{};
  std::string last_;  ///< the last key of get()
  std::string_view last_value_;
};

/// The views of one snapshot.  Any thread.  A view that met a damaged page is repaired.  If LMDBIO does not
/// serve the file, this is impossible, and the view is replaced.  LMDB gives no second transaction of an
/// older snapshot, so spare ones are then kept for the case that a writer has committed meanwhile.
class Snapshot {
 public:
  static constexpr std::size_t kViews = 8, kSpare = 2;  ///< reader slots: one for each, and one more

  /// Opens a database as files::Database does.  Throws files::Error, also if a writer commits at every try.
  Snapshot(const std::string& path, const std::string& name);

  const files::Database& database() const noexcept { return *database_; }
  bool is_named_database(const MDB_val& key, const MDB_val& value);

  /// A view that this thread may use.
  class Lease {
   public:
    explicit Lease(Snapshot& snapshot) : snapshot_(snapshot), view_(snapshot.take()) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() { end(); }
    /// Lets other threads use the view.  Values that it has given stay valid as long as this object exists.
    void end() noexcept {
      if (!ended_) snapshot_.give_back(view_);
      ended_ = true;
    }
    View& operator*() const noexcept { return *view_; }
    View* operator->() const noexcept { return view_.get(); }
    /// Returns false if there is no view any more.
    explicit operator bool() const noexcept { return view_ != nullptr; }

   private:
    Snapshot& snapshot_;
    const std::shared_ptr<View> view_;
    bool ended_ = false;
  };

 private:
  std::shared_ptr<View> take();
  void give_back(std::shared_ptr<View> view) noexcept;
  std::shared_ptr<View> begin();

  std::unique_ptr<files::Database> database_;
  std::uint64_t txnid_ = 0;
  std::mutex databases_;  ///< for is_named_database(); a leaf
  std::mutex mutex_;      ///< guards the members below; a leaf
  std::condition_variable given_back_;
  /// The view that was used last is taken first, so that the calls of one reader use one view, and their
  /// order is seen.
  std::vector<std::shared_ptr<View>> free_, spare_;
  std::size_t views_ = 0;  ///< that exist, without the spare ones
};

}  // namespace lmdbio::fuse
