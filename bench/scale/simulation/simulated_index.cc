#include "bench/scale/simulation/simulated_index.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/common.h"
#include "lmdbio/format/meta_view.h"
#include "lmdbio/ranks/index_exchange.h"
#include "lmdbio/records/build_index.h"

namespace lmdbio::bench {

namespace {

constexpr std::size_t kAlignment = 4096;
/// The port of the index exchange.  The rank's stream has port 0.
constexpr unsigned kPort = 1;

/// An engine whose reads take the time of the storage model on the calling rank's node, and return pages of
/// the synthetic tree.
class ModelEngine final : public IoEngine {
 public:
  ModelEngine(Machine& machine, unsigned depth)
      : IoEngine({kAlignment, depth, true}), machine_(machine), node_(machine.node()) {}
  ModelEngine(const ModelEngine&) = delete;
  ModelEngine& operator=(const ModelEngine&) = delete;
  ~ModelEngine() override {
    while (reading_ != 0) wait();
  }

 private:
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override {
    const SyntheticTree& tree = machine_.tree();
    for (const RawRead& read : reads) {
      const std::uint64_t bytes = read.offset < tree.bytes()
                                      ? std::min<std::uint64_t>(read.dst.size(), tree.bytes() - read.offset)
                                      : 0;
      tree.make_tree_pages(read.offset, read.dst.first(bytes));
      ++reading_;
      machine_.read(node_, read.offset, bytes, [this, slot = read.slot, bytes] {
        --reading_;
        done_.push_back({slot, static_cast<long>(bytes)});
        if (std::exchange(waits_, false)) some_->release();
      });
    }
    return reads.size();
  }
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept override {
    while (done_.size() < min) wait();
    const std::size_t n = std::min(out.size(), done_.size());
    std::copy_n(done_.begin(), n, out.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(n));
    return n;
  }
  void wait() {
    waits_ = true;
    some_->acquire();
  }

  Machine& machine_;
  const std::size_t node_;
  std::size_t reading_ = 0;
  std::deque<RawResult> done_;
  bool waits_ = false;
  const s4u::SemaphorePtr some_ = s4u::Semaphore::create(0);
};

/// The machine of the job.  A global, because the function that makes engines has no argument for it.
Machine* engines_machine = nullptr;

Result<std::unique_ptr<IoEngine>> make_engine(const File&, unsigned depth, EngineKind,
                                              const char**) noexcept {
  return std::make_unique<ModelEngine>(*engines_machine, depth);
}

/// Returns an empty file: an index build asks its file how it can be read.
std::shared_ptr<const OpenFile> empty_file() {
  const int fd = ::memfd_create("lmdbio_simulated", MFD_CLOEXEC);
  if (fd < 0) die_errno("memfd_create");
  Result<File> file = File::from_fd(fd, File::Take::duplicate);
  ::close(fd);
  if (!file) die("an empty file in memory cannot be used");
  std::shared_ptr<const OpenFile> open = OpenFile::adopt(std::move(file).value());
  if (open == nullptr) die("out of memory");
  return open;
}

format::DbRecord main_database(const SyntheticTree& tree) {
  format::MetaRecord newest{};
  std::vector<std::byte> page(tree.page_bytes());
  for (const SyntheticTree::Page number : {0u, 1u}) {
    tree.make(number, page);
    const auto meta = format::parse_meta({page.data(), format::kMetaBytes});
    if (!meta) die("meta page %u of the synthetic tree cannot be read", static_cast<unsigned>(number));
    if (number == 0 || meta.value().txnid > newest.txnid) newest = meta.value();
  }
  return newest.dbs[1];
}

/// Builds this rank's part of the index in the constructor.
class ModelWork final : public ranks::IndexWork {
 public:
  ModelWork(Machine& machine, std::uint32_t part, std::uint32_t parts) {
    static const std::shared_ptr<const OpenFile> file = empty_file();
    engines_machine = &machine;
    records::IndexRequest request;
    request.file = file.get();
    request.file_pages = machine.tree().pages();
    request.page_size = machine.tree().page_bytes();
    request.record = main_database(machine.tree());
    request.make_engine = make_engine;
    request.available = machine.memory_of_node();
    request.threads = 1;
    request.part = part;
    request.parts = parts;
    records::IndexProblem problem;
    status_ = records::build_index(request, index_, problem);
    if (!status_.ok()) why_ = "page " + std::to_string(problem.page) + ": " + problem.reason;
  }
  bool done() noexcept override { return true; }
  const records::RecordIndex* made(Status& st, std::string& why) override {
    st = status_;
    why = why_;
    return st.ok() ? &index_ : nullptr;
  }

 private:
  records::RecordIndex index_;
  Status status_;
  std::string why_;
};

}  // namespace

void make_simulated_index(Machine& machine, std::span<const std::uint32_t> nodes, std::uint32_t rank) {
  Waker waker;
  SimulatedTransport transport(machine.network(), rank, static_cast<std::uint32_t>(nodes.size()), waker,
                               kPort);
  ranks::IndexExchange::Settings settings;
  settings.nodes = nodes;
  settings.records = machine.records().count();
  settings.name = "the simulated database";
  ranks::IndexExchange exchange(settings, transport);
  std::unique_ptr<ModelWork> work;
  if (exchange.makes_part()) work = std::make_unique<ModelWork>(machine, exchange.part(), exchange.parts());
  while (!exchange.closed()) {
    if (!transport.poll().ok() || !exchange.progress(work.get()).ok()) die("the index cannot be exchanged");
    if (!exchange.closed()) (void)waker.wait(Waker::kForever);
  }
  if (exchange.outcome() != ranks::IndexExchange::Outcome::whole) die("%s", exchange.why().c_str());
}

}  // namespace lmdbio::bench
