// Batches in an order, read ahead of the program.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>

#include "lmdbio/reader/reader.h"
#include "lmdbio/reader/sequence.h"

namespace lmdbio::reader {

/// Batches are planned in loads: several small ones together, so that their reads are few and large, or one
/// large one.  Reads of the loads ahead go on by themselves; each next() adds new ones and hands out the
/// next batch of the oldest load.  No thread of its own.  One thread at a time, but for cancel().
class Stream {
 public:
  /// The reader outlives it.  EINVAL: a field of `order` is out of its range; else as Reader::find.  May
  /// throw bad_alloc.
  static Status open(Reader& reader, const lmdbio_order& order, std::unique_ptr<Stream>& out,
                     std::string& why);
  /// Waits for the reads in flight.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// MDB_NOTFOUND: the end.  ECANCELED.  Else the batch could not be read, `why` says what is wrong, and the
  /// next call tries the same one again.  May throw bad_alloc; so does the next call then.
  Status next(std::unique_ptr<Batch>& out, std::string& why);
  /// Where next() goes on.
  Spot position() const noexcept { return give_; }
  /// Any thread.
  void cancel() noexcept;

 private:
  struct Ahead {
    std::shared_ptr<Load> load = std::make_shared<Load>();
    std::vector<BatchPlan> batches;
    std::size_t given = 0;   ///< batches
    std::size_t record = 0;  ///< first of the next batch
    std::uint64_t cost = 0;  ///< bytes, in ahead_bytes_
    bool finished = false;
  };

  Stream(Reader& reader, Sequence sequence);
  Status plan(std::unique_ptr<Ahead>& out, std::string& why);
  Status fill(std::string& why);
  Status start(Ahead& a, std::string& why);
  Status await(Ahead& a, std::string& why);
  void go_back() noexcept;
  std::uint64_t share() const noexcept;
  std::uint64_t load_target() const noexcept;
  bool enough_ahead() const noexcept;

  Reader& reader_;
  Shared& shared_;
  const Sequence sequence_;
  const pid_t pid_;
  std::atomic<bool> cancelled_{false};
  Queues queues_;
  std::deque<std::unique_ptr<Ahead>> ahead_;
  std::unique_ptr<Ahead> unstarted_;  ///< planned, there was no memory for it
  std::uint64_t ahead_bytes_ = 0;     ///< of `ahead_`
  Spot plan_, give_;                  ///< the next batch to plan, to give
  Spot single_until_{};               ///< batches before this one are read one by one
  bool singly_ = false;
  bool cached_ = false;  ///< the last load had nothing to wait for
  bool begun_ = false;
};

}  // namespace lmdbio::reader
