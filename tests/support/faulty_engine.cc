#include "tests/support/faulty_engine.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

#include "lmdbio/base/align.h"

namespace lmdbio::testing {
namespace {

const char* name(Fault f) {
  switch (f) {
    case Fault::fail:
      return "fail";
    case Fault::short_read:
      return "short read";
    case Fault::zero:
      return "zero";
    case Fault::flip_bit:
      return "flipped bit";
    case Fault::refuse:
      return "refuse";
    case Fault::full:
      return "full";
    case Fault::reap:
      return "reap";
  }
  return "?";
}

}  // namespace

FaultyEngine::FaultyEngine(std::unique_ptr<IoEngine> inner, const std::vector<FaultPlan>& plans)
    : IoEngine(inner->caps()), inner_(std::move(inner)), below_(caps().depth) {
  for (const FaultPlan& p : plans) plans_.push_back({p});
  if (inner_->ready_fd() < 0) return;
  ready_fd_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  own_ready_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  for (const int fd : {inner_->ready_fd(), own_ready_.get()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(ready_fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) std::abort();
  }
}

void FaultyEngine::forget() noexcept {
  inner_->forget();
  ready_fd_.reset();
  own_ready_.reset();
}

// Answers given here, and those that the inner engine has without its descriptor telling.
void FaultyEngine::show_ready() noexcept {
  if (!own_ready_) return;
  const bool show = !ready_.empty() || inner_->poll_timeout_ms() >= 0;
  if (show == shown_) return;
  std::uint64_t n = 1;
  const ssize_t moved =
      show ? ::write(own_ready_.get(), &n, sizeof n) : ::read(own_ready_.get(), &n, sizeof n);
  if (moved != sizeof n) std::abort();
  shown_ = show;
}

FaultyEngine::FaultyEngine(std::unique_ptr<IoEngine> inner, FaultPlan plan, std::uint64_t shuffle)
    : FaultyEngine(std::move(inner), plan) {
  shuffle_ = true;
  random_.seed(shuffle);
}

std::string FaultyEngine::story() const {
  std::ostringstream s;
  for (const Injected& i : log_) {
    s << name(i.fault) << " at operation " << i.operation;
    if (i.size != 0) s << ", read of " << i.size << " at " << i.offset;
    if (i.error != 0) s << ", " << std::strerror(i.error);
    s << "\n";
  }
  return s.str();
}

// Counts an operation that `fault` could hit; the plan that hits this one, or null.
const FaultPlan* FaultyEngine::due(Fault fault, std::uint64_t offset, std::size_t size) noexcept {
  const FaultPlan* hit = nullptr;
  for (Active& a : plans_) {
    if (a.plan.fault != fault) continue;
    ++a.seen;
    if (a.plan.nth == 0 || a.seen < a.plan.nth || a.seen - a.plan.nth >= a.plan.times || hit != nullptr)
      continue;
    hit = &a.plan;
    log_.push_back({fault, a.seen, offset, size, a.plan.error});
  }
  return hit;
}

Result<std::size_t> FaultyEngine::do_submit(std::span<const RawRead> reads) noexcept {
  if (const FaultPlan* const p = due(Fault::refuse)) return Status::from_errno(p->error);
  if (due(Fault::full) != nullptr) return std::size_t{0};
  std::size_t taken = 0;
  for (const RawRead& r : reads) {
    // Answers given here take a place as well: the depth is kept.
    if (inner_->in_flight() + ready_.size() == caps().depth) break;
    const std::size_t size = r.dst.size();
    const std::size_t half = std::max<std::size_t>(align_down(size / 2, caps().align), caps().align);
    const FaultPlan* const cut = half < size ? due(Fault::short_read, r.offset, size) : nullptr;
    const FaultPlan* const failed = due(Fault::fail, r.offset, size);
    const FaultPlan* const zero = due(Fault::zero, r.offset, size);
    const FaultPlan* const flip = due(Fault::flip_bit, r.offset, size);
    ++taken;
    if (failed != nullptr || zero != nullptr) {
      ready_.push_back({r.slot, failed != nullptr ? -static_cast<long>(failed->error) : 0});
      continue;
    }
    below_[r.slot] = {r.dst.first(cut != nullptr ? half : size), flip != nullptr};
    const ReadOp op{r.offset, below_[r.slot].dst, r.slot, 1};  // a short read stays one
    const Result<std::size_t> passed = inner_->submit({&op, 1});
    if (!passed || passed.value() != 1) ready_.push_back({r.slot, passed ? -EIO : -passed.error().raw()});
  }
  show_ready();
  return taken;
}

// Moves at least `min` results of the inner engine to ready_, and what else is there.
void FaultyEngine::collect(std::size_t min) noexcept {
  std::vector<Completion> got(inner_->in_flight());
  if (got.empty()) return;
  const Result<std::size_t> n = inner_->reap(got, min);
  if (!n) return;
  for (const Completion& c : std::span(got).first(n.value())) {
    const auto slot = static_cast<unsigned>(c.tag);
    const Below& b = below_[slot];
    if (c.status.ok() && b.flip) b.dst[c.bytes / 2] ^= std::byte{0x10};
    ready_.push_back({slot, c.status.ok() ? static_cast<long>(c.bytes) : -static_cast<long>(c.status.raw())});
  }
}

Result<std::size_t> FaultyEngine::do_reap(std::span<RawResult> out, std::size_t min) noexcept {
  if (const FaultPlan* const p = due(Fault::reap)) return Status::from_errno(p->error);
  collect(shuffle_ ? inner_->in_flight() : min - std::min(min, ready_.size()));
  if (shuffle_) std::shuffle(ready_.begin(), ready_.end(), random_);
  const std::size_t n = std::min(out.size(), ready_.size());
  std::copy_n(ready_.begin(), n, out.begin());
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(n));
  show_ready();
  return n;
}

}  // namespace lmdbio::testing
