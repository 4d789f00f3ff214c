#include "lmdbio/ahead/planner.h"

#include <algorithm>
#include <array>

namespace lmdbio::ahead {

using format::Node;
using format::PageView;

namespace {

class Planner {
 public:
  Planner(const WalkPlace& place, PageSource& source, const PlanLimits& limits, unsigned page_shift,
          Plan& out)
      : place_(place),
        source_(source),
        limits_(limits),
        page_shift_(page_shift),
        out_(out),
        scout_(limits.scout),
        skip_(place.skip) {}

  void run() {
    out_.runs.clear();
    out_.complete = false;
    depth_ = static_cast<unsigned>(place_.branches.size());
    for (unsigned i = 0; i < depth_; ++i) {
      branch_[i] = place_.branches[i];
      taken_[i] = place_.taken[i];
    }
    if (leaf(place_.leaf, place_.index)) {
      while (next_leaf()) {
      }
    }
    out_.leaf_pages = leaf_pages_;
  }

 private:
  bool enough() const noexcept { return pages_ >= limits_.pages || out_.runs.size() >= limits_.runs; }

  /// Adds a run to the plan.  Returns false once the plan is long enough.
  bool need(std::uint64_t first, std::uint64_t pages) {
    pages_ += pages;
    if (!place_.apart && !out_.runs.empty() && out_.runs.back().first + out_.runs.back().pages == first)
      out_.runs.back().pages += pages;
    else
      out_.runs.push_back({first, pages});
    return !enough();
  }

  /// Adds the values of a leaf, from entry `i` on.  Returns false if the plan ends.
  bool leaf(const PageView& page, unsigned i) {
    if (!place_.values || lost_ || page.is_leaf2()) return true;
    const unsigned n = page.count();
    if (i >= n) return true;
    const unsigned entries = place_.forward ? n - i : i + 1;
    const std::uint64_t before = pages_;
    const bool more = values(page, i, n);
    leaf_pages_ = (pages_ - before) * n / entries;
    return more;
  }

  bool values(const PageView& page, unsigned i, unsigned n) {
    for (; i < n; i += place_.forward ? 1u : ~0u) {
      Node node;
      if (!page.node(i, node)) return false;
      if (place_.period != 1) {
        if (skip_ != 0) {
          --skip_;
          continue;
        }
        skip_ = place_.period - 1;
      }
      if ((node.flags() & format::kBigData) == 0) continue;
      if (!need(format::raw(node.overflow()),
                format::overflow_pages(node.version, node.data_size(), page_shift_)))
        return false;
    }
    return true;
  }

  /// Goes on to the leaf after the one that branch_ leads to.  Returns false if the plan ends.
  bool next_leaf() {
    unsigned level = depth_;
    do {
      if (level == 0) {
        out_.complete = true;
        return false;
      }
      --level;
    } while (place_.forward ? taken_[level] + 1u >= branch_[level].count() : taken_[level] == 0);
    taken_[level] = static_cast<std::uint16_t>(taken_[level] + (place_.forward ? 1 : -1));
    for (++level;; ++level) {
      Node node;
      if (!branch_[level - 1].node(taken_[level - 1], node)) return false;
      const std::uint64_t child = format::raw(node.child());
      if (!need(child, 1)) return false;
      const bool is_leaf = level == depth_;
      PageView page;
      if (is_leaf && !place_.values) return true;
      if (!source_.get(child, page)) {
        lost_ = place_.period != 1;
        pages_ += leaf_pages_;  // assume as many pages of values as in the leaf before
        return is_leaf && scout_ != 0 && --scout_ != 0 && !enough();
      }
      if (page.count() == 0 || page.is_branch() == is_leaf) return false;
      if (is_leaf) return leaf(page, place_.forward ? 0 : page.count() - 1u);
      branch_[level] = page;
      taken_[level] = static_cast<std::uint16_t>(place_.forward ? 0 : page.count() - 1);
    }
  }

