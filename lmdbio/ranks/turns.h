// Makes readers take turns, so that not all of them read from the file system at the same time.
//
// Neighbouring readers form groups.  The turns of a group are numbered.  The n-th round of reader p of the
// group has turn number n * group size + p.  Turn t may begin when turn t - at_once has ended.  At most
// `at_once` turns of a group are therefore under way.  Each reader tells the reader that waits for it how
// many of its own turns have ended.
#pragma once

#include <cstdint>
#include <vector>

#include "lmdbio/ranks/transport.h"

namespace lmdbio::ranks {

/// The turns of one reader.  One thread.  The transport must outlive it.
class Turns {
 public:
  struct Settings {
    std::uint32_t group = 0;    ///< number of readers of a group; 0: no reader waits
    std::uint32_t at_once = 1;  ///< upper limit for the turns of a group that are under way; 0 means 1
  };
  /// `readers`: the rank of each reader of the job.  `self`: number of this reader.
  Turns(const Settings& settings, const std::vector<std::uint32_t>& readers, std::uint32_t self,
        Transport& transport) noexcept;
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;
  /// Requires closed().
  ~Turns() = default;

  /// Returns whether this reader's round `n` may begin.  Rounds are counted from 0, and must begin in
  /// sequence.
  bool may_begin(std::uint64_t n) const noexcept;
  /// Ends this reader's rounds with numbers less than `n`.
  void ended(std::uint64_t n) noexcept {
    if (n > ended_) ended_ = n;
  }
  /// Ends all turns of this reader, so that no other reader waits for it.
  void leave() noexcept { ended_ = kAll; }
  /// Sends and receives numbers of ended turns.  Never waits.  Errors are those of the transport, and are
  /// final.
  Status progress();
  /// Returns whether nothing is under way.  Call it only after leave().
  bool closed() const noexcept;

 private:
  static constexpr std::uint64_t kAll = UINT64_MAX;
  bool sends() const noexcept { return size_ > 1 && after_ != in_group_; }

  Transport& transport_;
  /// Size of the group, this reader's number in the group, and Settings::at_once.  at_once_ is 0 if no reader
  /// waits.
  std::uint32_t size_ = 1, in_group_ = 0, at_once_ = 0;
  /// Numbers of two readers in the group.  This reader waits for reader `before_`, and reader `after_` waits
  /// for this reader.
  std::uint32_t before_ = 0, after_ = 0;
  std::uint32_t before_rank_ = 0, after_rank_ = 0;
  std::uint64_t ended_ = 0;
  std::uint64_t heard_ = 0;         ///< number of ended turns of `before_`
  std::uint64_t in_ = 0, out_ = 0;  ///< buffers of the messages
  std::uint64_t told_ = 0;
  bool expects_ = false;
  Operation receive_, send_;
};

}  // namespace lmdbio::ranks
