// Ranks that open the same database agree on one state of one file, and on the order of a stream.
//
// Opens are matched by what is opened, not by the order of calls: ranks may open several databases, from
// several threads, each in another order.  Rank 0 collects what each rank found and answers all of them.
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

/// What a rank found in the file.  The same on all nodes, unlike device and inode numbers.
struct FileState {
  std::uint64_t size = 0;                ///< bytes
  std::uint64_t mtime_ns = 0;            ///< of the file
  std::uint64_t txnid = 0;               ///< of the snapshot
  std::array<std::uint64_t, 4> metas{};  ///< hashes of the bytes of both meta pages, 128 bits each
  friend bool operator==(const FileState&, const FileState&) = default;
};

/// What a rank claims.
struct Terms {
  enum class Kind : std::uint32_t {
    file,
    stream,  ///< states that differ are an error, never renewed
    end,     ///< of the communicator: ranks wait for each other without a limit
  };
  Kind kind = Kind::file;
  int code = 0;                      ///< with `why`: what the open returned, an errno or an MDB_ code
  std::uint64_t offer = UINT64_MAX;  ///< the least of all ranks' is what they agree on
  std::uint64_t options = 0;         ///< have to be the same on all ranks
  std::uint32_t votes = UINT32_MAX;  ///< bits, each for something that is done if no rank is against it
  records::Spot start;               ///< of this rank's stream
  JobTotals totals;                  ///< Kind::end: of this rank
};

/// One for each communicator; one thread.  Transport outlives it.
class Agreement {
 public:
  enum class Verdict : std::uint32_t {
    pending,
    agreed,
    renew,   ///< a writer has committed meanwhile: all ranks take the newest snapshot and claim again
    failed,  ///< for all ranks
  };
  struct Answer {
    Verdict verdict = Verdict::pending;
    std::uint32_t number = 0;  ///< of what was agreed on, counted from 0: the same on all ranks
    int code = 0;              ///< failed: an errno or an MDB_ code
    std::string why;           ///< failed: one line that names a rank, its host and the reason
    /// Rank 0 has not answered for long, `code` and `why` say so.  It may still answer, and other ranks may
    /// come to agree: who does not wait any more still has to do its part, as one who has left.
    bool late = false;
    std::uint64_t offer = UINT64_MAX;
    std::uint32_t votes = UINT32_MAX;  ///< those of all ranks
    /// Of each rank, if they do not all start at the same place; else null.
    std::shared_ptr<const std::vector<records::Spot>> starts;
  };

  static constexpr std::int64_t kTimeoutNs = std::int64_t{60} * 1'000'000'000;
  /// How often ranks claim again before a file that changes all the time is an error.
  static constexpr unsigned kMostRenewals = 10;

  /// `host`: of this rank, for messages.  May throw bad_alloc.
  Agreement(Transport& transport, std::string host, std::int64_t timeout_ns = kTimeoutNs);
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  /// This rank has opened `path`, and the database `name` in it, and found `state`; or could not, and `why`
  /// says so.  The n-th open of the same path and name on one rank matches the n-th on the others.  The
  /// number of the claim, for answer().  May throw bad_alloc.
  std::uint64_t claim(std::string_view path, std::string_view name, const FileState& state,
                      std::string_view why, const Terms& terms = {});
  /// After Verdict::renew.
  void claim_again(std::uint64_t claim, const FileState& state, std::string_view why,
                   const Terms& terms = {});
  /// Never waits.  An error is the transport's, and final.  May throw bad_alloc.
  Status progress(std::int64_t now_ns);
  Answer answer(std::uint64_t claim) const;
  /// On rank 0, once Kind::end is agreed: of all ranks.
  const JobTotals& totals() const noexcept { return totals_; }
  /// The answer was taken note of, or nobody waits for it any more.
  void forget(std::uint64_t claim) { claims_.erase(claim); }
  /// On rank 0: numbers for which `in_use` is true are given to no open.
  void avoid_numbers(std::function<bool(std::uint32_t number)> in_use) { in_use_ = std::move(in_use); }
  /// Nothing will be claimed any more, on any rank, and nothing is pending: receives that wait are ended.
  /// False: something is still under way, and the transport's poll() is to be called.
  bool close();

 private:
  struct Hash {
    std::uint64_t low = 0, high = 0;
    friend auto operator<=>(const Hash&, const Hash&) = default;
  };
  struct ClaimMessage {
    std::uint64_t claim = 0;  ///< of the rank that sends it
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
    std::uint32_t starts = 0;  ///< so many follow
    std::uint32_t votes = 0;   ///< of all ranks
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
    std::shared_ptr<const std::vector<records::Spot>> starts;
    Operation starts_op;
    bool done() const noexcept { return op.done() && starts_op.done(); }
  };
  /// Of rank 0: what the ranks said of one key.
  struct Matched {
    std::vector<std::unique_ptr<ClaimMessage>> by_rank;
    std::vector<FileState> before;  ///< of each rank, if it was renewed
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
  void hear(const AnswerMessage& message, std::shared_ptr<const std::vector<records::Spot>> starts);
  Status hear_answers();
  Status send_waiting();

  Transport& transport_;
  const std::string host_;
  const std::int64_t timeout_ns_;
  std::int64_t last_ns_ = 0;  ///< when progress() was called last
  std::uint64_t next_claim_ = 0;
  std::map<std::uint64_t, Claim> claims_;
  std::map<Hash, std::uint64_t> opens_;  ///< of each path and name, on this rank
  std::vector<std::unique_ptr<Sent<ClaimMessage>>> claims_out_;
  AnswerMessage answer_in_;
  Operation answer_op_, starts_op_;
  std::shared_ptr<std::vector<records::Spot>> starts_in_;  ///< of answer_in_; null: none are expected
  bool expects_answer_ = false, closing_ = false;
  // Of rank 0.
  std::vector<std::unique_ptr<Sent<ClaimMessage>>> claims_in_;
  std::vector<std::unique_ptr<Sent<AnswerMessage>>> answers_out_;
  std::map<Hash, Matched> matched_;
  std::map<Hash, std::string> given_up_;  ///< not all ranks opened these in time
  std::uint32_t next_number_ = 0;
  std::function<bool(std::uint32_t)> in_use_ = [](std::uint32_t) { return false; };
  JobTotals totals_;
};

}  // namespace lmdbio::ranks
