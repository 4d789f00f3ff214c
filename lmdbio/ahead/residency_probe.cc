#include "lmdbio/ahead/residency_probe.h"

#include <algorithm>
#include <optional>

#include "lmdbio/base/config.h"

namespace lmdbio::ahead {

namespace {

/// Ranges to probe for residency, in bytes: kLookBytes at the walk's position, and kFarBytes at distance kFar
/// from there.  kFar is beyond the kernel's read-ahead.
constexpr std::uint64_t kLookBytes = std::uint64_t{1} << 20, kFarBytes = std::uint64_t{256} << 10,
                        kFar = std::uint64_t{32} << 20;
/// Bytes granted around a place that was found in memory: at first, and at most.
constexpr std::uint64_t kFree = std::uint64_t{4} << 20, kMostFree = std::uint64_t{64} << 20;
/// A probe that found all data in memory is valid for this time.  A probe costs about 10 us.
constexpr std::int64_t kLookNs = 2'000'000;
/// Fallback where no call reports residency: a read of one byte takes at least this time if the data is not
/// in memory.
constexpr std::int64_t kFaultNs = 40'000;

}  // namespace

bool ResidencyProbe::in_memory(const PageRun& need, bool forward, std::int64_t now,
                               const window::WindowView& view) noexcept {
  if (!walks_use_resident(config().io, !env_->unmapped())) return false;
  const std::uint64_t least = kFree >> view.shift(), most = kMostFree >> view.shift();
  if (wide_ != 0 && now - looked_ns_ < kLookNs) {
    wide_ = std::min(2 * wide_, most);
    return true;
  }
  const std::uint64_t end = view.pages() << view.shift(), at = need.first << view.shift();
  const auto there_from = [&](std::uint64_t from, std::uint64_t bytes) -> std::optional<bool> {
    const std::optional<double> share = env_->cached_share(from, std::min(bytes, end - from), view);
    return share ? std::optional<bool>(*share >= kMostlyResident) : std::nullopt;
  };
  std::optional<bool> there = there_from(forward ? at : at - std::min(at, kLookBytes), kLookBytes);
  if (there == true && (forward ? end - at > kFar : at > kFar))
    there = there_from(forward ? at + kFar : at - kFar, kFarBytes);
  // No call reports residency, so the time of a read decides.  It uses read(2), which cannot end in a
  // signal.  The far byte comes first, because the kernel may have just read ahead the near one.
  if (!there) {
    const auto at_once = [&](std::uint64_t offset) {
      const std::optional<std::int64_t> ns = env_->time_read(offset, view);
      return ns && *ns < kFaultNs;
    };
    const std::uint64_t last = end - view.page_size();
    there = at_once(forward ? std::min(at + kFar, last) : at - std::min(at, kFar)) && at_once(at);
  }
  looked_ns_ = now;
  wide_ = *there ? least : 0;
  return *there;
}

FreeRun ResidencyProbe::around(const PageRun& need) const noexcept {
  const std::uint64_t before = std::min(need.first, wide_);
  return {need.first - before, before + std::max(wide_, need.pages)};
}

}  // namespace lmdbio::ahead
