#include "lmdbio/files/pack_plan.h"
namespace lmdbio::files {

namespace {

constexpr std::uint64_t kSlot = 2;
/// Meta pages, and pages that commits free and use again: the path to the last leaf page, and the free list.
constexpr std::uint64_t kOtherPages = 64;

constexpr std::uint64_t even(std::uint64_t n) noexcept { return n + n % 2; }

}  // namespace

void AppendedSize::add(const RecordSize& r) noexcept {
  using format::kNodeHeader;
  const std::uint64_t header = format::page_header(version_), room = page_ - header;
  const std::uint64_t key = format::data_after_key(version_, r.key);
  // Two records have to fit into a page; larger values are in pages of their own.
  const std::uint64_t most_node = (room / 2 & ~std::uint64_t{1}) - kSlot;
  std::uint64_t node = kNodeHeader + key + r.value;
  if (node > most_node) {
    overflow_pages_ += (header + r.value + page_ - 1) / page_;
    node = kNodeHeader + key + format::run_record(version_);
  }
  node = even(node) + kSlot;
  if (leaves_ == 0 || leaf_used_ + node > room) {
    ++leaves_;
    leaf_used_ = 0;
    branch_bytes_ += even(kNodeHeader + r.key) + kSlot;
  }
  leaf_used_ += node;
}

std::uint64_t AppendedSize::bytes() const noexcept {
  // A level of branch pages is at most a half of the one below.  Not all of a page can be used.
  const std::uint64_t branches = leaves_ < 2 ? 0 : 2 * (branch_bytes_ / (page_ / 2) + 1);
  return (leaves_ + branches + overflow_pages_ + kOtherPages) * page_;
}

std::vector<Shard> plan_shards(std::span<const PackItem> items, const format::PageFormat& pages,
                               std::uint64_t most_bytes) {
  std::vector<Shard> out{{0, 0, 0}};
  AppendedSize size(pages);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const RecordSize record{items[i].key.size(), items[i].size};
    AppendedSize with = size;
    with.add(record);
    if (most_bytes != 0 && with.bytes() > most_bytes && i > out.back().first) {
      out.push_back({i, i, 0});
      with = AppendedSize(pages);
      with.add(record);
    }
    size = with;
    out.back().end = i + 1;
    out.back().bytes = size.bytes();
  }
  if (items.empty()) out.back().bytes = size.bytes();
  return out;
}

}  // namespace lmdbio::files
