#include "compat/follow.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lmdbio/gather/prepared_memory.h"

namespace lmdbio::compat {
namespace {

/// Milliseconds between two looks for a commit, at first and at last.
constexpr int kFirstWait = 1, kLongestWait = 20;
/// One of so many samples is probed before they are announced: after one that was not in memory, and at last.
constexpr std::uint64_t kProbeMost = 4, kProbeLeast = 128;
MDB_val val(Bytes b) noexcept { return {b.size(), const_cast<std::byte*>(b.data())}; }

/// The bytes of a batch.
struct BatchBytes {
  std::unique_ptr<char[]> bytes;
  CountedBytes counted;
};

}  // namespace

CountedBytes::~CountedBytes() {
  if (bytes_ != 0) lmdbio_give_back_prepared(bytes_);
}

bool CountedBytes::set(std::uint64_t bytes) noexcept {
  if (bytes > bytes_ && lmdbio_take_prepared(bytes - bytes_) != 0) return false;
  if (bytes < bytes_) lmdbio_give_back_prepared(bytes_ - bytes);
  bytes_ = bytes;
  return true;
}

void Follow::Held::end() noexcept {
  if (txn != nullptr) mdb_txn_abort(txn);
  *this = {};
}

// --- opening ---

Follow::Follow(FollowOptions options, std::shared_ptr<Opened> opened)
    : options_(std::move(options)), opened_(std::move(opened)), pid_(::getpid()), order_(options_.terms) {
  current_.txn = std::exchange(opened_->txn, nullptr);
}

bool Follow::ours() const noexcept { return ::getpid() == pid_; }

// Opens the environment, and nothing else.
Status Follow::prepare(const char* path, FollowOptions options, std::unique_ptr<Follow>& out,
                       std::string& why) {
  lmdbio_reader_options where{};
  where.size = sizeof where;
  where.database = options.database ? options.database->c_str() : nullptr;
  where.flags = options.plain.flags;
  const auto opened = std::make_shared<Opened>();
  if (const Status st = open_environment(path, where, *opened, why); !st.ok()) return st;
  // Later transactions see the handle of a named database only after the one that opened it was committed.
  int rc = mdb_txn_commit(std::exchange(opened->txn, nullptr));
  if (rc == 0) rc = mdb_txn_begin(opened->env, nullptr, MDB_RDONLY, &opened->txn);
  if (rc != 0) {
    why = std::string(path) + ": " + mdb_strerror(rc);
    return as_status(rc);
  }
  ReadTxn* t = nullptr;
  if (const Status st = served(path, *opened, t, why); !st.ok()) return st;
  if (t->txn.view().loads()) {
    why = std::string(path) + ": the file cannot be mapped, so the snapshots cannot be compared";
    return Status::from_errno(ENOTSUP);
  }
  std::unique_ptr<Follow> made(new Follow(std::move(options), opened));
  made->name_ = t->env->stats.path;
  made->txnid_ = t->txn.id();
  unsigned flags = 0;
  if (rc = mdb_dbi_flags(made->current_.txn, opened->dbi, &flags); rc != 0) return as_status(rc);
  made->dupsort_ = (flags & MDB_DUPSORT) != 0;
  made->renewed_ns_ = steady_ns();
  out = std::move(made);
  return {};
}

Status Follow::open(const char* path, FollowOptions options, std::unique_ptr<Follow>& out, std::string& why) {
  std::unique_ptr<Follow> made;
  if (const Status st = prepare(path, std::move(options), made, why); !st.ok()) return st;
  const Status st = made->options_.state.empty() ? made->start(why) : made->load(why);
  if (st.ok()) out = std::move(made);
  return st;
}

// Finds the records that exist.
Status Follow::start(std::string& why) {
  if (const Status st = compare_current(why); !st.ok()) return st;
  return count_memory() ? Status() : no_room(why);
}

// Counts the memory of the object in that of the process.  Returns false if there is no room.
bool Follow::count_memory() noexcept {
  constexpr std::uint64_t kNode = 3 * sizeof(void*);  // of a hash table, besides its value
  return memory_.set(keys_.memory_bytes() + order_.memory_bytes() + state_.capacity() +
                     dropped_.size() * (sizeof(*dropped_.begin()) + kNode));
}

Status Follow::no_room(std::string& why) const {
  why = name_ + ": LMDBIO_MEMORY has no room for the keys of " + std::to_string(keys_.size()) + " records";
  return Status::from_errno(ENOMEM);
}

// --- batches ---

// Returns true if batch `i` from the next one on can be made.
bool Follow::has_batch(std::uint64_t i) const noexcept {
  const std::uint64_t fresh = options_.terms.fresh,
                      there = order_.pending() - std::min(order_.pending(), i * fresh);
  const bool has_old = !order_.upcoming()[static_cast<std::size_t>(i)].empty();
  if (fresh == 0) return has_old;
  switch (options_.plain.on_empty) {
    case LMDBIO_EMPTY_WAIT:
      return there >= fresh || (finished_ && there != 0);
    case LMDBIO_EMPTY_REHEARSE:
      return there != 0 || (has_old && !finished_);
    case LMDBIO_EMPTY_STOP:
      break;
  }
  return there != 0;
}

bool Follow::has_ended() const noexcept {
  return options_.terms.fresh == 0 || finished_ || options_.plain.on_empty == LMDBIO_EMPTY_STOP;
}

// Waits until a batch can be made.  MDB_NOTFOUND: the end.
Status Follow::await(std::string& why) {
  const auto renew_ns = static_cast<std::int64_t>(std::min(options_.plain.renew_seconds, 1e9) * 1e9);
  const std::int64_t begun = steady_ns();
  bool renewed = false;
  const auto renew_now = [&] {
    if (!may_renew()) return Status();
    renewed = true;
    return renew(why);
  };
  if (batches_ >= options_.plain.renew_batches || begun - renewed_ns_ >= renew_ns || !has_batch() ||
      order_.pending() < options_.terms.fresh)
    if (const Status st = renew_now(); !st.ok()) return st;
  for (int wait = kFirstWait; !has_batch(); wait = std::min(2 * wait, kLongestWait)) {
    if (has_ended() && renewed) return Status::from_mdb(MDB_NOTFOUND);
    if (wait_ended(cancelled_)) return Status::from_errno(ECANCELED);
    const std::int64_t now = steady_ns();
    if (options_.plain.timeout > 0 && static_cast<double>(now - begun) > options_.plain.timeout * 1e9) {
      why = name_ + ": no new records for " + std::to_string(options_.plain.timeout) + " s";
      return Status::from_errno(ETIMEDOUT);
    }
    if (now - begun >= renew_ns)
      if (const Status st = end_previous(why); !st.ok()) return fail(st, why);
    {
      const AsyncSignalsAllowed program;
      (void)::poll(nullptr, 0, wait);
    }
    if (!ours()) return Status::from_errno(ECANCELED);  // a signal handler has forked
    if (const Status st = renew_now(); !st.ok()) return st;
  }
  return cancelled_.load(std::memory_order_acquire) ? Status::from_errno(ECANCELED) : Status();
}

// Announces the samples of the next batches, so that their values are read ahead.
void Follow::announce() {
  if (dupsort_) return;
  std::vector<std::uint64_t> numbers;
  const std::uint64_t batch = order_.batch(), fresh = options_.terms.fresh, pending = order_.pending();
  if (const std::uint64_t ahead = std::min((options_.terms.lag + 1) * fresh, pending); ahead != 0) {
    std::vector<std::uint64_t> added;
    const std::uint64_t last = order_.pending_at(ahead - 1);
    for (std::uint64_t n = order_.pending_from(current_.fresh_end); n <= last; n = order_.pending_from(n + 1))
      added.push_back(n);
    current_.fresh_end = std::max(current_.fresh_end, last + 1);
    for (std::size_t i = 0; i < added.size(); ++i)
      if (is_mine((ahead - added.size() + i) % fresh)) numbers.push_back(added[i]);
  }
  for (std::uint64_t b = std::max(current_.batch_end, batch); b <= batch + options_.terms.lag; ++b) {
    std::uint64_t i =
        std::min(fresh, pending - std::min(pending, (b - batch) * fresh));  // after the new ones
    for (const std::uint64_t number : order_.upcoming()[static_cast<std::size_t>(b - batch)])
      if (is_mine(i++)) numbers.push_back(number);
  }
  current_.batch_end = batch + options_.terms.lag + 1;
  if (numbers.empty() || are_resident(numbers)) return;
  std::vector<MDB_val> keys;
  keys.reserve(numbers.size());
  for (const std::uint64_t number : numbers) keys.push_back(val(keys_.get(number).key.key));
  // A failure means that the values are read when they are needed.
  (void)lmdbio_prefetch(current_.txn, opened_->dbi, keys.data(), keys.size());
}

// Returns true if the records seem to be in the page cache.  Probes some of them.
bool Follow::are_resident(const std::vector<std::uint64_t>& numbers) {
  tree::Txn& txn = as<ReadTxn>(current_.txn)->txn;
  for (const std::uint64_t number : numbers) {
    if (++probed_ % probe_every_ != 0) continue;
    const records::SamplePlace place = keys_.get(number).place;
    if (is_valid(place) && txn.is_resident(place.page(), place.index())) continue;
    probe_every_ = kProbeMost;
    return false;
  }
  probe_every_ = std::min(2 * probe_every_, kProbeLeast);
  return true;
}

// Loads cache lines of many records at a time, since each of them is in another page.
void Follow::load_lines(const window::WindowView& view, const std::vector<Row>& rows) {
  constexpr std::size_t kLine = 64, kMostLines = 4;
  const auto page_of = [&](const Row& row) {
    return row.entry.place.known() ? view.at(format::Pgno{row.entry.place.page()}) : nullptr;
  };
  const auto header = [&view](const std::byte* page) { return format::PageHeader{page, view.version()}; };
  const auto slot_of = [&](const std::byte* page, const Row& row) {
    return header(page).slots() + 2 * row.entry.place.index();
  };
  for (const Row& row : rows)
    if (const std::byte* const page = page_of(row); page != nullptr) {
      __builtin_prefetch(page);
      __builtin_prefetch(slot_of(page, row));
    }
  for (const Row& row : rows)
    if (const std::byte* const page = page_of(row); page != nullptr)
      for (std::size_t line = 0, at = header(page).slot(row.entry.place.index()); line < kMostLines; ++line)
        __builtin_prefetch(page + at + line * kLine);
}

// Finds the keys and values of this process's samples of a batch with this number.  `fresh` receives how many
// of them are new.
Status Follow::find(const records::Rehearsal::Batch& samples, std::uint64_t batch, std::vector<Row>& out,
                    std::size_t& fresh, std::string& why) {
  out.clear();
  out.reserve(samples.fresh.size() + samples.old.size());
  std::uint64_t element = 0;
  for (const auto* const numbers : {&samples.fresh, &samples.old}) {
    for (const std::uint64_t number : *numbers) {
      if (!is_mine(element++)) continue;
      out.push_back({number, keys_.get(number), {}});
      if (!is_valid(out.back().entry.place)) out.back().entry.place = {};
    }
    if (numbers == &samples.fresh) fresh = out.size();
  }
  load_lines(as<ReadTxn>(current_.txn)->txn.view(), out);
  for (std::size_t i = 0; i < out.size(); ++i) {
    Row& row = out[i];
    MDB_val key = val(row.entry.key.key);
    if (dupsort_) {
      row.value = val(row.entry.key.value);
      continue;
    }
    const bool is_previous = previous_.txn != nullptr &&
                             (i < fresh ? row.number < previous_.fresh_end : batch < previous_.batch_end);
    MDB_txn* const txn = is_previous ? previous_.txn : current_.txn;
    const records::SamplePlace place = row.entry.place;
    if (place.known() &&
        as<ReadTxn>(txn)->txn.get_at(opened_->dbi, place.page(), place.index(), key, row.value))
      continue;
    if (const int rc = mdb_get(txn, opened_->dbi, &key, &row.value); rc != 0) {
      why = name_ + ": a record cannot be read: " + mdb_strerror(rc);
      return as_status(rc == MDB_NOTFOUND ? MDB_CORRUPTED : rc);
    }
  }
  return {};
}

// Reads a batch.  ESTALE: without locks, a writer may have overwritten what was read.
Status Follow::read_once(const records::Rehearsal::Batch& samples, std::uint64_t batch,
                         std::unique_ptr<records::Batch>& out, std::size_t& fresh, std::string& why) {
  std::vector<Row> found;
  const Status st = find(samples, batch, found, fresh, why);
  auto bytes = std::make_shared<BatchBytes>();
  auto made = std::make_unique<records::Batch>();
  std::uint64_t total = 0;
  bool has_room = true;
  if (st.ok()) {
    for (const Row& row : found) total += row.entry.key.key.size() + row.value.mv_size;
    has_room = bytes->counted.set(total);
  }
  if (st.ok() && has_room) {
    bytes->bytes = std::make_unique_for_overwrite<char[]>(total);
    char* at = bytes->bytes.get();
    const auto copy = [&](MDB_val v) {
      if (v.mv_size != 0) std::memcpy(at, v.mv_data, v.mv_size);
      return MDB_val{v.mv_size, std::exchange(at, at + v.mv_size)};
    };
    made->rows.reserve(found.size());
    for (const Row& row : found) {
      const MDB_val key = copy(val(row.entry.key.key));
      made->rows.push_back({row.number, key, copy(row.value)});
    }
  }
  // An error says nothing about bytes that a writer may have overwritten.
  if (!is_safe(*as<ReadTxn>(current_.txn)) ||
      (previous_.txn != nullptr && !is_safe(*as<ReadTxn>(previous_.txn)))) {
    why = name_ + ": a writer commits faster than a batch can be read without locks";
    return Status::from_errno(ESTALE);
  }
  if (!st.ok()) return st;
  if (!has_room) {
    why = name_ + ": LMDBIO_MEMORY has no room for a batch of " + std::to_string(total) + " bytes";
    return Status::from_errno(ENOMEM);
  }
  made->keep.push_back(std::move(bytes));
  made->count = made->rows.size();
  made->records = made->rows.data();
  made->position = batch;
  out = std::move(made);
  return {};
}

// Reads the next batch, which is decided.
Status Follow::read(const records::Rehearsal::Batch& samples, std::unique_ptr<records::Batch>& out,
                    std::size_t& fresh, std::string& why) {
  for (int attempt = 1;; ++attempt) {
    Status st = read_once(samples, order_.batch() - 1, out, fresh, why);
    while (st.raw() == ENOMEM && !ahead_.empty()) {
      ahead_.pop_back();
      st = read_once(samples, order_.batch() - 1, out, fresh, why);
    }
    if (st.raw() != ESTALE || attempt == kTries) return st;
    if (const Status renewed = read_newer(why); !renewed.ok()) return renewed;
    end(previous_);
  }
}

// Decides which samples the next batch has.
Status Follow::wait(std::string& why) {
  if (!permanent_.ok()) {
    why = permanent_why_;
    return permanent_;
  }
  if (log_ != nullptr && !log_->may_call(why)) return Status::from_errno(EINVAL);
  std::string().swap(state_);
  if (unread_) return {};
  if (!is_due_) {
    if (const Status st = is_led() ? hear(why) : send_result(await(why), why); !st.ok()) return st;
    is_due_ = is_led();
  }
  if (!count_memory()) return no_room(why);
  announce();
  if (const Status st = send_batch(why); !st.ok()) return st;
  unread_ = order_.next();
  is_due_ = false;
  return {};
}

Status Follow::next(std::unique_ptr<records::Batch>& out, std::size_t& fresh, std::string& why) {
  if (const Status st = wait(why); !st.ok()) return st;
  const Status st = ahead_.empty() ? read(*unread_, out, fresh, why) : ahead(0, out, fresh, why);
  if (!st.ok()) return send_result(st, why);
  unread_.reset();
  std::erase_if(ahead_, [&](const Ahead& a) { return a.number < order_.batch(); });
  ++batches_;
  if (++previous_batches_ >= options_.terms.lag && previous_.txn != nullptr) {
    end(previous_);
    if (std::string ignored; is_led()) (void)say_in_use(ignored);
  }
  return {};
}

Status Follow::fail(Status st, std::string& why) {
  if (st.raw() != ECANCELED) {
    permanent_ = st;
    permanent_why_ = why;
  }
  return st;
}

}  // namespace lmdbio::compat
