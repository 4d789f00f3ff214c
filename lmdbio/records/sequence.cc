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
  s.epochs_ = order.epochs;
  s.window_ = order.kind == LMDBIO_ORDER_WINDOW_SHUFFLE ? order.window : 0;
  return s;
}

// The same place, or the next epoch's start if there is no batch at it.
Spot Sequence::settle(Spot s) const noexcept {
  if (order_.across_epochs()) return order_.empty() ? s : order_.normal(s);
  const std::uint64_t left = order_.length() - s.position;
  return left == 0 || (last_ == LMDBIO_LAST_DROP && left < batch_) ? Spot{s.epoch + 1, 0} : s;
}

// Only the last batch of all can have fewer records.
std::optional<BatchPlan> Sequence::batch_across_epochs(Spot at) const noexcept {
  if (order_.empty()) return {};
  std::uint64_t real = batch_;
  // Epochs end: with UINT64_MAX, which nobody reaches.
  const std::uint64_t last =
      epochs_ == 0 || first_.epoch + (epochs_ - 1) < first_.epoch ? UINT64_MAX : first_.epoch + (epochs_ - 1);
  real = std::min(real, order_.left(at, last));
  if (real == 0 || (last_ == LMDBIO_LAST_DROP && real < batch_)) return {};
  BatchPlan b;
  b.at = at;
  b.count = last_ == LMDBIO_LAST_PAD ? batch_ : real;
  b.padding = b.count - real;
  b.after = settle({at.epoch, at.position + real});
  return b;
}

std::optional<BatchPlan> Sequence::batch(Spot at) const noexcept {
  if (order_.across_epochs()) return batch_across_epochs(at);
  const std::uint64_t length = order_.length();
  if (epochs_ != 0 && at.epoch - first_.epoch >= epochs_) return {};
  if (settle(at) != at) return {};  // an epoch without batches: so are all that follow
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
  // Padding across epochs is what follows.
  const std::uint64_t position =
      i < real || order_.across_epochs() ? b.at.position + i : (i - real) % order_.length();
  const std::uint64_t at = order_.at(b.at.epoch, position);
  return order_.by_key() ? ordinals_[static_cast<std::size_t>(at)] : at;
}

bool Sequence::mixed_with_next(const BatchPlan& b) const noexcept {
  if (window_ == 0) return false;
  const Spot last = order_.element(b.at.epoch, b.at.position + (b.count - b.padding) - 1);
  const Spot next = order_.element(b.after.epoch, b.after.position);
  return last.epoch == next.epoch && last.position / window_ == next.position / window_;
}

}  // namespace lmdbio::records
