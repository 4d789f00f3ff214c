#include "lmdbio/reader/pending_places.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "lmdbio/base/config.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/db/bulk_lookup.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/reader/open_places.h"

namespace lmdbio::reader {

namespace {

/// How often one who waits looks whether it was cancelled.
constexpr std::chrono::milliseconds kLook{20};

LeafSample sample_of(std::uint64_t number, const format::PageView& page, unsigned page_shift) {
  LeafSample leaf;
  leaf.page = number;
  for (unsigned i = 0; i < page.count(); ++i) {
    format::Node n;
    if (!page.node(i, n)) return {};
    if (n.flags() == format::kBigData)
      leaf.values.push_back(
          {format::raw(n.overflow()), format::overflow_pages(n.data_size(), page_shift), true});
    else
      leaf.values.push_back({0, 0, n.flags() == 0});
  }
  return leaf;
}

}  // namespace

PendingPlaces::PendingPlaces(const Source& source, File file, MakeEngine make_engine)
    : file_(std::move(file)),
      name_(source.name),
      page_shift_(static_cast<unsigned>(std::countr_zero(source.page_size))),
      pid_(::getpid()) {
  request_.file = &file_;
  request_.file_pages = source.pages;
  request_.page_size = source.page_size;
  request_.record = source.db;
  request_.available = source.available;
  request_.make_engine = make_engine;
  request_.progress = go_on;
  request_.on_leaves = on_leaves;
  request_.context = this;
}

std::unique_ptr<PendingPlaces> PendingPlaces::start(const Source& source, MakeEngine make_engine) {
  Result<File> file = source.buffered.share();
  if (!file) return nullptr;
  std::unique_ptr<PendingPlaces> made(new PendingPlaces(source, std::move(file).value(), make_engine));
  if (made->file_.start_thread(made->thread_, run, made.get()) == 0) return made;
  made->ended_ = true;  // nobody to wait for
  made->thread_ = {};
  return nullptr;
}

PendingPlaces::~PendingPlaces() {
  if (thread_ == pthread_t{} || ::getpid() != pid_) return;  // in a forked child there is no such thread
  ending_.store(true, std::memory_order_relaxed);
  (void)::pthread_join(thread_, nullptr);
}

void* PendingPlaces::run(void* self) noexcept {
  (void)::pthread_setname_np(::pthread_self(), "lmdbio-index");
  static_cast<PendingPlaces*>(self)->make();
  return nullptr;
}

bool PendingPlaces::go_on(void* self, std::uint64_t, std::uint64_t) noexcept {
  return !static_cast<PendingPlaces*>(self)->ending_.load(std::memory_order_relaxed);
}

void PendingPlaces::make() noexcept {
  RecordIndex index;
  IndexProblem problem;
  Status st = build_index(request_, index, problem);
  std::string why;
  try {
    if (st.ok())
      made_ = std::make_unique<IndexPlaces>(std::move(index));
    else
      why = index_failure(name_, st, problem);
  } catch (...) {
    st = Status::from_errno(ENOMEM);
  }
  {
    const std::lock_guard lock(mutex_);
    status_ = st;
    why_ = std::move(why);
    looked_ = ended_ = true;
    index_.store(made_.get(), std::memory_order_release);
  }
  changed_.notify_all();
}

void PendingPlaces::on_leaves(void* self, std::span<const std::uint64_t> leaves,
                              std::span<const std::uint64_t> branches) noexcept {
  PendingPlaces& p = *static_cast<PendingPlaces*>(self);
  try {
    p.learn(leaves, branches);
  } catch (...) {  // out of memory: nothing is guessed
  }
  {
    const std::lock_guard lock(p.mutex_);
    p.looked_ = true;
  }
  p.changed_.notify_all();
}

void PendingPlaces::learn(std::span<const std::uint64_t> leaves, std::span<const std::uint64_t> branches) {
  constexpr unsigned kDepth = Provenance::kSamples;
  const std::size_t n = std::min(leaves.size(), Provenance::kSamples);
  const char* name = "";
  Result<std::unique_ptr<IoEngine>> engine =
      request_.make_engine(file_, kDepth, engine_kind(config().engine), &name);
  if (!engine) return;
  ReadQueue queue(std::move(engine).value(), request_.file_pages << page_shift_);
  db::PageStore store(queue, page_shift_, request_.file_pages, 2 * n << page_shift_);
  if (!store.fetch(leaves.first(n)).ok()) return;
  std::vector<LeafSample> samples;
  for (std::size_t i = 0; i < n; ++i) {
    const std::byte* const bytes = store.find(leaves[i]);
    format::PageView page;
    if (bytes == nullptr ||
        !format::PageView::open(bytes, request_.page_size, format::Pgno{leaves[i]}, page) ||
        !page.is_leaf() || page.is_leaf2())
      return;
    samples.push_back(sample_of(leaves[i], page, page_shift_));
  }
  std::optional<Provenance> learnt = Provenance::learn(
      {leaves.begin(), leaves.end()}, {branches.begin(), branches.end()}, samples, records());
  const std::lock_guard lock(mutex_);
  provenance_ = std::move(learnt);
}

Status PendingPlaces::await(const std::atomic<bool>& cancelled, std::string& why) const {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    if (cancelled.load(std::memory_order_relaxed)) return Status::from_errno(ECANCELED);
    const AsyncSignalsAllowed program;  // no fork handler takes the mutex
    changed_.wait_for(lock, kLook);
  }
  if (!status_.ok()) why = why_;
  return status_;
}

bool PendingPlaces::guess(std::uint64_t ordinal, const std::atomic<bool>& cancelled,
                          RecordPlace& out) const noexcept {
  std::unique_lock lock(mutex_);
  while (!looked_ && !cancelled.load(std::memory_order_relaxed)) {
    const AsyncSignalsAllowed program;
    changed_.wait_for(lock, kLook);
  }
  if (!provenance_ || ended_) return false;
  const std::optional<Provenance::Guess> g = provenance_->guess(ordinal);
  if (!g) return false;
  out = {};
  out.leaf = g->leaf;
  out.slot = g->slot;
  if (g->pages == 0) return true;
  out.overflow = g->overflow;  // all that its pages can hold
  const std::uint64_t most = (g->pages << page_shift_) - format::kPageHeader;
  if (most > UINT32_MAX) return false;
  out.value_bytes = static_cast<std::uint32_t>(most);
  return true;
}

bool PendingPlaces::check(const RecordPlace& guessed, const RecordPlace& actual) const noexcept {
  const Provenance::Guess g{
      guessed.leaf, guessed.slot, guessed.overflow,
      guessed.overflow == 0 ? 0 : format::overflow_pages(guessed.value_bytes, page_shift_)};
  const std::lock_guard lock(mutex_);
  return provenance_->check(g, actual, page_shift_);
}

}  // namespace lmdbio::reader
