#include "lmdbio/fuse/node_table.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "lmdbio/base/mix.h"

namespace lmdbio::fuse {

std::uint32_t NameStore::add(std::string_view name) {
  const std::size_t units = units_of(name.size());
  std::uint32_t number = free_[units];
  if (number != kNone) {
    std::memcpy(&free_[units], at(number), sizeof number);
  } else {
    if (kChunk - used_ < units * kUnit) {
      if (chunks_.size() == (std::size_t{1} << 31) / (kChunk / kUnit)) throw std::bad_alloc();
      chunks_.push_back(std::make_unique_for_overwrite<unsigned char[]>(kChunk));
      used_ = 0;
    }
    number = static_cast<std::uint32_t>(((chunks_.size() - 1) * kChunk + used_) / kUnit);
    used_ += units * kUnit;
  }
  unsigned char* const to = at(number);
  to[0] = static_cast<unsigned char>(name.size());
  std::memcpy(to + 1, name.data(), name.size());
  return number;
}

std::string_view NameStore::get(std::uint32_t number) const noexcept {
  const unsigned char* const from = at(number);
  return {reinterpret_cast<const char*>(from + 1), from[0]};
}

void NameStore::remove(std::uint32_t number) noexcept {
  std::uint32_t& first = free_[units_of(get(number).size())];
  std::memcpy(at(number), &first, sizeof first);
  first = number;
}

NodeTable::NodeTable() : buckets_(1024, kNone) {
  nodes_.push_back({0, 2 * names_.add("") + 1, 1, 0, kNone});  // the root is never forgotten
}

std::size_t NodeTable::bucket(std::uint32_t parent, std::string_view name) const noexcept {
  return mix(std::hash<std::string_view>()(name) + parent) & (buckets_.size() - 1);
}

void NodeTable::grow() {
  std::vector<std::uint32_t> before(2 * buckets_.size(), kNone);
  std::swap(before, buckets_);
  for (const std::uint32_t list : before)
    for (std::uint32_t i = list, next; i != kNone; i = next) {
      Node& n = nodes_[i];
      next = n.next;
      std::uint32_t& first = buckets_[bucket(n.parent, name_of(n))];
      n.next = first;
      first = i;
    }
}

std::uint64_t NodeTable::use(std::uint64_t parent, std::string_view name, bool is_directory,
                             std::uint32_t size) {
  const std::lock_guard lock(mutex_);
  const auto above = static_cast<std::uint32_t>(parent - 1);
  for (std::uint32_t i = buckets_[bucket(above, name)]; i != kNone; i = nodes_[i].next)
    if (nodes_[i].parent == above && name_of(nodes_[i]) == name) {
      ++nodes_[i].uses;
      return std::uint64_t{i} + 1;
    }
  if (count_ >= buckets_.size()) grow();
  const std::uint32_t stored = names_.add(name);
  std::uint32_t i = free_;
  if (i != kNone) {
    free_ = nodes_[i].next;
  } else {
    if (nodes_.size() == kNone) throw std::bad_alloc();
    i = static_cast<std::uint32_t>(nodes_.size());
    nodes_.emplace_back();
  }
  std::uint32_t& first = buckets_[bucket(above, name)];
  nodes_[i] = {above, 2 * stored + (is_directory ? 1 : 0), 1, size, first};
  first = i;
  ++nodes_[above].uses;
  ++count_;
  return std::uint64_t{i} + 1;
}

void NodeTable::forget(std::uint64_t number, std::uint64_t uses) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto i = static_cast<std::uint32_t>(number - 1); i != 0; uses = 1) {
    Node& n = nodes_[i];
    n.uses -= static_cast<std::uint32_t>(std::min<std::uint64_t>(uses, n.uses));
    if (n.uses != 0) return;
    std::uint32_t above = buckets_[bucket(n.parent, name_of(n))];
    if (above == i) {
      buckets_[bucket(n.parent, name_of(n))] = n.next;
    } else {
      while (nodes_[above].next != i) above = nodes_[above].next;
      nodes_[above].next = n.next;
    }
    names_.remove(n.name / 2);
    n.next = free_;
    free_ = i;
    --count_;
    i = n.parent;
  }
}

NodeTable::Entry NodeTable::get(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  auto i = static_cast<std::uint32_t>(number - 1);
  Entry out{"", nodes_[i].is_directory(), nodes_[i].size};
  std::vector<std::string_view> parts;
  for (; i != 0; i = nodes_[i].parent) parts.push_back(name_of(nodes_[i]));
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (!out.path.empty()) out.path += '/';
    out.path += *part;
  }
  return out;
}

std::uint64_t NodeTable::parent(std::uint64_t number) const noexcept {
  const std::lock_guard lock(mutex_);
  return std::uint64_t{nodes_[static_cast<std::size_t>(number - 1)].parent} + 1;
}

std::size_t NodeTable::count() const noexcept {
  const std::lock_guard lock(mutex_);
  return count_;
}

}  // namespace lmdbio::fuse
