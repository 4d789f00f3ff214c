// Makes ranks that open the same database agree on one state of one file, and on the order of a stream.
//
// Claims are matched by path and database, not by the sequence of calls.  The ranks may therefore open
// several databases from several threads, each rank in another sequence.  Rank 0 collects the claims of all
// ranks, and answers each of them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lmdbio/ranks/job_totals.h"
#include "lmdbio/ranks/transport.h"
#include "lmdbio/records/order.h"

namespace lmdbio::ranks {

/// State of a file, as one rank sees it.  It is the same on all nodes, so it contains no device and inode
/// numbers.
struct FileState {
  std::uint64_t size = 0;                ///< bytes
  std::uint64_t mtime_ns = 0;            ///< modification time of the file
  std::uint64_t txnid = 0;               ///< transaction number of the snapshot
  std::array<std::uint64_t, 4> metas{};  ///< hashes of both meta pages, 128 bits each
  friend bool operator==(const FileState&, const FileState&) = default;
};

/// The content of a claim, besides the state of the file.
struct Terms {
  enum class Kind : std::uint32_t {
    file,
    stream,  ///< a stream; different states are an error, and are never renewed
    follow,  ///< a followed database; the same
    end,     ///< end of the communicator; ranks wait for each other without a time limit
  };
  Kind kind = Kind::file;
  int code = 0;                      ///< errno or MDB_ code of a failed open; used only with `why`
  std::uint64_t offer = UINT64_MAX;  ///< the ranks agree on the smallest offer
  std::uint64_t options = 0;         ///< must be the same on all ranks
  std::uint32_t votes = UINT32_MAX;  ///< each bit is a vote; a proposal needs all votes
  records::Position start;           ///< start of this rank's stream
  JobTotals totals;                  ///< totals of this rank, with Kind::end
};

/// Collects claims and distributes answers.  Each communicator has one object.  One thread.  The transport
/// must outlive it.
class Agreement {
 public:
  enum class Verdict : std::uint32_t {
    pending,
    agreed,
    renew,   ///< a writer has committed; all ranks must take the newest snapshot and claim again
    failed,  ///< failed on all ranks
  };
  struct Answer {
    Verdict verdict = Verdict::pending;
    std::uint32_t number = 0;  ///< number of the agreement, from 0; the same on all ranks
    int code = 0;              ///< with Verdict::failed: an errno or an MDB_ code
    std::string why;           ///< with Verdict::failed: one line that names a rank, its host and the reason
    /// Rank 0 has not answered in time; `code` and `why` say so.  Rank 0 may still answer, and the other
    /// ranks may still agree.  A rank that stops waiting must continue to do its part, like a rank that has
    /// left.
    bool late = false;
    std::uint64_t offer = UINT64_MAX;
    std::uint32_t votes = UINT32_MAX;  ///< bits that all ranks have set
    /// The start of each rank's stream.  Null if all streams begin at the same position.
    std::shared_ptr<const std::vector<records::Position>> starts;
  };

  static constexpr std::int64_t kTimeoutNs = std::int64_t{60} * 1'000'000'000;
  /// Upper limit for renewals.  If a file still changes after that, the open fails.
  static constexpr unsigned kMostRenewals = 10;

  /// `host`: name of this rank's host, for messages.  May throw bad_alloc.
  Agreement(Transport& transport, std::string host, std::int64_t timeout_ns = kTimeoutNs);
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  /// Claims that this rank has opened the database `name` in `path` and found `state`.  If `why` is not
  /// empty, claims that this rank could not open the database, for this reason.  The n-th claim for a path
  /// and name on one rank matches the n-th claim for the same path and name on each other rank.  Returns the
  /// number of the claim, which answer() takes.  May throw bad_alloc.
  std::uint64_t claim(std::string_view path, std::string_view name, const FileState& state,
                      std::string_view why, const Terms& terms = {});
  /// Repeats a claim with a newer state, after Verdict::renew.  May throw bad_alloc.
  void claim_again(std::uint64_t claim, const FileState& state, std::string_view why,
                   const Terms& terms = {});
  /// Sends and receives claims and answers.  Never waits.  Errors are those of the transport, and are final.
  /// May throw bad_alloc.
  Status progress(std::int64_t now_ns);
  Answer answer(std::uint64_t claim) const;
  /// Returns the totals of all ranks.  Only on rank 0, after the ranks have agreed on Kind::end.
  const JobTotals& totals() const noexcept { return totals_; }
  /// Drops a claim.  Call it when the answer has been handled, or is no longer needed.
  void forget(std::uint64_t claim) { claims_.erase(claim); }
  /// Sets a function that returns true for numbers in use.  On rank 0, no new agreement gets such a number.
  void avoid_numbers(std::function<bool(std::uint32_t number)> in_use) { in_use_ = std::move(in_use); }
  /// Cancels pending receives.  Call it when no claim is pending and no rank will claim anything more.
  /// Returns false while an operation is under way.  In this case, call the transport's poll() and try again.
  bool close();

