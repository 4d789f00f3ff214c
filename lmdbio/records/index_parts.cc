#include "lmdbio/records/index_parts.h"

#include <lmdb.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "lmdbio/base/align.h"

namespace lmdbio::records {

namespace {

template <class Columns>
auto all(Columns& c) noexcept {
  return std::array{&c.leaf, &c.first, &c.start, &c.where, &c.run_page, &c.run_bytes};
}

/// Upper limit for the bytes of a column.  No file exceeds it.  Sums of sizes within the limit do not
/// overflow.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 56;

}  // namespace

std::uint64_t IndexPartSizes::bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const Column& c : columns) {
    if (c.frame_bytes > kMostBytes || c.distance_bytes > kMostBytes) return UINT64_MAX;
    sum += align_up(c.frame_bytes, 8) + align_up(c.distance_bytes, 8);
  }
  return sum;
}

IndexPartSizes sizes_of(const RecordIndex& index) noexcept {
  IndexPartSizes s;
  s.totals = index.totals();
  const auto columns = all(index.columns());
  for (std::size_t i = 0; i < columns.size(); ++i)
    s.columns[i] = {columns[i]->size(), columns[i]->frame_bytes().size(),
                    columns[i]->distance_bytes().size()};
  return s;
}

void write_part(const RecordIndex& index, std::span<std::byte> to) noexcept {
  std::byte* at = to.data();
  for (const PackedColumn* const c : all(index.columns()))
    for (const Bytes b : {c->frame_bytes(), c->distance_bytes()}) {
      if (!b.empty()) std::memcpy(at, b.data(), b.size());
      at += align_up(b.size(), 8);
    }
}

bool view_part(const IndexPartSizes& sizes, Bytes bytes, RecordIndex& out) noexcept {
  if (sizes.bytes() != bytes.size()) return false;
  IndexColumns columns;
  const auto each = all(columns);
  std::size_t at = 0;
  for (std::size_t i = 0; i < each.size(); ++i) {
    const IndexPartSizes::Column& c = sizes.columns[i];
    const Bytes frames = bytes.subspan(at, c.frame_bytes);
    at += align_up(c.frame_bytes, 8);
    const Bytes distances = bytes.subspan(at, c.distance_bytes);
    at += align_up(c.distance_bytes, 8);
    if (!each[i]->view(c.values, frames, distances)) return false;
  }
  const std::uint64_t blocks = columns.leaf.size();
  if (columns.first.size() != blocks || columns.start.size() != blocks || columns.where.size() != blocks ||
      columns.run_page.size() != columns.run_bytes.size() || (blocks == 0) != (sizes.totals.records == 0))
    return false;
  out = RecordIndex(std::move(columns), sizes.totals);
  return true;
}

RecordIndex view_of(const RecordIndex& index) noexcept {
  IndexColumns columns;
  const auto to = all(columns);
  const auto from = all(index.columns());
  for (std::size_t i = 0; i < to.size(); ++i)
    if (!to[i]->view(from[i]->size(), from[i]->frame_bytes(), from[i]->distance_bytes()))
      assert(false);  // the sizes of a finished column are consistent
  return {std::move(columns), index.totals()};
}

void IndexParts::set(std::vector<RecordIndex> parts, std::shared_ptr<const void> keep) {
  std::vector<std::uint64_t> firsts;
  std::erase_if(parts, [](const RecordIndex& p) { return p.records() == 0; });
  std::uint64_t first = 0;
  for (const RecordIndex& p : parts) {
    firsts.push_back(first);
    first += p.records();
  }
  assert(first == records_ && firsts_.empty());
  parts_ = std::move(parts);
  firsts_ = std::move(firsts);
  keep_ = std::move(keep);
}

Status IndexParts::await(const std::atomic<bool>&, std::string& why) const {
  if (!parts_.empty() || records_ == 0) return {};
  why = "the record index is still being made";
  return Status::from_errno(EAGAIN);
}

void IndexParts::locations(std::uint64_t first, std::span<RecordLocation> out) const noexcept {
  if (out.empty()) return;
  auto part =
      static_cast<std::size_t>(std::upper_bound(firsts_.begin(), firsts_.end(), first) - firsts_.begin() - 1);
  while (!out.empty()) {
    const std::uint64_t in_part = first - firsts_[part];
    const auto n =
        static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), parts_[part].records() - in_part));
    parts_[part].locations(in_part, out.first(n));
    out = out.subspan(n);
    first += n;
    ++part;
  }
}

Status IndexParts::ordinal_of(std::uint64_t leaf, unsigned slot, const format::PageView& page,
                              std::uint64_t& out) const {
  std::call_once(once_, [this] {
    std::vector<LeafLookup> made;
    for (const RecordIndex& p : parts_) {
      Result<LeafLookup> one = LeafLookup::make(p);
      if (!one) throw std::bad_alloc();  // the next call tries again
      made.push_back(std::move(one).value());
    }
    lookups_ = std::move(made);
  });
  for (std::size_t i = 0; i < lookups_.size(); ++i)
    if (const std::optional<std::uint64_t> found = lookups_[i].ordinal_of(leaf, page, slot)) {
      out = firsts_[i] + *found;
      return {};
    }
  return Status::from_mdb(MDB_CORRUPTED);
}

}  // namespace lmdbio::records
