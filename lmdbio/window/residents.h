// The resident chunks of a file, sorted in the orders in which eviction examines them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>

#include "lmdbio/node/chunk_file.h"
#include "lmdbio/window/chunk_table.h"
#include "lmdbio/window/eviction.h"

namespace lmdbio::window {

/// A resident chunk.
struct Resident {
  ChunkIndex chunk{};
  bool used = false;       ///< a walk has reached it
  std::uint64_t left = 0;  ///< tick at which it was last in a plan (ChunkPlans::clock())
  /// The name under which other processes find the chunk while it is resident.
  std::optional<node::ChunkName> name{};
  bool is_shared = false;  ///< its memory is a chunk file of this process or of another one
};

/// The resident chunks of one file.  Has no lock of its own.  A Resident keeps its address until it is
/// erased.
class Residents {
 public:
  using List = std::list<Resident>;

  std::size_t size() const noexcept { return places_.size() - pending_.size(); }
  bool empty() const noexcept { return size() == 0; }
  /// The chunks that a walk has reached, and those that no walk has reached.  Each list is sorted by the tick
  /// at which a chunk was last in a plan, the oldest first.
  const List& used() const noexcept { return used_; }
  const List& unused() const noexcept { return unused_; }
  /// Returns nullptr if the chunk is not resident.
  const Resident* find(ChunkIndex chunk) const noexcept {
    const auto at = places_.find(raw(chunk));
    return at != places_.end() ? &*at->second : nullptr;
  }
  /// Returns the chunk that has been in no plan for the longest time, or nullptr if there is no chunk.
  const Resident* oldest() const noexcept {
    if (used_.empty() || unused_.empty()) return !used_.empty() ? &used_.front() : front_of(unused_);
    return used_.front().left < unused_.front().left ? &used_.front() : &unused_.front();
  }
  /// Calls f(Resident&) for all chunks. f may erase its chunk.
  template <class F>
  void for_each(F&& f) {
    for (List* const list : {&unused_, &used_})
      for (auto at = list->begin(); at != list->end();) f(*at++);
  }

  /// Allocates memory for one more chunk.  May throw bad_alloc.
  void prepare(ChunkIndex chunk) {
    const auto at = pending_.emplace(pending_.end());
    try {
      places_.emplace(raw(chunk), at);
    } catch (...) {
      pending_.erase(at);
      throw;
    }
  }
  /// Undoes prepare() for a chunk that is not added.
  void cancel(ChunkIndex chunk) noexcept {
    const auto at = places_.find(raw(chunk));
    if (at == places_.end()) return;
    pending_.erase(at->second);
    places_.erase(at);
  }
  /// Adds a chunk after prepare().  No other chunk may have a larger `left`.
  void add(const Resident& resident) noexcept {
    const auto at = places_.find(raw(resident.chunk))->second;
    *at = resident;
    List& to = list_of(*at);
    to.splice(to.end(), pending_, at);
  }
  /// Records that a resident chunk is in a plan at tick `now`.  No other chunk may have a larger `left`.
  /// `used`: the walk has reached it.  Does nothing if the chunk is not resident.
  void touch(ChunkIndex chunk, std::uint64_t now, bool used) noexcept {
    const auto found = places_.find(raw(chunk));
    if (found == places_.end()) return;
    const auto at = found->second;
    List& from = list_of(*at);
    at->left = now;
    at->used = at->used || used;
    List& to = list_of(*at);
    to.splice(to.end(), from, at);
  }
  void erase(ChunkIndex chunk) noexcept {
    const auto at = places_.find(raw(chunk));
    list_of(*at->second).erase(at->second);
    places_.erase(at);
  }
  void clear() noexcept {
    for_each([this](const Resident& r) { places_.erase(raw(r.chunk)); });
    used_.clear();
    unused_.clear();
  }

 private:
  static const Resident* front_of(const List& list) noexcept {
    return !list.empty() ? &list.front() : nullptr;
  }
  List& list_of(const Resident& r) noexcept { return r.used ? used_ : unused_; }

  List used_, unused_;  ///< sorted by `left`
  List pending_;        ///< chunks between prepare() and add() or cancel()
  std::unordered_map<std::uint32_t, List::iterator> places_;
};

/// Returns the resident chunk that eviction_rank() puts first, or nullptr if none may be evicted.  If
/// `even_planned`, and all chunks are in plans, returns one of these.  Each function takes a Resident.
/// is_planned() returns whether an active walk has the chunk in its plan, is_to_stay() whether walks of other
/// processes will reach it soon, and rank_of() its rank.
///
/// There may be thousands of resident chunks.  So the search goes through the sorted lists in the order of
/// eviction.  It skips only chunks that are planned or are to stay.
template <class IsPlanned, class IsToStay, class RankOf>
const Resident* first_to_go(const Residents& residents, std::uint64_t now, bool even_planned,
                            IsPlanned&& is_planned, IsToStay&& is_to_stay, RankOf&& rank_of) {
  const Resident* to_stay = nullptr;
  const auto may_go = [&](const Resident& r) {
    if (is_planned(r)) return false;
    if (!is_to_stay(r)) return true;
    if (to_stay == nullptr) to_stay = &r;
    return false;
  };
  const auto left_just_now = [now](const Resident& r) { return now - r.left < kJustLeft; };
  const Residents::List &unused = residents.unused(), &used = residents.used();
  const auto unused_just_left = std::find_if(unused.begin(), unused.end(), left_just_now);
  const auto used_before = std::find_if_not(used.rbegin(), used.rend(), left_just_now);
  if (const auto at = std::find_if(unused.begin(), unused_just_left, may_go); at != unused_just_left)
    return &*at;
  if (const auto at = std::find_if(used_before, used.rend(), may_go); at != used.rend()) return &*at;
  if (const auto at = std::find_if(used_before.base(), used.end(), may_go); at != used.end()) return &*at;
  if (const auto at = std::find_if(unused_just_left, unused.end(), may_go); at != unused.end()) return &*at;
  if (to_stay != nullptr || !even_planned) return to_stay;
  const Resident* best = nullptr;  // all chunks are planned
  EvictionRank best_rank;
  for (const Residents::List* const list : {&unused, &used})
    for (const Resident& r : *list)
      if (const EvictionRank rank = rank_of(r); best == nullptr || rank > best_rank) {
        best = &r;
        best_rank = rank;
      }
  return best;
}

}  // namespace lmdbio::window