 private:
  struct Hash {
    std::uint64_t low = 0, high = 0;
    friend auto operator<=>(const Hash&, const Hash&) = default;
  };
  struct ClaimMessage {
    std::uint64_t claim = 0;  ///< number of the claim on the rank that sends it
    Hash key;
    FileState state;
    std::uint32_t failed = 0;
    Terms terms;
    char host[64] = "", path[256] = "", why[512] = "";
  };
  struct AnswerMessage {
    std::uint64_t claim = 0;
    std::uint32_t verdict = 0, number = 0;
    std::int32_t code = 0;
    std::uint32_t starts = 0;  ///< number of starts that follow in the next message
    std::uint32_t votes = 0;   ///< bits that all ranks have set
    std::uint64_t offer = 0;
    char why[1024] = "";
  };
  struct Claim {
    std::string path;
    Hash key;
    Terms::Kind kind = Terms::Kind::file;
    std::int64_t waited_ns = 0;
    Answer answer;
  };
  template <class Message>
  struct Sent {
    std::uint32_t to = 0;
    Message message;
    Operation op;
    std::shared_ptr<const std::vector<records::Position>> starts;
    Operation starts_op;
    bool done() const noexcept { return op.done() && starts_op.done(); }
  };
  /// Claims of all ranks for one key.  Rank 0 only.
  struct Matched {
    std::vector<std::unique_ptr<ClaimMessage>> by_rank;
    std::vector<FileState> before;  ///< states in the claims before the last renewal
    std::uint32_t claimed = 0;
    std::int64_t waited_ns = 0;
    bool waits_for_ever = false;
    unsigned renewals = 0;
  };

  Status receive_claims();
  Status take(std::uint32_t rank, const ClaimMessage& message);
  Verdict judge(const Matched& matched, int& code, std::string& why) const;
  Status answer_all(Matched& matched, Verdict verdict, int code, const std::string& why);
  Status give_up_late(std::int64_t passed_ns);
  void hear(const AnswerMessage& message, std::shared_ptr<const std::vector<records::Position>> starts);
  Status hear_answers();
  Status send_waiting();

  Transport& transport_;
  const std::string host_;
  const std::int64_t timeout_ns_;
  std::int64_t last_ns_ = 0;  ///< time of the last call of progress()
  std::uint64_t next_claim_ = 0;
  std::map<std::uint64_t, Claim> claims_;
  std::map<Hash, std::uint64_t> opens_;  ///< number of claims of this rank for each path and name
  std::vector<std::unique_ptr<Sent<ClaimMessage>>> claims_out_;
  AnswerMessage answer_in_;
  Operation answer_op_, starts_op_;
  std::shared_ptr<std::vector<records::Position>> starts_in_;  ///< starts of answer_in_, or null
  bool expects_answer_ = false, closing_ = false;
  // Rank 0 only.
  std::vector<std::unique_ptr<Sent<ClaimMessage>>> claims_in_;
  std::vector<std::unique_ptr<Sent<AnswerMessage>>> answers_out_;
  std::map<Hash, Matched> matched_;
  std::map<Hash, std::string> given_up_;  ///< claims that were late on some ranks: the error text
  std::uint32_t next_number_ = 0;
  std::function<bool(std::uint32_t)> in_use_ = [](std::uint32_t) { return false; };
  JobTotals totals_;
};

}  // namespace lmdbio::ranks
