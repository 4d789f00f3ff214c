#include "lmdbio/records/sample_keys.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace lmdbio::records {

bool operator==(const SampleKey& a, const SampleKey& b) noexcept {
  const auto same = [](Bytes x, Bytes y) {
    return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size()) == 0);
  };
  return same(a.key, b.key) && same(a.value, b.value);
}

void SampleKeys::add(std::uint64_t number, const SampleKey& key) {
  assert(numbers_.empty() || numbers_.back() < number);
  const auto size = static_cast<std::uint16_t>(key.key.size());
  bytes_.append(reinterpret_cast<const char*>(&size), sizeof size);
  bytes_.append(reinterpret_cast<const char*>(key.key.data()), key.key.size());
  bytes_.append(reinterpret_cast<const char*>(key.value.data()), key.value.size());
  ends_.push_back(bytes_.size());
  numbers_.push_back(number);
}

SampleKey SampleKeys::at(std::size_t i) const noexcept {
  const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
  const Bytes all = std::as_bytes(std::span(bytes_)).subspan(begin, ends_[i] - begin);
  const std::size_t key = load<std::uint16_t>(all.data());
  return {all.subspan(2, key), all.subspan(2 + key)};
}

bool SampleKeys::knows(std::uint64_t number) const noexcept {
  return std::binary_search(numbers_.begin(), numbers_.end(), number);
}

SampleKey SampleKeys::get(std::uint64_t number) const noexcept {
  const auto it = std::lower_bound(numbers_.begin(), numbers_.end(), number);
  assert(it != numbers_.end() && *it == number);
  return at(static_cast<std::size_t>(it - numbers_.begin()));
}

std::uint64_t SampleKeys::memory_bytes() const noexcept {
  return bytes_.capacity() + (ends_.capacity() + numbers_.capacity()) * sizeof(std::uint64_t);
}

void SampleKeys::keep(std::span<const std::uint64_t> live) {
  SampleKeys kept;
  auto next = live.begin();
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    next = std::lower_bound(next, live.end(), numbers_[i]);
    if (next != live.end() && *next == numbers_[i]) kept.add(numbers_[i], at(i));
  }
  *this = std::move(kept);
}

}  // namespace lmdbio::records
