#include "lmdbio/gather/page_batch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lmdbio/gather/queues.h"

namespace lmdbio::gather {
namespace {

/// Upper limit on the bytes of one request.  A request covers adjacent pages, without gaps.
constexpr std::size_t kRequest = 256 << 10;

}  // namespace

PageBatches::PageBatches(const File* file, const std::byte* mapped, std::uint64_t pages,
                         std::size_t page_size, const std::atomic<bool>* cancelled, int programs_fd) noexcept
    : file_(file),
      mapped_(mapped),
      pages_(pages),
      page_size_(page_size),
      cancelled_(cancelled),
      on_(file != nullptr),
      residency_(file == nullptr ? Residency(-1, Residency::Sampling::no)
                                 : Residency(*file, programs_fd, Residency::Sampling::no)) {}

PageBatches::~PageBatches() {
  if (queue_ != nullptr) queue_->drop_all();
}

bool PageBatches::open() noexcept {
  if (queue_ != nullptr) return true;
  Result<std::unique_ptr<ReadQueue>> queue = make_queue(ReadKind::check_cached, *file_, pages_ * page_size_);
  if (!queue) return false;
  Result<Mapping> scratch = Mapping::zeroed(4 * kRequest);
  if (!scratch) return false;
  scratch_ = std::move(scratch).value();
  queue_ = std::move(queue).value();
  return true;
}

bool PageBatches::is_there(const PageRun& run) const noexcept {
  const std::optional<double> share =
      residency_.share(run.first * page_size_, run.pages * page_size_, mapped_);
  return share.has_value() && *share == 1;
}

std::size_t PageBatches::ask(ReadGroup& group, std::vector<PageRun>& runs) noexcept {
  std::sort(runs.begin(), runs.end(), [](const PageRun& a, const PageRun& b) { return a.first < b.first; });
  const std::uint64_t most = std::max<std::uint64_t>(1, kRequest / page_size_);
  std::size_t requests = 0;
  for (std::size_t i = 0; i < runs.size();) {
    PageRun run = runs[i++];
    if (run.first >= pages_) break;
    run.pages = std::min(run.pages, pages_ - run.first);
    for (; i < runs.size() && runs[i].first <= run.first + run.pages && run.pages < most; ++i)
      run.pages = std::max(run.pages, runs[i].first - run.first + std::min(runs[i].pages, pages_));
    run.pages = std::min(run.pages, pages_ - run.first);
    ++requests;
    if (is_there(run)) continue;
    if (!open()) {
      on_ = false;
      return requests;
    }
    // A failure means that there is no memory for the request; page faults read the pages.
    (void)queue_->add_unread(group, {run.first * page_size_, run.pages * page_size_},
                             {scratch_.data(), scratch_.size()});
  }
  if (queue_ != nullptr) queue_->submit();
  return requests;
}

bool PageBatches::wait(ReadGroup& group) noexcept {
  if (queue_ == nullptr || group.done()) return on_;
  if (cancelled_ == nullptr)
    (void)queue_->wait(group);
  else
    (void)queue_->wait(group, *cancelled_);
  if (cancelled_ != nullptr && cancelled_->load(std::memory_order_relaxed)) {
    queue_->drop(group);
    on_ = false;
  }
  return on_;
}

void PageBatches::drop(ReadGroup& group) noexcept {
  if (queue_ != nullptr) queue_->drop(group);
}

}  // namespace lmdbio::gather
