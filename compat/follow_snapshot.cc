// Renews the snapshot of a followed database, and finds what it brought.
#define XXH_INLINE_ALL
#include <lmdb.h>
#include <sys/stat.h>
#include <time.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "compat/follow.h"
#include "lmdbio/io/open_file.h"

namespace lmdbio::compat {
namespace {

/// Nanoseconds between two checks of the path, which may cost a request to a server.
constexpr std::int64_t kCheckEvery = 500'000'000;
/// Records after which a comparison asks whether it must end.
constexpr std::uint64_t kAskEvery = 4096;
/// Other samples' keys are dropped if there are this many times more, and so many more.
constexpr std::size_t kDropFactor = 2, kDropLeast = 4096;
/// Dropped leaf pages that are remembered: so many, and one for so many samples.
constexpr std::size_t kMostDropped = 4096, kSamplesPerDropped = 4;

/// Collects what a comparison finds.
class Collector : public tree::DiffVisitor {
 public:
  /// `snapshot`: the number of the newer one.  Ends the comparison when `most` inserted records were found.
  Collector(const FollowOptions& options, bool dupsort, std::uint64_t snapshot,
            const std::atomic<bool>& cancelled, std::uint64_t most)
      : options_(options), dupsort_(dupsort), snapshot_(snapshot), cancelled_(cancelled), most_(most) {}
  bool is_full() const noexcept { return is_full_; }

  bool record(const tree::ChangedRecord& r) override {
    if (++seen_ % kAskEvery == 0) {
      if (wait_ended(cancelled_)) return false;
      has_room = memory_.set(changes.memory_bytes());
      if (!has_room) return false;
    }
    if (options_.finished_key && r.key.size() == options_.finished_key->size() &&
        std::memcmp(r.key.data(), options_.finished_key->data(), r.key.size()) == 0) {
      changes.finished = r.change != tree::Change::deleted;
      return true;
    }
    if (r.change == tree::Change::inserted && changes.inserted.size() == most_) {
      is_full_ = true;
      return false;
    }
    const bool labelled = options_.terms.kind == records::BufferKind::per_class;
    if (r.change != tree::Change::inserted) {
      changes.removed.add({r.key, dupsort_ ? r.older : Bytes()}, {});
      if (labelled) changes.removed_labels.push_back(options_.label(r.key, r.older));
    }
    if (r.change == tree::Change::deleted) return true;
    changes.inserted.add(
        {r.key, dupsort_ ? r.newer : Bytes()},
        dupsort_ ? records::SamplePlace() : records::SamplePlace(r.page, r.index, snapshot_));
    if (labelled) changes.inserted_labels.push_back(options_.label(r.key, r.newer));
    return true;
  }
  void dropped_leaf(std::uint64_t page) override {
    if (!dupsort_) changes.dropped_leaves.push_back(page);
  }

  Changes changes;
  bool has_room = true;  ///< in LMDBIO_MEMORY

