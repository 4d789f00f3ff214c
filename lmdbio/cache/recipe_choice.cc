#include "lmdbio/cache/recipe_choice.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <tuple>

namespace lmdbio::cache {
namespace {

using Kind = Filter::Kind;
constexpr std::size_t kLongest = Filter::kLongestDelta;
/// Bytes of each piece that learn_delta() compares with earlier bytes: those after the first kLongest.
constexpr std::size_t kCompared = 4096;

/// Returns the bits that the deltas of the sample would take if each value had a code of its own.
double entropy(std::span<const Bytes> sample, std::size_t width) noexcept {
  std::array<unsigned, 256> count{};
  double total = 0;
  for (const Bytes piece : sample)
    for (std::size_t i = kLongest; i < std::min(piece.size(), kLongest + kCompared); ++i, ++total)
      ++count[static_cast<unsigned char>(std::to_integer<int>(piece[i]) -
                                         std::to_integer<int>(piece[i - width]))];
  double bits = 0;
  for (const unsigned n : count)
    if (n != 0) bits += n * std::log2(total / n);
  return bits;
}

/// Returns the seconds that a byte from the image takes.
double hit_seconds(const Trial& t, const Conditions& c) noexcept {
  const bool compressed = t.recipe.codec != Codec::raw;
  // A read of compressed data reads and decompresses whole frames.
  const double frames = compressed && c.read_bytes > 0 ? std::max(1.0, kFrameBytes / c.read_bytes) : 1;
  const double read = frames / (c.image_rate * t.ratio);
  const double unpack = compressed ? frames / t.unpack_rate : 0;
  return c.prefetching ? std::max(read, unpack / std::max(c.idle_cores, 1u)) : read + unpack;
}

double program_seconds(const Conditions& c) noexcept {
  return c.prefetching && c.program_rate > 0 ? 1 / c.program_rate : 0;
}

}  // namespace

std::uint16_t learn_delta(std::span<const Bytes> sample) noexcept {
  // The sum of the deltas finds the candidates, as it is fast.  Their entropy decides.
  constexpr std::size_t kCandidates = 4;
  std::array<std::uint64_t, kLongest + 2> sum{};
  sum.front() = sum.back() = ~std::uint64_t{0};
  for (const Bytes piece : sample) {
    if (piece.size() <= kLongest) continue;
    const Bytes compared = piece.subspan(kLongest, std::min(piece.size() - kLongest, kCompared));
    for (std::size_t width = 1; width <= kLongest; ++width)
      sum[width] += sum_of_deltas(compared, compared.data() - width);
  }
  std::array<std::size_t, kCandidates> best{};
  for (std::size_t width = 1; width <= kLongest; ++width) {
    if (sum[width] >= sum[width - 1] || sum[width] > sum[width + 1]) continue;  // not a local minimum
    std::size_t at = kCandidates;
    for (; at > 0 && sum[width] < sum[best[at - 1]]; --at)
      if (at < kCandidates) best[at] = best[at - 1];
    if (at < kCandidates) best[at] = width;
  }
  std::size_t chosen = 1;
  double least = std::numeric_limits<double>::infinity();
  for (const std::size_t width : best) {
    const double bits = width == 0 ? least : entropy(sample, width);
    if (bits < least) chosen = width, least = bits;
  }
  return static_cast<std::uint16_t>(chosen);
}

Result<Trials> try_recipes(std::span<const Bytes> sample, TrialClock clock, Scratch& scratch) noexcept {
  const std::unique_ptr<std::byte[]> stored(new (std::nothrow) std::byte[stored_bound(kFrameBytes)]);
  const std::unique_ptr<std::byte[]> plain(new (std::nothrow) std::byte[kFrameBytes]);
  if (stored == nullptr || plain == nullptr) return Status::from_errno(ENOMEM);
  const std::uint64_t start = clock();
  Trials out;
  out.all[out.count++] = {};
  const Filter filters[] = {
      {}, {Kind::shuffle, 2}, {Kind::shuffle, 4}, {Kind::shuffle, 8}, {Kind::delta, learn_delta(sample)}};
  for (const Codec codec : {Codec::lz4, Codec::zstd1, Codec::zstd3})
    for (const Filter filter : filters)
      if (built_in(codec)) out.all[out.count++].recipe = {codec, filter};
  struct Sums {
    double stored = 0, pack_ns = 0, unpack_ns = 0;
  };
  std::array<Sums, std::tuple_size_v<decltype(out.all)>> sums{};
  double bytes = 0;
  for (const Bytes piece : sample) {
    if (piece.empty() || piece.size() > kFrameBytes) continue;
    if (out.pieces > 0 && clock() - start >= kTrialTime) break;
    for (unsigned i = 0; i < out.count; ++i) {
      const std::uint64_t before = clock();
      const Result<std::size_t> n =
          compress_chunk(piece, out.all[i].recipe, 0, {stored.get(), stored_bound(kFrameBytes)}, scratch);
      if (!n) return n.error();
      const std::uint64_t packed = clock();
      const Result<ChunkHeader> header = ChunkHeader::parse({stored.get(), n.value()}, 0);
      if (!header) return header.error();
      const Status st =
          header.value().decompress(0, 1, {stored.get() + kHeaderBytes, n.value() - kHeaderBytes},
                                    {plain.get(), piece.size()}, scratch);
      if (!st.ok()) return st;
      sums[i].unpack_ns += static_cast<double>(clock() - packed);
      sums[i].pack_ns += static_cast<double>(packed - before);
      sums[i].stored += static_cast<double>(n.value() - kHeaderBytes);
    }
    bytes += static_cast<double>(piece.size());
    ++out.pieces;
  }
  for (unsigned i = 0; i < out.count && bytes > 0; ++i) {
    out.all[i].ratio = bytes / sums[i].stored;
    out.all[i].pack_rate = 1e9 * bytes / std::max(sums[i].pack_ns, 1.0);
    out.all[i].unpack_rate = 1e9 * bytes / std::max(sums[i].unpack_ns, 1.0);
  }
  return out;
}

double seconds_per_byte(const Trial& t, const Conditions& c) noexcept {
  const double hits = std::min(1.0, c.budget * t.ratio / c.size);
  return std::max(hits * hit_seconds(t, c) + (1 - hits) / c.original_rate, program_seconds(c));
}

double seconds_per_byte_without(const Conditions& c) noexcept {
  return std::max(1 / c.original_rate, program_seconds(c));
}

std::size_t choose_recipe(std::span<const Trial> trials, const Conditions& c, Goal goal) noexcept {
  const auto cost = [&](const Trial& t) {
    if (t.recipe.codec != Codec::raw && t.ratio < kLeastRatio) return std::numeric_limits<double>::infinity();
    return goal == Goal::fastest ? seconds_per_byte(t, c) : hit_seconds(t, c);
  };
  double least = std::numeric_limits<double>::infinity();
  for (const Trial& t : trials) least = std::min(least, cost(t));  // raw has a finite cost
  const double bound = goal == Goal::fastest
                           ? 1.02 * least
                           : std::max({1 / c.image_rate, 1 / c.original_rate, program_seconds(c)});
  std::size_t chosen = 0;
  bool found = false;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (cost(trials[i]) > bound) continue;
    const bool better = trials[i].ratio > trials[chosen].ratio ||
                        (trials[i].ratio == trials[chosen].ratio && cost(trials[i]) < cost(trials[chosen]));
    if (!found || better) chosen = i, found = true;
  }
  return chosen;
}

}  // namespace lmdbio::cache
