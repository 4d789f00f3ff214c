// Readers fetch for ranks of their node, into memory that these ranks share.  A reader may serve only itself.
#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>

#include "bench/common.h"
#include "bench/scale/finders.h"
#include "bench/scale/loader.h"
#include "bench/scale/world.h"

namespace lmdbio::bench {

namespace {

// Message tags.
constexpr int kTurn = 1, kReaders = 2, kPlaces = 3;
/// Strategies that coalesce requests also read gaps of up to this number of bytes.
constexpr std::uint64_t kGap = std::uint64_t{64} << 10;

/// The place of a value in shared memory.
struct Entry {
  std::uint64_t offset = 0, bytes = 0;
};

class NodeLoader final : public Loader {
 public:
  NodeLoader(const LoaderSettings& s, World& world)
      : settings_(s), world_(world), direct_(s.strategy.access == Strategy::Access::direct) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    make_groups();
    open();
    records_ = finder_ != nullptr ? finder_->records() : 0;
    MPI_Bcast(&records_, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    steps_ = steps_per_epoch(records_, s.batch, static_cast<std::uint64_t>(ranks_));
    if (steps_ == 0)
      die("%s: %llu records are fewer than one batch for each rank", s.database.c_str(),
          static_cast<unsigned long long>(records_));
    choose_fetch();
  }
  NodeLoader(const NodeLoader&) = delete;
  NodeLoader& operator=(const NodeLoader&) = delete;
  ~NodeLoader() override {
    finish_handing_on();
    if (storage_ != nullptr) storage_->wait();
    slots_[0].reset();
    slots_[1].reset();
    MPI_Comm_free(&group_);
    if (readers_ != MPI_COMM_NULL) MPI_Comm_free(&readers_);
  }

  std::uint64_t records() const override { return records_; }
  LoaderCounters counters() const override {
    LoaderCounters c;
    if (storage_ != nullptr) c.direct = storage_->counters();
    c.sent_bytes = sent_bytes_;
    c.wrong_guesses = finder_ != nullptr ? finder_->wrong_guesses() : 0;
    c.reads = is_reader();
    return c;
  }
  std::span<const Value> next() override {
    const Window whole = window(fetch_);
    const std::uint64_t steps = whole.count / (settings_.batch * static_cast<std::uint64_t>(ranks_));
    if (step_ == 0) deliver();
    values_.clear();
    const auto* const table = reinterpret_cast<const Entry*>(slots_[fetch_ % 2]->bytes());
    const std::uint64_t mine = static_cast<std::uint64_t>(rank_of_group_) * steps * settings_.batch;
    for (std::uint64_t i = step_ * settings_.batch; i < (step_ + 1) * settings_.batch; ++i) {
      const Entry& e = table[mine + i];
      values_.push_back({ordinal(whole, static_cast<std::uint64_t>(rank_), i),
                         {slots_[fetch_ % 2]->bytes() + e.offset, static_cast<std::size_t>(e.bytes)}});
    }
    if (++step_ == steps) {
      step_ = 0;
      ++fetch_;
    }
    return values_;
  }

 private:
  bool is_reader() const noexcept { return rank_of_group_ == 0; }

  void make_groups() {
    MPI_Comm node = world_.split_by_node();
    int rank_of_node = 0, ranks_of_node = 1;
    MPI_Comm_rank(node, &rank_of_node);
    MPI_Comm_size(node, &ranks_of_node);
    int readers = ranks_of_node;
    if (settings_.strategy.readers == Strategy::Readers::some_of_node)
      readers = std::min(ranks_of_node, static_cast<int>(settings_.strategy.readers_per_node));
    MPI_Comm_split(node, rank_of_node * readers / ranks_of_node, rank_of_node, &group_);
    MPI_Comm_free(&node);
    MPI_Comm_rank(group_, &rank_of_group_);
    int ranks_of_group = 1;
    MPI_Comm_size(group_, &ranks_of_group);
    served_.resize(static_cast<std::size_t>(ranks_of_group));
    MPI_Allgather(&rank_, 1, MPI_INT, served_.data(), 1, MPI_INT, group_);
    find_all_readers();
    if (is_reader()) {
      make_communicator_of_readers();
      find_all_served();
    }
    for (auto& slot : slots_) slot = world_.share_memory(group_);
  }

