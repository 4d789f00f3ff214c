#include "lmdbio/reader/provenance.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "lmdbio/format/layout.h"

namespace lmdbio::reader {

namespace {

/// Where a leaf's values are, relative to its page, modulo 2^64.
std::vector<std::uint64_t> offsets_of(const LeafSample& leaf) {
  std::vector<std::uint64_t> all;
  for (const LeafSample::Value& v : leaf.values) all.push_back(v.overflow - leaf.page);
  return all;
}

/// The first value of `leaf` that does not follow its predecessor as in a usual leaf; 0: none.
std::size_t first_shift(const std::vector<std::uint64_t>& leaf, const std::vector<std::uint64_t>& usual) {
  for (std::size_t i = 1; i < leaf.size(); ++i)
    if (leaf[i] - leaf[i - 1] != usual[i] - usual[i - 1]) return i;
  return 0;
}

}  // namespace

std::optional<Provenance> Provenance::learn(std::vector<std::uint64_t> leaves,
                                            std::vector<std::uint64_t> branches,
                                            std::span<const LeafSample> first, std::uint64_t records) {
  if (first.size() == leaves.size() && !first.empty())
    first = first.first(first.size() - 1);  // it may not be full
  if (first.size() < 3 || leaves.size() < first.size()) return std::nullopt;
  Provenance p;
  p.records_ = records;
  p.per_leaf_ = first[0].values.size();
  if (p.per_leaf_ == 0) return std::nullopt;
  p.run_pages_ = first[0].values[0].pages;
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i].page != leaves[i] || first[i].values.size() != p.per_leaf_) return std::nullopt;
    for (const LeafSample::Value& v : first[i].values)
      if (!v.plain || v.pages != p.run_pages_) return std::nullopt;
  }
  // As many leaves as the records fill, or the last ones are not what the first ones are.
  if ((records + p.per_leaf_ - 1) / p.per_leaf_ != leaves.size()) return std::nullopt;
  p.leaves_ = std::move(leaves);
  p.branches_ = std::move(branches);
  if (p.run_pages_ != 0 && !p.learn_runs(first)) return std::nullopt;
  return p;
}

bool Provenance::learn_runs(std::span<const LeafSample> first) {
  std::map<std::vector<std::uint64_t>, std::size_t> kinds;
  for (const LeafSample& leaf : first) ++kinds[offsets_of(leaf)];
  const auto usual = std::max_element(kinds.begin(), kinds.end(),
                                      [](const auto& a, const auto& b) { return a.second < b.second; });
  if (usual->second * 2 < first.size()) return false;
  offsets_ = usual->first;
  // What differs must be where branch pages begin, or the commits' doing.
  std::vector<std::uint64_t> others;
  std::vector<std::uint64_t> intervals;  // that commits may have
  for (std::size_t j = 0; j < first.size(); ++j) {
    const std::vector<std::uint64_t> offsets = offsets_of(first[j]);
    if (begins_branch(j) || offsets == offsets_) continue;
    others.push_back(j);
    const std::size_t at = first_shift(offsets, offsets_);
    if (at == 0) continue;
    const std::uint64_t ordinal = j * per_leaf_ + at;
    for (std::uint64_t n = 1; ordinal / n > per_leaf_; ++n)
      if (ordinal % n == 0) intervals.push_back(ordinal / n);
  }
  if (others.empty()) return true;
  // The longest that explains them all.  As short as a leaf's: nothing would ever be guessed.
  std::sort(intervals.begin(), intervals.end(), std::greater<>());
  for (const std::uint64_t interval : intervals) {
    commit_ = interval;
    if (std::all_of(others.begin(), others.end(), [this](std::uint64_t j) { return near_commit(j); }))
      return true;
  }
  return false;
}

// A branch page that splits takes a page at one of the first leaves of its new half; the first split of all,
// which makes the root, likewise.
bool Provenance::begins_branch(std::uint64_t leaf) const noexcept {
  const auto after = std::upper_bound(branches_.begin(), branches_.end(), leaf);
  return after == branches_.begin() || leaf - *(after - 1) < 2;
}

// The leaf after that of a commit may have a page that the commit has freed.
bool Provenance::near_commit(std::uint64_t leaf) const noexcept {
  if (commit_ == 0) return false;
  const std::uint64_t from = leaf == 0 ? 0 : (leaf - 1) * per_leaf_, to = (leaf + 1) * per_leaf_;
  return (from + commit_ - 1) / commit_ * commit_ <= to;
}

std::optional<Provenance::Guess> Provenance::guess(std::uint64_t ordinal) noexcept {
  if (dropped_ || ordinal >= records_) return std::nullopt;
  const std::uint64_t leaf = ordinal / per_leaf_, slot = ordinal % per_leaf_;
  Guess g{leaves_[leaf], static_cast<std::uint32_t>(slot), 0, 0};
  if (run_pages_ != 0) {
    if (begins_branch(leaf) || near_commit(leaf)) return std::nullopt;
    g.overflow = g.leaf + offsets_[slot];
    if (g.overflow < format::kMetaPages) return std::nullopt;
    g.pages = run_pages_;
  }
  ++counters_.guessed;
  return g;
}

bool Provenance::check(const Guess& guessed, const RecordPlace& actual, unsigned page_shift) noexcept {
  const bool right =
      guessed.leaf == actual.leaf && guessed.slot == actual.slot + actual.nth && actual.dup_leaf == 0 &&
      guessed.overflow == actual.overflow &&
      (actual.overflow == 0 || guessed.pages == format::overflow_pages(actual.value_bytes, page_shift));
  ++(right ? counters_.right : counters_.wrong);
  dropped_ = dropped_ || !right;
  return right;
}

}  // namespace lmdbio::reader
