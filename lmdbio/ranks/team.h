// The ranks of a communicator at work: what they have opened together, and who makes progress.
//
// Where MPI may be called by any thread, a thread of the team makes progress while the program computes.
// Elsewhere progress is made inside the program's calls, by the thread that makes them.
#pragma once

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lmdbio/base/futex.h"
#include "lmdbio/ranks/agreement.h"
#include "lmdbio/ranks/network.h"
#include "lmdbio/ranks/turns.h"

namespace lmdbio::ranks {

/// Something that goes on between calls of the program.
class Member {
 public:
  virtual ~Member() = default;
  /// Under the team's lock.  Never waits.  Errors are the member's own to keep.
  virtual void progress(std::int64_t now_ns) noexcept = 0;
  /// Nothing of it is under way, and no rank expects anything of it: the team lets go of it.
  virtual bool finished() const noexcept = 0;
  /// A number that changes when something happened.
  virtual std::uint64_t events() const noexcept { return 0; }
  /// It is to be looked at often, even if nothing has happened for long.
  virtual bool busy() const noexcept { return false; }
  /// Under the team's lock.  The program wants nothing more of it, whatever it has not closed.
  virtual void leave() noexcept {}
  /// An error has left messages under way: it will never be finished.
  virtual bool stuck() const noexcept { return false; }
  /// Under the team's lock.  Its part of the job's totals, unless it has been counted.
  virtual JobTotals totals() const noexcept { return {}; }
};

/// Any thread that the network allows.
class Team {
 public:
  struct Settings {
    std::string host;                                 ///< of this rank, for messages
    std::int64_t timeout_ns = Agreement::kTimeoutNs;  ///< how long ranks wait for others to open
    unsigned readers_per_node = 1;
    bool own_thread = true;  ///< where the network allows one
    Turns::Settings turns;   ///< of the readers of a stream
  };
  /// The same on all ranks, but for `host`.  May throw bad_alloc.
  Team(std::unique_ptr<Network> network, Settings settings);
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  /// After close(), if ended_well().
  ~Team();

  Network& network() noexcept { return *network_; }
  /// The ranks that read, the first of each node, and further ones.
  const std::vector<std::uint32_t>& reader_ranks() const noexcept { return reader_ranks_; }
  /// Nodes with ranks.
  std::size_t nodes() const noexcept { return nodes_; }
  std::uint32_t rank() const noexcept { return network_->rank(); }
  /// What has to be the same on all ranks, as a number.
  std::uint64_t options() const noexcept;
  const Turns::Settings& turns() const noexcept { return settings_.turns; }
  const std::string& host() const noexcept { return settings_.host; }

  /// False: MPI does not allow calls of this thread, this is a forked child, or the team is closed.  `why`
  /// says so.
  bool may_call(std::string& why) const;
  bool closed() const noexcept { return closed_; }
  /// False: messages may be under way.
  bool ended_well() const noexcept { return ended_well_; }
  /// False: this is a forked child, and its lock may be held for ever.
  bool ours() const noexcept { return ::getpid() == pid_; }

  std::mutex& mutex() noexcept { return mutex_; }
  // With the lock held.
  Agreement& agreement() noexcept { return *agreement_; }
  /// May throw bad_alloc.
  void add(std::shared_ptr<Member> member) { members_.push_back(std::move(member)); }
  /// Null: out of memory.
  std::unique_ptr<Transport> open_port(std::uint32_t agreed_number) noexcept {
    return network_->open_port(agreed_number + 1);
  }
  /// What the transport said once; nothing goes on since.
  const std::string& broken() const noexcept { return broken_; }
  /// Until ready() is true, called with the lock held, at least once.  Without a thread of its own it makes
  /// progress.  False: this is a forked child meanwhile (a signal handler forked), and the lock is not held.
  template <class Ready>
  bool wait(std::unique_lock<std::mutex>& lock, Ready&& ready);

  /// With the lock held.  Bytes that the streams of this rank keep all together, at most.
  std::uint64_t kept() const noexcept { return kept_; }
  void keep(std::uint64_t bytes) noexcept { kept_ += bytes; }
  void keep_less(std::uint64_t bytes) noexcept { kept_ -= bytes; }
  /// The same for what this node's page cache has to hold of files that do not fit into it.
  std::uint64_t cached() const noexcept { return cached_; }
  void cache(std::uint64_t bytes) noexcept { cached_ += bytes; }
  void cache_less(std::uint64_t bytes) noexcept { cached_ -= bytes; }
  /// Ranks of this rank's node.
  std::uint64_t ranks_here() const noexcept;
  /// With the lock held.  Adds what a reader of this rank has done, once it does nothing more.
  void count(const JobTotals& totals) noexcept { totals_.add(totals); }
  /// With the lock held.  close() counts it, if it is still there then.  May throw bad_alloc.
  void count_at_close(std::weak_ptr<const Member> reader) {
    std::erase_if(readers_, [](const auto& r) { return r.expired(); });
    readers_.push_back(std::move(reader));
  }
  /// On rank 0, after close(): of all ranks.
  const JobTotals& job_totals() const noexcept { return agreement_->totals(); }

  /// A call of the program's that only makes progress (lmdbio_mpi_poll).
  void poll();
  /// Progress is made while the program computes, by a thread of the team.
  bool has_thread() const noexcept { return threaded_; }
  /// Something changed that those who wait, or the team's thread, look for.
  void notify() noexcept { changes_.notify(); }

  /// Leaves what is open, and waits until all ranks have called it and nothing is under way.  What is open
  /// then can only be closed, and the network is not used any more.  False: not in order, since something had
  /// failed.  May throw bad_alloc.
  bool close();

 private:
  bool step() noexcept;
  void pause(std::uint32_t seen, unsigned quiet, bool busy) noexcept;
  void run() noexcept;
  void start_thread();
  void end_thread() noexcept;

  const std::unique_ptr<Network> network_;
  const Settings settings_;
  const pid_t pid_;
  std::vector<std::uint32_t> reader_ranks_;
  std::size_t nodes_ = 1;
  std::unique_ptr<Transport> transport_;  ///< of the agreement
  std::unique_ptr<Agreement> agreement_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Member>> members_;
  std::vector<std::weak_ptr<const Member>> readers_;
  std::string broken_;
  JobTotals totals_;  ///< of this rank
  std::uint64_t events_ = 0;
  std::uint64_t kept_ = 0, cached_ = 0;
  EventCount changes_;
  std::atomic<unsigned> waiting_{0};
  std::atomic<bool> ending_{false};
  std::atomic<bool> closed_{false};
  bool ended_well_ = false;
  bool threaded_ = false;
  pthread_t thread_{};
};

template <class Ready>
bool Team::wait(std::unique_lock<std::mutex>& lock, Ready&& ready) {
  for (unsigned quiet = 0;; ++quiet) {
    std::uint32_t seen = changes_.now();
    if (!threaded_ && step()) quiet = 0;
    if (ready()) return true;
    waiting_.fetch_add(1);
    if (threaded_ && quiet == 0) {  // the team's thread may be about to sleep for long
      changes_.notify();
      seen = changes_.now();
    }
    lock.unlock();
    pause(seen, quiet, true);
    waiting_.fetch_sub(1);
    if (::getpid() != pid_) return false;
    lock.lock();
  }
}

}  // namespace lmdbio::ranks
