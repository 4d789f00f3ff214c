#include "bench/scale/simulation/simulated_streams.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "bench/common.h"
#include "bench/scale/simulation/simulated_index.h"
#include "bench/scale/simulation/simulated_lmdb.h"
#include "lmdbio/format/layout_09.h"
#include "lmdbio/io/extents.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/ranks/pauses.h"
#include "lmdbio/ranks/rank_stream.h"
#include "lmdbio/ranks/stream_sizes.h"
#include "lmdbio/ranks/stream_terms.h"

namespace lmdbio::bench {

namespace {

using namespace ranks;

constexpr std::size_t kAlignment = 4096;
/// By default (LMDBIO_MEMORY), a rank's readers may use 1 / kReadersShare of the node's memory.  Messages may
/// use 1 / kMessagesShare of that.
constexpr std::uint64_t kReadersShare = 4, kMessagesShare = 2;

/// Numbers the nodes in the order of their first ranks, as lmdbio/ranks does.
void number_by_rank(std::vector<std::uint32_t>& nodes) {
  std::unordered_map<std::uint32_t, std::uint32_t> numbers;
  for (std::uint32_t& node : nodes)
    node = numbers.emplace(node, static_cast<std::uint32_t>(numbers.size())).first->second;
}

/// Returns the node of each rank.  All ranks call it.  Simulated ranks are in one process, and share the
/// list.
std::span<const std::uint32_t> nodes_of_ranks(std::uint32_t node, std::uint32_t ranks) {
  static std::vector<std::uint32_t> received, nodes;
  received.resize(ranks);
  MPI_Allgather(&node, 1, MPI_UINT32_T, received.data(), 1, MPI_UINT32_T, MPI_COMM_WORLD);
  if (nodes.empty()) {
    nodes = received;
    number_by_rank(nodes);
  }
  return nodes;
}

double seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

/// Memory whose content is never read.
class Nothing {
 public:
  std::byte* bytes(std::size_t bytes) {
    if (bytes <= room_) return memory_;
    room_ = std::max<std::size_t>(2 * bytes, std::size_t{64} << 20);
    // The old memory stays mapped, because messages may use it.
    void* const made =
        ::mmap(nullptr, room_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) die_errno("memory of messages");
    memory_ = static_cast<std::byte*>(made);
    return memory_;
  }

 private:
  std::byte* memory_ = nullptr;
  std::size_t room_ = 0;
};
/// All records of all ranks have the same bytes.  So have all messages.
Nothing records_bytes, messages_bytes;

class NoMemory final : public PayloadMemory {
 public:
  std::byte* allocate(std::size_t size) noexcept override { return messages_bytes.bytes(size); }
  void release(std::byte*, std::size_t) noexcept override {}
};

/// Does what a reader's Fetch does, with simulated reads.
class ModelSource final : public PartSource {
 public:
  /// Signals `waker`, which must outlive this object, when the reads of a part have ended.
  ModelSource(Machine& machine, std::uint64_t most, Waker& waker)
      : machine_(machine), most_(most), waker_(waker) {}
  std::uint64_t requests() const noexcept { return requests_; }
  std::uint64_t bytes() const noexcept { return bytes_; }

  Status start(std::span<const std::uint64_t> ordinals, PartUse, std::unique_ptr<PartRead>& out,
               std::string&) override {
    auto read = std::make_unique<Read>(machine_, leaves_, ordinals, waker_);
    for (const Extent& extent : extents(ordinals, read->new_leaves))
      split_aligned(extent, kAlignment, machine_.tree().bytes(), ReadQueue::kMostRequest,
                    [&](const ReadPiece& piece) {
                      ++requests_;
                      bytes_ += piece.minimum;
                      read->reads.start(piece.offset, piece.bytes);
                    });
    out = std::move(read);
    return {};
  }

 private:
  class Read final : public PartRead {
   public:
    Read(Machine& machine, std::unordered_set<std::uint64_t>& leaves, std::span<const std::uint64_t> ordinals,
         Waker& waker)
        : reads(machine, [&waker] { waker.happen(); }),
          machine_(machine),
          leaves_(leaves),
          ordinals_(ordinals.begin(), ordinals.end()) {}
    bool done() noexcept override { return reads.in_flight() == 0; }
    void wait() noexcept override { reads.wait(); }
    Status record(std::size_t i, lmdbio_record& out, std::string&) override {
      leaves_.insert(new_leaves.begin(), new_leaves.end());
      new_leaves.clear();
      char key[Records::kKeyRoom];
      const Records& records = machine_.records();
      const std::uint64_t bytes = records.value_bytes(ordinals_[i]);
      out.ordinal = ordinals_[i];
      out.key = {records.key(ordinals_[i], key), records_bytes.bytes(sizeof key)};
      out.value = {bytes, records_bytes.bytes(bytes)};
      return {};
    }
    std::shared_ptr<const void> bytes() const override { return held_; }

