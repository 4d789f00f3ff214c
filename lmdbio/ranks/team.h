// Makes progress for everything that the ranks of a communicator have opened together.
//
// If any thread may call MPI, a thread of the team makes progress while the program computes.  Otherwise
// progress is made inside the program's calls, by the calling thread.
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

/// Something that makes progress between calls of the program.
class Member {
 public:
  virtual ~Member() = default;
  /// Advances what is under way.  Called with the team's lock.  Never waits.  The member keeps its own
  /// errors.
  virtual void progress(std::int64_t now_ns) noexcept = 0;
  /// Returns whether nothing is under way and no rank expects anything of it.  The team then drops it.
  virtual bool finished() const noexcept = 0;
  /// Returns a number that changes when something has happened.
  virtual std::uint64_t events() const noexcept { return 0; }
  /// Returns whether it needs frequent checks for progress, even if nothing has happened for long.
  virtual bool busy() const noexcept { return false; }
  /// Called with the team's lock.  The program needs nothing more of it, even if it is still open.
  virtual void leave() noexcept {}
  /// Returns whether an error has left messages under way, so that it never finishes.
  virtual bool stuck() const noexcept { return false; }
  /// Returns its part of the job's totals, unless that has been counted.  Called with the team's lock.
  virtual JobTotals totals() const noexcept { return {}; }
};

/// The ranks of a communicator, and their open readers and streams.  Any thread that the network allows.
class Team {
 public:
  struct Settings {
    std::string host;                                 ///< name of this rank's host, for messages
    std::int64_t timeout_ns = Agreement::kTimeoutNs;  ///< time that ranks wait for others to open
    unsigned readers_per_node = 1;
    bool own_thread = true;  ///< use a thread, if the network allows one
    Turns::Settings turns;   ///< of the readers of a stream
  };
  /// `settings` must be the same on all ranks, except `host`.  May throw bad_alloc.
  Team(std::unique_ptr<Network> network, Settings settings);
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  /// Requires close() and ended_well().
  ~Team();

  Network& network() noexcept { return *network_; }
  /// Returns the ranks that read: the first ranks of each node.
  const std::vector<std::uint32_t>& reader_ranks() const noexcept { return reader_ranks_; }
  /// Returns the number of nodes with ranks.
  std::size_t nodes() const noexcept { return nodes_; }
  std::uint32_t rank() const noexcept { return network_->rank(); }
  /// Returns a hash of the options that must be the same on all ranks.
  std::uint64_t options() const noexcept;
  const Turns::Settings& turns() const noexcept { return settings_.turns; }
  const std::string& host() const noexcept { return settings_.host; }

  /// Returns whether the calling thread may use the team.  If not, `why` names the reason: MPI does not
  /// allow calls of this thread, this is a forked child, or the team is closed.
  bool may_call(std::string& why) const;
  bool closed() const noexcept { return closed_; }
  /// Returns false if messages may be under way.
  bool ended_well() const noexcept { return ended_well_; }
  /// Returns false in a forked child, where the lock may be held for ever.
  bool ours() const noexcept { return ::getpid() == pid_; }

  std::mutex& mutex() noexcept { return mutex_; }
  // The functions below require the lock.
  Agreement& agreement() noexcept { return *agreement_; }
  /// May throw bad_alloc.
  void add(std::shared_ptr<Member> member) { members_.push_back(std::move(member)); }
  /// Returns null if memory is short, or if the port is in use.
  std::unique_ptr<Transport> open_port(std::uint32_t agreed_number) noexcept {
    return network_->open_port(agreed_number + 1);
  }
  /// Returns why messages fail, or an empty text.  After such an error, nothing advances any more.
  const std::string& broken() const noexcept { return broken_; }
  /// Waits until ready() returns true.  Calls it with the lock held, at least once.  Makes progress if the
  /// team has no thread.  Returns false, without the lock, if this process has become a forked child (a
  /// signal handler forked).
  template <class Ready>
  bool wait(std::unique_lock<std::mutex>& lock, Ready&& ready);

  /// Upper limit of the bytes that all streams of this rank keep together.  Requires the lock.
  std::uint64_t kept() const noexcept { return kept_; }
  void keep(std::uint64_t bytes) noexcept { kept_ += bytes; }
  void keep_less(std::uint64_t bytes) noexcept { kept_ -= bytes; }
  /// The same for bytes that this node's page cache must hold of files that do not fit into it.
  std::uint64_t cached() const noexcept { return cached_; }
  void cache(std::uint64_t bytes) noexcept { cached_ += bytes; }
  void cache_less(std::uint64_t bytes) noexcept { cached_ -= bytes; }
  /// Returns the number of ranks on this rank's node.
  std::uint64_t ranks_here() const noexcept;
  /// Adds the totals of a reader of this rank, once it does nothing more.  Requires the lock.
  void count(const JobTotals& totals) noexcept { totals_.add(totals); }
  /// Makes close() count the reader, if it still exists then.  Requires the lock.  May throw bad_alloc.
  void count_at_close(std::weak_ptr<const Member> reader) {
    std::erase_if(readers_, [](const auto& r) { return r.expired(); });
    readers_.push_back(std::move(reader));
  }
  /// Returns the totals of all ranks.  Only on rank 0, after close().
  const JobTotals& job_totals() const noexcept { return agreement_->totals(); }

  /// Makes progress (lmdbio_mpi_poll).  Does nothing if the team has a thread.
  void poll();
  /// Returns whether a thread of the team makes progress while the program computes.
  bool has_thread() const noexcept { return threaded_; }
  /// Wakes up waiting threads and the team's thread, after a change that they may wait for.
  void notify() noexcept { changes_.notify(); }

  /// Ends everything that is open.  Waits until all ranks have called close() and nothing is under way.
  /// What is still open can then only be closed, and the network is not used any more.  Returns false if
  /// something has failed before.  May throw bad_alloc.
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
