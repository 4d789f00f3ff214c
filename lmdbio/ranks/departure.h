// The end of a stream: finds out that all ranks have come to it.
#pragma once

#include <array>
#include <cstdint>

#include "lmdbio/base/status.h"
#include "lmdbio/ranks/transport.h"

namespace lmdbio::ranks {

/// A barrier that does not wait.  The ranks are a binary tree with rank 0 as its root.  A rank tells its
/// parent when all ranks below it are ready.  Then the root tells all ranks.  A rank sends and receives at
/// most three messages each.  One thread.  Must not be moved or destroyed between the first call of
/// progress() and closed(), unless messages fail.
class Departure {
 public:
  Departure(std::uint32_t rank, std::uint32_t ranks) noexcept;
  Departure(const Departure&) = delete;
  Departure& operator=(const Departure&) = delete;

  /// Call it again and again once this rank is ready.  Never waits.  Errors are those of the transport.
  Status progress(Transport& transport);
  /// Returns whether all ranks are ready.
  bool all_ready() const noexcept { return stage_ == Stage::down || stage_ == Stage::done; }
  /// Returns whether all ranks are ready, and no message of this object is under way.
  bool closed() const noexcept { return stage_ == Stage::done; }

 private:
  enum class Stage : unsigned char {
    begins,
    up,       ///< waits for the ranks below
    waiting,  ///< waits for the parent
    down,     ///< has told the ranks below
    done
  };

  const std::uint32_t parent_;
  std::array<std::uint32_t, 2> children_{};
  std::uint32_t number_of_children_ = 0;
  const bool root_;
  Stage stage_ = Stage::begins;
  Operation to_parent_, from_parent_;
  std::array<Operation, 2> to_child_, from_child_;
};

}  // namespace lmdbio::ranks
