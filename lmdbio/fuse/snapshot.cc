#include "lmdbio/fuse/snapshot.h"

#include <cstdio>
#include <new>
#include <utility>

#include "lmdbio/tree/damage.h"

namespace lmdbio::fuse {

namespace {

/// Attempts to begin all transactions between two commits of a writer.
constexpr int kTries = 100;

}  // namespace

View::View(const files::Database& database, MDB_txn* txn) : database_(database), txn_(txn) {
  const int rc = open_cursors();
  if (rc == 0) return;
  close();
  database.check(rc);
}

int View::open_cursors() noexcept {
  const int rc = mdb_cursor_open(txn_, database_.dbi(), &cursor_);
  return rc == 0 ? mdb_cursor_open(txn_, database_.dbi(), &search_) : rc;
}

void View::close_cursors() noexcept {
  for (MDB_cursor** c : {&cursor_, &search_})
    if (*c != nullptr) mdb_cursor_close(std::exchange(*c, nullptr));
}

void View::close() noexcept {
  close_cursors();
  mdb_txn_abort(txn_);
}

bool View::repair() noexcept {
  close_cursors();
  placed_ = false;
  usable_ = lmdbio_txn_pardon(txn_) == 0 && open_cursors() == 0;
  return usable_;
}

int View::told(int rc) noexcept {
  usable_ = usable_ && (rc >= 0 || rc == MDB_NOTFOUND || rc == MDB_BAD_VALSIZE);
  return rc;
}

int View::move(MDB_cursor_op op) noexcept {
  const int rc = told(mdb_cursor_get(cursor_, &key_, nullptr, op));
  placed_ = rc == 0;
  return rc;
}

int View::seek(std::string_view key) noexcept {
  key_ = files::value_of(key);
  return move(key.empty() ? MDB_FIRST : MDB_SET_RANGE);
}

int View::seek_after(std::string_view key) noexcept {
  if (!placed_ || this->key() != key)
    if (const int rc = seek(key); rc != 0 || this->key() != key) return rc;
  return next();
}

int View::next() noexcept { return move(MDB_NEXT_NODUP); }

int View::find(std::string_view key, std::string_view& value) noexcept {
  MDB_val k = files::value_of(key), v{};
  const int rc = told(mdb_cursor_get(search_, &k, &v, MDB_SET_KEY));
  if (rc == 0) value = files::bytes_of(v);
  return rc == MDB_BAD_VALSIZE ? MDB_NOTFOUND : rc;
}

int View::get(std::string_view key, std::string_view& value) noexcept {
  if (key != last_) {
    MDB_val k = files::value_of(key), v{};
    if (const int rc = told(mdb_get(txn_, database_.dbi(), &k, &v)); rc != 0) return rc;
    last_value_ = files::bytes_of(v);
    try {
      last_ = key;
    } catch (const std::bad_alloc&) {
      last_.clear();
      value = last_value_;
      return 0;
    }
  }
  value = last_value_;
  return 0;
}

Snapshot::Snapshot(const std::string& path, const std::string& name) {
  for (int i = 0; i < kTries; ++i) {
    free_.clear();
    spare_.clear();
    database_.reset();  // a process opens an environment once
    database_ = std::make_unique<files::Database>(path, name);
    txnid_ = mdb_txn_id(database_->txn());
    std::shared_ptr<View> view;
    const std::size_t spare = lmdbio_txn_pardon(database_->txn()) == 0 ? 0 : kSpare;
    while (spare_.size() < spare && (view = begin()) != nullptr) spare_.push_back(std::move(view));
    while (free_.size() < kViews && spare_.size() == spare && (view = begin()) != nullptr)
      free_.push_back(std::move(view));
    views_ = free_.size();
    if (views_ == kViews) return;
  }
  throw files::Error(path + ": a writer commits all the time; try again when it is idle");
}

std::shared_ptr<View> Snapshot::begin() {
  MDB_txn* txn = nullptr;
  if (const int rc = mdb_txn_begin(database_->env(), nullptr, MDB_RDONLY, &txn); rc != 0)
    database_->check(rc);
  if (mdb_txn_id(txn) == txnid_) return std::make_shared<View>(*database_, txn);
  mdb_txn_abort(txn);
  return nullptr;
}

bool Snapshot::is_named_database(const MDB_val& key, const MDB_val& value) {
  if (!database_->may_be_named_database(value)) return false;
  const std::lock_guard lock(databases_);
  (void)lmdbio_txn_pardon(database_->txn());  // it may have met a damaged page
  return database_->is_named_database(key, value);
}

std::shared_ptr<View> Snapshot::take() {
  std::unique_lock lock(mutex_);
  given_back_.wait(lock, [this] { return !free_.empty() || views_ == 0; });
  if (free_.empty()) return nullptr;
  std::shared_ptr<View> view = std::move(free_.back());
  free_.pop_back();
  return view;
}

void Snapshot::give_back(std::shared_ptr<View> view) noexcept {
  if (view != nullptr && !view->is_usable() && !view->repair()) {
    view.reset();
    try {
      view = begin();
    } catch (const std::exception&) {  // no reader slot, or no memory
    }
  }
  {
    const std::lock_guard lock(mutex_);
    if (view == nullptr && !spare_.empty()) {
      view = std::move(spare_.back());
      spare_.pop_back();
    }
    if (view != nullptr)
      free_.push_back(std::move(view));  // has room for all
    else if (views_ != 0)
      --views_;
  }
  given_back_.notify_one();
}

}  // namespace lmdbio::fuse
