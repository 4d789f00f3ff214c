#include "lmdbio/records/reader.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lmdbio/records/stream.h"
#include "lmdbio/tree/bulk_lookup.h"

namespace lmdbio::records {

namespace {

/// Bytes of tree pages that a lookup of keys keeps: one kLookupShare-th of the process's memory, between
/// kLeastLookup and kLookupBytes.
constexpr std::uint64_t kLookupShare = 16, kLookupBytes = std::uint64_t{4} << 20,
                        kLeastLookup = std::uint64_t{128} << 10;
/// For calls that cannot be cancelled.
const std::atomic<bool> kNever{false};

}  // namespace

namespace {

std::string reason(const std::string& name, const std::string& what, Status st) {
  std::string text = name + ": " + what;
  const char* const error = st.raw() > 0 ? ::strerrordesc_np(st.raw()) : nullptr;
  if (error != nullptr) text.append(": ").append(error);
  return text;
}

}  // namespace

std::string reason(const Shared& shared, const std::string& what, Status st) {
  return reason(shared.source.name, what, st);
}

std::string reason(Shared& shared, const Fetch& fetch, const std::string& what, Status st) {
  const std::optional<std::size_t> failed = fetch.failed_database(shared, st);
  if (!failed) return reason(shared, what, st);
  return st.raw() == ESTALE ? shared.source.joined->changes(*failed)
                            : reason(shared.source.joined->all[*failed].name, what, st);
}

std::string memory_reason(const Shared& shared, const Fetch& fetch) {
  return shared.source.name + ": out of memory: about " + std::to_string(fetch.bytes()) +
         " bytes are needed, the limit is " + std::to_string(shared.pool->limit()) + " bytes, and " +
         std::to_string(shared.pool->held_bytes()) +
         " bytes are in batches that were not released or are being read" + shared.memory().reason();
}

Status make_batch(Shared& shared, const std::shared_ptr<Fetch>& fetch, std::size_t i, std::size_t n,
                  std::unique_ptr<Batch>& out, std::string& why) {
  auto batch = std::make_unique<Batch>();
  batch->rows.resize(n);
  batch->rows_memory.count(shared.pool->memory(), MemoryUse::readers,
                           counted_apart(n * sizeof(lmdbio_record)));
  std::uint64_t bytes = 0;
  for (std::size_t k = 0; k < n; ++k) {
    lmdbio_record& r = batch->rows[k];
    std::uint64_t page = 0;
    if (const Status st = fetch->give(shared, i + k, r, page); !st.ok()) {
      ++shared.counters.failed;
      const Databases* const joined = shared.source.joined.get();
      why = reason(joined == nullptr ? shared.source.name : joined->all[joined->of_page(page)].name,
                   "record " + std::to_string(fetch->ordinal(i + k)) + " cannot be read: page " +
                       std::to_string(shared.page_in_file(page, shared.file_of(page))) +
                       " or the record index is damaged",
                   st);
      return st;
    }
    bytes += r.key.mv_size + r.value.mv_size;
  }
  fetch->hold();
  batch->fetch = fetch;
  batch->count = n;
  batch->records = batch->rows.data();
  ++shared.counters.batches;
  shared.counters.records += n;
  shared.counters.bytes_given += bytes;
  out = std::move(batch);
  return {};
}

Status add_records(const RecordLocations& locations, Shared& shared, std::span<const std::uint64_t> ordinals,
                   const std::atomic<bool>& cancelled, Fetch& fetch, std::string& why, bool by_key) {
  if (const Status st = locations.prepare(ordinals, cancelled, why); !st.ok()) return st;
  RecordLocation some[64];
  for (std::size_t i = 0; i < ordinals.size();) {
    if (ordinals[i] == kNoRecord) {
      fetch.add_missing();
      ++i;
      continue;
    }
    if (ordinals[i] >= locations.records()) {
      why = shared.source.name + ": no record " + std::to_string(ordinals[i]) +
            "; number of records: " + std::to_string(locations.records());
      return Status::from_errno(EINVAL);
    }
    // Look up consecutive ordinals together.
    std::size_t n = 1;
    while (n < std::size(some) && i + n < ordinals.size() && ordinals[i + n] == ordinals[i] + n &&
           ordinals[i + n] < locations.records())
      ++n;
    locations.locations(ordinals[i], {some, n});
    UnknownOrdinals unknown = by_key ? UnknownOrdinals{} : locations.unknown(ordinals[i]);
    for (std::size_t k = 0; k < n; ++k) {
      const std::uint64_t o = ordinals[i + k];
      if (o >= unknown.end && unknown.end != 0) unknown = locations.unknown(o);  // the next database
      if (o >= unknown.begin && o < unknown.end)
        some[k] = {.leaf = unknown.leaf, .slot = no_slot(shared.source.page_size), .file = some[k].file};
      fetch.add(ordinals[i + k], some[k], shared);
    }
    i += n;
    if (fetch.own_bytes() <= shared.pool->limit()) continue;
    why = memory_reason(shared, fetch);
    return Status::from_errno(ENOMEM);
  }
  return {};
}

Reader::Reader(Source source, std::unique_ptr<RecordLocations> locations, std::uint64_t memory,
               ReadDecision read, std::shared_ptr<Memory> process)
    : shared_(std::make_shared<Shared>(std::move(source), std::max(memory, kLeastMemory), read,
                                       std::move(process))),
      locations_(std::move(locations)),
      pid_(::getpid()) {
  if (JoinedLocations* const joined = locations_->joined(); joined != nullptr)
    joined->set_find([this](std::size_t database, std::span<const MDB_val> keys,
                            const JoinedLocations::Tell& tell,
                            std::string& why) { return lookup(database, keys, tell, why); });
}

Reader::~Reader() {
  if (::getpid() == pid_) return;
  for (const auto& queues : idle_)
    if (queues != nullptr) queues->forget();
  (void)locations_.release();  // another thread may have been using it at the fork
}

bool Reader::ours(std::string& why) const {
  if (::getpid() == pid_) return true;
  why = shared_->source.name + ": the reader belongs to another process; a forked child must open its own";
  return false;
}

/// The queues of one call: an idle set, or new ones.  The destructor returns them to the reader.
class Reader::Borrowed {
 public:
  explicit Borrowed(Reader& reader) : reader_(reader) {
    const std::lock_guard lock(reader.mutex_);
    if (!reader.idle_.empty()) {
      queues_ = std::move(reader.idle_.back());
      reader.idle_.pop_back();
    }
    if (queues_ == nullptr) queues_ = std::make_unique<Queues>(*reader.shared_);
    reader.idle_.reserve(reader.idle_.size() + 1);
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed() {
    queues_->count();
    const std::lock_guard lock(reader_.mutex_);
    if (reader_.idle_.size() < reader_.idle_.capacity()) reader_.idle_.push_back(std::move(queues_));
  }
  Queues* operator->() const noexcept { return queues_.get(); }
  Queues& operator*() const noexcept { return *queues_; }

 private:
  Reader& reader_;
  std::unique_ptr<Queues> queues_;
};

Status Reader::read(std::span<const std::uint64_t> ordinals, std::unique_ptr<Batch>& out, std::string& why,
                    bool by_key) {
  if (!ours(why)) return Status::from_errno(EINVAL);
  const auto fetch = std::make_shared<Fetch>();
  if (const Status st = add_records(*locations_, *shared_, ordinals, kNever, *fetch, why, by_key); !st.ok())
    return st;
  fetch->plan(*shared_, shared_->share_of_one(1) / 2);
  Borrowed queues(*this);
  Status st = start_needed(*shared_, *queues, *fetch, 0, {kNever});
  const HeldFetch held(fetch);
  if (!st.ok()) {
    why = st.raw() == ENOMEM ? memory_reason(*shared_, *fetch) : reason(*shared_, "cannot be read", st);
    return st;
  }
  if (ReadQueue* const queue = fetch->queue(); queue != nullptr) {
    st = queue->wait(fetch->group(), kNever);
    if (!fetch->group().done()) {  // the program has ended the wait
      queue->drop(fetch->group());
      why = shared_->source.name + ": cancelled";
      return Status::from_errno(ECANCELED);
    }
  }
  if (st.ok()) st = fetch->finish(*shared_);
  if (!st.ok()) {
    ++shared_->counters.failed;
    why = reason(*shared_, *fetch, "cannot be read", st);
    return st;
  }
  ++shared_->counters.fetches;
  if (fetch->cached()) ++shared_->counters.fetches_cached;
  return make_batch(*shared_, fetch, 0, ordinals.size(), out, why);
}

Status Reader::find(std::span<const MDB_val> keys, std::vector<std::uint64_t>& ordinals, std::string& why) {
  if (!ours(why)) return Status::from_errno(EINVAL);
  for (const MDB_val& k : keys) {
    if (k.mv_size != 0 && k.mv_data != nullptr) continue;
    why = shared_->source.name + ": empty key";
    return Status::from_mdb(MDB_BAD_VALSIZE);
  }
  JoinedLocations* const joined = locations_->joined();
  if (joined == nullptr)
    if (const Status st = locations_->await(kNever, why); !st.ok()) return st;
  ordinals.assign(keys.size(), kNoRecord);
  std::vector<MDB_val> wanted(keys.begin(), keys.end());
  std::vector<std::size_t> index(keys.size());  // of the wanted keys in `keys`
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = i;
  for (std::size_t d = 0; d < (joined == nullptr ? 1 : joined->parts()) && !wanted.empty(); ++d) {
    Status wrong;
    const auto tell = [&](std::size_t i, std::uint64_t leaf, unsigned slot, const format::PageView& page) {
      Status found = joined == nullptr ? Status() : joined->ready(d, kNever, why);
      const bool told = !found.ok();
      if (found.ok()) found = locations_->ordinal_of(leaf, slot, page, ordinals[index[i]]);
      if (found.ok() || !wrong.ok()) return;
      wrong = found;
      if (!told)
        why = reason(*shared_, "a key cannot be looked up: a page or the record index is damaged", wrong);
    };
    if (const Status st = lookup(d, wanted, tell, why); !st.ok()) return st;
    if (!wrong.ok()) return wrong;
    std::size_t left = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (ordinals[index[i]] != kNoRecord) continue;
      wanted[left] = wanted[i];
      index[left++] = index[i];
    }
    wanted.resize(left);
  }
  return {};
}

// Looks up keys in one database.  If a key's place is unknown because of damage, the result is
// MDB_CORRUPTED.
Status Reader::lookup(std::size_t database, std::span<const MDB_val> keys, const JoinedLocations::Tell& tell,
                      std::string& why) {
  const Source& source = shared_->source;
  const Database* const one = source.joined == nullptr ? nullptr : &source.joined->all[database];
  const std::string& name = one == nullptr ? source.name : one->name;
  const std::uint64_t first_page = one == nullptr ? 0 : one->first_page;
  Borrowed queues(*this);
  const Result<ReadQueue*> queue =
      queues->get(shared_->read == ReadPath::direct && !shared_->read.uses_resident);
  if (!queue) {
    why = reason(name, "cannot be read", queue.error());
    return queue.error();
  }
  TakenMemory pages;
  const std::uint64_t most = std::clamp(shared_->memory().limit() / kLookupShare, kLeastLookup, kLookupBytes);
  const bool got = pages.take(shared_->pool->memory(), MemoryUse::readers, most, Urgency::ahead);
  tree::PageStore store(*queue.value(), shared_->page_shift, one == nullptr ? source.pages : one->pages,
                        got ? most : kLeastLookup, nullptr, shared_->offset(first_page), source.version);
  bool damaged = false;
  const Status st = tree::find_keys(store, one == nullptr ? source.db : one->db,
                                    one == nullptr ? source.key_order : one->key_order, keys,
                                    [&](std::size_t i, const tree::KeyPlace& at) {
                                      if (at.outcome == tree::KeyPlace::Outcome::found)
                                        tell(i, at.leaf + first_page, at.slot, at.page);
                                      damaged = damaged || at.outcome == tree::KeyPlace::Outcome::unknown;
                                    });
  if (st.raw() == ESTALE || (st.ok() && !shared_->unchanged(database))) {
    why = one != nullptr ? source.joined->changes(database) : reason(name, "cannot be read", st);
    return Status::from_errno(ESTALE);
  }
  if (!st.ok()) {
    why = reason(name,
                 st.raw() == ENOTSUP
                     ? "keys cannot be looked up, because the program sets their order (mdb_set_compare)"
                     : "cannot be read",
                 st);
    return st;
  }
  if (!damaged) return {};
  why = reason(name, "a key cannot be looked up: a page or the record index is damaged",
               Status::from_mdb(MDB_CORRUPTED));
  return Status::from_mdb(MDB_CORRUPTED);
}

}  // namespace lmdbio::records