  const WalkPlace& place_;
  PageSource& source_;
  const PlanLimits& limits_;
  const unsigned page_shift_;
  Plan& out_;
  unsigned scout_, depth_ = 0;
  std::uint64_t skip_;
  bool lost_ = false;  ///< the number of entries passed is unknown
  std::uint64_t pages_ = 0, leaf_pages_ = 0;
  std::array<PageView, format::kMaxDepth> branch_;
  std::array<std::uint16_t, format::kMaxDepth> taken_;
};

}  // namespace

void plan_walk(const WalkPlace& place, PageSource& source, const PlanLimits& limits, unsigned page_shift,
               Plan& out) {
  Planner(place, source, limits, page_shift, out).run();
}

namespace {

/// Needs that are adjacent in the file, or nearly.
struct Stretch {
  /// Page where the next need is expected.  Forward: the page after the last need.  Backward: the first page
  /// of the last need.
  std::uint64_t end = 0;
  std::uint64_t pages = 0;
};

class Folder {
 public:
  Folder(bool forward, const WalkHistory& history, const ChunkGeometry& geometry, std::size_t horizon,
         ChunkFacts& facts, FoldedPlan& out)
      : forward_(forward),
        history_(history),
        geometry_(geometry),
        horizon_(horizon),
        near_(geometry.pages_a_chunk() / 4),
        dense_(geometry.pages_a_chunk() / 16 << history.scattered),
        facts_(facts),
        out_(out) {}

  void run(const PageRun& need, const Plan& plan) {
    out_.chunks.clear();
    out_.alone.clear();
    // Leaf pages may be farther apart than other needs, because one leaf between them may lie elsewhere.
    near_leaf_ = std::clamp(3 * plan.leaf_pages, near_, std::max(near_, geometry_.pages_a_chunk() / 2));
    // Find out which stretch each need belongs to, and how long the stretches become.
    stretches_.clear();
    member_.clear();
    stretches_.push_back({history_.end_page, history_.run_pages});
    member_.push_back(join(need));
    const Stretch now = stretches_[member_[0]];
    const bool goes_on = member_[0] == 0;
    for (const PageRun& r : plan.runs) member_.push_back(join(r));
    if (is_scattered()) dense_ = std::max(dense_, geometry_.pages_a_chunk() / 2);
    // In a backward walk, a leaf page is needed before its values but may have a lower page number.  The walk
    // then reaches the leaf page through the values, so the page belongs to their stretch.
    if (!forward_ && need.pages == 1 && !plan.runs.empty() && plan.runs[0].first > need.first &&
        plan.runs[0].first - need.first < geometry_.pages_a_chunk() && is_dense(1))
      member_[0] = member_[1];

    const std::uint64_t end = std::min(need.first + need.pages, geometry_.file_pages);
    bool dense_now = is_dense(0) && need.pages != 0, here_now = need.first < end;
    for (std::uint64_t p = need.first; p < end && (dense_now || here_now);) {
      const std::uint32_t c = geometry_.chunk_of(p);
      dense_now = dense_now && !facts_.is_exact(c);
      here_now = here_now && facts_.is_here(c);
      p = (c + std::uint64_t{1}) * geometry_.pages_a_chunk();
    }
    out_.in_chunks_now = dense_now || here_now;
    out_.history = history_;
    if (dense_now || goes_on) {  // the walk continues, or stays elsewhere for long
      out_.history.end_page = now.end;
      out_.history.run_pages = now.pages;
    }
    place(need, 0);
    for (std::size_t i = 0; i < plan.runs.size() && !is_full(); ++i) place(plan.runs[i], i + 1);
    std::size_t last = plan.runs.size();
    for (unsigned apart = 0; plan.leaf_pages != 0 && last > 0 && apart < kMostApart; ++apart) {
      if (plan.runs[last - 1].pages != 1 || is_dense(last)) break;
      --last;
    }
    const PageRun& edge = last == 0 ? need : plan.runs[last - 1];
    if (is_dense(last) && !plan.complete)
      go_on_from(forward_ ? edge.first + edge.pages - 1 : edge.first, false);
    else if (is_dense(last) && history_.first_page != ~std::uint64_t{0})
      start_again();
    std::erase_if(out_.alone, [this](const PageRun& r) {
      return has(geometry_.chunk_of(r.first)) && has(geometry_.chunk_of(r.first + r.pages - 1));
    });
  }

