// Streams return batches in a given order, and read them ahead of the program.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>

#include "lmdbio/records/reader.h"
#include "lmdbio/records/sequence.h"

namespace lmdbio::records {

/// Interface of all streams of batches.  One thread at a time, except for cancel().
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  /// Returns the next batch.  MDB_NOTFOUND: the end.  ECANCELED: cancel() was called.  Any other error: the
  /// batch could not be read; `why` gives the reason.  The next call then tries to read the same batch again.
  /// May throw bad_alloc; the next call then tries the same batch, too.
  virtual Status next(std::unique_ptr<Batch>& out, std::string& why) = 0;
  /// Returns the position of the next batch.
  virtual Position position() const noexcept = 0;
  /// Makes a waiting next() and all later calls return ECANCELED.  Any thread.
  virtual void cancel() noexcept = 0;
};

/// The stream of one reader.  It groups batches into fetches.  A fetch has one large batch, or several small
/// batches, so that its reads are few and large.  Reads of fetches ahead proceed in the background.  Each
/// next() starts new fetches, and returns the next batch of the oldest fetch.  A stream has no thread of its
/// own.  One thread at a time, except for cancel().
///
/// The streams of a reader share its memory, and all readers share the process's memory.  A call that lacks
/// memory for its batch drops read-ahead of other streams (start_needed()).  Each stream therefore has a
/// lock, which is called its turn.  next() takes the turn, and other threads take it to drop fetches of the
/// stream.
class Stream final : public BatchStream {
 public:
  /// Opens a stream of `reader`, which must outlive the stream.  EINVAL: a field of `order` is out of range.
  /// Other errors are those of Reader::find().  May throw bad_alloc.
  static Status open(Reader& reader, const lmdbio_order& order, std::unique_ptr<Stream>& out,
                     std::string& why);
  /// Waits for its reads in flight.
  ~Stream() override;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Status next(std::unique_ptr<Batch>& out, std::string& why) override;
  Position position() const noexcept override { return give_; }
  void cancel() noexcept override;

  /// A call that waits for memory.
  struct Caller {
    const std::atomic<bool>& cancelled;
    const Stream* stream = nullptr;  ///< the caller's stream; null if there is none
  };
  enum class Dropped : unsigned char {
    some,  ///< a fetch was dropped
    busy,  ///< nothing was dropped, but a stream inside a call may have fetches ahead
    none,  ///< there is nothing to drop
  };
  /// Drops a fetch that another stream of reader `of` has read ahead.  If `of` is null, drops one of any
  /// reader.  May wait until the reads in flight of this fetch end.
  static Dropped drop_of_others(Memory& memory, const Shared* of, const Caller& caller) noexcept;

 private:
  struct Ahead {
    std::shared_ptr<Fetch> fetch = std::make_shared<Fetch>();
    std::vector<BatchPlan> batches;
    std::size_t given = 0;   ///< batches that were returned
    std::size_t record = 0;  ///< index of the next batch's first record in the fetch
    std::uint64_t cost = 0;  ///< bytes that count in ahead_bytes_
    bool finished = false;
  };

  Stream(Reader& reader, Sequence sequence, bool zero_copy);
  Status plan(std::unique_ptr<Ahead>& out, std::string& why);
  Status next_batch(std::unique_ptr<Batch>& out, std::string& why);
  Status fill(bool waits, std::string& why);
  Status start(Ahead& a, bool needed, std::string& why);
  Status await(Ahead& a, std::string& why);
  void go_back() noexcept;
  std::uint64_t share() const noexcept;
  std::uint64_t load_target() const noexcept;
  bool enough_ahead() const noexcept;
  /// Returns true if it is best to read little ahead, because the process is reading the whole file.
  bool waits_for_load() const noexcept {
    return shared_.source.kept != nullptr && shared_.source.kept->is_loading();
  }
  std::uint64_t reserved_by_others() const noexcept;
  void reserve() noexcept;

  bool enter(bool always) noexcept;
  bool try_enter() noexcept;
  void leave() noexcept;
  void end_turn() noexcept;
  bool droppable(std::size_t kept) const noexcept;
  bool drop_newest(const Caller* waiting) noexcept;

  /// After a fetch that did not come from the page cache, so many must do so before the next ones are
  /// expected to.
  static constexpr unsigned kCachedInARow = 16;

  Reader& reader_;
  Shared& shared_;
  const Sequence sequence_;
  const pid_t pid_;
  std::atomic<bool> cancelled_{false};
  enum Turn : int { kFree, kTaken, kWaitedFor };
  std::atomic<int> turn_{kFree};  ///< guards all members below
  Queues queues_;
  using Fetches = std::deque<std::unique_ptr<Ahead>>;
  std::unique_ptr<Fetches> owned_ahead_ = std::make_unique<Fetches>();
  Fetches& ahead_ = *owned_ahead_;
  std::unique_ptr<Ahead> unstarted_;  ///< a planned fetch that could not start, since memory was short
  std::uint64_t ahead_bytes_ = 0;     ///< bytes of the fetches in ahead_
  std::uint64_t batch_bytes_ = 0;     ///< average bytes of a batch of the last fetch
  std::uint64_t reserved_ = 0;        ///< this stream's part of Shared::reserved, in bytes
  Position plan_, give_;              ///< the next batch to plan, and the next one to return
  Position single_until_{};           ///< if singly_: batches before this position are read one by one
  bool singly_ = false;
  bool cached_ = false;  ///< records come from the page cache: read nothing ahead
  /// Fetches in a row that came from the page cache.  As if there had been some before the first fetch.
  unsigned cached_in_a_row_ = kCachedInARow;
  bool begun_ = false;           ///< a fetch was planned
  std::uint64_t scattered_ = 0;  ///< records of an epoch in a scattered order, until a fetch is planned
  bool zero_copy_;               ///< records in the page cache are lent, not copied
};

/// Reserves the minimum memory of a reader from the process's memory.  If there is no room, drops read-ahead
/// of other streams, and waits for streams inside a call until the call ends.  Returns false if there is
/// still no room.
bool take_least(Shared& shared) noexcept;

/// Starts a fetch that a program waits for, in a buffer of at least `least` bytes if there is room.  If
/// memory is short, drops read-ahead of other streams, and waits for streams inside a call until the call
/// ends.  If there is still no room, reads fewer gaps between the records.  ENOMEM: the batches that the
/// program holds leave too little memory.  ECANCELED: `caller` was cancelled.  Other errors are those of
/// Fetch::start().
Status start_needed(Shared& shared, Queues& queues, Fetch& fetch, std::size_t least,
                    const Stream::Caller& caller) noexcept;

}  // namespace lmdbio::records
