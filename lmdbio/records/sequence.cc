#include "lmdbio/records/sequence.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace lmdbio::records {

Result<Sequence> Sequence::make(const lmdbio_order& order, Order made,
                                std::vector<std::uint64_t> ordinals_of_keys) noexcept {
  const unsigned last = static_cast<unsigned>(order.last);
  if (last > LMDBIO_LAST_PAD || order.position > made.length(order.epoch)) return Status::from_errno(EINVAL);
  Sequence s(order, std::move(made), std::move(ordinals_of_keys));
  s.last_ = order.last;
  s.batch_ = std::max<std::uint64_t>(order.batch, 1);
  s.end_epoch_ = end_epoch(order);
  s.window_ = order.kind == LMDBIO_ORDER_WINDOW_SHUFFLE ? order.window : 0;
  return s;
}

// Returns the same position, or the start of the next epoch if there is no batch at this position.
Position Sequence::settle(Position p) const noexcept {
  if (order_.across_epochs()) return order_.empty() ? p : order_.normal(p);
  const std::uint64_t left = order_.length() - p.position;
  return left == 0 || (last_ == LMDBIO_LAST_DROP && left < batch_) ? Position{p.epoch + 1, 0} : p;
}

// Only the last batch of the stream can have fewer records.
std::optional<BatchPlan> Sequence::batch_across_epochs(Position at) const noexcept {
  if (order_.empty()) return {};
  const std::uint64_t real = std::min(batch_, order_.left(at, end_epoch_ - 1));
  if (real == 0 || (last_ == LMDBIO_LAST_DROP && real < batch_)) return {};
  BatchPlan b;
  b.at = at;
  b.count = last_ == LMDBIO_LAST_PAD ? batch_ : real;
  b.padding = b.count - real;
  b.after = settle({at.epoch, at.position + real});
  return b;
}

std::optional<BatchPlan> Sequence::batch(Position at) const noexcept {
  if (order_.across_epochs()) return batch_across_epochs(at);
  const std::uint64_t length = order_.length();
  if (at.epoch >= end_epoch_) return {};
  if (settle(at) != at) return {};  // if one epoch has no batches, no epoch has any
  BatchPlan b;
  b.at = at;
  const std::uint64_t real = std::min(batch_, length - at.position);
  b.count = last_ == LMDBIO_LAST_PAD ? batch_ : real;
  b.padding = b.count - real;
  b.after = settle({at.epoch, at.position + real});
  return b;
}

std::uint64_t Sequence::ordinal(const BatchPlan& b, std::uint64_t i) const noexcept {
  const std::uint64_t real = b.count - b.padding;
  // With across_epochs, the padding consists of the records that follow.
  const std::uint64_t position =
      i < real || order_.across_epochs() ? b.at.position + i : (i - real) % order_.length();
  const std::uint64_t at = order_.at(b.at.epoch, position);
  return order_.by_key() ? ordinals_[static_cast<std::size_t>(at)] : at;
}

bool Sequence::mixed_with_next(const BatchPlan& b) const noexcept {
  if (window_ == 0) return false;
  const Position last = order_.element(b.at.epoch, b.at.position + (b.count - b.padding) - 1);
  const Position next = order_.element(b.after.epoch, b.after.position);
  return last.epoch == next.epoch && last.position / window_ == next.position / window_;
}

}  // namespace lmdbio::records
