// The options of a followed database, and the state from which a job continues.
#define XXH_INLINE_ALL
#include <lmdb.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "compat/follow.h"

namespace lmdbio::compat {
namespace {

/// First bytes of a state.
constexpr std::uint64_t kMagic = 0x32776c6f666d646c;

Status invalid(std::string& why, const std::string& text) {
  why = text;
  return Status::from_errno(EINVAL);
}

void put(std::string& out, std::uint64_t v) { out.append(reinterpret_cast<const char*>(&v), sizeof v); }
void put(std::string& out, std::string_view s) {
  put(out, s.size());
  out.append(s);
}

void put(std::string& out, const std::vector<std::uint64_t>& numbers) {
  put(out, numbers.size());
  for (const std::uint64_t n : numbers) put(out, n);
}

/// Takes the parts of a state off its front.
class Parts {
 public:
  explicit Parts(std::string_view in) noexcept : in_(in) {
    good_ = in.size() > 8;
    if (!good_) return;
    std::uint64_t sum;
    std::memcpy(&sum, in.data() + in.size() - 8, 8);
    in_.remove_suffix(8);
    good_ = sum == XXH3_64bits(in_.data(), in_.size());
  }
  std::uint64_t number() noexcept {
    std::uint64_t v = 0;
    const std::string_view s = bytes(sizeof v);
    if (good_) std::memcpy(&v, s.data(), sizeof v);
    return v;
  }
  std::string_view text() noexcept { return bytes(number()); }
  std::vector<std::uint64_t> numbers() {
    std::vector<std::uint64_t> out;
    for (std::uint64_t n = number(); n > 0 && good_; --n) out.push_back(number());
    return out;
  }
  bool good() const noexcept { return good_; }
  bool ended() const noexcept { return good_ && in_.empty(); }

