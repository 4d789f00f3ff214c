#include "lmdbio/ranks/turns.h"

#include <algorithm>
#include <span>

#include "lmdbio/ranks/message.h"

namespace lmdbio::ranks {

Turns::Turns(const Settings& settings, const std::vector<std::uint32_t>& readers, std::uint32_t self,
             Transport& transport) noexcept
    : transport_(transport) {
  if (settings.group == 0) return;
  const std::uint32_t first = self / settings.group * settings.group;
  size_ = std::min(settings.group, static_cast<std::uint32_t>(readers.size()) - first);
  in_group_ = self - first;
  at_once_ = std::max<std::uint32_t>(settings.at_once, 1);
  const std::uint32_t back = at_once_ % size_;
  before_ = (in_group_ + size_ - back) % size_;
  after_ = (in_group_ + back) % size_;
  before_rank_ = readers[first + before_];
  after_rank_ = readers[first + after_];
}

bool Turns::may_begin(std::uint64_t n) const noexcept {
  if (at_once_ == 0) return true;
  const std::uint64_t turn = n * size_ + in_group_;
  if (turn < at_once_) return true;
  // This turn waits for turn number `before` of reader `before_` (counted from 0 in that reader's turns).
  const std::uint64_t before = (turn - at_once_) / size_;
  return (sends() ? heard_ : ended_) > before;
}

Status Turns::progress() {
  if (!sends()) return {};
  for (;;) {
    if (expects_) {
      if (!receive_.done()) break;
      if (!receive_.status.ok()) return receive_.status;
      heard_ = std::max(heard_, in_);
      expects_ = false;
    }
    if (heard_ == kAll) break;
    const Status st =
        transport_.receive(before_rank_, kTurns, std::as_writable_bytes(std::span(&in_, 1)), receive_);
    if (!st.ok()) return st;
    expects_ = true;
  }
  if (!send_.done()) return {};
  if (!send_.status.ok()) return send_.status;
  if (told_ == ended_) return {};
  told_ = out_ = ended_;
  return transport_.send(after_rank_, kTurns, std::as_bytes(std::span(&out_, 1)), send_);
}

bool Turns::closed() const noexcept {
  return !sends() || (told_ == kAll && send_.done() && heard_ == kAll && receive_.done());
}

}  // namespace lmdbio::ranks
