#include "tests/support/slowfs/lock_table.h"

#include <fcntl.h>

#include <algorithm>

namespace lmdbio::slowfs {
namespace {

bool overlap(const Lock& a, const Lock& b) { return a.first <= b.last && b.first <= a.last; }

}  // namespace

std::optional<Lock> LockTable::conflict(const Lock& wanted) const {
  if (wanted.type == F_UNLCK) return std::nullopt;
  for (const Lock& l : held_)
    if (l.owner != wanted.owner && overlap(l, wanted) && (l.type == F_WRLCK || wanted.type == F_WRLCK))
      return l;
  return std::nullopt;
}

bool LockTable::set(const Lock& wanted) {
  std::vector<Lock> next;
  bool freed = false;
  Lock made = wanted;
  for (const Lock& l : held_) {
    if (l.owner != wanted.owner) {
      next.push_back(l);
    } else if (!overlap(l, wanted)) {
      // Neighbours of one type are one lock, as F_GETLK shows it.
      const bool before = l.last < wanted.first && l.last + 1 == wanted.first;
      const bool after = wanted.last < l.first && wanted.last + 1 == l.first;
      if (l.type != wanted.type || !(before || after)) {
        next.push_back(l);
        continue;
      }
      made.first = std::min(made.first, l.first);
      made.last = std::max(made.last, l.last);
    } else if (l.type == wanted.type) {
      made.first = std::min(made.first, l.first);
      made.last = std::max(made.last, l.last);
    } else {
      freed = freed || l.type == F_WRLCK || wanted.type == F_UNLCK;
      if (l.first < wanted.first) next.push_back({l.first, wanted.first - 1, l.type, l.owner, l.pid});
      if (l.last > wanted.last) next.push_back({wanted.last + 1, l.last, l.type, l.owner, l.pid});
    }
  }
  if (made.type != F_UNLCK) next.push_back(made);
  held_ = std::move(next);
  return freed;
}

bool LockTable::drop_owner(std::uint64_t owner) {
  return std::erase_if(held_, [owner](const Lock& l) { return l.owner == owner; }) != 0;
}

bool LockTable::drop_all() {
  const bool any = !held_.empty();
  held_.clear();
  return any;
}

}  // namespace lmdbio::slowfs