 private:
  /// Upper limit on the leaf pages at the end of a plan that lie apart from the rest.
  static constexpr unsigned kMostApart = 4;

  std::size_t join(const PageRun& r) {
    constexpr std::size_t kOpen = 4;  // stretches that continue side by side: values, leaf pages
    const std::uint64_t from = forward_ ? r.first : r.first + r.pages,
                        to = forward_ ? r.first + r.pages : r.first;
    // Take the nearest stretch.  In a backward walk, a leaf page that lies before its values would
    // otherwise take over the stretch of the values.
    std::size_t nearest = stretches_.size();
    std::uint64_t least = (r.pages == 1 ? near_leaf_ : near_) + 1;
    for (std::size_t i = stretches_.size(); i > 0 && stretches_.size() - i < kOpen; --i) {
      const std::uint64_t end = stretches_[i - 1].end, away = from > end ? from - end : end - from;
      if (away >= least) continue;
      least = away;
      nearest = i - 1;
    }
    if (nearest == stretches_.size()) {
      stretches_.push_back({to, r.pages});
      return nearest;
    }
    stretches_[nearest].end = to;
    stretches_[nearest].pages += r.pages;
    for (std::size_t i = stretches_.size(); i > 0 && stretches_.size() - i < kOpen; --i) {
      const std::uint64_t end = stretches_[i - 1].end, away = from > end ? from - end : end - from;
      if (i - 1 != nearest && away <= near_)
        return unite(std::min(i - 1, nearest), std::max(i - 1, nearest), to);
    }
    return nearest;
  }

  /// Unites two stretches if the next need continues both of them, and returns the number of the result.
  /// Example: in a backward walk, the stretch of a leaf page that was needed before its values, and the
  /// stretch of the values.
  std::size_t unite(std::size_t first, std::size_t second, std::uint64_t end) {
    stretches_[first] = {end, stretches_[first].pages + stretches_[second].pages};
    stretches_.erase(stretches_.begin() + static_cast<std::ptrdiff_t>(second));
    for (std::size_t& m : member_) m = m == second ? first : m - (m > second);
    return first;
  }

  /// Returns whether many needs are known and most of them lie in short stretches.  If so, a few adjacent
  /// needs do not predict that the rest of a chunk is needed.
  bool is_scattered() const noexcept {
    std::uint64_t all = 0, in_long = 0;
    for (std::size_t i = 0; i < stretches_.size(); ++i) {
      const std::uint64_t pages = stretches_[i].pages - (i == 0 ? history_.run_pages : 0);
      all += pages;
      if (stretches_[i].pages >= geometry_.pages_a_chunk() / 2) in_long += pages;
    }
    return all >= geometry_.pages_a_chunk() && in_long < all / 2;
  }

  bool is_dense(std::size_t need) const noexcept {
    return stretches_[member_[need]].pages >= dense_ || geometry_.file_pages <= 2 * geometry_.pages_a_chunk();
  }

