#include "lmdbio/io/engine_hosted.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "lmdbio/base/futex.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/private_table.h"

namespace lmdbio {
namespace {

constexpr std::int64_t kLong = 3'600'000'000'000;

}  // namespace

class HostedEngine final : public IoEngine {
 public:
  explicit HostedEngine(Caps caps) noexcept : IoEngine(caps) {}
  ~HostedEngine() override;
  Status start(EngineKind wanted, const MakeHere& make) noexcept;
  void wait_briefly(std::int64_t ns) noexcept override;
  void forget() noexcept override { (void)host_.release(); }  // the host and its thread belong to the parent

 private:
  class Host;
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override;
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept override;

  std::unique_ptr<Host> host_;
};

/// State that the program's thread and the engine's thread share.
class HostedEngine::Host {
 public:
  Host(std::shared_ptr<PrivateTable> table, unsigned depth) : table_(std::move(table)) {
    reads_.reserve(depth);
    taken_.reserve(depth);
    results_.reserve(depth);
  }
  Status start(EngineKind wanted, const MakeHere& make) noexcept;
  void stop() noexcept;
  void push(std::span<const RawRead> reads) noexcept;
  /// Takes results that have come.
  std::size_t pop(std::span<RawResult> out) noexcept;
  /// Waits until a result has come, a signal came, or `ns` have passed.
  void wait(std::int64_t ns) noexcept;

 private:
  static void* run(void* self) noexcept;
  static void ring(void* self) noexcept;
  void serve() noexcept;
  bool take() noexcept;
  bool submit() noexcept;
  bool reap() noexcept;
  void put(std::span<const RawResult> results) noexcept;
  void sleep(std::uint32_t seen) noexcept;
  void wake() noexcept;

  const std::shared_ptr<PrivateTable> table_;
  std::unique_ptr<IoEngine> engine_;  // used by the host thread, as are the next three members
  UniqueFd bell_fd_;                  // an eventfd of the private table, if the engine has ready_fd()
  std::size_t below_ = 0;             // number of reads that the engine has
  std::vector<RawRead> taken_;        // reads that the engine does not have yet
  PrivateTable::Job ringing_{&ring, this};
  pthread_t thread_{};

  EventCount work_;  ///< there is something to do, or an engine without ready_fd() has results
  EventCount done_;
  std::atomic<bool> polling_{false};  ///< the host thread is in poll(2), which a futex does not end
  std::mutex mutex_;                  // guards the members below; not held while waiting or reading
  std::vector<RawRead> reads_;
  std::vector<RawResult> results_;
  bool ending_ = false;
};

Status HostedEngine::Host::start(EngineKind wanted, const MakeHere& make) noexcept {
  Status st;
  const bool ran = table_->call([&]() noexcept {
    Result<std::unique_ptr<IoEngine>> made = make(wanted, &work_);
    if (made && made.value()->ready_fd() >= 0) {
      bell_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      if (!bell_fd_) made = make(EngineKind::threads, &work_);
    }
    if (made)
      engine_ = std::move(made).value();
    else
      st = made.error();
    if (st.ok())
      if (const int rc = table_->start(thread_, nullptr, run, this); rc != 0) st = Status::from_errno(rc);
    if (st.ok()) return;
    engine_.reset();  // in this thread, whose table has their descriptors
    bell_fd_.reset();
  });
  return ran ? st : Status::from_errno(EBADF);
}

void* HostedEngine::Host::run(void* self) noexcept {
  (void)::pthread_setname_np(::pthread_self(), "lmdbio-ring");
  static_cast<Host*>(self)->serve();
  return nullptr;
}

void HostedEngine::Host::serve() noexcept {
  for (;;) {
    const std::uint32_t seen = work_.now();
    const bool ends = take();
    bool went_on = submit();
    went_on = reap() || went_on;
    if (went_on) continue;
    if (ends && below_ == 0 && taken_.empty()) break;
    sleep(seen);
  }
  engine_.reset();  // in this thread, whose table has its descriptors
}

// Takes the queued reads.  Returns true if no more will come.
bool HostedEngine::Host::take() noexcept {
  const std::lock_guard lock(mutex_);
  taken_.insert(taken_.end(), reads_.begin(), reads_.end());  // both have room for all reads in flight
  reads_.clear();
  return ending_;
}

bool HostedEngine::Host::submit() noexcept {
  bool any = false;
  while (!taken_.empty()) {
    const Result<std::size_t> n = engine_->do_submit(taken_);
    if (!n && n.error().raw() == EINTR) continue;
    if (n && n.value() == 0 && below_ != 0) break;  // full
    any = true;
    std::size_t gone = 1;
    if (n && n.value() != 0) {
      gone = n.value();
      below_ += gone;
    } else {  // the HostedEngine retries it if that may help
      const RawResult failed{taken_.front().slot, n ? -EAGAIN : -n.error().raw()};
      put({&failed, 1});
    }
    taken_.erase(taken_.begin(), taken_.begin() + static_cast<std::ptrdiff_t>(gone));
  }
  return any;
}

bool HostedEngine::Host::reap() noexcept {
  bool any = false;
  while (below_ != 0) {
    RawResult got[32];
    const Result<std::size_t> n = engine_->do_reap(got, 0);
    if (!n || n.value() == 0) break;
    below_ -= n.value();
    put(std::span(got).first(n.value()));
    any = true;
  }
  return any;
}

void HostedEngine::Host::put(std::span<const RawResult> results) noexcept {
  {
    const std::lock_guard lock(mutex_);
    results_.insert(results_.end(), results.begin(), results.end());
  }
  done_.notify();
}

void HostedEngine::Host::sleep(std::uint32_t seen) noexcept {
  const int ready = engine_->ready_fd();
  if (below_ == 0 || ready < 0) {
    work_.wait(seen, kLong);
    return;
  }
  polling_.store(true);
  if (work_.now() == seen) {
    pollfd fds[2] = {{bell_fd_.get(), POLLIN, 0}, {ready, POLLIN, 0}};
    (void)::poll(fds, 2, -1);
  }
  polling_.store(false);
  std::uint64_t rung;
  [[maybe_unused]] const ssize_t got = ::read(bell_fd_.get(), &rung, sizeof rung);
}

// Runs in a thread of the table, which has the descriptor.
void HostedEngine::Host::ring(void* self) noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(static_cast<Host*>(self)->bell_fd_.get(), &one, sizeof one);
}