    SimulatedReads reads;
    std::vector<std::uint64_t> new_leaves;  ///< kept once they were read

   private:
    Machine& machine_;
    std::unordered_set<std::uint64_t>& leaves_;
    const std::vector<std::uint64_t> ordinals_;
    const std::shared_ptr<const int> held_ = std::make_shared<int>();
  };

  /// Returns the extents of values, and of leaf pages that are not kept.  Small gaps are read as well.
  std::vector<Extent> extents(std::span<const std::uint64_t> ordinals,
                              std::vector<std::uint64_t>& new_leaves) const {
    const SyntheticTree& tree = machine_.tree();
    std::vector<Extent> wanted;
    for (const std::uint64_t o : ordinals) {
      const std::uint64_t leaf = tree.leaf_page(tree.leaf_of(o));
      if (!leaves_.contains(leaf) && (new_leaves.empty() || new_leaves.back() != leaf)) {
        wanted.push_back({leaf * tree.page_bytes(), tree.page_bytes()});
        new_leaves.push_back(leaf);
      }
      if (tree.value_pages(o) != 0)
        wanted.push_back({tree.value_page(o) * tree.page_bytes(),
                          format::kPageHeader + machine_.records().value_bytes(o)});
    }
    wanted.resize(merge(wanted, 0));
    wanted.resize(
        merge(wanted, std::max<std::uint64_t>(largest_gap(wanted, kSmallGap, most_), tree.page_bytes())));
    return wanted;
  }

  Machine& machine_;
  const std::uint64_t most_;
  Waker& waker_;
  std::unordered_set<std::uint64_t> leaves_;  ///< kept
  std::uint64_t requests_ = 0, bytes_ = 0;
};

}  // namespace

class SimulatedStreams::Stream final : public Background {
 public:
  Stream(const LoaderSettings& s, Machine& machine, CpuTime& cpu)
      : machine_(machine), transport_(machine.network(), rank_of_world(), ranks_of_world(), waker_) {
    const std::uint32_t ranks = transport_.ranks(), rank = transport_.rank();
    const std::span<const std::uint32_t> nodes =
        nodes_of_ranks(static_cast<std::uint32_t>(machine.node()), ranks);
    // Open the environment, from which the snapshot is taken.
    (void)SimulatedLmdb(machine, cpu);
    cpu.settle();
    make_simulated_index(machine, nodes, rank);
    machine.begin_to_count_in_flight();
    readers_ = choose_readers(nodes, s.strategy.readers_per_node);
    const lmdbio_order order = order_of(s, static_cast<int>(rank), static_cast<int>(ranks));

    const SyntheticTree& tree = machine.tree();
    StreamFacts facts;
    facts.share = order;
    facts.records = machine.records().count();
    facts.record_bytes = std::max<std::uint64_t>(
        (tree.leaf_pages() + tree.value_pages()) * tree.page_bytes() / facts.records, 1);
    facts.nodes = *std::max_element(nodes.begin(), nodes.end()) + 1;
    facts.readers = static_cast<std::uint32_t>(readers_.size());
    facts.ranks_here = static_cast<std::uint64_t>(std::count(nodes.begin(), nodes.end(), nodes[rank]));
    facts.available = machine.memory_of_node();
    facts.offer = facts.memory = facts.available / kReadersShare;
    facts.for_messages = facts.offer / kMessagesShare;
    // A rank that is alone has a plain reader, which keeps nothing.
    const Keeping keeps = ranks == 1 ? Keeping{} : what_to_keep(facts, 0);

    Job job;
    job.order = whole_order(order);
    job.distribution = order.block > 1 ? Distribution::contiguous : Distribution::strided;
    job.ranks = ranks;
    job.readers = facts.readers;
    job.round_records = round_records(facts.offer, facts.record_bytes, job.readers);
    if (votes_to_exchange(facts))
      job.scattered_records = round_records(facts.offer, scattered_bytes(facts.record_bytes), job.readers);
    job.kept_parts = keeps.parts;
    Result<ranks::Assignment> assignment = ranks::Assignment::make(job, facts.records);
    if (!assignment) die("this order cannot be divided between the ranks");
    assignment_.emplace(std::move(assignment).value());
    if (!assignment_->has_rounds()) die("orders in which each rank reads for itself cannot be simulated yet");

    source_ = std::make_unique<ModelSource>(machine, part_bytes(facts.offer), waker_);
    RankStream::Settings settings;
    settings.reader_ranks = readers_;
    settings.ahead = kRoundsAhead;
    settings.turns.group = s.strategy.group;
    settings.nodes = nodes;
    settings.memory = std::make_shared<NoMemory>();
    settings.keeps = assignment_->kept_rounds() != 0 ? keeps.bytes : 0;
    if (!RankStream::open(*assignment_, settings, transport_, *source_, stream_).ok()) die("no stream");
  }

