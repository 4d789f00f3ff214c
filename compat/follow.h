// The object behind lmdbio_follow: an environment, its transactions, and the order of the samples.
#pragma once

#include <lmdbio/follow.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "compat/reader_handle.h"
#include "lmdbio/ranks/follow_log.h"
#include "lmdbio/records/rehearsal.h"
#include "lmdbio/records/sample_keys.h"
#include "lmdbio/tree/diff.h"

namespace lmdbio::compat {

/// Bytes that count as prepared batches of the process (gather/prepared_memory.h).
class CountedBytes {
 public:
  CountedBytes() noexcept = default;
  CountedBytes(const CountedBytes&) = delete;
  CountedBytes& operator=(const CountedBytes&) = delete;
  ~CountedBytes();
  /// Changes the number of bytes.  Returns false if there is no room; then nothing has changed.
  bool set(std::uint64_t bytes) noexcept;

 private:
  std::uint64_t bytes_ = 0;
};

/// Returns the time in ns, CLOCK_MONOTONIC.
std::int64_t steady_ns() noexcept;

/// The options of the program, checked, with defaults, and without its pointers.
struct FollowOptions {
  /// Copies and checks `given`.  EINVAL with a reason.
  static Status read(const lmdbio_follow_options* given, FollowOptions& out, std::string& why);
  /// Returns the label of a record.
  std::uint64_t label(Bytes key, Bytes value) const;

  lmdbio_follow_options plain{};  ///< with defaults; its pointers to data are null
  std::optional<std::string> database, finished_key;
  std::string state;
  records::RehearsalTerms terms;
};

/// Attempts to read something that a writer without locks overwrites, before the call fails.
inline constexpr int kTries = 10;

/// What a new snapshot brought.
struct Changes {
  records::KeyList inserted, removed;  ///< in key order
  /// Empty if labels are not needed.
  std::vector<std::uint64_t> inserted_labels, removed_labels;
  std::vector<std::uint64_t> dropped_leaves;  ///< leaf pages that only the previous snapshot has
  std::optional<bool> finished;               ///< if it has changed
  std::uint64_t memory_bytes() const noexcept;
};

/// A new snapshot, as rank 0 sends it to the other ranks.
struct Renewal {
  tree::Snapshot snapshot;
  std::uint64_t inserted = 0;  ///< number of records that it brought
  bool finished = false;
  bool guarded = false;  ///< rank 0 has a reader slot for it, which writers respect
  std::string stamp;     ///< Follow::stamp_
};

/// Follows one database.  One thread at a time, except for cancel().
class Follow {
 public:
  static Status open(const char* path, FollowOptions options, std::unique_ptr<Follow>& out, std::string& why);
  /// The same together with the other ranks of `team`.
  static Status open(const std::shared_ptr<ranks::Team>& team, const char* path, FollowOptions options,
                     std::unique_ptr<Follow>& out, std::string& why);
  ~Follow();
  Follow(const Follow&) = delete;
  Follow& operator=(const Follow&) = delete;

  /// Implements lmdbio_follow_next().  May throw bad_alloc.
  Status next(std::unique_ptr<records::Batch>& out, std::size_t& fresh, std::string& why);
  /// Implements lmdbio_follow_wait().  May throw bad_alloc.
  Status wait(std::string& why);
  /// Implements lmdbio_follow_ahead().  May throw bad_alloc.
  Status ahead(std::uint64_t i, std::unique_ptr<records::Batch>& out, std::size_t& fresh, std::string& why);
  /// Implements lmdbio_follow_state().  May throw bad_alloc.
  Status save(const std::string*& out, std::string& why);
  std::uint64_t transaction() const noexcept { return txnid_; }
  std::uint64_t pending() const noexcept { return order_.pending(); }
  void cancel() noexcept { cancelled_.store(true, std::memory_order_release); }
  /// Returns false in a forked child.
  bool ours() const noexcept;
  /// In a forked child: gives up the object without ending the parent's transactions.
  void abandon() noexcept;

 private:
  /// A transaction, and which samples were announced to it with lmdbio_prefetch(), or to the one before it.
  struct Held {
    MDB_txn* txn = nullptr;
    std::uint64_t fresh_end = 0;  ///< new samples with smaller numbers
    std::uint64_t batch_end = 0;  ///< old samples of batches with smaller numbers
    std::uint64_t number = 0;     ///< counts the renewals
    void end() noexcept;
  };
  /// A record of a batch.
  struct Row {
    std::uint64_t number;
    records::KeyList::Entry entry;
    MDB_val value;
  };
  /// Transactions of rank 0 whose snapshots other ranks still use.
  struct Lent {
    std::shared_ptr<Opened> opened;
    std::vector<Held> held;  ///< by number
    Held previous, current;  ///< set when rank 0 closes the object
    ~Lent();
  };

  /// A batch that ahead() has read.
  struct Ahead {
    std::uint64_t number;  ///< of the batch
    records::Rehearsal::Batch samples;
    std::size_t fresh = 0;
    std::unique_ptr<const records::Batch> batch;
  };

