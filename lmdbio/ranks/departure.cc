#include "lmdbio/ranks/departure.h"

#include <algorithm>

#include "lmdbio/ranks/message.h"

namespace lmdbio::ranks {

namespace {

/// Returns whether all operations have ended.  Sets `st` to the first error.
template <class... Operations>
bool ended(Status& st, const Operations&... operations) {
  const auto one = [&st](const Operation& op) {
    if (op.done() && !op.status.ok() && st.ok()) st = op.status;
    return op.done();
  };
  return (one(operations) && ...);
}

}  // namespace

Departure::Departure(std::uint32_t rank, std::uint32_t ranks) noexcept
    : parent_(rank == 0 ? 0 : (rank - 1) / 2), root_(rank == 0) {
  for (std::uint64_t child = std::uint64_t{2} * rank + 1; child <= std::uint64_t{2} * rank + 2; ++child)
    if (child < ranks) children_[number_of_children_++] = static_cast<std::uint32_t>(child);
}

Status Departure::progress(Transport& transport) {
  Status st;
  if (stage_ == Stage::begins) {
    for (std::uint32_t c = 0; c < number_of_children_; ++c)
      if (st = transport.receive(children_[c], kDeparture, {}, from_child_[c]); !st.ok()) return st;
    stage_ = Stage::up;
  }
  if (stage_ == Stage::up && ended(st, from_child_[0], from_child_[1])) {
    if (!st.ok()) return st;
    if (!root_) {
      if (st = transport.receive(parent_, kDeparture, {}, from_parent_); !st.ok()) return st;
      if (st = transport.send(parent_, kDeparture, {}, to_parent_); !st.ok()) return st;
    }
    stage_ = Stage::waiting;
  }
  if (stage_ == Stage::waiting && ended(st, from_parent_)) {
    if (!st.ok()) return st;
    for (std::uint32_t c = 0; c < number_of_children_; ++c)
      if (st = transport.send(children_[c], kDeparture, {}, to_child_[c]); !st.ok()) return st;
    stage_ = Stage::down;
  }
  if (stage_ == Stage::down && ended(st, to_parent_, to_child_[0], to_child_[1])) stage_ = Stage::done;
  return st;
}

}  // namespace lmdbio::ranks
