// A database that several ranks of an MPI job follow together.
//
// Rank 0 renews the snapshot, and decides which batch is made when.  It writes both to a log.  All other
// ranks read the log, and compute everything else.  They have no reader slots: rank 0 keeps its transactions
// until no rank uses their snapshots.
#define XXH_INLINE_ALL
#include <lmdb.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

#include "compat/follow.h"

namespace lmdbio::compat {
namespace {

/// Rank 0 does not renew its snapshot while other ranks use so many older ones.
constexpr std::size_t kMostLent = 4;
/// Tells rank 0 that this rank uses no snapshot any more.
constexpr std::uint64_t kNoSnapshot = ranks::FollowLog::kNothing - 1;

/// Kinds of entries of the log: their first byte.  kIdle: the previous snapshot is not needed any more,
/// because no batch can be made for some time.
enum Entry : char { kRenewal = 1, kBatch, kResult, kIdle };

template <class T>
void put(std::string& out, const T& v) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&v), sizeof v);
}
void put(std::string& out, std::string_view text) {
  put(out, text.size());
  out.append(text);
}

/// Takes an object off the front of an entry.  Returns false if it is too short.
template <class T>
bool take(std::string_view& in, T& out) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  if (in.size() < sizeof out) return false;
  std::memcpy(&out, in.data(), sizeof out);
  in.remove_prefix(sizeof out);
  return true;
}

std::string encode(const Renewal& r) {
  std::string out(1, kRenewal);
  put(out, r.snapshot);
  put(out, r.inserted);
  put(out, r.finished);
  put(out, r.guarded);
  out.append(r.stamp);
  return out;
}

bool decode(std::string_view in, Renewal& r) {
  if (!take(in, r.snapshot) || !take(in, r.inserted) || !take(in, r.finished) || !take(in, r.guarded))
    return false;
  r.stamp = in;
  return true;
}

/// Returns a hash of the options that must be the same on all ranks.
std::array<std::uint64_t, 2> hash_of(const FollowOptions& o) {
  std::string all;
  for (const std::uint64_t v :
       {o.terms.seed, o.terms.fresh, o.terms.old, o.terms.lag,
        std::uint64_t{static_cast<unsigned char>(o.terms.kind)}, o.terms.capacity, o.plain.label_offset,
        o.plain.label_bytes, std::uint64_t{o.plain.label != nullptr},
        std::uint64_t{o.plain.existing_are_old != 0}, std::uint64_t{o.plain.append_only != 0}})
    put(all, v);
  put(all, std::string_view(o.finished_key.value_or("")));
  put(all, std::string_view(o.state));
  const XXH128_hash_t h = XXH3_128bits(all.data(), all.size());
  return {h.low64, h.high64};
}

format::DbRecord record_in(const std::string& stamp) noexcept {
  format::DbRecord r{};
  if (!stamp.empty()) std::memcpy(&r, stamp.data(), std::min(stamp.size(), sizeof r));
  return r;
}

}  // namespace

Follow::Lent::~Lent() {
  for (Held& h : held) h.end();
  previous.end();
  current.end();
}

Follow::~Follow() {
  if (log_ != nullptr && ours()) {
    if (lent_ != nullptr) {
      lent_->previous = std::exchange(previous_, {});
      lent_->current = std::exchange(current_, {});
    }
    // A cancelled object does not wait: the program may be about to end.
    log_->close(std::move(lent_), !cancelled_);
  }
  previous_.end();
  current_.end();
}

void Follow::abandon() noexcept {
  previous_.txn = current_.txn = nullptr;
  opened_->env = nullptr;
  if (lent_ != nullptr)
    for (Held& h : lent_->held) h.txn = nullptr;
  if (log_ != nullptr) {  // leaked, because its operations must not be touched
    (void)new (std::nothrow) std::shared_ptr<ranks::FollowLog>(std::move(log_));
  }
}

Status Follow::open(const std::shared_ptr<ranks::Team>& team, const char* path, FollowOptions options,
                    std::unique_ptr<Follow>& out, std::string& why) {
  const std::string name = options.database.value_or("");
  std::unique_ptr<Follow> made;
  Status opened;
  const auto nodes = team->network().nodes();
  if (nodes[team->rank()] == nodes[0]) {
    opened = prepare(path, options, made, why);
  } else {
    // Stay away from the lock file.  LMDB identifies the owner of a reader slot by its process id, so an
    // environment that is closed on another node may free the slot of rank 0.
    options.plain.flags |= MDB_NOLOCK;
    // A writer may overwrite pages while the database is opened.
    for (int attempt = 1; attempt <= kTries; ++attempt) {
      opened = prepare(path, options, made, why);
      if (opened.ok() || opened.raw() > 0) break;
    }
  }
  if (const Status st = opened; !st.ok()) {
    if (why.empty()) why = std::string(path) + ": " + mdb_strerror(st.raw());
    ranks::FollowLog::report_failure(*team, path, name, st.raw(), why);
    return st;
  }
  Status st =
      ranks::FollowLog::open(team, path, name, hash_of(made->options_), made->cancelled_, made->log_, why);
  if (!st.ok()) return st;
  st = made->is_led() ? made->hear(why) : made->lead(why);
  if (st.ok()) out = std::move(made);
  return st;
}

