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

std::string reason(const Shared& shared, const std::string& what, Status st) {
  std::string text = shared.source.name + ": " + what;
  const char* const error = st.raw() > 0 ? ::strerrordesc_np(st.raw()) : nullptr;
  if (error != nullptr) text.append(": ").append(error);
  return text;
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
      why = reason(shared,
                   "record " + std::to_string(fetch->ordinal(i + k)) + " cannot be read: page " +
                       std::to_string(page) + " or the record index is damaged",
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
  if (const Status st = locations.await(cancelled, why); !st.ok()) return st;
  const UnknownOrdinals unknown = by_key ? UnknownOrdinals{} : locations.unknown();
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
    for (std::size_t k = 0; k < n; ++k) {
      if (const std::uint64_t o = ordinals[i + k]; o >= unknown.begin && o < unknown.end)
        some[k] = {.leaf = unknown.leaf, .slot = no_slot(shared.source.page_size)};
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
      pid_(::getpid()) {}

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
  if (!st.ok()) {
    ++shared_->counters.failed;
    why = reason(*shared_, "cannot be read", st);
    return st;
  }
  ++shared_->counters.fetches;
  if (fetch->cached()) ++shared_->counters.fetches_cached;
  fetch->finish(*shared_);
  return make_batch(*shared_, fetch, 0, ordinals.size(), out, why);
}

Status Reader::find(std::span<const MDB_val> keys, std::vector<std::uint64_t>& ordinals, std::string& why) {
  if (!ours(why)) return Status::from_errno(EINVAL);
  for (const MDB_val& k : keys) {
    if (k.mv_size != 0 && k.mv_data != nullptr) continue;
    why = shared_->source.name + ": empty key";
    return Status::from_mdb(MDB_BAD_VALSIZE);
  }
  if (const Status st = locations_->await(kNever, why); !st.ok()) return st;
  ordinals.assign(keys.size(), kNoRecord);
  Borrowed queues(*this);
  const Result<ReadQueue*> queue =
      queues->get(shared_->read == ReadPath::direct && !shared_->read.uses_resident);
  if (!queue) {
    why = reason(*shared_, "cannot be read", queue.error());
    return queue.error();
  }
  TakenMemory pages;
  const std::uint64_t most = std::clamp(shared_->memory().limit() / kLookupShare, kLeastLookup, kLookupBytes);
  const bool got = pages.take(shared_->pool->memory(), MemoryUse::readers, most, Urgency::ahead);
  tree::PageStore store(*queue.value(), shared_->page_shift, shared_->source.pages,
                        got ? most : kLeastLookup);
  Status wrong;
  const Status st = tree::find_keys(store, shared_->source.db, shared_->source.key_order, keys,
                                    [&](std::size_t i, const tree::KeyPlace& at) {
                                      if (at.outcome == tree::KeyPlace::Outcome::absent) return;
                                      Status found = Status::from_mdb(MDB_CORRUPTED);
                                      if (at.outcome == tree::KeyPlace::Outcome::found)
                                        found =
                                            locations_->ordinal_of(at.leaf, at.slot, at.page, ordinals[i]);
                                      if (!found.ok() && wrong.ok()) wrong = found;
                                    });
  if (!st.ok()) {
    why = reason(*shared_,
                 st.raw() == ENOTSUP
                     ? "keys cannot be looked up, because the program sets their order (mdb_set_compare)"
                     : "cannot be read",
                 st);
    return st;
  }
  if (!wrong.ok())
    why = reason(*shared_, "a key cannot be looked up: a page or the record index is damaged", wrong);
  return wrong;
}

}  // namespace lmdbio::records