  Follow(FollowOptions options, std::shared_ptr<Opened> opened);
  static Status prepare(const char* path, FollowOptions options, std::unique_ptr<Follow>& out,
                        std::string& why);
  Status start(std::string& why);
  Status load(std::string& why);
  Status parse(std::uint64_t& txnid, std::string& why);
  Status begin(MDB_txn*& txn, ReadTxn*& t, std::string& why, const tree::Snapshot* lent = nullptr);
  Status renew(std::string& why);
  Status compare(MDB_txn* txn, std::string& why, std::uint64_t most = UINT64_MAX);
  Status compare_current(std::string& why);
  Status stamp_of(const ReadTxn& t, std::string& out, tree::DiffProblem& problem) const;
  Status check_growth(const std::string& saved, const std::string& last_key, std::string& why);
  Status check_path(std::string& why);
  bool is_safe(const ReadTxn& t) const noexcept;
  void apply(Changes&& changes, bool as_old);
  void drop_keys();
  bool is_valid(records::SamplePlace place) const noexcept;
  void renumber_places();
  bool count_memory() noexcept;
  Status no_room(std::string& why) const;
  bool has_batch(std::uint64_t i = 0) const noexcept;
  bool has_ended() const noexcept;
  Status await(std::string& why);
  void announce();
  static void load_lines(const window::WindowView& view, const std::vector<Row>& rows);
  bool are_resident(const std::vector<std::uint64_t>& numbers);
  Status read(const records::Rehearsal::Batch& samples, std::unique_ptr<records::Batch>& out,
              std::size_t& fresh, std::string& why);
  Status read_once(const records::Rehearsal::Batch& samples, std::uint64_t batch,
                   std::unique_ptr<records::Batch>& out, std::size_t& fresh, std::string& why);
  Status find(const records::Rehearsal::Batch& samples, std::uint64_t batch, std::vector<Row>& out,
              std::size_t& fresh, std::string& why);
  bool foresee(std::uint64_t i, records::Rehearsal::Batch& out) const;
  const Ahead* find_ahead(std::uint64_t batch, const records::Rehearsal::Batch& samples);
  void drop_previous() noexcept;
  Status fail(Status st, std::string& why);

  // Over several ranks (follow_ranks.cc):

  /// Returns whether rank 0 decides when the snapshot is renewed, and this is another rank.
  bool is_led() const noexcept { return log_ != nullptr && !log_->writes(); }
  /// Returns whether this rank returns element `i` of a batch.
  bool is_mine(std::uint64_t i) const noexcept {
    return log_ == nullptr || i % log_->ranks() == log_->rank();
  }
  Status lead(std::string& why);
  bool may_renew();
  void end(Held& held) noexcept;
  void return_lent() noexcept;
  Status send_renewal(std::string& why);
  Status end_previous(std::string& why);
  Status send_batch(std::string& why);
  Status send_result(Status st, std::string& why);
  Status hear(std::string& why);
  Status take_renewal(const Renewal& r, std::string& why);
  Status find_stamp(const ReadTxn& t, std::string& why);
  Status check_same(const Renewal& r, bool is_same_snapshot, std::string& why) const;
  Status overwritten(std::string& why) const;
  Status read_newer(std::string& why);
  Status say_in_use(std::string& why);

  const FollowOptions options_;
  const std::shared_ptr<Opened> opened_;  ///< its transaction is the current one's
  const pid_t pid_;
  std::string name_;  ///< of the file, for messages
  bool dupsort_ = false;
  std::uint64_t txnid_ = 0;
  Held current_, previous_;
  std::int64_t renewed_ns_ = 0, path_checked_ns_ = 0;
  std::uint64_t batches_ = 0;           ///< since the snapshot was renewed, or was found to be the newest
  std::uint64_t previous_batches_ = 0;  ///< since previous_ was replaced
  bool started_ = false;                ///< the records that exist are known
  bool finished_ = false;
  std::string last_key_, last_value_;  ///< with append_only
  /// Identifies the contents of the database in the current snapshot: its record, and a hash of its root
  /// page.  Empty if the database does not exist.
  std::string stamp_;
  records::Rehearsal order_;
  /// The next batch, if it is decided: wait() was called, or its values could not be read.
  std::optional<records::Rehearsal::Batch> unread_;
  std::vector<Ahead> ahead_;  ///< by number
  records::SampleKeys keys_;
  /// Snapshots are numbered for the places of samples.  A place is valid as long as the snapshots have its
  /// leaf page: LMDB does not change pages of a snapshot.
  std::uint64_t snapshot_ = 0;                                ///< number of the current one
  std::uint64_t oldest_place_ = 0;                            ///< places of earlier snapshots are not valid
  std::unordered_map<std::uint64_t, std::uint64_t> dropped_;  ///< leaf page -> first snapshot without it
  std::shared_ptr<const OpenFile> file_;                      ///< comparisons read through it
  std::uint64_t probe_every_ = 16;                            ///< one of so many samples is probed
  std::uint64_t probed_ = 0;  ///< samples, to see whether they have to be announced
  CountedBytes memory_;
  std::string state_;
  std::uint64_t inserted_ = 0;             ///< records that the last comparison found
  std::shared_ptr<ranks::FollowLog> log_;  ///< null: this process follows the database alone
  std::shared_ptr<Lent> lent_;             ///< rank 0 only
  bool has_told_ = false;                  ///< rank 0 only: the other ranks know the permanent error
  // The other ranks only:
  std::optional<Renewal> renewal_;     ///< was received, but not taken yet
  std::uint64_t renewals_ = 0;         ///< number of renewals, with the first snapshot
  std::uint64_t unguarded_until_ = 0;  ///< snapshots up to this one may be overwritten
  bool is_due_ = false;                ///< rank 0 has said that the next batch can be made
  Status permanent_;                   ///< the error that all later calls return, with its reason
  std::string permanent_why_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace lmdbio::compat

struct lmdbio_follow {
  std::unique_ptr<lmdbio::compat::Follow> core;
};
