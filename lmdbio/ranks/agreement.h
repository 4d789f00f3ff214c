// Makes ranks that open the same database agree on one state of one file, and on the order of a stream.
//
// Opens are matched by path and database, not by the sequence of calls.  So ranks may open several
// databases, from several threads, each in another sequence.  Rank 0 collects the claims of all ranks and
// answers all of them.
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

/// State of a file, as one rank sees it.  Unlike device and inode numbers, it is the same on all nodes.
struct FileState {
  std::uint64_t size = 0;                ///< bytes
  std::uint64_t mtime_ns = 0;            ///< of the file
  std::uint64_t txnid = 0;               ///< of the snapshot
  std::array<std::uint64_t, 4> metas{};  ///< hashes of both meta pages, 128 bits each
  friend bool operator==(const FileState&, const FileState&) = default;
};

/// What a rank claims.
struct Terms {
  enum class Kind : std::uint32_t {
    file,
    stream,  ///< different states are an error, and are never renewed
    end,     ///< of the communicator: ranks wait for each other without a time limit
  };
  Kind kind = Kind::file;
  int code = 0;                      ///< with `why`: result of the open, an errno or an MDB_ code
  std::uint64_t offer = UINT64_MAX;  ///< the ranks agree on the smallest offer
  std::uint64_t options = 0;         ///< must be the same on all ranks
  std::uint32_t votes = UINT32_MAX;  ///< each bit is for something that is done only if all ranks agree
  records::Position start;           ///< of this rank's stream
  JobTotals totals;                  ///< of this rank, with Kind::end
};

/// Collects claims and distributes answers, one object for each communicator.  One thread.  The transport
/// outlives it.
class Agreement {
 public:
  enum class Verdict : std::uint32_t {
    pending,
    agreed,
    renew,   ///< a writer has committed: all ranks take the newest snapshot and claim again
    failed,  ///< for all ranks
  };
  struct Answer {
    Verdict verdict = Verdict::pending;
    std::uint32_t number = 0;  ///< of the agreement, from 0; the same on all ranks
    int code = 0;              ///< with Verdict::failed: an errno or an MDB_ code
    std::string why;           ///< with Verdict::failed: one line that names a rank, its host and the reason
    /// Rank 0 has not answered in time, as `code` and `why` say.  It may still answer, and the other ranks
    /// may still agree.  A rank that stops waiting must still do its part, like a rank that has left.
    bool late = false;
    std::uint64_t offer = UINT64_MAX;
    std::uint32_t votes = UINT32_MAX;  ///< bits that all ranks have set
    /// Where each rank's stream begins; null: all begin at the same position.
    std::shared_ptr<const std::vector<records::Position>> starts;
  };

  static constexpr std::int64_t kTimeoutNs = std::int64_t{60} * 1'000'000'000;
  /// How often ranks claim again before a file that changes all the time becomes an error.
  static constexpr unsigned kMostRenewals = 10;

  /// `host`: name of this rank's host, for messages.  May throw bad_alloc.
  Agreement(Transport& transport, std::string host, std::int64_t timeout_ns = kTimeoutNs);
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  /// Claims that this rank has opened the database `name` in `path` and found `state`, or that it could not
  /// for the reason `why`.  The n-th claim for a path and name on one rank matches the n-th claim for them
  /// on the others.  Returns the number of the claim, for answer().  May throw bad_alloc.
  std::uint64_t claim(std::string_view path, std::string_view name, const FileState& state,
                      std::string_view why, const Terms& terms = {});
  /// Repeats a claim with a newer state, after Verdict::renew.  May throw bad_alloc.
  void claim_again(std::uint64_t claim, const FileState& state, std::string_view why,
                   const Terms& terms = {});
  /// Sends and receives claims and answers.  Never waits.  An error is one of the transport, and final.  May
  /// throw bad_alloc.
  Status progress(std::int64_t now_ns);
  Answer answer(std::uint64_t claim) const;
  /// Returns the totals of all ranks.  Only on rank 0, once the ranks have agreed on Kind::end.
  const JobTotals& totals() const noexcept { return totals_; }
  /// Drops a claim.  Call it when the answer has been handled, or is not needed any more.
  void forget(std::uint64_t claim) { claims_.erase(claim); }
  /// On rank 0: no agreement gets a number for which `in_use` returns true.
  void avoid_numbers(std::function<bool(std::uint32_t number)> in_use) { in_use_ = std::move(in_use); }
  /// Cancels pending receives.  Call it when no rank claims anything any more and no claim is pending.
  /// Returns false while an operation is under way; then call the transport's poll() and try again.
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
    std::uint32_t starts = 0;  ///< how many starts follow in the next message
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
    std::vector<FileState> before;  ///< states that the ranks claimed before the last renewal
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
  std::map<Hash, std::uint64_t> opens_;  ///< number of claims for each path and name, on this rank
  std::vector<std::unique_ptr<Sent<ClaimMessage>>> claims_out_;
  AnswerMessage answer_in_;
  Operation answer_op_, starts_op_;
  std::shared_ptr<std::vector<records::Position>> starts_in_;  ///< of answer_in_; null: none expected
  bool expects_answer_ = false, closing_ = false;
  // Rank 0 only.
  std::vector<std::unique_ptr<Sent<ClaimMessage>>> claims_in_;
  std::vector<std::unique_ptr<Sent<AnswerMessage>>> answers_out_;
  std::map<Hash, Matched> matched_;
  std::map<Hash, std::string> given_up_;  ///< why rank 0 gave up these: not all ranks claimed in time
  std::uint32_t next_number_ = 0;
  std::function<bool(std::uint32_t)> in_use_ = [](std::uint32_t) { return false; };
  JobTotals totals_;
};

}  // namespace lmdbio::ranks
