#include "lmdbio/records/packed_column.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

namespace lmdbio::records {
namespace {

// A distance may start at any bit of a byte, and an 8-byte load() must contain all its bits.
constexpr unsigned kMostWidth = 57;

/// A line below which no value is.  `width`: number of bits of the largest distance.
struct Line {
  std::uint64_t base = 0, stride = 0;
  unsigned width = 64;
};

Line line_of(std::span<const std::uint64_t> values, std::uint64_t stride) noexcept {
  auto least = static_cast<std::int64_t>(values[0]), most = least;
  std::uint64_t on_line = 0;
  for (const std::uint64_t v : values) {
    const auto d = static_cast<std::int64_t>(v - on_line);
    least = std::min(least, d);
    most = std::max(most, d);
    on_line += stride;
  }
  const auto base = static_cast<std::uint64_t>(least);
  return {base, stride, static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(most) - base))};
}

}  // namespace

void PackedColumn::append(std::uint64_t value) {
  assert(value < std::uint64_t{1} << kBits);
  if (pending_.capacity() == 0) pending_.reserve(kFrame);
  pending_.push_back(value);
  ++size_;
  if (pending_.size() < kFrame) return;
  pack(pending_);
  pending_.clear();
}

void PackedColumn::finish() {
  if (!pending_.empty()) pack(pending_);
  std::vector<std::uint64_t>().swap(pending_);
  distances_.resize((bits_ + 7) / 8 + kSlack);
  distances_.shrink_to_fit();
  frames_.shrink_to_fit();
  frames_at_ = frames_;
  distances_at_ = distances_;
}

void PackedColumn::pack(std::span<const std::uint64_t> values) {
  const std::size_t n = values.size();
  Line best = line_of(values, 0);
  if (n > 1) {
    // Try the steps at the start, in the middle and at the end, because a jump can hide the usual step in
    // only one of these places.  Also try the mean step.
    const auto span = static_cast<std::int64_t>(values[n - 1] - values[0]);
    const std::uint64_t strides[] = {values[1] - values[0], values[n / 2] - values[n / 2 - 1],
                                     values[n - 1] - values[n - 2],
                                     static_cast<std::uint64_t>(span / static_cast<std::int64_t>(n - 1))};
    for (const std::uint64_t s : strides) {
      // Skip lines that are much steeper than any value, because their values would overflow.
      const auto slope = static_cast<std::int64_t>(s);
      if (slope > INT64_MAX / (2 * static_cast<std::int64_t>(kFrame)) ||
          slope < -INT64_MAX / (2 * static_cast<std::int64_t>(kFrame)))
        continue;
      if (const Line l = line_of(values, s); l.width < best.width) best = l;
    }
  }
  assert(best.width <= kMostWidth);
  distances_.resize((bits_ + n * best.width + 7) / 8 + kSlack);
  frames_.push_back({best.base, best.stride, bits_ << 6 | best.width});
  std::uint64_t on_line = best.base;
  for (const std::uint64_t v : values) {
    std::byte* const at = distances_.data() + (bits_ >> 3);
    const std::uint64_t word = load<std::uint64_t>(at) | (v - on_line) << (bits_ & 7);
    std::memcpy(at, &word, sizeof word);
    bits_ += best.width;
    on_line += best.stride;
  }
}

bool PackedColumn::adopt(std::uint64_t size, Bytes frames, Bytes distances) {
  if (frames.size() % sizeof(Frame) != 0) return false;
  std::vector<Frame> copy(frames.size() / sizeof(Frame));
  if (!copy.empty()) std::memcpy(copy.data(), frames.data(), frames.size());
  if (!view(size, std::as_bytes(std::span(copy)), distances)) return false;
  frames_ = std::move(copy);
  distances_.assign(distances.begin(), distances.end());
  frames_at_ = frames_;
  distances_at_ = distances_;
  return true;
}

bool PackedColumn::view(std::uint64_t size, Bytes frames, Bytes distances) noexcept {
  if (frames.size() % sizeof(Frame) != 0 || distances.size() < kSlack) return false;
  const std::uint64_t count = frames.size() / sizeof(Frame), bits = (distances.size() - kSlack) * 8;
  if (size > UINT64_MAX - kFrame || count != (size + kFrame - 1) / kFrame) return false;
  const std::span all(reinterpret_cast<const Frame*>(frames.data()), count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t width = all[i].place & 63, first = all[i].place >> 6;
    const std::uint64_t n = std::min<std::uint64_t>(kFrame, size - i * kFrame);
    if (width > kMostWidth || first > bits || n * width > bits - first) return false;
  }
  frames_at_ = all;
  distances_at_ = distances;
  size_ = size;
  return true;
}

}  // namespace lmdbio::records
