#include "lmdbio/records/sample_keys.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <utility>

#include "lmdbio/records/order.h"

namespace lmdbio::records {
namespace {

/// Lists with fewer keys are copied, since a list has memory of its own.
constexpr std::size_t kLeastList = 1024;
constexpr std::size_t kHead = 2 * sizeof(std::uint16_t);

/// Cells of the hash table: free, taken, or a number and a part of the hash.
constexpr std::uint64_t kFree = 0, kTaken = ~std::uint64_t{0}, kNumberBits = 48;
constexpr std::uint64_t kNumber = (std::uint64_t{1} << kNumberBits) - 1;

std::uint64_t hash_of(const SampleKey& k) noexcept {
  return XXH3_64bits_withSeed(k.value.data(), k.value.size(), XXH3_64bits(k.key.data(), k.key.size()));
}
std::uint64_t cell_of(std::uint64_t number, std::uint64_t hash) noexcept {
  return (hash & ~kNumber) | (number + 1);
}

}  // namespace

bool operator==(const SampleKey& a, const SampleKey& b) noexcept {
  const auto same = [](Bytes x, Bytes y) {
    return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size()) == 0);
  };
  return same(a.key, b.key) && same(a.value, b.value);
}

// --- a list ---

void KeyList::add(const SampleKey& key, SamplePlace place) {
  const std::size_t bytes = kHead + key.key.size() + key.value.size();
  if (bytes > capacity_ - used_) {
    const std::size_t size = std::max(bytes, kBlock);
    blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(size));
    capacity_ = size;
    used_ = 0;
    block_bytes_ += size;
  }
  items_.push_back({(blocks_.size() - 1) << 16 | used_, place});
  std::byte* const to = blocks_.back().get() + used_;
  const std::uint16_t sizes[] = {static_cast<std::uint16_t>(key.key.size()),
                                 static_cast<std::uint16_t>(key.value.size())};
  std::memcpy(to, sizes, kHead);
  std::memcpy(to + kHead, key.key.data(), key.key.size());
  if (!key.value.empty()) std::memcpy(to + kHead + key.key.size(), key.value.data(), key.value.size());
  used_ += bytes;
}

KeyList::Entry KeyList::operator[](std::size_t i) const noexcept {
  const auto [at, place] = items_[i];
  const std::byte* const from = blocks_[static_cast<std::size_t>(at >> 16)].get() + (at & 0xffff);
  const std::size_t key = load<std::uint16_t>(from),
                    value = load<std::uint16_t>(from + sizeof(std::uint16_t));
  return {{{from + kHead, key}, {from + kHead + key, value}}, place};
}

// --- keys by number ---

std::size_t SampleKeys::Part::index(std::size_t i) const noexcept {
  return epoch == 0 ? i : static_cast<std::size_t>(shuffle(seed, epoch, keys.size(), i));
}

void SampleKeys::add(std::uint64_t number, const SampleKey& key, SamplePlace place) {
  if (parts_.empty() || parts_.back().is_list()) {
    parts_.emplace_back();
    parts_.back().first = number;
  }
  Part& p = parts_.back();
  assert(p.numbers.size() == 0 || p.numbers.back() < number);
  p.numbers.push_back(number);
  try {
    p.keys.add(key, place);
  } catch (...) {
    p.numbers.pop_back();
    if (p.numbers.size() == 0) parts_.pop_back();
    throw;
  }
  ++size_;
  if (!table_.empty()) put(number, key);
}

void SampleKeys::add(std::uint64_t first, KeyList keys, std::uint64_t seed, std::uint64_t epoch) {
  const std::size_t n = keys.size();
  if (n < kLeastList) {
    for (std::size_t i = 0; i < n; ++i) {
      const auto [key, place] = keys[epoch == 0 ? i : static_cast<std::size_t>(shuffle(seed, epoch, n, i))];
      add(first + i, key, place);
    }
    return;
  }
  parts_.push_back({first, std::move(keys), {}, seed, epoch});
  size_ += n;
  if (table_.empty()) return;
  for (std::size_t i = 0; i < n; ++i) put(first + i, get(first + i).key);
}

