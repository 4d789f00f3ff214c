// Batches in an order, read ahead of the program.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>

#include "lmdbio/records/reader.h"
#include "lmdbio/records/sequence.h"

namespace lmdbio::records {

/// Batches in an order, from wherever they come.  One thread at a time, but for cancel().
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  /// MDB_NOTFOUND: the end.  ECANCELED.  Else the batch could not be read, `why` says what is wrong, and the
  /// next call tries the same one again.  May throw bad_alloc; so does the next call then.
  virtual Status next(std::unique_ptr<Batch>& out, std::string& why) = 0;
  /// Where next() goes on.
  virtual Spot position() const noexcept = 0;
  /// Any thread.
  virtual void cancel() noexcept = 0;
};

/// Batches are planned in fetches: several small ones together, so that their reads are few and large, or one
/// large one.  Reads of the fetches ahead go on by themselves; each next() adds new ones and hands out the
/// next batch of the oldest fetch.  No thread of its own.  One thread at a time, but for cancel().
///
/// Streams of a reader share its memory, and all readers the process's.  A call that lacks memory for the
/// batch that it is to give drops what other streams have read ahead, with start_needed(): each stream has a
/// turn, which next() takes and which other threads take to drop its fetches.
class Stream final : public BatchStream {
 public:
  /// The reader outlives it.  EINVAL: a field of `order` is out of its range; else as Reader::find.  May
  /// throw bad_alloc.
  static Status open(Reader& reader, const lmdbio_order& order, std::unique_ptr<Stream>& out,
                     std::string& why);
  /// Waits for the reads in flight.
  ~Stream() override;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Status next(std::unique_ptr<Batch>& out, std::string& why) override;
  Spot position() const noexcept override { return give_; }
  void cancel() noexcept override;

  /// Who waits for memory.
  struct Caller {
    const std::atomic<bool>& cancelled;
    const Stream* stream = nullptr;
  };
  enum class Dropped : unsigned char {
    some,
    busy,  ///< there may be something of a stream that is in a call
    none,
  };
  /// Drops a fetch that another stream of reader `of` (null: of any) has read ahead, and may wait until its
  /// reads in flight end.
  static Dropped drop_of_others(Memory& memory, const Shared* of, const Caller& caller) noexcept;

 private:
  struct Ahead {
    std::shared_ptr<Fetch> fetch = std::make_shared<Fetch>();
    std::vector<BatchPlan> batches;
    std::size_t given = 0;   ///< batches
    std::size_t record = 0;  ///< first of the next batch
    std::uint64_t cost = 0;  ///< bytes, in ahead_bytes_
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
  std::uint64_t reserved_by_others() const noexcept;
  void reserve() noexcept;

  bool enter(bool always) noexcept;
  bool try_enter() noexcept;
  void leave() noexcept;
  void end_turn() noexcept;
  bool droppable(std::size_t kept) const noexcept;
  bool drop_newest(const Caller* waiting) noexcept;

  Reader& reader_;
  Shared& shared_;
  const Sequence sequence_;
  const pid_t pid_;
  std::atomic<bool> cancelled_{false};
  enum Turn : int { kFree, kTaken, kWaitedFor };
  std::atomic<int> turn_{kFree};  ///< who takes it has all that follows
  Queues queues_;
  using Fetches = std::deque<std::unique_ptr<Ahead>>;
  std::unique_ptr<Fetches> owned_ahead_ = std::make_unique<Fetches>();
  Fetches& ahead_ = *owned_ahead_;
  std::unique_ptr<Ahead> unstarted_;  ///< planned, there was no memory for it
  std::uint64_t ahead_bytes_ = 0;     ///< of `ahead_`
  std::uint64_t batch_bytes_ = 0;     ///< of a batch, lately
  std::uint64_t reserved_ = 0;        ///< of Shared::reserved
  Spot plan_, give_;                  ///< the next batch to plan, to give
  Spot single_until_{};               ///< batches before this one are read one by one
  bool singly_ = false;
  bool cached_ = false;  ///< the last fetch had nothing to wait for
  bool begun_ = false;
  bool zero_copy_;  ///< what is in the page cache is lent, not copied
};

/// Of the process's memory, what each reader has.  Read-ahead gives way, that of a stream that is in a call
/// when the call ends.  False: there is no room.
bool take_least(Shared& shared) noexcept;

/// Starts a fetch that a program waits for, in a buffer of `least` bytes if there is room.  Read-ahead of
/// other streams gives way; for that of a stream that is in a call, waits until the call ends.  Where there
/// is no room for gaps between the records they are not read.  ENOMEM: what is held leaves too little.
/// ECANCELED.  Else as Fetch::start.
Status start_needed(Shared& shared, Queues& queues, Fetch& fetch, std::size_t least,
                    const Stream::Caller& caller) noexcept;

}  // namespace lmdbio::records