// --- rank 0 ---

// Finds the records that exist, and tells the other ranks.
Status Follow::lead(std::string& why) {
  lent_ = std::make_shared<Lent>();
  lent_->opened = opened_;
  lent_->held.reserve(kMostLent + 2);
  Status st = options_.state.empty() ? start(why) : load(why);
  if (st.ok()) return send_renewal(why);
  if (why.empty()) why = name_ + ": " + mdb_strerror(st.raw());
  return send_result(fail(st, why), why);
}

bool Follow::may_renew() {
  if (log_ == nullptr) return true;
  return_lent();
  return lent_->held.size() < kMostLent;
}

// Ends a transaction, or on rank 0 keeps it for the other ranks.
void Follow::end(Held& held) noexcept {
  if (lent_ == nullptr || held.txn == nullptr) return held.end();
  lent_->held.push_back(std::exchange(held, {}));  // there is room
  return_lent();
}

void Follow::return_lent() noexcept {
  const std::uint64_t in_use = log_->in_use();
  std::vector<Held>& held = lent_->held;
  while (!held.empty() && held.front().number < in_use) {
    held.front().end();
    held.erase(held.begin());
  }
}

Status Follow::send_renewal(std::string& why) {
  if (log_ == nullptr) return {};
  const ReadTxn& t = *as<ReadTxn>(current_.txn);
  Renewal r;
  r.snapshot = t.txn.snapshot();
  r.inserted = inserted_;
  r.finished = finished_;
  r.guarded = !t.unprotected && !t.env->lockless && (options_.plain.flags & MDB_NOLOCK) == 0;
  r.stamp = stamp_;
  return log_->append(encode(r), why);
}

// Ends the previous transaction.  Keys that were announced to it must be announced to the current one.
void Follow::drop_previous() noexcept {
  end(previous_);
  current_.fresh_end = current_.batch_end = 0;
}

// Ends the previous transaction early, before `lag` batches have been made, because it keeps the writer from
// reusing pages.
Status Follow::end_previous(std::string& why) {
  if (previous_.txn == nullptr) return {};
  drop_previous();
  return log_ == nullptr ? Status() : log_->append(std::string(1, kIdle), why);
}

Status Follow::send_batch(std::string& why) {
  if (log_ == nullptr || is_led()) return {};
  const Status st = log_->append(std::string(1, kBatch), why);
  return st.ok() ? st : fail(st, why);
}

// Tells the other ranks how this call ends, if their call has to end in the same way.  Returns `st`.
Status Follow::send_result(Status st, std::string& why) {
  if (log_ == nullptr || is_led() || st.ok()) return st;
  const bool is_permanent = !permanent_.ok() || cancelled_.load(std::memory_order_acquire);
  if (!is_permanent && st.raw() != MDB_NOTFOUND && st.raw() != ETIMEDOUT) return st;
  if (is_permanent && std::exchange(has_told_, true)) return st;
  std::string entry(1, kResult), ignored;
  put(entry, st.raw());
  put(entry, is_permanent);
  if (st.raw() != MDB_NOTFOUND) entry += "rank 0: " + (why.empty() ? name_ + ": cancelled" : why);
  entry.resize(std::min(entry.size(), ranks::FollowLog::kMostBytes));
  (void)log_->append(entry, ignored);  // they notice when this rank closes its end
  return st;
}

// --- the other ranks ---

// Waits until rank 0 says that the next batch can be made, or at first until it has sent its snapshot.
Status Follow::hear(std::string& why) {
  for (std::string entry;;) {
    const bool is_first = renewals_ == 0;
    if (!renewal_) {
      if (const Status st = log_->take(cancelled_, entry, why); !st.ok()) return st;
      std::string_view in = std::string_view(entry).substr(1);
      int code = 0;
      bool is_permanent = false;
      Renewal r;
      if (entry[0] == kBatch) return {};
      if (entry[0] == kIdle) {
        drop_previous();
        if (const Status st = say_in_use(why); !st.ok()) return fail(st, why);
        continue;
      }
      if (entry[0] == kRenewal && decode(in, r)) {
        renewal_ = std::move(r);
      } else if (entry[0] == kResult && take(in, code) && take(in, is_permanent)) {
        why = in;
        const Status st = as_status(code);
        if (!is_permanent) return st;
        permanent_why_ = why;
        return permanent_ = st;
      } else {
        why = name_ + ": an unknown message of rank 0";
        return fail(Status::from_errno(EPROTO), why);
      }
    }
    if (const Status st = take_renewal(*renewal_, why); !st.ok()) {
      if (std::string ignored; !permanent_.ok()) (void)log_->use(kNoSnapshot, ignored);
      return st;
    }
    renewal_.reset();
    if (const Status st = say_in_use(why); !st.ok()) return fail(st, why);
    if (is_first) return {};
  }
}

