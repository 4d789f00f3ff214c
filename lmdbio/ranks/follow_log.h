// The log of a database that all ranks of a team follow: rank 0 writes entries, and the other ranks read them
// in the same sequence.
//
// Rank 0 sends each entry to each other rank.  In return, each rank tells rank 0 which of rank 0's resources
// it still needs: the smallest number that is in use.  A rank that leaves sends a last number, and rank 0
// sends a last, empty entry.  So both sides know which messages are still to arrive, and the ranks may leave
// in any sequence.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lmdbio/ranks/team.h"

namespace lmdbio::ranks {

/// One rank's end of the log.  Public functions take the team's lock, except those of Member, which require
/// it.  Functions that are not noexcept may throw bad_alloc.
class FollowLog final : public Member {
 public:
  /// Size of the largest entry in bytes.
  static constexpr std::size_t kMostBytes = 4096;
  /// Returned by in_use() if no other rank uses anything.
  static constexpr std::uint64_t kNothing = UINT64_MAX;

  /// Agrees with the other ranks that all of them follow the database `name` in `path`, with the same options
  /// (their hash), and waits for them.  All ranks get the same error if they cannot agree.  Other errors:
  /// ECANCELED: `cancelled` is set, or the program's interrupt function has returned true; EINVAL: this
  /// thread must not use the team; ETIMEDOUT: rank 0 has not answered.
  static Status open(const std::shared_ptr<Team>& team, std::string_view path, std::string_view name,
                     std::array<std::uint64_t, 2> options, const std::atomic<bool>& cancelled,
                     std::shared_ptr<FollowLog>& out, std::string& why);
  /// Tells the other ranks that this one cannot open the database, for the reason `why`.
  static void report_failure(Team& team, std::string_view path, std::string_view name, int code,
                             std::string_view why);
  FollowLog(std::shared_ptr<Team> team, std::string path);

  /// Returns whether this rank writes the log.
  bool writes() const noexcept { return team_->rank() == 0; }
  std::uint32_t rank() const noexcept { return team_->rank(); }
  std::uint32_t ranks() const noexcept { return team_->network().ranks(); }
  /// Returns whether the calling thread may use the log; see Team::may_call().
  bool may_call(std::string& why) const { return team_->may_call(why); }

  // Rank 0:

  /// Sends an entry of 1 to kMostBytes bytes to all ranks that have not left.  Does not wait.
  Status append(std::string_view entry, std::string& why);
  /// Returns the smallest number that another rank uses: 0, until the rank has said something else.  Makes
  /// progress.
  std::uint64_t in_use();

  // Other ranks:

  /// Waits for the next entry.  ECANCELED: `cancelled` is set, or the interrupt function has returned true,
  /// or rank 0 has left, which sets `why`.  EINVAL: this thread or process must not use the team.  EIO:
  /// messages fail.
  Status take(const std::atomic<bool>& cancelled, std::string& entry, std::string& why);
  /// Tells rank 0 the smallest number that this rank uses from now on.  It must not decrease.
  Status use(std::uint64_t smallest, std::string& why);

  // All ranks:

  /// Leaves the log.  On rank 0, `keep` lives until no other rank uses anything; another thread may then
  /// destroy it.  If `waits`, rank 0 waits for that, for at most the team's time limit.  Does nothing in a
  /// forked child, where the caller must not destroy this object.
  void close(std::shared_ptr<void> keep, bool waits) noexcept;

  void progress(std::int64_t now_ns) noexcept override;
  bool finished() const noexcept override;
  std::uint64_t events() const noexcept override {
    return static_cast<std::uint64_t>(state_) + (transport_ != nullptr ? transport_->events : 0);
  }
  bool busy() const noexcept override { return state_ == State::pending || left_; }
  void leave() noexcept override { left_ = true; }
  bool stuck() const noexcept override { return broken_; }

 private:
  enum class State : unsigned char { pending, running, failed };
  /// A message that is being sent.
  struct Sent {
    std::shared_ptr<const std::string> bytes;
    Operation op;
  };
  /// What rank 0 knows of another rank.
  struct Peer {
    std::uint64_t in_use = 0, in = 0;
    Operation op;
    bool expects = false;
    bool left() const noexcept { return in_use == kNothing; }
  };

  void take_answer();
  void begin(std::uint32_t number);
  Status hear_ranks();
  Status hear_rank_0();
  Status send_to(const std::vector<std::uint32_t>& ranks, std::string_view bytes);
  Status say_last();
  void fail(Status status, std::string why);
  bool still_runs(std::string& why, Status& st) const;

  const std::shared_ptr<Team> team_;
  const std::string path_;
  std::uint64_t claim_ = 0;
  State state_ = State::pending;
  Status status_;  ///< the error; with State::pending: rank 0 has not answered in time
  std::string why_;
  bool left_ = false, said_last_ = false;
  bool broken_ = false;  ///< messages have failed, and some may be under way
  std::shared_ptr<void> keep_;
  // The members below are destroyed in reverse sequence, because operations use the transport.
  std::unique_ptr<Transport> transport_;
  std::list<Sent> sent_;
  std::vector<Peer> peers_;  ///< rank 0 only; by rank
  std::vector<std::byte> in_;
  Operation in_op_;
  bool expects_ = false, ended_ = false;  ///< an entry; rank 0 has left
  std::deque<std::string> entries_;
};

}  // namespace lmdbio::ranks