  void find_all_readers() {
    constexpr std::size_t kBits = 64;
    std::vector<std::uint64_t> bits((static_cast<std::size_t>(ranks_) - 1) / kBits + 1);
    const auto own = static_cast<std::size_t>(rank_);
    if (is_reader()) bits[own / kBits] |= std::uint64_t{1} << own % kBits;
    MPI_Allreduce(MPI_IN_PLACE, bits.data(), static_cast<int>(bits.size()), MPI_UINT64_T, MPI_BOR,
                  MPI_COMM_WORLD);
    if (!is_reader()) return;
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto bit = static_cast<std::size_t>(rank);
      if ((bits[bit / kBits] >> bit % kBits & 1) != 0) all_readers_.push_back(rank);
    }
  }
  // Only readers call this.  MPI_Comm_split would send messages from all ranks to one.
  void make_communicator_of_readers() {
    MPI_Group all, these;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, static_cast<int>(all_readers_.size()), all_readers_.data(), &these);
    MPI_Comm_create_group(MPI_COMM_WORLD, these, kReaders, &readers_);
    MPI_Group_free(&these);
    MPI_Group_free(&all);
  }
  // Only readers call this: on all ranks, leaders_ would take memory that grows with the square of the ranks.
  void find_all_served() {
    const std::size_t readers = all_readers_.size();
    std::vector<int> counts(readers), begins(readers), all(static_cast<std::size_t>(ranks_));
    const auto own = static_cast<int>(served_.size());
    MPI_Allgather(&own, 1, MPI_INT, counts.data(), 1, MPI_INT, readers_);
    std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), 0);
    MPI_Allgatherv(served_.data(), own, MPI_INT, all.data(), counts.data(), begins.data(), MPI_INT, readers_);
    leaders_.resize(static_cast<std::size_t>(ranks_));
    for (std::size_t r = 0; r < readers; ++r)
      for (int i = 0; i < counts[r]; ++i)
        leaders_[static_cast<std::size_t>(all[static_cast<std::size_t>(begins[r] + i)])] = all_readers_[r];
  }

  void open() {
    if (!is_reader()) return;
    MPI_Comm_rank(readers_, &reader_);
    MPI_Comm_size(readers_, &readers_count_);
    storage_ = world_.open(settings_.database + "/data.mdb");
    const Strategy::Finding finding = settings_.strategy.finding;
    if (finding == Strategy::Finding::handed_on && reader_ != 0) return;  // the first reader finds for all
    if (finding == Strategy::Finding::guessed)
      finder_ = guess(*storage_, readers_);
    else
      finder_ = direct_ ? direct_walk(*storage_) : cursor_walk(world_.lmdb(settings_.database, ""));
  }

  // Chooses the number of steps of a fetch, so that each reader fetches at least request_bytes.
  void choose_fetch() {
    const std::uint64_t of_reader = settings_.strategy.request_bytes;
    if (of_reader == 0) return;
    std::uint64_t bytes = 0, ranks = served_.size();
    if (rank_ == 0) bytes = storage_->bytes() / records_ + 1;  // of each record
    MPI_Bcast(&bytes, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &ranks, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    const std::uint64_t step = bytes * settings_.batch * ranks;
    steps_of_fetch_ = std::min((of_reader + step - 1) / step, steps_);
  }

  std::uint64_t fetches_per_epoch() const noexcept { return (steps_ - 1) / steps_of_fetch_ + 1; }
  Window window(std::uint64_t fetch) const noexcept {
    const std::uint64_t of_step = settings_.batch * static_cast<std::uint64_t>(ranks_);
    const std::uint64_t first = fetch % fetches_per_epoch() * steps_of_fetch_;
    return {first * of_step, std::min(steps_of_fetch_, steps_ - first) * of_step};
  }
  std::uint64_t ordinal(Window w, std::uint64_t rank, std::uint64_t i) const noexcept {
    const auto ranks = static_cast<std::uint64_t>(ranks_);
    return w.first +
           (settings_.assignment == Assignment::strided ? i * ranks + rank : w.count / ranks * rank + i);
  }
  /// Returns the ordinals of all ranks that reader `leader` serves, sorted.  `index` gets the position of
  /// each among the values of the group.
  std::vector<std::uint64_t> ordinals(Window w, int leader, std::vector<std::uint64_t>* index) const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> all;
    const std::uint64_t each = w.count / static_cast<std::uint64_t>(ranks_);
    std::uint64_t of_group = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (leaders_[static_cast<std::size_t>(rank)] != leader) continue;
      for (std::uint64_t i = 0; i < each; ++i)
        all.emplace_back(ordinal(w, static_cast<std::uint64_t>(rank), i), of_group++);
    }
    std::sort(all.begin(), all.end());
    std::vector<std::uint64_t> sorted;
    for (const auto& [o, i] : all) {
      sorted.push_back(o);
      if (index != nullptr) index->push_back(i);
    }
    return sorted;
  }

  std::vector<Place> find(Window w, const std::vector<std::uint64_t>& mine) {
    if (settings_.strategy.finding != Strategy::Finding::handed_on) return finder_->find(w, mine);
    std::vector<Place> places(mine.size());
    if (reader_ != 0) {
      MPI_Recv(places.data(), static_cast<int>(places.size() * sizeof(Place)), MPI_BYTE, 0, kPlaces, readers_,
               MPI_STATUS_IGNORE);
      return places;
    }
    std::vector<std::uint64_t> every(w.count);
    for (std::uint64_t i = 0; i < w.count; ++i) every[i] = w.first + i;
    const std::vector<Place> found = finder_->find(w, every);
    finish_handing_on();  // of the previous fetch, so as not to wait for readers that still copy
    int reader = 0;
    for (const int leader : all_readers_) {
      std::vector<Place>& of_reader = leader == rank_ ? places : handed_on_.emplace_back();
      of_reader.clear();
      for (const std::uint64_t o : ordinals(w, leader, nullptr)) of_reader.push_back(found[o - w.first]);
      if (leader != rank_) {
        const std::size_t bytes = of_reader.size() * sizeof(Place);
        sent_bytes_ += bytes;
        MPI_Isend(of_reader.data(), static_cast<int>(bytes), MPI_BYTE, reader, kPlaces, readers_,
                  &handing_on_.emplace_back());
      }
      ++reader;
    }
    return places;
  }

  void finish_handing_on() {
    MPI_Waitall(static_cast<int>(handing_on_.size()), handing_on_.data(), MPI_STATUSES_IGNORE);
    handing_on_.clear();
    handed_on_.clear();
  }

  /// The requests of a reader for a fetch, and the places of the values in shared memory.
  struct Plan {
    std::vector<Entry> table;   ///< places of values in shared memory, by rank of the group
    std::vector<Place> places;  ///< places in the file, in the order of `index`
    std::vector<std::uint64_t> index;
    std::vector<std::pair<Span, std::uint64_t>> requests;  ///< with their offsets in shared memory
    std::uint64_t bytes = 0;                               ///< of shared memory
  };
  Plan plan(std::uint64_t fetch) {
    const Window w = window(fetch);
    Plan p;
    const std::vector<std::uint64_t> mine = ordinals(w, rank_, &p.index);
    p.places = find(w, mine);
    p.table.resize(mine.size());
    const auto up = [](std::uint64_t n) {
      return (n + Storage::kAlignment - 1) / Storage::kAlignment * Storage::kAlignment;
    };
    p.bytes = up(p.table.size() * sizeof(Entry));
    if (!direct_) {
      for (std::size_t i = 0; i < p.places.size(); ++i) {
        p.table[p.index[i]] = {p.bytes, p.places[i].bytes};
        p.bytes += (p.places[i].bytes + 7) / 8 * 8;
      }
      return p;
    }
    // Merge the pages of adjacent values, also across small gaps.
    const std::uint64_t gap = settings_.strategy.request_bytes != 0 ? kGap : 0;
    std::vector<Span> spans;
    for (const Place& place : p.places) {
      if (place.bytes == 0) continue;  // it may lie at the end of the file
      const std::uint64_t begin = place.offset / Storage::kAlignment * Storage::kAlignment;
      spans.push_back({begin, up(place.offset + place.bytes) - begin});
    }
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.offset < b.offset; });
    for (const Span& s : spans) {
      if (!p.requests.empty() && s.offset <= p.requests.back().first.end() + gap) {
        Span& last = p.requests.back().first;
        last.bytes = std::max(last.end(), s.end()) - last.offset;
      } else {
        p.requests.push_back({s, 0});
      }
    }
    for (auto& [span, at] : p.requests) {
      at = p.bytes;
      p.bytes += span.bytes;
    }
    for (std::size_t i = 0; i < p.places.size(); ++i) {
      if (p.places[i].bytes == 0) continue;
      const auto r = std::upper_bound(p.requests.begin(), p.requests.end(), p.places[i].offset,
                                      [](std::uint64_t o, const auto& q) { return o < q.first.offset; }) -
                     1;
      p.table[p.index[i]] = {r->second + (p.places[i].offset - r->first.offset), p.places[i].bytes};
    }
    return p;
  }

  // Plans a fetch, and makes the memory for it in all ranks of the group.
  void prepare(std::uint64_t fetch) {
    std::uint64_t bytes = 0;
    if (is_reader()) {
      plan_ = plan(fetch);
      bytes = plan_.bytes;
    }
    slots_[fetch % 2]->reserve(bytes);
    if (!is_reader()) return;
    std::memcpy(slots_[fetch % 2]->bytes(), plan_.table.data(), plan_.table.size() * sizeof(Entry));
  }
  void start(std::uint64_t fetch) {
    if (!is_reader() || !direct_) return;
    for (const auto& [span, at] : plan_.requests) storage_->start(span, slots_[fetch % 2]->bytes() + at);
  }
  void finish(std::uint64_t fetch) {
    if (!is_reader()) return;
    if (direct_) return storage_->wait();
    LmdbAccess* const lmdb = finder_ != nullptr ? finder_->lmdb() : nullptr;
    std::byte* const to = slots_[fetch % 2]->bytes();
    for (std::size_t i = 0; i < plan_.places.size(); ++i) {
      const Entry& e = plan_.table[plan_.index[i]];
      if (lmdb != nullptr)
        lmdb->copy(plan_.places[i], to + e.offset);
      else
        storage_->copy_mapped(plan_.places[i], to + e.offset);
    }
  }

  void prepare_and_start(std::uint64_t fetch) {
    prepare(fetch);
    start(fetch);
  }

  /// Completes fetch fetch_.  All ranks of the group have used the earlier ones.
  void deliver() {
    slots_[0]->wait_for_all();  // no rank still uses the memory of fetch_ - 2, which is reused
    if (settings_.strategy.overlap == Strategy::Overlap::ahead) {
      if (!ahead_) prepare_and_start(fetch_);
      finish(fetch_);
      slots_[0]->wait_for_all();
      ahead_ = fetch_ + 1 < settings_.epochs * fetches_per_epoch();
      if (ahead_) prepare_and_start(fetch_ + 1);
      return;
    }
    prepare(fetch_);  // outside turns, because all readers find together
    take_turn(true);
    start(fetch_);
    finish(fetch_);
    take_turn(false);
    slots_[0]->wait_for_all();
  }
  // In a group of readers, one fetches after the other.
  void take_turn(bool begins) {
    const auto group = static_cast<int>(settings_.strategy.group);
    if (group == 0 || !is_reader()) return;
    const int at = reader_ % group;
    if (begins && at != 0) MPI_Recv(nullptr, 0, MPI_BYTE, reader_ - 1, kTurn, readers_, MPI_STATUS_IGNORE);
    if (!begins && at + 1 != group && reader_ + 1 != readers_count_)
      MPI_Send(nullptr, 0, MPI_BYTE, reader_ + 1, kTurn, readers_);
  }

  const LoaderSettings settings_;
  World& world_;
  const bool direct_;
  int rank_ = 0, ranks_ = 1, rank_of_group_ = 0, reader_ = 0, readers_count_ = 1;
  MPI_Comm group_ = MPI_COMM_NULL;    ///< a reader, and the ranks that it serves
  MPI_Comm readers_ = MPI_COMM_NULL;  ///< null on other ranks
  std::vector<int> served_;           ///< ranks of the group
  // Used on readers only.
  std::vector<int> all_readers_;  ///< ranks, sorted
  std::vector<int> leaders_;      ///< by rank: the reader that serves it
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Finder> finder_;
  std::uint64_t records_ = 0, steps_ = 0, steps_of_fetch_ = 1;
  std::unique_ptr<NodeMemory> slots_[2];
  Plan plan_;
  std::uint64_t fetch_ = 0, step_ = 0;
  bool ahead_ = false;                        ///< fetch_ was prepared when the previous fetch was delivered
  std::deque<std::vector<Place>> handed_on_;  ///< places that are being sent to other readers
  std::vector<MPI_Request> handing_on_;
  std::uint64_t sent_bytes_ = 0;
  std::vector<Value> values_;
};

}  // namespace

std::unique_ptr<Loader> node_loader(const LoaderSettings& settings, World& world) {
  return std::make_unique<NodeLoader>(settings, world);
}

}  // namespace lmdbio::bench
