// The part of one rank in a stream that the ranks of a team have opened together.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lmdbio/ranks/rank_stream.h"
#include "lmdbio/ranks/stream_sizes.h"
#include "lmdbio/ranks/team_reader.h"
#include "lmdbio/records/stream.h"

namespace lmdbio::ranks {

/// Opens a stream together with the other ranks, and reads, sends and receives its records.  Continues while
/// the program computes, and even after the program has closed the stream, until no rank expects anything
/// from this rank.  All functions require the team's lock.
class StreamMember final : public Member {
 public:
  /// `list`: the ordinals or keys of the order `share`, if it has a list.
  StreamMember(std::shared_ptr<TeamReader> reader, const lmdbio_order& share, records::Order::List list)
      : reader_(std::move(reader)), share_(share), list_(std::move(list)), number_(reader_->next_stream()) {}
  StreamMember(const StreamMember&) = delete;
  StreamMember& operator=(const StreamMember&) = delete;
  ~StreamMember() override = default;

  void progress(std::int64_t now_ns) noexcept override;
  bool finished() const noexcept override {
    if (!left_) return false;
    if (state_ == State::failed) return stream_ == nullptr;  // stays while messages are under way
    return state_ == State::alone || (stream_ != nullptr && stream_->closed());
  }
  std::uint64_t events() const noexcept override {
    std::uint64_t n = static_cast<std::uint64_t>(state_) + 1;
    if (stream_ != nullptr) n += transport_->events + stream_->events();
    return n;
  }

  /// Returns whether each rank reads its own records with a records::Stream.
  bool reads_alone() const noexcept { return state_ == State::alone; }
  /// Result of next() at the first batch of an epoch.  The caller must then check the file and call
  /// checked().
  static constexpr Status kCheckFirst = Status::from_errno(EINPROGRESS);
  /// Returns the next batch.  EAGAIN: the batch is not complete yet.  `looks`: this call makes progress
  /// first, even if the team has a thread that does so.  `impatient`: see RankStream::next().
  Status next(std::unique_ptr<records::Batch>& out, std::string& why, bool looks, bool impatient);
  /// Notes that the file has not changed.  next() then returns the batches of this epoch.
  void checked() noexcept { checked_ = stream_->position(); }
  records::Position position() const noexcept {
    return stream_ != nullptr ? stream_->position() : records::Position{share_.epoch, share_.position};
  }
  bool busy() const noexcept override {
    return left_ || state_ == State::reader_pending || state_ == State::pending ||
           (stream_ != nullptr && stream_->busy());
  }
  void leave() noexcept override;
  bool stuck() const noexcept override { return state_ == State::failed && stream_ != nullptr; }
  /// See RankStream::resting().
  bool resting() const noexcept { return state_ == State::running && stream_->resting(); }
  /// If the next batch is delayed because memory is short, returns a text that says so.  Otherwise, returns
  /// an empty text.
  std::string lacks_memory() const;
  /// Returns the reader's shared state and counters, or null if there are none yet.
  std::shared_ptr<records::Shared> shared() const noexcept { return shared_; }

 private:
  enum class State : unsigned char {
    reader_pending,  ///< not all ranks have the same snapshot yet
    pending,         ///< not all ranks have opened the stream yet
    running,
    alone,  ///< see reads_alone()
    failed
  };

  void claim();
  StreamFacts facts(std::uint64_t offer) const;
  void keep_only(unsigned parts) noexcept;
  void take_answer();
  void count_traffic() noexcept;
  Status begin(const Agreement::Answer& answer, std::string& why);
  void fail(Status status, std::string why) noexcept;
  void give_up(Status status, std::string why) noexcept;

  const std::shared_ptr<TeamReader> reader_;
  const lmdbio_order share_;
  records::Order::List list_;   ///< list of share_; dropped when the assignment has it
  const std::uint64_t number_;  ///< number of this stream among those of the reader
  State state_ = State::reader_pending;
  std::uint64_t claim_ = 0;
  Keeping keeps_;
  std::uint64_t cached_ = 0;  ///< bytes that this node reads through its page cache, although direct reads
                              ///< were chosen
  bool resident_ = false;     ///< this rank's records are in the page cache of its node
  bool left_ = false;
  bool gave_up_ = false;  ///< the program gets status_; other ranks treat this rank as one that left
  Status status_;
  std::string why_;
  // The members below are destroyed in reverse sequence, because each of them uses those before it.
  std::shared_ptr<records::Shared> shared_;
  std::unique_ptr<Transport> transport_;
  std::optional<Assignment> assignment_;
  std::unique_ptr<PartSource> source_;
  std::unique_ptr<RankStream> stream_;
  Traffic counted_;                           ///< traffic that the reader's counters already contain
  records::Position checked_{UINT64_MAX, 0};  ///< position of the stream at the last check of the file
};

}  // namespace lmdbio::ranks