 private:
  const FollowOptions& options_;
  const bool dupsort_;
  const std::uint64_t snapshot_;
  const std::atomic<bool>& cancelled_;
  const std::uint64_t most_;
  CountedBytes memory_;
  std::uint64_t seen_ = 0;
  bool is_full_ = false;
};

}  // namespace

std::uint64_t Changes::memory_bytes() const noexcept {
  return inserted.memory_bytes() + removed.memory_bytes() +
         (inserted_labels.capacity() + removed_labels.capacity() + dropped_leaves.capacity()) *
             sizeof(std::uint64_t);
}

std::int64_t steady_ns() noexcept {
  timespec t{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * std::int64_t{1'000'000'000} + t.tv_nsec;
}

bool Follow::is_safe(const ReadTxn& t) const noexcept {
  if (t.by_metas && is_led()) {
    if (t.txn.id() > unguarded_until_) return true;
  } else if (!t.unprotected && !t.env->lockless && (options_.plain.flags & MDB_NOLOCK) == 0) {
    return true;
  }
  tree::MetaCopies metas;
  return t.env->engine->read_metas(metas).ok() && !tree::overtaken(metas.records(), t.txn.id());
}

Status Follow::check_path(std::string& why) {
  const std::int64_t now_ns = steady_ns();
  if (now_ns - path_checked_ns_ < kCheckEvery) return {};
  path_checked_ns_ = now_ns;
  const EnvHandle& env = *as<ReadTxn>(current_.txn)->env;
  const std::string path = data_file(env.setup.path.c_str(), env.setup.open_flags);
  struct stat now {};
  const FileIdentity id = env.engine->file().origin().id;
  if (::stat(path.c_str(), &now) == 0 && now.st_dev == id.dev && now.st_ino == id.ino) return {};
  why = name_ + ": the file was replaced or removed; open the database again, and start anew";
  return Status::from_errno(ESTALE);
}

// Begins a transaction on the newest snapshot, or on one that rank 0 holds.
Status Follow::begin(MDB_txn*& txn, ReadTxn*& t, std::string& why, const tree::Snapshot* lent) {
  const auto try_once = [&] {
    return lent != nullptr ? begin_lent(*as<EnvHandle>(opened_->env), *lent, &txn)
                           : mdb_txn_begin(opened_->env, nullptr, MDB_RDONLY, &txn);
  };
  int rc = try_once();
  if (rc == MDB_MAP_RESIZED) {  // the writer has enlarged the map
    rc = mdb_env_set_mapsize(opened_->env, 0);
    if (rc == 0) rc = try_once();
  }
  t = rc == 0 ? as<ReadTxn>(txn) : nullptr;
  if (rc == 0 && t != nullptr) return {};
  if (rc == 0) mdb_txn_abort(txn);
  why = name_ + ": " + (rc != 0 ? mdb_strerror(rc) : "not served by LMDBIO");
  return rc != 0 ? as_status(rc) : Status::from_errno(ENOTSUP);
}

// Takes the newest snapshot, and adds what it brings to the order.
Status Follow::renew(std::string& why) {
  if (const Status st = check_path(why); !st.ok()) return fail(st, why);
  for (int attempt = 1;; ++attempt) {
    Held next;
    ReadTxn* t = nullptr;
    if (const Status st = begin(next.txn, t, why); !st.ok()) return st;
    const std::uint64_t id = t->txn.id();
    if (id == txnid_) {
      next.end();
      break;
    }
    Status st;
    try {
      st = compare(next.txn, why);
    } catch (...) {
      next.end();
      why = name_ + ": out of memory while a new snapshot was compared";
      return fail(Status::from_errno(ENOMEM), why);
    }
    if (st.ok()) {
      txnid_ = id;
      next.number = current_.number + 1;
      next.fresh_end = current_.fresh_end;
      next.batch_end = current_.batch_end;
      end(previous_);
      previous_ = std::exchange(current_, next);
      previous_batches_ = 0;
      if (st = send_renewal(why); !st.ok()) return fail(st, why);
      break;
    }
    next.end();
    if (st.raw() == ENOMEM) return st;  // nothing has changed
    // Appended records are found without the snapshot that was overtaken.
    if (st.raw() != ESTALE || options_.plain.append_only == 0 || attempt == kTries) return fail(st, why);
  }
  batches_ = 0;
  renewed_ns_ = steady_ns();
  return {};
}

// Compares the current snapshot with nothing, or with a state.  Replaces it if a writer without locks has
// overtaken it.
Status Follow::compare_current(std::string& why) {
  for (int attempt = 1;; ++attempt) {
    const Status st = compare(current_.txn, why);
    if (st.raw() != ESTALE || attempt == kTries) return st;
    current_.end();
    ReadTxn* t = nullptr;
    if (const Status begun = begin(current_.txn, t, why); !begun.ok()) return begun;
    txnid_ = t->txn.id();
  }
}

namespace {

tree::DiffSide side_of(const ReadTxn& t, const File* reads = nullptr, int fd = -1) {
  return {t.txn.view(), t.txn.snapshot(), reads, fd};
}

}  // namespace

Status Follow::stamp_of(const ReadTxn& t, std::string& out, tree::DiffProblem& problem) const {
  out.clear();
  const tree::DiffSide side = side_of(t);
  format::DbRecord record{};
  const Status st = tree::find_database(side, options_.database.value_or(""), record, problem);
  if (st.raw() == MDB_NOTFOUND) return {};  // the named database does not exist any more
  if (!st.ok()) return st;
  const std::byte* const root = record.root == format::kNoPage ? nullptr : side.view.at(record.root);
  const std::uint64_t sum = root == nullptr ? 0 : XXH3_64bits(root, side.view.page_size());
  out.append(reinterpret_cast<const char*>(&record), sizeof record);
  out.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  return {};
}

// Finds the records of a transaction that differ from the current snapshot, or from an empty one if there is
// none.  ESTALE: a writer without locks has overwritten what was compared; nothing has changed then.
// `most`: ignores inserted records after so many.
Status Follow::compare(MDB_txn* txn, std::string& why, std::uint64_t most) {
  const ReadTxn &newer = *as<ReadTxn>(txn), &older = *as<ReadTxn>(current_.txn);
  const Origin origin = newer.env->engine->file().origin();
  if (file_ == nullptr)
    if (auto file = OpenFile::get(origin, OpenFile::With::exact_alone)) file_ = std::move(file).value();
  const File* const reads = file_ != nullptr ? &file_->base() : nullptr;
  const bool is_first = !started_, appended = !is_first && options_.plain.append_only != 0;
  tree::DiffSide before = side_of(older, reads, origin.fd);
  if (is_first)
    before.snapshot.dbs[tree::kMainDbi] = {
        0, newer.txn.snapshot().dbs[tree::kMainDbi].flags, 0, 0, 0, 0, 0, format::kNoPage};
  const tree::DiffSide after = side_of(newer, reads, origin.fd);
  tree::DiffOptions options;
  options.older_is_held = !is_first;
  options.cancelled = &cancelled_;
  const std::string_view only = options_.database ? std::string_view(*options_.database) : std::string_view();
  options.only = &only;
  if (snapshot_ == records::SamplePlace::kMostSnapshot ||
      dropped_.size() > kMostDropped + keys_.size() / kSamplesPerDropped)
    renumber_places();
  Collector found(options_, dupsort_, snapshot_ + 1, cancelled_, most);
  tree::DiffCounters counters;
  tree::DiffProblem problem;
  Status st;
  if (appended) {
    format::DbRecord record{};
    st = tree::find_database(after, only, record, problem);
    if (st.ok())
      st = tree::find_appended(after, record, only, std::as_bytes(std::span(last_key_)),
                               std::as_bytes(std::span(last_value_)), options, found, counters, problem);
    if (st.ok() && options_.finished_key) {  // it may sort before the last key
      MDB_val key{options_.finished_key->size(), const_cast<char*>(options_.finished_key->data())}, value;
      const int rc = mdb_get(txn, opened_->dbi, &key, &value);
      if (rc == 0 || rc == MDB_NOTFOUND)
        found.changes.finished = rc == 0;
      else
        st = as_status(rc);
    }
  } else {
    st = tree::diff_snapshots(before, after, options, found, counters, problem);
  }
  if (st.raw() == ECANCELED && found.is_full()) st = Status();
  if (st.raw() == MDB_NOTFOUND) st = Status();  // the named database does not exist any more
  std::string stamp;
  if (st.ok()) st = stamp_of(newer, stamp, problem);
  // Without locks, a writer may have overwritten what was compared.  An error then says nothing.
  if (st.raw() != ECANCELED) {
    if (!appended && !is_first && !is_safe(older)) return overwritten(why);
    if (!is_safe(newer)) {
      why = name_ + ": a writer commits faster than snapshots can be compared without locks";
      return Status::from_errno(ESTALE);
    }
  }
  if (!found.has_room) {
    why = name_ + ": LMDBIO_MEMORY has no room for the keys of new records";
    return Status::from_errno(ENOMEM);
  }
  if (!st.ok()) {
    why = name_ + ": " +
          (problem.reason[0] != '\0' ? "page " + std::to_string(problem.page) + ": " + problem.reason
                                     : mdb_strerror(st.raw()));
    return st;
  }
  started_ = true;
  stamp_ = std::move(stamp);
  inserted_ = found.changes.inserted.size();
  if (options_.plain.append_only != 0 && found.changes.inserted.size() != 0) {
    const records::SampleKey last = found.changes.inserted[found.changes.inserted.size() - 1].key;
    last_key_.assign(reinterpret_cast<const char*>(last.key.data()), last.key.size());
    last_value_.assign(reinterpret_cast<const char*>(last.value.data()), last.value.size());
  }
  ++snapshot_;
  if (appended) oldest_place_ = snapshot_;  // the dropped leaf pages are not known
  for (const std::uint64_t page : found.changes.dropped_leaves) dropped_[page] = snapshot_;
  apply(std::move(found.changes), is_first && options_.plain.existing_are_old != 0);
  return {};
}

// Adds the changes to the order.  `as_old`: the inserted records become old samples.
void Follow::apply(Changes&& changes, bool as_old) {
  if (changes.finished) finished_ = *changes.finished;
  std::vector<records::RemovedSample> gone;
  for (std::size_t i = 0; i < changes.removed.size(); ++i) {
    const std::uint64_t label = changes.removed_labels.empty() ? 0 : changes.removed_labels[i];
    if (const auto number = keys_.take(changes.removed[i].key))
      gone.push_back({*number, label});
    else
      order_.remove_forgotten(label);
  }
  if (!gone.empty()) order_.remove(gone);
  const std::uint64_t n = changes.inserted.size();
  if (as_old) {
    order_.start(n, changes.inserted_labels);
    keys_.add(0, std::move(changes.inserted), 0, 0);
  } else if (n != 0 && options_.terms.fresh != 0) {
    const std::uint64_t first = order_.arrive(n, changes.inserted_labels);
    keys_.add(first, std::move(changes.inserted), order_.arrival_seed(), order_.entries());
  }
  if (keys_.size() > kDropFactor * order_.most_live() + kDropLeast) drop_keys();
}

// Forgets the keys of samples that will not be returned any more.
void Follow::drop_keys() {
  std::vector<std::uint64_t> live = order_.live();
  if (unread_) {
    live.insert(live.end(), unread_->fresh.begin(), unread_->fresh.end());
    live.insert(live.end(), unread_->old.begin(), unread_->old.end());
    std::sort(live.begin(), live.end());
    live.erase(std::unique(live.begin(), live.end()), live.end());
  }
  keys_.keep(live);
}

// --- places ---

// Returns true if the current snapshot has the leaf page of a place, as it was.
bool Follow::is_valid(records::SamplePlace place) const noexcept {
  if (!place.known() || place.snapshot() < oldest_place_) return false;
  if (dropped_.empty()) return true;
  const auto it = dropped_.find(place.page());
  return it == dropped_.end() || it->second <= place.snapshot();
}

// Moves the valid places to a snapshot 0, which is the current one, and forgets the others.
void Follow::renumber_places() {
  keys_.change_places([this](records::SamplePlace p) {
    return is_valid(p) ? records::SamplePlace(p.page(), p.index(), 0) : records::SamplePlace();
  });
  dropped_.clear();
  snapshot_ = oldest_place_ = 0;
}

}  // namespace lmdbio::compat
