#include "lmdbio/records/joined_locations.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lmdbio/base/in_parallel.h"

namespace lmdbio::records {

namespace {

/// Threads that make locations at the same time.
constexpr unsigned kThreads = 16;
/// Parts whose locations are made together if the program reads one part after the other.
constexpr std::size_t kTogether = 4;

}  // namespace

JoinedLocations::JoinedLocations(std::vector<Part> parts, Open open)
    : missing_(parts.size()), firsts_{0}, open_(std::move(open)) {
  for (Part& p : parts) {
    std::uint64_t records = p.records;
    for (const Excluded& e : p.excluded) records -= std::min(records, e.count);
    firsts_.push_back(firsts_.back() + records);
    states_.push_back(std::make_unique<State>());
    states_.back()->part = std::move(p);
  }
  ready_.resize(states_.size());
}

std::size_t JoinedLocations::part_of(std::uint64_t ordinal) const noexcept {
  return static_cast<std::size_t>(std::upper_bound(firsts_.begin(), firsts_.end(), ordinal) -
                                  firsts_.begin()) -
         1;
}

Status JoinedLocations::find_gaps(std::size_t part, std::vector<Gap>& gaps, std::string& why) const {
  const Part& p = states_[part]->part;
  std::vector<MDB_val> keys;
  for (const Excluded& e : p.excluded) keys.push_back({e.key.size(), const_cast<char*>(e.key.data())});
  Status wrong;
  std::size_t found = 0;
  const Status st = find_(
      part, keys,
      [&](std::size_t key, std::uint64_t leaf, unsigned slot, const format::PageView& page) {
        Gap g{0, 0, p.excluded[key].count};
        const Status one = p.locations->ordinal_of(leaf - p.first_page, slot, page, g.first);
        if (!one.ok() && wrong.ok()) wrong = one;
        gaps.push_back(g);
        ++found;
      },
      why);
  if (!st.ok()) return st;
  if (wrong.ok() && found != keys.size()) wrong = Status::from_mdb(MDB_CORRUPTED);
  if (!wrong.ok())
    why = p.name + ": a key that is left out cannot be looked up: a page or the record index is damaged";
  std::sort(gaps.begin(), gaps.end(), [](const Gap& a, const Gap& b) { return a.first < b.first; });
  std::uint64_t before = 0;
  for (Gap& g : gaps) {
    g.before = g.first - before;
    before += g.count;
  }
  return wrong;
}

Status JoinedLocations::make(std::size_t part, const std::atomic<bool>& cancelled, std::string& why) const {
  State& s = *states_[part];
  const std::lock_guard lock(s.mutex);
  if (s.ready.load(std::memory_order_relaxed)) return {};
  if (s.part.locations == nullptr)
    if (const Status st = open_(part, cancelled, s.part.locations, why); !st.ok()) return st;
  if (const Status st = s.part.locations->await(cancelled, why); !st.ok()) return st;
  std::vector<Gap> gaps;
  if (!s.part.excluded.empty())
    if (const Status st = find_gaps(part, gaps, why); !st.ok()) return st;
  s.gaps = std::move(gaps);
  ready_[part] = {s.part.locations.get(), s.part.first_page, s.gaps.empty() ? nullptr : &s};
  if (s.part.locations->unknown(0).end != 0) damaged_.store(true, std::memory_order_relaxed);
  s.ready.store(true, std::memory_order_release);
  missing_.fetch_sub(1, std::memory_order_release);
  return {};
}

Status JoinedLocations::ready(std::size_t part, const std::atomic<bool>& cancelled, std::string& why) const {
  return states_[part]->ready.load(std::memory_order_acquire) ? Status() : make(part, cancelled, why);
}

Status JoinedLocations::await(const std::atomic<bool>& cancelled, std::string& why) const {
  for (std::size_t i = 0; i < states_.size(); ++i)
    if (const Status st = ready(i, cancelled, why); !st.ok()) return st;
  return {};
}

Status JoinedLocations::prepare(std::span<const std::uint64_t> ordinals, const std::atomic<bool>& cancelled,
                                std::string& why) const {
  if (missing_.load(std::memory_order_acquire) == 0) return {};
  std::vector<std::size_t> missing;
  const auto is_missing = [this](std::size_t part) {
    return !states_[part]->ready.load(std::memory_order_acquire);
  };
  for (const std::uint64_t o : ordinals)
    if (const std::size_t part = o < records() ? part_of(o) : 0; o < records() && is_missing(part))
      missing.push_back(part);
  if (missing.empty()) return {};
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  const std::size_t needed = missing.size();
  if (const std::size_t first = missing[0]; needed == 1 && first != 0 && !is_missing(first - 1))
    for (std::size_t next = first + 1; next < states_.size() && missing.size() < kTogether; ++next)
      if (is_missing(next)) missing.push_back(next);
  struct Outcome {
    Status status;
    std::string why;
  };
  std::vector<Outcome> outcomes(missing.size());
  const bool all = in_parallel(missing.size(), kThreads, [&](std::size_t i) noexcept {
    try {
      outcomes[i].status = ready(missing[i], cancelled, outcomes[i].why);
    } catch (...) {
      outcomes[i].status = Status::from_errno(ENOMEM);
    }
  });
  if (!all) return Status::from_errno(ECANCELED);
  for (std::size_t i = 0; i < needed; ++i) {
    if (outcomes[i].status.ok()) continue;
    why = std::move(outcomes[i].why);
    return outcomes[i].status;
  }
  return {};
}

void JoinedLocations::locations(std::uint64_t first, std::span<RecordLocation> out) const noexcept {
  while (!out.empty()) {
    const std::size_t part = part_of(first);
    const Ready& r = ready_[part];
    const std::uint64_t in_part = first - firsts_[part];
    std::uint64_t n = std::min<std::uint64_t>(out.size(), firsts_[part + 1] - first), raw = in_part;
    if (r.with_gaps != nullptr) {
      const std::vector<Gap>& gaps = r.with_gaps->gaps;
      const auto next = std::upper_bound(gaps.begin(), gaps.end(), in_part,
                                         [](std::uint64_t o, const Gap& g) { return o < g.before; });
      if (next != gaps.begin()) {
        const Gap& g = *std::prev(next);
        raw = g.first + g.count + (in_part - g.before);
      }
      if (next != gaps.end()) n = std::min(n, next->before - in_part);
    }
    r.locations->locations(raw, out.first(static_cast<std::size_t>(n)));
    for (RecordLocation& l : out.first(static_cast<std::size_t>(n))) {
      l.file = static_cast<std::uint32_t>(part);
      l.leaf += r.first_page;
      if (l.overflow != 0) l.overflow += r.first_page;
      if (l.dup_leaf != 0) l.dup_leaf += r.first_page;
    }
    out = out.subspan(static_cast<std::size_t>(n));
    first += n;
  }
}

// Returns the number of records of the part that are not left out, before record `raw` of the database.
std::uint64_t JoinedLocations::rank(const State& s, std::uint64_t raw, bool& left_out) noexcept {
  left_out = false;
  const auto next = std::upper_bound(s.gaps.begin(), s.gaps.end(), raw,
                                     [](std::uint64_t r, const Gap& g) { return r < g.first; });
  if (next == s.gaps.begin()) return raw;
  const Gap& g = *std::prev(next);
  left_out = raw - g.first < g.count;
  return left_out ? g.before : g.before + (raw - g.first - g.count);
}

UnknownOrdinals JoinedLocations::unknown(std::uint64_t ordinal) const noexcept {
  if (!damaged_.load(std::memory_order_acquire)) return {};
  const std::size_t part = part_of(ordinal);
  const State& s = *states_[part];
  UnknownOrdinals u = s.part.locations->unknown(0);
  if (u.end == 0) return u;
  bool left_out = false;
  u.begin = firsts_[part] + rank(s, u.begin, left_out);
  u.end = firsts_[part] + rank(s, u.end, left_out);
  u.leaf += s.part.first_page;
  return u;
}

Status JoinedLocations::ordinal_of(std::uint64_t leaf, unsigned slot, const format::PageView& page,
                                   std::uint64_t& out) const {
  const auto after = std::upper_bound(
      states_.begin(), states_.end(), leaf,
      [](std::uint64_t l, const std::unique_ptr<State>& s) { return l < s->part.first_page; });
  const auto part = static_cast<std::size_t>(after - states_.begin()) - 1;
  const State& s = *states_[part];
  std::uint64_t raw = 0;
  if (const Status st = s.part.locations->ordinal_of(leaf - s.part.first_page, slot, page, raw); !st.ok())
    return st;
  bool left_out = false;
  out = firsts_[part] + rank(s, raw, left_out);
  if (left_out) out = UINT64_MAX;
  return {};
}

}  // namespace lmdbio::records