  bool reads() const {
    return std::find(readers_.begin(), readers_.end(), transport_.rank()) != readers_.end();
  }
  RankBatch next() {
    RankBatch batch;
    std::string why;
    const double begin = now();
    for (quiet_ = 0;; ++quiet_) {
      poll_messages();
      const Status st = stream_->next(batch, why, now() - begin > seconds(kPatienceNs));
      if (st.ok()) return batch;
      if (st.raw() != EAGAIN) die("%s", why.c_str());
      something_happened();
      wait(kMostPauseWaiting, seconds(kPatienceNs));
    }
  }
  void go_on(double duration) override {
    const double end = now() + duration;
    for (double left = duration; left > 0; left = end - now()) {
      progress();
      wait(kMostPauseBusy, left);
    }
  }
  void go_on_until_all_have_come() override {
    Meeting& meeting = machine_.meeting();
    const std::uint64_t held = meeting.held();
    meeting.come(waker_, transport_.ranks());
    while (meeting.held() == held) {
      progress();
      wait(kMostPauseBusy, Waker::kForever);
    }
  }
  /// Closes the stream.  Returns when all ranks have closed theirs.
  LibraryCounters close() {
    stream_->leave();
    for (progress(); !stream_->closed(); progress()) wait(kMostPauseBusy, Waker::kForever);
    const Traffic traffic = stream_->traffic();
    const std::array mine{source_->bytes(), source_->requests(), traffic.messages_sent,
                          traffic.bytes_received, traffic.bytes_from_nodes};
    std::array<std::uint64_t, mine.size()> all{};
    MPI_Reduce(mine.data(), all.data(), mine.size(), MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    return {true, all[0], all[1], 0, all[2], all[3], all[4]};
  }

 private:
  static double now() { return s4u::Engine::get_clock(); }
  static std::uint32_t rank_of_world() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return static_cast<std::uint32_t>(rank);
  }
  static std::uint32_t ranks_of_world() {
    int ranks = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    return static_cast<std::uint32_t>(ranks);
  }
  void progress() {
    std::string why;
    poll_messages();
    if (!stream_->progress(why).ok()) die("%s", why.c_str());
    if (!something_happened()) ++quiet_;
  }
  /// Waits until the first poll after an event, but at most `most` seconds.  The library polls after pauses
  /// that become longer.  After kQuiet polls without an event, a stream can do nothing more.  So further
  /// polls before the next event are not simulated.
  void wait(std::int64_t most_pause, double most) {
    constexpr unsigned kQuiet = 3;
    const double begin = now(), end = begin + most;
    double look = begin + seconds(pause_after(quiet_, most_pause));
    if (quiet_ >= kQuiet) {
      if (!waker_.wait(most)) return;
      while (look < now()) look += seconds(pause_after(++quiet_, most_pause));
    }
    if (const double until = std::min(look, end); until > now()) s4u::this_actor::sleep_for(until - now());
  }
  void poll_messages() {
    if (!transport_.poll().ok()) die("messages fail");
  }
  bool something_happened() {
    const std::uint64_t events = transport_.events + stream_->events();
    if (std::exchange(events_, events) == events) return false;
    quiet_ = 0;
    return true;
  }

  Machine& machine_;
  Waker waker_;
  SimulatedTransport transport_;
  std::vector<std::uint32_t> readers_;
  std::optional<ranks::Assignment> assignment_;
  std::unique_ptr<ModelSource> source_;
  std::unique_ptr<RankStream> stream_;
  unsigned quiet_ = 0;
  std::uint64_t events_ = 0;
};

SimulatedStreams::SimulatedStreams(const LoaderSettings& settings, Machine& machine, CpuTime& cpu)
    : machine_(machine) {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const std::uint64_t steps = steps_per_epoch(records(), settings.batch, static_cast<std::uint64_t>(ranks));
  if (steps == 0) die("%s: fewer records than one batch for each rank", settings.database.c_str());
  steps_ = StepCounter(settings.batch, steps);
  stream_ = std::make_shared<Stream>(settings, machine, cpu);
  counters_.reads = stream_->reads();
}

SimulatedStreams::~SimulatedStreams() { close(); }

std::shared_ptr<Background> SimulatedStreams::background() const noexcept { return stream_; }

std::span<const Value> SimulatedStreams::next() {
  RankBatch batch;
  do batch = stream_->next();
  while (!steps_.is_next(batch.at.epoch, batch.at.position));
  steps_.step();
  values_.clear();
  for (const lmdbio_record& r : batch.records)
    values_.push_back({r.ordinal, {static_cast<const std::byte*>(r.value.mv_data), r.value.mv_size}});
  return values_;
}

void SimulatedStreams::close() {
  if (stream_ == nullptr) return;
  counters_.library = stream_->close();
  stream_.reset();
}

}  // namespace lmdbio::bench