Status Follow::say_in_use(std::string& why) {
  return log_->use(previous_.txn != nullptr ? previous_.number : current_.number, why);
}

// Takes the snapshot of rank 0, and adds what it brings to the order.  Without locks, a writer may overwrite
// it before this rank has read it.  This rank then takes a newer snapshot.  If records are only appended, the
// first new records of this snapshot are those of the overwritten one.
Status Follow::take_renewal(const Renewal& r, std::string& why) {
  const bool is_first = renewals_ == 0;
  std::optional<std::uint64_t> saved;
  if (is_first && !options_.state.empty())
    if (const Status st = parse(saved.emplace(), why); !st.ok()) return st;
  if (!r.guarded) unguarded_until_ = r.snapshot.txnid;
  Held next;
  int attempt = 1;
  for (;; ++attempt) {
    ReadTxn* t = nullptr;
    Status st = begin(next.txn, t, why, attempt == 1 ? &r.snapshot : nullptr);
    if (!st.ok()) return st;
    try {
      st = saved == r.snapshot.txnid ? find_stamp(*t, why) : compare(next.txn, why, r.inserted);
    } catch (const std::bad_alloc&) {
      next.end();
      why = name_ + ": out of memory while a new snapshot was compared";
      return fail(Status::from_errno(ENOMEM), why);
    }
    if (st.ok()) break;
    next.end();
    if (st.raw() == ENOMEM) return st;  // nothing has changed
    const bool is_overwritten = st.raw() == ESTALE && !r.guarded && options_.plain.append_only != 0;
    if (!is_overwritten || attempt == kTries) return fail(st, why);
  }
  if (is_first) {
    current_.end();
  } else {
    previous_.end();
    next.fresh_end = current_.fresh_end;
    next.batch_end = current_.batch_end;
    previous_ = std::exchange(current_, {});
  }
  next.number = renewals_++;
  current_ = next;
  previous_batches_ = 0;
  if (const Status st = check_same(r, attempt == 1, why); !st.ok()) return fail(st, why);
  txnid_ = r.snapshot.txnid;
  stamp_ = r.stamp;
  finished_ = r.finished;
  return {};
}

// Sets stamp_ for a snapshot that brings nothing new.
Status Follow::find_stamp(const ReadTxn& t, std::string& why) {
  tree::DiffProblem problem;
  const Status st = stamp_of(t, stamp_, problem);
  inserted_ = 0;
  if (!is_safe(t)) return overwritten(why);
  if (!st.ok()) why = name_ + ": " + mdb_strerror(st.raw());
  return st;
}

Status Follow::overwritten(std::string& why) const {
  why = name_ +
        ": a writer has overwritten the snapshot, because the database is open without locks; "
        "open it again, and start anew";
  return Status::from_errno(ESTALE);
}

// Checks that this rank has found what rank 0 has found.  A newer snapshot, to which records were appended,
// can have more of them.
Status Follow::check_same(const Renewal& r, bool is_same_snapshot, std::string& why) const {
  const format::DbRecord theirs = record_in(r.stamp), ours = record_in(stamp_);
  const bool has_same =
      is_same_snapshot ? stamp_ == r.stamp : ours.flags == theirs.flags && ours.entries >= theirs.entries;
  if (has_same && inserted_ == r.inserted) return {};
  why = name_ + ": not the same file on all ranks: rank " + std::to_string(log_->rank()) +
        " found other records in transaction " + std::to_string(r.snapshot.txnid) + " than rank 0";
  return Status::from_errno(ESTALE);
}

// Reads the next values in a newer snapshot, because a writer without locks may have overwritten the current
// one.  The order does not change.
Status Follow::read_newer(std::string& why) {
  if (options_.plain.append_only == 0) return fail(overwritten(why), why);
  Held next;
  ReadTxn* t = nullptr;
  if (const Status st = begin(next.txn, t, why); !st.ok()) return st;
  next.number = current_.number;
  current_.end();
  current_ = next;
  oldest_place_ = snapshot_ + 1;  // this snapshot may lack leaf pages of the one before
  return {};
}

}  // namespace lmdbio::compat
