// A stream whose records the ranks of a team read for each other.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "lmdbio/ranks/stream_member.h"
#include "lmdbio/ranks/team_reader.h"
#include "lmdbio/records/stream.h"

namespace lmdbio::ranks {

/// Returns the batches of one rank: the same batches as a records::Stream with this order.  One thread at a
/// time, except for cancel().
///
/// All ranks open a stream together if its order is this rank's share of an order of all ranks, and is not by
/// keys.  The ranks read for each other if the order of all ranks has rounds (Assignment::has_rounds).
/// Otherwise this rank reads alone, after all ranks have agreed on a snapshot.
class TeamStream final : public records::BatchStream {
 public:
  /// Opens a stream.  EINVAL: a field of the order is invalid; this error may also come from the first
  /// next().  Takes the team's lock.  May throw bad_alloc.
  static Status open(std::shared_ptr<TeamReader> reader, const lmdbio_order& order,
                     std::unique_ptr<records::BatchStream>& out, std::string& why);
  /// Leaves the stream.  Other ranks then read the records themselves that this rank would have sent.
  ~TeamStream() override;
  TeamStream(const TeamStream&) = delete;
  TeamStream& operator=(const TeamStream&) = delete;

  Status next(std::unique_ptr<records::Batch>& out, std::string& why) override;
  records::Position position() const noexcept override { return at_; }
  void cancel() noexcept override;

 private:
  TeamStream(std::shared_ptr<TeamReader> reader, const lmdbio_order& order) noexcept
      : team_(*reader->team()), reader_(std::move(reader)), order_(order), at_{order.epoch, order.position} {}
  Status next_alone(std::unique_ptr<records::Batch>& out, std::string& why);
  void leave_member() noexcept;
  void copy_lists();

  Team& team_;
  const std::shared_ptr<TeamReader> reader_;
  lmdbio_order order_;
  records::Order::List list_;  ///< list of order_
  std::vector<MDB_val> keys_;  ///< keys of order_; their bytes are in key_bytes_
  std::string key_bytes_;
  std::shared_ptr<StreamMember> member_;  ///< null if this rank reads alone
  records::Position at_;
  std::unique_ptr<records::Stream> alone_;
  std::atomic<records::Stream*> cancels_{nullptr};  ///< alone_, for cancel() in other threads
  std::atomic<bool> cancelled_{false};
};

}  // namespace lmdbio::ranks
