#include "lmdbio/records/number_set.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace lmdbio::records {
namespace {

/// Empty blocks at the front are dropped when there are this many of them, and when they are half of all.
constexpr std::size_t kDropLeast = 64;

std::size_t lowest_bit(std::size_t i) noexcept { return i & (~i + 1); }

}  // namespace

void NumberSet::add(std::uint64_t number) { append(number, 1); }

void NumberSet::add(std::uint64_t first, std::uint64_t count) {
  while (count != 0) {
    const std::uint64_t n = std::min(count, kBlock - first % kBlock);
    append(first, n);
    first += n;
    count -= n;
  }
}

// Adds numbers of one block.
void NumberSet::append(std::uint64_t first, std::uint64_t count) {
  if (blocks_.empty() || (blocks_.back().end - 1) / kBlock != first / kBlock) {
    drop_empty();
    std::uint64_t sum = 0;  // of the blocks that the new element of the tree covers, without the new one
    for (std::size_t i = blocks_.size(), bit = 1; bit < lowest_bit(blocks_.size() + 1); bit *= 2) {
      sum += sums_[i - 1];
      i -= bit;
    }
    sums_.push_back(sum);
    try {
      blocks_.push_back({first, first, 0, nullptr});
    } catch (...) {
      sums_.pop_back();
      throw;
    }
  }
  Block& b = blocks_.back();
  if (b.count == 0 && b.bits == nullptr) b.first = b.end = first;
  if (first != b.end) make_bits(b);
  if (b.bits != nullptr) set_bits(b.bits.get(), first, first + count);
  b.end = first + count;
  count_in(blocks_.size() - 1, static_cast<std::int64_t>(count));
}

void NumberSet::set_bits(std::uint64_t* bits, std::uint64_t first, std::uint64_t end) noexcept {
  for (std::uint64_t n = first; n < end; ++n) bits[n % kBlock / 64] |= std::uint64_t{1} << n % 64;
}

void NumberSet::make_bits(Block& b) {
  if (b.bits != nullptr) return;
  b.bits = std::make_unique<std::uint64_t[]>(kBlock / 64);
  set_bits(b.bits.get(), b.first, b.end);
  bit_bytes_ += kBlock / 8;
}

void NumberSet::count_in(std::size_t block, std::int64_t by) noexcept {
  const auto change = static_cast<std::uint64_t>(by);
  blocks_[block].count += change;
  size_ += change;
  for (std::size_t i = block + 1; i <= sums_.size(); i += lowest_bit(i)) sums_[i - 1] += change;
}

bool NumberSet::erase(std::uint64_t number) {
  const auto found = std::upper_bound(blocks_.begin() + static_cast<std::ptrdiff_t>(head_), blocks_.end(),
                                      number, [](std::uint64_t n, const Block& b) { return n < b.end; });
  if (found == blocks_.end() || number < found->first || !found->has(number)) return false;
  Block& b = *found;
  if (b.bits == nullptr && number == b.first) {
    ++b.first;
  } else if (b.bits == nullptr && number + 1 == b.end && found + 1 != blocks_.end()) {
    --b.end;
  } else {
    make_bits(b);
    b.bits[number % kBlock / 64] &= ~(std::uint64_t{1} << number % 64);
  }
  count_in(static_cast<std::size_t>(found - blocks_.begin()), -1);
  return true;
}

std::uint64_t NumberSet::pop_front() noexcept {
  while (blocks_[head_].count == 0) ++head_;
  Block& b = blocks_[head_];
  while (!b.has(b.first)) ++b.first;
  const std::uint64_t number = b.first++;
  count_in(head_, -1);
  return number;
}

std::uint64_t NumberSet::nth(std::uint64_t i) const noexcept {
  std::size_t block = 0;
  for (std::size_t step = std::bit_floor(sums_.size()); step != 0; step /= 2)
    if (block + step <= sums_.size() && sums_[block + step - 1] <= i) {
      block += step;
      i -= sums_[block - 1];
    }
  const Block& b = blocks_[block];
  if (b.bits == nullptr) return b.first + i;
  const std::uint64_t base = b.first / kBlock * kBlock;
  std::size_t word = static_cast<std::size_t>(b.first % kBlock / 64);
  std::uint64_t bits = b.bits[word] >> b.first % 64 << b.first % 64;
  for (; i >= static_cast<std::uint64_t>(std::popcount(bits)); bits = b.bits[++word])
    i -= static_cast<std::uint64_t>(std::popcount(bits));
  for (; i != 0; --i) bits &= bits - 1;
  return base + word * 64 + static_cast<std::uint64_t>(std::countr_zero(bits));
}

std::uint64_t NumberSet::next(std::uint64_t number) const noexcept {
  auto b = std::upper_bound(blocks_.begin() + static_cast<std::ptrdiff_t>(head_), blocks_.end(), number,
                            [](std::uint64_t n, const Block& block) { return n < block.end; });
  for (; b != blocks_.end(); ++b)
    for (std::uint64_t n = std::max(number, b->first); b->count != 0 && n < b->end; ++n)
      if (b->has(n)) return n;
  return UINT64_MAX;
}

std::uint64_t NumberSet::memory_bytes() const noexcept {
  return blocks_.capacity() * sizeof(Block) + sums_.capacity() * sizeof(sums_[0]) + bit_bytes_;
}

// Drops the empty blocks at the front, so that memory does not grow with the numbers that were ever there.
void NumberSet::drop_empty() {
  while (head_ < blocks_.size() && blocks_[head_].count == 0) ++head_;
  if (head_ < kDropLeast || 2 * head_ < blocks_.size()) return;
  NumberSet rest;
  rest.blocks_.reserve(blocks_.size() - head_ + 1);
  rest.sums_.resize(blocks_.size() - head_);
  rest.sums_.reserve(blocks_.size() - head_ + 1);
  for (std::size_t i = head_; i < blocks_.size(); ++i) {
    rest.blocks_.push_back(std::move(blocks_[i]));
    if (rest.blocks_.back().bits != nullptr) rest.bit_bytes_ += kBlock / 8;
    const std::uint64_t n = std::exchange(rest.blocks_.back().count, 0);
    rest.count_in(i - head_, static_cast<std::int64_t>(n));
  }
  *this = std::move(rest);
}

}  // namespace lmdbio::records
