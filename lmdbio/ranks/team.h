// Makes progress for all readers and streams that the ranks of a communicator have opened together.
//
// If any thread may call MPI, a thread of the team makes progress while the program computes.  Otherwise, the
// program's threads make progress inside their calls.
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

/// Interface of the readers and streams for which the team makes progress.
class Member {
 public:
  virtual ~Member() = default;
  /// Advances reads and messages.  The caller holds the team's lock.  Never waits.  The member stores its own
  /// errors.
  virtual void progress(std::int64_t now_ns) noexcept = 0;
  /// Returns whether nothing is under way and no rank expects anything from this member.  The team then drops
  /// it.
  virtual bool finished() const noexcept = 0;
  /// Returns a number that changes whenever there is progress.
  virtual std::uint64_t events() const noexcept { return 0; }
  /// Returns whether the member needs frequent checks for progress, even after a long time without progress.
  virtual bool busy() const noexcept { return false; }
  /// Tells the member that the program needs nothing more from it, even if it is still open.  The caller
  /// holds the team's lock.
  virtual void leave() noexcept {}
  /// Returns whether the member can never finish, because an error has left messages under way.
  virtual bool stuck() const noexcept { return false; }
  /// Returns the member's part of the job's totals, unless it has been counted already.  The caller holds the
  /// team's lock.
  virtual JobTotals totals() const noexcept { return {}; }
};

/// The ranks of a communicator, and their open readers and streams.  Any thread that the network allows.
class Team {
 public:
  struct Settings {
    std::string host;                                 ///< name of this rank's host, for messages
    std::int64_t timeout_ns = Agreement::kTimeoutNs;  ///< time to wait until all ranks have opened
    unsigned readers_per_node = 1;
    bool own_thread = true;  ///< use a thread, if the network allows one
    Turns::Settings turns;   ///< turns of the readers of a stream
  };
  /// All settings except `host` must be the same on all ranks.  May throw bad_alloc.
  Team(std::unique_ptr<Network> network, Settings settings);
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  /// Requires that close() was called, and that ended_well() is true.
  ~Team();

  Network& network() noexcept { return *network_; }
  /// Returns the ranks that read, which are the first ranks of each node.
  const std::vector<std::uint32_t>& reader_ranks() const noexcept { return reader_ranks_; }
  /// Returns the number of nodes that the ranks run on.
  std::size_t nodes() const noexcept { return nodes_; }
  std::uint32_t rank() const noexcept { return network_->rank(); }
  /// Returns a hash of the options that must be the same on all ranks.
  std::uint64_t options() const noexcept;
  const Turns::Settings& turns() const noexcept { return settings_.turns; }
  const std::string& host() const noexcept { return settings_.host; }
  /// Returns the time that ranks wait for others.
  std::int64_t timeout_ns() const noexcept { return settings_.timeout_ns; }

  /// Returns whether the calling thread may use the team.  If not, sets `why` to the reason: MPI does not
  /// allow calls of this thread, this is a forked child, or the team is closed.
  bool may_call(std::string& why) const;
  bool closed() const noexcept { return closed_; }
  /// Returns false if messages may be under way.
  bool ended_well() const noexcept { return ended_well_; }
  /// Returns false in a forked child.  There, a thread that does not exist may hold the lock.
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
  /// Returns why messages have failed, or an empty text.  After such an error, nothing advances any more.
  const std::string& broken() const noexcept { return broken_; }
  /// Waits until ready() returns true.  Calls ready() with the lock held, at least once.  Makes progress if
  /// the team has no thread.  If a signal handler has forked and this is the child, returns false without the
  /// lock.
  template <class Ready>
  bool wait(std::unique_lock<std::mutex>& lock, Ready&& ready);

  /// Return and change the upper limit of the bytes that all streams of this rank keep together.  Require the
  /// lock.
  std::uint64_t kept() const noexcept { return kept_; }
  void keep(std::uint64_t bytes) noexcept { kept_ += bytes; }
  void keep_less(std::uint64_t bytes) noexcept { kept_ -= bytes; }
  /// Return and change the bytes of files that this node's page cache must keep, although the files do not
  /// fit into it.  Require the lock.
  std::uint64_t cached() const noexcept { return cached_; }
  void cache(std::uint64_t bytes) noexcept { cached_ += bytes; }
  void cache_less(std::uint64_t bytes) noexcept { cached_ -= bytes; }
  /// Returns the number of ranks on this rank's node.
  std::uint64_t ranks_here() const noexcept;
  /// Adds the totals of a reader of this rank that is no longer used.  Requires the lock.
  void count(const JobTotals& totals) noexcept { totals_.add(totals); }
  /// Makes close() count the totals of the reader, if it still exists at that time.  Requires the lock.  May
  /// throw bad_alloc.
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
  /// Wakes up waiting threads and the team's thread.  Call it after a change that they may wait for.
  void notify() noexcept { changes_.notify(); }

  /// Ends all readers and streams.  Waits until all ranks have called close() and nothing is under way.
  /// Readers and streams that are still open can then only be closed, and the network is no longer used.
  /// Returns false if messages have failed.  May throw bad_alloc.
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
  std::unique_ptr<Transport> transport_;  ///< transport of the agreement
  std::unique_ptr<Agreement> agreement_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Member>> members_;
  std::vector<std::weak_ptr<const Member>> readers_;
  std::string broken_;
  JobTotals totals_;  ///< totals of this rank
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
    if (threaded_ && quiet == 0) {  // the team's thread may be about to sleep for a long time
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