  void place(const PageRun& r, std::size_t need) {
    if (r.pages == 0 || r.first >= geometry_.file_pages) return;
    const std::uint64_t last = std::min(r.first + r.pages, geometry_.file_pages) - 1;
    const std::uint32_t a = geometry_.chunk_of(r.first), b = geometry_.chunk_of(last);
    if (need == 0 ? !out_.in_chunks_now : !is_dense(need)) {
      place_short({r.first, last - r.first + 1}, a, b);
      return;
    }
    const std::uint64_t per_chunk = geometry_.pages_a_chunk();
    for (std::uint32_t k = 0; k <= b - a; ++k) {
      const std::uint32_t c = forward_ ? a + k : b - k;
      if (!has(c) && facts_.is_exact(c)) {
        const std::uint64_t from = std::max(r.first, c * per_chunk);
        out_.alone.push_back({from, std::min(last + 1, (c + std::uint64_t{1}) * per_chunk) - from});
      } else if (!add(c)) {
        return;
      }
    }
  }

  /// Plans exact reads for the parts of the run that are not here.
  void place_short(const PageRun& r, std::uint32_t a, std::uint32_t b) {
    const std::uint64_t per_chunk = geometry_.pages_a_chunk(), end = r.first + r.pages;
    std::uint64_t from = r.first;
    for (std::uint32_t c = a; c <= b; ++c) {
      if (!has(c) && !keep(c)) continue;
      const std::uint64_t begin = std::max(from, c * per_chunk);
      if (begin > from) out_.alone.push_back({from, begin - from});
      from = (c + std::uint64_t{1}) * per_chunk;
    }
    if (from < end) out_.alone.push_back({from, end - from});
  }

  /// Plans a chunk that is here, so that it stays in memory although nothing new is read for it.
  bool keep(std::uint32_t c) {
    constexpr std::size_t kMostKept = 64;
    if (!facts_.is_here(c) || kept_ >= kMostKept) return false;
    ++kept_;
    out_.chunks.push_back(c);
    return true;
  }

  bool is_full() const noexcept { return out_.chunks.size() >= horizon_ + kept_; }
  bool has(std::uint32_t c) const noexcept {
    return std::find(out_.chunks.begin(), out_.chunks.end(), c) != out_.chunks.end();
  }
  bool add(std::uint32_t c) {
    if (has(c)) return true;
    if (is_full()) return false;
    out_.chunks.push_back(c);
    return true;
  }

  /// Adds chunks in file order beyond the known needs.
  void go_on_from(std::uint64_t page, bool another_turn) {
    const std::uint32_t last = geometry_.chunk_of(std::max(geometry_.file_pages, std::uint64_t{1}) - 1);
    std::uint32_t c = std::min(geometry_.chunk_of(page), last);
    std::size_t passed = 0;  // exact chunks that were skipped, at most horizon_
    while (!another_turn && facts_.is_exact(c) ? ++passed <= horizon_ : add(c)) {
      if (forward_ ? c == last : c == 0) return;
      c = forward_ ? c + 1 : c - 1;
    }
  }

  /// Plans for a walk that ends and may start again.  The first time, only a little is prefetched for the new
  /// start.
  void start_again() {
    constexpr std::size_t kFirstTime = 1;
    if (history_.epochs == 0) horizon_ = std::min(horizon_, out_.chunks.size() - kept_ + kFirstTime);
    go_on_from(history_.first_page, true);
  }

  const bool forward_;
  const WalkHistory& history_;
  const ChunkGeometry& geometry_;
  std::size_t horizon_, kept_ = 0;
  std::uint64_t near_leaf_ = 0;  ///< pages
  const std::uint64_t near_;     ///< pages
  std::uint64_t dense_;          ///< number of adjacent pages that justify whole chunks
  ChunkFacts& facts_;
  FoldedPlan& out_;
  std::vector<Stretch> stretches_;
  std::vector<std::size_t> member_;
};

}  // namespace

void fold_plan(const PageRun& need, const Plan& plan, bool forward, const WalkHistory& history,
               const ChunkGeometry& geometry, std::size_t horizon, ChunkFacts& facts, FoldedPlan& out) {
  Folder(forward, history, geometry, horizon, facts, out).run(need, plan);
}

}  // namespace lmdbio::ahead