SampleKeys::Found SampleKeys::find(std::uint64_t number) const noexcept {
  const auto behind = std::upper_bound(parts_.begin(), parts_.end(), number,
                                       [](std::uint64_t n, const Part& p) { return n < p.first; });
  if (behind == parts_.begin()) return {nullptr, 0};
  const Part& p = behind[-1];
  if (p.is_list()) {
    const std::uint64_t i = number - p.first;
    return {i < p.keys.size() ? &p : nullptr, static_cast<std::size_t>(i)};
  }
  std::size_t low = 0, high = p.numbers.size();
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (p.numbers[middle] < number)
      low = middle + 1;
    else
      high = middle;
  }
  return {low < p.numbers.size() && p.numbers[low] == number ? &p : nullptr, low};
}

KeyList::Entry SampleKeys::get(std::uint64_t number) const noexcept {
  const Found f = find(number);
  assert(f.part != nullptr);
  return f.part->keys[f.part->index(f.i)];
}

std::uint64_t SampleKeys::memory_bytes() const noexcept {
  std::uint64_t bytes = parts_.capacity() * sizeof(Part) + table_.capacity() * sizeof(table_[0]);
  for (const Part& p : parts_) bytes += p.keys.memory_bytes() + p.numbers.memory_bytes();
  return bytes;
}

void SampleKeys::keep(std::span<const std::uint64_t> live) {
  SampleKeys kept;
  for (const std::uint64_t number : live) {
    const Found f = find(number);
    if (f.part == nullptr) continue;
    const auto [key, place] = f.part->keys[f.part->index(f.i)];
    kept.add(number, key, place);
  }
  *this = std::move(kept);
}

// --- numbers by key ---

std::optional<std::uint64_t> SampleKeys::take(const SampleKey& key) {
  if (table_.empty()) make_table();
  const std::uint64_t hash = hash_of(key);
  const std::size_t mask = table_.size() - 1;
  for (std::size_t i = static_cast<std::size_t>(hash) & mask; table_[i] != kFree; i = (i + 1) & mask) {
    const std::uint64_t cell = table_[i], number = (cell & kNumber) - 1;
    if (cell == kTaken || (cell & ~kNumber) != (hash & ~kNumber) || !(get(number).key == key)) continue;
    table_[i] = kTaken;
    return number;
  }
  return {};
}

// Makes a table of all samples.  Of samples with the same key, all but the last one have been taken.
void SampleKeys::make_table() {
  std::vector<std::uint64_t>(std::bit_ceil(2 * static_cast<std::size_t>(size_) + 16)).swap(table_);
  in_table_ = 0;
  for_each([&](std::uint64_t number, const KeyList::Entry& e) { put(number, e.key); });
}

void SampleKeys::put(std::uint64_t number, const SampleKey& key) {
  if (3 * (in_table_ + 1) > 2 * table_.size()) {
    const auto is_sample = [](std::uint64_t cell) { return cell != kFree && cell != kTaken; };
    const auto samples = static_cast<std::size_t>(std::count_if(table_.begin(), table_.end(), is_sample));
    std::vector<std::uint64_t> old(std::bit_ceil(2 * samples + 16));
    in_table_ = 0;
    table_.swap(old);
    for (const std::uint64_t cell : old)
      if (is_sample(cell)) put((cell & kNumber) - 1, get((cell & kNumber) - 1).key);
  }
  const std::uint64_t hash = hash_of(key);
  const std::size_t mask = table_.size() - 1;
  std::size_t i = static_cast<std::size_t>(hash) & mask;
  while (table_[i] != kFree) i = (i + 1) & mask;
  table_[i] = cell_of(number, hash);
  ++in_table_;
}

}  // namespace lmdbio::records
