#include "lmdbio/io/read_queue.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lmdbio/base/align.h"

namespace lmdbio {

namespace {

ReadGroup& group_of(std::uint64_t tag) noexcept {
  return *reinterpret_cast<ReadGroup*>(static_cast<std::uintptr_t>(tag));
}
std::uint64_t tag_of(const ReadGroup& g) noexcept { return reinterpret_cast<std::uintptr_t>(&g); }

}  // namespace

ReadQueue::ReadQueue(std::unique_ptr<IoEngine> engine, std::uint64_t file_bytes, std::size_t most_request)
    : engine_(std::move(engine)), file_bytes_(file_bytes), most_request_(most_request) {}

ReadQueue::~ReadQueue() {
  if (forgotten_) return;
  pending_.clear();
  while (engine_->in_flight() != 0) reap(engine_->in_flight());
}

std::size_t ReadQueue::room(const Extent& e) const noexcept {
  const std::size_t align = alignment();
  return static_cast<std::size_t>(align_up(e.offset + e.bytes, align) - align_down(e.offset, align));
}

Status ReadQueue::add(ReadGroup& group, const Extent& extent, std::byte* to) noexcept {
  const std::uint64_t start = align_down(extent.offset, alignment());
  const std::size_t before = pending_.size();
  try {
    split_aligned(extent, alignment(), file_bytes_, most_request_, [&](const ReadPiece& r) {
      pending_.push_back({r.offset, {to + (r.offset - start), r.bytes}, tag_of(group), r.minimum});
    });
  } catch (...) {
    pending_.resize(before);
    return Status::from_errno(ENOMEM);
  }
  group.left += static_cast<unsigned>(pending_.size() - before);
  return {};
}

void ReadQueue::pump() noexcept {
  if (forgotten_) return;
  submit();
  if (engine_->in_flight() == 0) return;
  reap(0);
  submit();
}

Status ReadQueue::wait(ReadGroup& group) noexcept {
  if (forgotten_) return group.done() ? group.status : Status::from_errno(ECANCELED);
  if (group.done()) return group.status;
  const std::uint64_t tag = tag_of(group);
  std::stable_partition(pending_.begin(), pending_.end(), [tag](const ReadOp& op) { return op.tag == tag; });
  for (submit(); !group.done(); submit()) reap(1);
  return group.status;
}

void ReadQueue::wait_any() noexcept {
  if (forgotten_) return;
  submit();
  if (engine_->in_flight() != 0) reap(1);
}

void ReadQueue::drop(ReadGroup& group) noexcept {
  if (forgotten_) return;
  const std::uint64_t tag = tag_of(group);
  group.left -= static_cast<unsigned>(std::erase_if(pending_, [tag](const ReadOp& op) { return op.tag == tag; }));
  while (!group.done()) reap(1);
}

void ReadQueue::forget() noexcept {
  forgotten_ = true;
  pending_.clear();
  engine_->forget();
}

void ReadQueue::submit() noexcept {
  while (!pending_.empty()) {
    const ReadOp op = pending_.front();  // a deque's pieces are not one span
    const Result<std::size_t> taken = engine_->submit({&op, 1});
    if (taken && taken.value() == 0) return;
    pending_.pop_front();
    if (!taken) end(group_of(op.tag), taken.error());
  }
}

void ReadQueue::reap(std::size_t min) noexcept {
  Completion done[32];
  for (;;) {
    const Result<std::size_t> n = engine_->reap(done, std::min(min, std::size(done)));
    if (!n) return;  // the engine's: its reads stay in flight, the next call asks again
    for (std::size_t i = 0; i < n.value(); ++i) end(group_of(done[i].tag), done[i].status);
    if (n.value() < std::size(done)) return;
    min = 0;
  }
}

void ReadQueue::end(ReadGroup& group, Status st) noexcept {
  if (!st.ok() && group.status.ok()) group.status = st;
  --group.left;
}

}  // namespace lmdbio
