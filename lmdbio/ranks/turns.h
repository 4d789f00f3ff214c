// Readers that take turns, so that not all of them ask the file system at the same time.
//
// Readers are in groups of neighbours.  A group's turns are numbered: the n-th round of its reader number p
// has turn n * readers + p.  A turn begins once the turn `at_once` before it has ended, so at most so many of
// a group are under way.  A reader tells the one whose turns wait for its own how many have ended.
#pragma once

#include <cstdint>
#include <vector>

#include "lmdbio/ranks/transport.h"

namespace lmdbio::ranks {

/// One thread.  The transport outlives it.
class Turns {
 public:
  struct Settings {
    std::uint32_t group = 0;    ///< readers of a group; 0: nobody waits
    std::uint32_t at_once = 1;  ///< at most so many turns of a group are under way; 0 is 1
  };
  /// `readers`: the rank of each reader of the job; `self`: which of them this is.
  Turns(const Settings& settings, const std::vector<std::uint32_t>& readers, std::uint32_t self,
        Transport& transport) noexcept;
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;
  /// Only when closed().
  ~Turns() = default;

  /// This reader's turn number `n`, from 0 in order, may begin.
  bool may_begin(std::uint64_t n) const noexcept;
  /// Its turns below `n` have ended.
  void ended(std::uint64_t n) noexcept {
    if (n > ended_) ended_ = n;
  }
  /// It will have no more turns, or none that others should wait for.
  void leave() noexcept { ended_ = kAll; }
  /// Never waits.  An error is the transport's, and final.
  Status progress();
  /// After leave(): nothing is under way.
  bool closed() const noexcept;

 private:
  static constexpr std::uint64_t kAll = UINT64_MAX;
  bool sends() const noexcept { return size_ > 1 && after_ != place_; }

  Transport& transport_;
  std::uint32_t size_ = 1, place_ = 0, at_once_ = 0;  ///< of the group; which of its readers; 0: nobody waits
  std::uint32_t before_ = 0, after_ = 0;  ///< whose turns this one's wait for, whose wait for this one's
  std::uint32_t before_rank_ = 0, after_rank_ = 0;
  std::uint64_t ended_ = 0;
  std::uint64_t heard_ = 0;         ///< turns of `before_` that have ended
  std::uint64_t in_ = 0, out_ = 0;  ///< messages
  std::uint64_t told_ = 0;
  bool expects_ = false;
  Operation receive_, send_;
};

}  // namespace lmdbio::ranks