 private:
  std::string_view bytes(std::uint64_t n) noexcept {
    good_ = good_ && n <= in_.size();
    if (!good_) return {};
    const std::string_view s = in_.substr(0, static_cast<std::size_t>(n));
    in_.remove_prefix(s.size());
    return s;
  }
  std::string_view in_;
  bool good_;
};

Status of_another_file(std::string& why, const std::string& name) {
  why = name + ": the state is not of this database, or of a later transaction; is this another file?";
  return Status::from_errno(ESTALE);
}

Bytes bytes_of(std::string_view s) noexcept { return std::as_bytes(std::span(s)); }

}  // namespace

// --- options ---

Status FollowOptions::read(const lmdbio_follow_options* given, FollowOptions& out, std::string& why) {
  lmdbio_follow_options& o = out.plain;
  if (!read_sized(given, o))
    return invalid(why, "lmdbio_follow_options: size is not valid, or an unknown field is not 0");
  const auto wrong = [&](const char* what) {
    return invalid(why, std::string("lmdbio_follow_options: ") + what);
  };
  if ((o.flags & ~unsigned{MDB_NOSUBDIR | MDB_NOLOCK}) != 0)
    return wrong("flags may be only MDB_NOSUBDIR and MDB_NOLOCK");
  if (o.buffer < LMDBIO_BUFFER_RESERVOIR || o.buffer > LMDBIO_BUFFER_ALL)
    return wrong("buffer: no such kind");
  if (o.on_empty < LMDBIO_EMPTY_WAIT || o.on_empty > LMDBIO_EMPTY_STOP)
    return wrong("on_empty: no such value");
  if (o.fresh == 0 && (o.old == 0 || o.existing_are_old == 0))
    return wrong("fresh may be 0 only with old samples and with existing_are_old");
  constexpr std::uint64_t kMost = std::uint64_t{1} << 32;
  if (o.fresh > kMost || o.old > kMost || o.capacity > kMost)
    return wrong("fresh, old and capacity must be at most 2^32");
  static_assert(records::Rehearsal::kMostLag == 65536);
  if (o.lag > records::Rehearsal::kMostLag) return wrong("lag must be at most 65536");
  if (o.label_bytes > 8) return wrong("label_bytes must be at most 8");
  if (o.buffer == LMDBIO_BUFFER_CLASS && o.label == nullptr && o.label_bytes == 0)
    return wrong("LMDBIO_BUFFER_CLASS needs label or label_bytes");
  if (!(o.timeout >= 0) || !(o.renew_seconds >= 0))
    return wrong("timeout and renew_seconds must not be negative");
  if (o.finished_key != nullptr && (o.finished_key->mv_size == 0 || o.finished_key->mv_data == nullptr))
    return wrong("finished_key must not be empty");
  if (o.state == nullptr && o.state_bytes != 0) return wrong("state must not be NULL");
  if (o.lag == 0) o.lag = 4;
  if (o.capacity == 0) o.capacity = 10'000;
  if (o.renew_batches == 0) o.renew_batches = 16;
  if (o.renew_seconds == 0) o.renew_seconds = 1;
  if (o.database != nullptr) out.database = o.database;
  if (o.finished_key != nullptr)
    out.finished_key.emplace(static_cast<const char*>(o.finished_key->mv_data), o.finished_key->mv_size);
  if (o.state != nullptr) out.state.assign(static_cast<const char*>(o.state), o.state_bytes);
  if (o.state != nullptr && out.state.empty()) return wrong("state is empty");
  o.database = nullptr;
  o.finished_key = nullptr;
  o.state = nullptr;
  out.terms = {o.seed, o.fresh, o.old, o.lag, static_cast<records::BufferKind>(o.buffer), o.capacity};
  return {};
}

std::uint64_t FollowOptions::label(Bytes key, Bytes value) const {
  if (plain.label != nullptr) {
    const MDB_val k{key.size(), const_cast<std::byte*>(key.data())};
    const MDB_val v{value.size(), const_cast<std::byte*>(value.data())};
    return plain.label(plain.label_context, &k, &v);
  }
  std::uint64_t out = 0;
  if (plain.label_offset < value.size())
    std::memcpy(&out, value.data() + plain.label_offset,
                static_cast<std::size_t>(std::min(plain.label_bytes, value.size() - plain.label_offset)));
  return out;
}

// --- the state ---

Status Follow::save(const std::string*& out, std::string& why) {
  if (!permanent_.ok()) {
    why = permanent_why_;
    return permanent_;
  }
  drop_keys();
  std::string s;
  put(s, kMagic);
  put(s, txnid_);
  put(s, stamp_);
  put(s, std::uint64_t{options_.plain.append_only != 0});
  put(s, std::uint64_t{finished_});
  put(s, options_.database.value_or(""));
  put(s, order_.save());
  put(s, std::uint64_t{unread_.has_value()});
  if (unread_) {
    put(s, unread_->fresh);
    put(s, unread_->old);
  }
  put(s, last_key_);
  put(s, last_value_);
  put(s, keys_.size());
  keys_.for_each([&](std::uint64_t number, const records::KeyList::Entry& e) {
    put(s, number);
    put(s, {reinterpret_cast<const char*>(e.key.key.data()), e.key.key.size()});
    put(s, {reinterpret_cast<const char*>(e.key.value.data()), e.key.value.size()});
  });
  put(s, XXH3_64bits(s.data(), s.size()));
  state_ = std::move(s);
  out = &state_;
  return {};
}

// Sets this object to the state in the options.  `txnid`: its transaction.
Status Follow::parse(std::uint64_t& txnid, std::string& why) {
  const auto wrong = [&] {
    return invalid(why, name_ + ": the state is damaged, or was saved with other options");
  };
  Parts in(options_.state);
  if (in.number() != kMagic) return wrong();
  txnid = in.number();
  stamp_ = in.text();
  const bool append_only = in.number() != 0;
  finished_ = in.number() != 0;
  if (in.text() != options_.database.value_or("")) return wrong();
  if (append_only != (options_.plain.append_only != 0)) return wrong();
  if (!order_.load(bytes_of(in.text()))) return wrong();
  if (in.number() != 0) {
    unread_.emplace();
    unread_->fresh = in.numbers();
    unread_->old = in.numbers();
  }
  last_key_ = in.text();
  last_value_ = in.text();
  std::uint64_t next = 0;
  for (std::uint64_t n = in.number(); n > 0 && in.good(); --n) {
    const std::uint64_t number = in.number();
    const std::string_view key = in.text(), value = in.text();
    if (!in.good() || number < next || key.empty() || key.size() > UINT16_MAX || value.size() > UINT16_MAX)
      return wrong();
    next = number + 1;
    keys_.add(number, {bytes_of(key), bytes_of(value)});
  }
  if (!in.ended()) return wrong();
  std::vector<std::uint64_t> needed = order_.live();
  if (unread_) {
    needed.insert(needed.end(), unread_->fresh.begin(), unread_->fresh.end());
    needed.insert(needed.end(), unread_->old.begin(), unread_->old.end());
  }
  for (const std::uint64_t number : needed)
    if (!keys_.knows(number)) return wrong();
  started_ = true;
  return {};
}

Status Follow::load(std::string& why) {
  std::uint64_t txnid = 0;
  if (const Status st = parse(txnid, why); !st.ok()) return st;
  if (txnid == txnid_) {
    const ReadTxn& t = *as<ReadTxn>(current_.txn);
    std::string now;
    tree::DiffProblem problem;
    const Status st = stamp_of(t, now, problem);
    if (is_safe(t)) {
      if (!st.ok()) why = name_ + ": " + mdb_strerror(st.raw());
      if (st.ok() && now != stamp_) return of_another_file(why, name_);
      return st;
    }
    // A writer without locks has committed meanwhile.
  }
  if (txnid > txnid_) return of_another_file(why, name_);
  if (options_.plain.append_only == 0) {
    why = name_ + ": the state is of transaction " + std::to_string(txnid) +
          ", but the database has later ones; what changed meanwhile is unknown, so start anew";
    return Status::from_errno(ESTALE);
  }
  const std::string saved = stamp_, last_key = last_key_;
  if (const Status st = compare_current(why); !st.ok()) return st;
  return check_growth(saved, last_key, why);
}

// Checks that the current snapshot can be a later one of a database to which records were only appended.
Status Follow::check_growth(const std::string& saved, const std::string& last_key, std::string& why) {
  format::DbRecord before{}, now{};
  if (!saved.empty()) std::memcpy(&before, saved.data(), std::min(saved.size(), sizeof before));
  if (!stamp_.empty()) std::memcpy(&now, stamp_.data(), sizeof now);
  if (!saved.empty() && (before.flags != now.flags || before.entries > now.entries))
    return of_another_file(why, name_);
  if (last_key.empty()) return {};
  MDB_val key{last_key.size(), const_cast<char*>(last_key.data())}, value;
  int rc = mdb_get(current_.txn, opened_->dbi, &key, &value);
  for (int attempt = 1; !is_safe(*as<ReadTxn>(current_.txn)); ++attempt) {
    if (attempt == kTries) {
      why = name_ + ": a writer commits faster than a state can be checked without locks";
      return Status::from_errno(ESTALE);
    }
    if (const Status st = renew(why); !st.ok()) return st;
    rc = mdb_get(current_.txn, opened_->dbi, &key, &value);
  }
  if (rc == MDB_NOTFOUND) return of_another_file(why, name_);
  if (rc != 0) why = name_ + ": " + mdb_strerror(rc);
  return rc == 0 ? Status() : as_status(rc);
}

}  // namespace lmdbio::compat