void HostedEngine::Host::wake() noexcept {
  work_.notify();
  if (polling_.load()) table_->post(ringing_);
}

void HostedEngine::Host::push(std::span<const RawRead> reads) noexcept {
  {
    const std::lock_guard lock(mutex_);
    reads_.insert(reads_.end(), reads.begin(), reads.end());
  }
  wake();
}

std::size_t HostedEngine::Host::pop(std::span<RawResult> out) noexcept {
  const std::lock_guard lock(mutex_);
  const std::size_t n = std::min(out.size(), results_.size());
  std::copy_n(results_.begin(), n, out.begin());
  results_.erase(results_.begin(), results_.begin() + static_cast<std::ptrdiff_t>(n));
  return n;
}

void HostedEngine::Host::wait(std::int64_t ns) noexcept {
  const std::uint32_t seen = done_.now();
  {
    const std::lock_guard lock(mutex_);
    if (!results_.empty()) return;
  }
  done_.wait(seen, ns);
}

void HostedEngine::Host::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake();
  (void)::pthread_join(thread_, nullptr);
  table_->retract(ringing_);
  (void)table_->call([this]() noexcept { bell_fd_.reset(); });
}

HostedEngine::~HostedEngine() {
  if (host_ != nullptr) host_->stop();
}

Status HostedEngine::start(EngineKind wanted, const MakeHere& make) noexcept {
  std::shared_ptr<PrivateTable> table = PrivateTable::get();
  if (table == nullptr) return Status::from_errno(EBADF);
  try {
    auto host = std::make_unique<Host>(std::move(table), caps().depth);
    if (const Status st = host->start(wanted, make); !st.ok()) return st;
    host_ = std::move(host);
    return {};
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

void HostedEngine::wait_briefly(std::int64_t ns) noexcept {
  constexpr std::int64_t kTryAgain = 1'000'000;
  if (ready_ != 0 || in_flight() == 0) return;
  // This thread retries a refused read after a while.  No event announces that time.
  host_->wait(pending_ != 0 && (below_ == 0 || retry_at_ns_ != 0) ? std::min(ns, kTryAgain) : ns);
}

Result<std::size_t> HostedEngine::do_submit(std::span<const RawRead> reads) noexcept {
  host_->push(reads);
  return reads.size();
}

Result<std::size_t> HostedEngine::do_reap(std::span<RawResult> out, std::size_t min) noexcept {
  for (std::size_t n = 0;;) {
    n += host_->pop(out.subspan(n));
    if (n >= min) return n;
    host_->wait(kLong);
  }
}

Result<std::unique_ptr<IoEngine>> hosted_engine(const File& file, unsigned depth, EngineKind wanted,
                                                const char** name) noexcept {
  return hosted_engine({file.alignment(), depth, file.direct()}, wanted,
                       [&](EngineKind kind, EventCount* results) {
                         return select_engine_here(file, depth, kind, name, results);
                       });
}

Result<std::unique_ptr<IoEngine>> hosted_engine(IoEngine::Caps caps, EngineKind wanted,
                                                const MakeHere& make) noexcept {
  if (caps.depth == 0) return Status::from_errno(EINVAL);
  std::unique_ptr<HostedEngine> engine(new (std::nothrow) HostedEngine(caps));
  if (engine == nullptr) return Status::from_errno(ENOMEM);
  if (const Status st = engine->start(wanted, make); !st.ok()) return st;
  return std::unique_ptr<IoEngine>(std::move(engine));
}

}  // namespace lmdbio
