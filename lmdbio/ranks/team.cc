#include "lmdbio/ranks/team.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/mix.h"
#include "lmdbio/io/private_table.h"
#include "lmdbio/ranks/assignment.h"
#include "lmdbio/ranks/pauses.h"

namespace lmdbio::ranks {

namespace {

/// Thresholds for the number of consecutive checks without progress and without a call of the program.  After
/// kLooksUntilSettled checks (about 100 ms), the team's thread checks only every 10 ms.  After
/// kLooksUntilAsleep checks (about 200 ms), it checks only every 50 ms.  In each check, MPI may begin to copy
/// messages of the program.  The team's thread then competes with the program for its core
/// (docs/decisions/0016).
constexpr unsigned kLooksUntilSettled = 100, kLooksUntilAsleep = 110;
constexpr std::int64_t kPauseSettled = 10'000'000, kPauseAsleep = 50'000'000;

}  // namespace

Team::Team(std::unique_ptr<Network> network, Settings settings)
    : network_(std::move(network)), settings_(std::move(settings)), pid_(::getpid()) {
  const std::span<const std::uint32_t> nodes = network_->nodes();
  reader_ranks_ = choose_readers(nodes, settings_.readers_per_node);
  nodes_ = std::set<std::uint32_t>(nodes.begin(), nodes.end()).size();
  transport_ = network_->open_port(0);
  if (transport_ == nullptr) throw std::bad_alloc();
  agreement_ = std::make_unique<Agreement>(*transport_, settings_.host, settings_.timeout_ns);
  // A number that is free on rank 0 is free on all ranks.  Rank 0 is a reader, so its port of a stream stays
  // open until all ranks have left the stream.
  agreement_->avoid_numbers([this](std::uint32_t number) { return network_->port_in_use(number + 1); });
  if (network_->threads() == Network::Threads::any && settings_.own_thread) start_thread();
}

void Team::start_thread() {
  note_own_thread();
  stay_loaded();
  sigset_t all, before;
  ::sigfillset(&all);
  (void)::pthread_sigmask(SIG_SETMASK, &all, &before);  // signal handlers run on the program's threads
  const int rc = ::pthread_create(
      &thread_, nullptr,
      [](void* self) -> void* {
        (void)::pthread_setname_np(::pthread_self(), "lmdbio-mpi");
        use_remembered_affinity();
        static_cast<Team*>(self)->run();
        return nullptr;
      },
      this);
  (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  threaded_ = rc == 0;  // otherwise the program's calls make progress
}

Team::~Team() { end_thread(); }

void Team::end_thread() noexcept {
  if (!std::exchange(threaded_, false) || ::getpid() != pid_) return;
  ending_ = true;
  changes_.notify();
  (void)::pthread_join(thread_, nullptr);
}

std::uint64_t Team::options() const noexcept {
  return mix(mix(mix(settings_.readers_per_node) ^ settings_.turns.group) ^ settings_.turns.at_once);
}

std::uint64_t Team::ranks_here() const noexcept {
  const auto nodes = network_->nodes();
  return static_cast<std::uint64_t>(std::count(nodes.begin(), nodes.end(), nodes[rank()]));
}

bool Team::may_call(std::string& why) const {
  if (::getpid() != pid_) {
    why = "MPI, and what was opened with lmdbio_mpi_init, cannot be used in a forked child";
    return false;
  }
  if (closed_) {
    why = "lmdbio_mpi_finalize or MPI_Finalize was called";
    return false;
  }
  if (network_->threads() != Network::Threads::main_only || network_->in_main_thread()) return true;
  why =
      "MPI was initialized with MPI_THREAD_SINGLE or MPI_THREAD_FUNNELED: only the main thread may make this "
      "call";
  return false;
}

// Checks for progress once.  Returns whether there was progress.
bool Team::step() noexcept {
  if (!broken_.empty()) return false;
  const std::int64_t now = now_ns();
  std::uint64_t events = 0;
  try {
    Status st = transport_->poll();
    if (st.ok()) st = agreement_->progress(now);
    if (!st.ok()) broken_ = "messages between the ranks fail";
    // Members may add other members.
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const std::shared_ptr<Member> member = members_[i];
      member->progress(now);
      events += member->events();
    }
    std::erase_if(members_, [](const std::shared_ptr<Member>& m) { return m->finished(); });
  } catch (const std::bad_alloc&) {
    return false;  // the next call tries again
  }
  events += transport_->events;
  return std::exchange(events_, events) != events;
}

void Team::pause(std::uint32_t seen, unsigned quiet, bool waits) noexcept {
  const AsyncSignalsAllowed program;
  if (threaded_ && waits)
    changes_.wait(seen, kMostPauseIdle);
  else
    changes_.wait(seen, pause_after(quiet, kMostPauseWaiting));
}

void Team::run() noexcept {
  std::unique_lock lock(mutex_);
  for (unsigned quiet = 0; !ending_; ++quiet) {
    const std::uint32_t seen = changes_.now();
    const bool happened = step();
    const bool idle = members_.empty();
    const bool busy =
        std::any_of(members_.begin(), members_.end(), [](const auto& member) { return member->busy(); });
    lock.unlock();
    if (happened) {
      quiet = 0;
      if (waiting_ != 0) changes_.notify();
    }
    const std::int64_t pause = waiting_ != 0                        ? pause_after(quiet, kMostPauseWaiting)
                               : idle                               ? pause_after(quiet, kMostPauseIdle)
                               : busy || quiet < kLooksUntilSettled ? pause_after(quiet, kMostPauseBusy)
                               : quiet < kLooksUntilAsleep          ? kPauseSettled
                                                                    : kPauseAsleep;
    changes_.wait(seen, pause);
    if (changes_.now() != seen) quiet = 0;
    lock.lock();
  }
}

void Team::poll() {
  if (threaded_) return;
  const std::lock_guard lock(mutex_);
  (void)step();
}

bool Team::close() {
  std::unique_lock lock(mutex_);
  if (closed_.exchange(true)) return ended_well_;
  for (const std::shared_ptr<Member>& m : members_) m->leave();
  Terms terms;
  terms.kind = Terms::Kind::end;
  bool stuck = false;
  const auto left = [&] {
    stuck = std::any_of(members_.begin(), members_.end(), [](const auto& m) { return m->stuck(); });
    return members_.empty() || stuck || !broken_.empty();
  };
  if (!wait(lock, left)) return false;
  for (const std::weak_ptr<const Member>& r : readers_)
    if (const std::shared_ptr<const Member> reader = r.lock()) totals_.add(reader->totals());
  terms.totals = totals_;
  const std::uint64_t claim = agreement_->claim("the end", "", {}, "", terms);
  const auto agreed = [&] {
    return !broken_.empty() || agreement_->answer(claim).verdict != Agreement::Verdict::pending;
  };
  if (!wait(lock, agreed)) return false;
  if (!wait(lock, [this] { return !broken_.empty() || agreement_->close(); })) return false;
  lock.unlock();
  end_thread();
  return ended_well_ = broken_.empty() && !stuck;
}

}  // namespace lmdbio::ranks
