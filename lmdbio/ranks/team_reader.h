// A reader whose snapshot all ranks of a team share.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lmdbio/ranks/index_exchange.h"
#include "lmdbio/ranks/index_work.h"
#include "lmdbio/ranks/payload.h"
#include "lmdbio/ranks/team.h"
#include "lmdbio/records/index_parts.h"
#include "lmdbio/records/reader.h"

namespace lmdbio::ranks {

/// Agrees with the other ranks on the snapshot and the index of one open database.  Requires the team's
/// lock, except for wait().
class TeamReader final : public Member {
 public:
  /// Interface to the reader of this rank.  The caller holds the team's lock, except in check().
  class Local {
   public:
    virtual ~Local() = default;
    /// Replaces the snapshot by the newest one.  Nothing may have been read from the old snapshot.  May throw
    /// bad_alloc.
    virtual Status renew(FileState& state, std::string& why) = 0;
    /// Fails if the file has changed since the snapshot was taken.  This function reads from the
    /// file.  So the thread that uses a stream of the reader calls check() without the team's lock.
    virtual Status check(std::string& why) = 0;
    virtual records::Reader& reader() noexcept = 0;
    /// If this rank lacks the index, returns the parts of it that the ranks have to build together.  Returns
    /// null if this rank has the index.
    virtual records::IndexParts* missing_index() noexcept = 0;
    /// Starts to build a part of the index.  May throw bad_alloc.
    virtual std::unique_ptr<IndexWork> start_index(std::uint64_t part, std::uint64_t parts) = 0;
  };

  /// Claims that this rank has opened the database `name` in `path` with this state.  `local` must exist
  /// until the TeamReader is destroyed or let_go() is called.  Takes the team's lock, and sets `out` while it
  /// holds the lock, so that renew() can use `out`.  May throw bad_alloc.
  static void open(const std::shared_ptr<Team>& team, std::string_view path, std::string_view name,
                   const FileState& state, Local& local, std::shared_ptr<TeamReader>& out);
  /// Claims that this rank could not open the database, for the reason `why`.  Takes the team's lock.  May
  /// throw bad_alloc.
  static void report_failure(Team& team, std::string_view path, std::string_view name, int code,
                             std::string_view why);
  TeamReader(std::shared_ptr<Team> team, std::string path, Local& local) noexcept;

  /// Waits until all ranks have the same snapshot and its index.  If this fails, all ranks get the same
  /// error.  Other errors: ECANCELED if `cancelled` is set, and EINVAL if this thread or process must not use
  /// the team.
  /// Takes the team's lock.
  Status wait(const std::atomic<bool>& cancelled, std::string& why);

  const std::shared_ptr<Team>& team() const noexcept { return team_; }
  const std::string& path() const noexcept { return path_; }
  bool pending() const noexcept { return !gave_up_ && !settled(); }
  /// Returns whether a newer snapshot may still replace the snapshot.
  bool may_renew() const noexcept { return state_ == State::pending; }
  /// Returns the result.  Requires !pending().
  Status status(std::string& why) const {
    if (!status_.ok()) why = why_;
    return status_;
  }
  /// Returns the number that identifies this reader.  It is the same on all ranks.
  std::uint32_t number() const noexcept { return number_; }
  /// Return the number of records of the snapshot, and the approximate size of one record in the file, in
  /// bytes.
  std::uint64_t records() const noexcept { return records_; }
  std::uint64_t record_bytes() const noexcept { return record_bytes_; }
  /// Returns the number of the next stream that the ranks open together.  All ranks open these streams in the
  /// same sequence.
  std::uint64_t next_stream() noexcept { return streams_++; }
  /// Returns how many bytes of a reader's memory are for messages.
  static std::uint64_t for_messages(std::uint64_t memory) noexcept;
  /// Returns the memory for messages of all streams of this reader.  `pool`: the reader's buffers.  May
  /// throw bad_alloc.
  std::shared_ptr<PayloadMemory> message_memory(const records::BufferPool& pool);
  /// Returns the reader of this rank, or null after let_go().
  Local* local() const noexcept { return local_; }
  /// Stops using the local reader.  Takes the team's lock.  Does nothing in a forked child.
  void let_go() noexcept;

  void progress(std::int64_t now_ns) noexcept override;
  bool finished() const noexcept override {
    return settled() && !stuck_ && (exchange_ == nullptr || exchange_->closed());
  }
  bool busy() const noexcept override { return !settled(); }
  void leave() noexcept override;
  bool stuck() const noexcept override { return stuck_; }
  JobTotals totals() const noexcept override;
  std::uint64_t events() const noexcept override {
    return static_cast<std::uint64_t>(state_) + (transport_ != nullptr ? transport_->events : 0) +
           (work_ != nullptr && work_->done() ? 1 : 0);
  }

 private:
  enum class State : unsigned char { pending, indexing, agreed, failed };
  void take_answer();
  bool settled() const noexcept { return state_ == State::agreed || state_ == State::failed; }
  void begin_index();
  void move_index_on();
  void make_index_alone();
  void look() noexcept;
  void fail(Status status, std::string why);

  const std::shared_ptr<Team> team_;
  const std::string path_;
  std::uint64_t claim_ = 0;
  Local* local_;
  State state_ = State::pending;
  std::uint32_t number_ = 0;
  std::uint64_t records_ = 0, record_bytes_ = 1;
  // The members below are destroyed in reverse sequence, because each of them uses those before it.
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<IndexExchange> exchange_;
  std::unique_ptr<IndexWork> work_;
  bool works_alone_ = false;  ///< work_ builds the whole index
  std::weak_ptr<PayloadMemory> message_memory_;
  bool stuck_ = false;
  bool gave_up_ = false;  ///< the program gets status_; other ranks treat this rank as one that left
  std::uint64_t streams_ = 0;
  Status status_;
  std::string why_;
};

}  // namespace lmdbio::ranks
