#include "bench/scale/simulation/synthetic_tree.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>

#include "lmdbio/format/layout.h"
#include "lmdbio/format/layout_09.h"

namespace lmdbio::bench {

namespace {

using namespace format;

constexpr std::size_t kPointer = 2, kPageNumber = 8;
constexpr unsigned kIntegerKey = 0x08;  // of the database of free pages
/// Upper limit on the records between two entries of runs_, if values have different sizes.
constexpr std::uint64_t kStride = 64;

constexpr std::size_t even(std::size_t n) noexcept { return n + (n & 1); }

template <class T>
void store(std::span<std::byte> to, std::size_t at, T v) {
  std::memcpy(to.data() + at, &v, sizeof v);
}

}  // namespace

// LMDB's me_nodemax: two nodes must fit into each page.
std::size_t SyntheticTree::largest_node() const noexcept {
  return ((page_bytes() - kPageHeader) / 2 & ~std::size_t{1}) - kPointer;
}

std::size_t SyntheticTree::key_bytes(std::uint64_t ordinal) const {
  char key[Records::kKeyRoom];
  return records_.key(ordinal, key);
}

std::uint64_t SyntheticTree::value_pages(std::uint64_t ordinal) const {
  if (uniform_) return uniform_->value_pages;
  return lie(ordinal).value_pages;
}

std::size_t SyntheticTree::leaf_node_bytes(std::uint64_t ordinal) const {
  if (uniform_) return uniform_->node_bytes;
  return lie(ordinal).node_bytes;
}

SyntheticTree::Lie SyntheticTree::lie(std::uint64_t ordinal) const {
  const std::uint64_t bytes = records_.value_bytes(ordinal);
  const std::size_t key = key_bytes(ordinal);
  const bool in_leaf = kNodeHeader + key + bytes <= largest_node();
  Lie l;
  l.node_bytes =
      even(kNodeHeader + key + (in_leaf ? static_cast<std::size_t>(bytes) : kPageNumber)) + kPointer;
  l.value_pages =
      in_leaf ? 0
              : overflow_pages(Version::v09, bytes, static_cast<unsigned>(std::countr_zero(page_bytes())));
  return l;
}

SyntheticTree::SyntheticTree(const Records& records, Writing writing)
    : records_(records), writing_(writing), allocator_(writing.page_bytes) {
  const std::uint64_t count = records.count();
  if (count == 0) throw std::invalid_argument("a tree without records");
  if (records.uniform()) uniform_ = lie(0);
  const std::uint64_t interval = writing.commit_interval != 0 ? writing.commit_interval : count;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i % interval == 0) allocator_.begin();
    put(i);
    if ((i + 1) % interval == 0 || i + 1 == count) commit();
  }
  sort_pages();
}

// mdb_cursor_put
void SyntheticTree::put(std::uint64_t ordinal) {
  if (levels_.empty()) {
    levels_.emplace_back();
    open_.emplace_back();
    new_page(0, 0);
  } else {
    touch();
  }
  const std::size_t bytes = leaf_node_bytes(ordinal);
  if (open_[0].used + bytes > page_bytes() - kPageHeader)
    split(0, bytes);
  else
    add_node(0, bytes);
  add_value(ordinal);
  put_ = ordinal + 1;
}

// mdb_node_add, after its leaf page has been found.
void SyntheticTree::add_value(std::uint64_t ordinal) {
  const std::uint64_t pages = value_pages(ordinal);
  if (pages == 0) return;
  const Page page = allocator_.allocate(pages);
  value_pages_ += pages;
  if (page != next_value_ || (!uniform_ && ordinal - runs_.back().first >= kStride))
    runs_.push_back({ordinal, page});
  next_value_ = page + pages;
}

// mdb_cursor_touch: copies pages of earlier transactions, from the root on.
void SyntheticTree::touch() {
  for (std::size_t level = levels_.size(); level-- > 0;) {
    if (open_[level].is_new) continue;
    Node& node = levels_[level].back();
    const Page copy = allocator_.allocate(1);
    allocator_.free(node.page);
    node.page = copy;
    open_[level].is_new = true;
  }
}

void SyntheticTree::add_node(std::size_t level, std::size_t bytes) {
  Open& open = open_[level];
  open.used += bytes;
  open.last_bytes = bytes;
  ++open.count;
}

void SyntheticTree::new_page(std::size_t level, std::uint64_t first) {
  levels_[level].push_back({allocator_.allocate(1), first});
  open_[level] = {};
  open_[level].is_new = true;
}

// mdb_page_split at the end of a level's last page.  In branch pages, and without MDB_APPEND in leaf pages,
// the last node also moves to the new page.
void SyntheticTree::split(std::size_t level, std::size_t bytes) {
  const bool append = level == 0 && writing_.append;
  const Open left = open_[level];
  // The new page gets the new child or record.  Unless `append`, the last one of the old page precedes it.
  const std::uint64_t added = level == 0 ? put_ : levels_[level - 1].size() - 1;
  new_page(level, append ? added : added - 1);
  if (level + 1 == levels_.size()) {
    levels_.emplace_back();
    open_.emplace_back();
    new_page(level + 1, 0);
    add_node(level + 1, kNodeHeader + kPointer);  // the first node of a branch page has no key
  }
  add_child(level + 1);
  if (!append) add_node(level, level == 0 ? left.last_bytes : kNodeHeader + kPointer);
  add_node(level, bytes);
}

/// The last page of the level below becomes a child of this level's last page.
void SyntheticTree::add_child(std::size_t level) {
  const std::uint64_t child = levels_[level - 1].size() - 1;
  const std::size_t key = key_bytes(first_record_below(level - 1, child));
  const std::size_t bytes = even(kNodeHeader + key) + kPointer;
  if (open_[level].used + kNodeHeader + key + kPointer > page_bytes() - kPageHeader)
    split(level, bytes);
  else
    add_node(level, bytes);
}

std::uint64_t SyntheticTree::first_record_below(std::size_t level, std::uint64_t index) const {
  for (; level > 0; --level) index = levels_[level][index].first;
  return levels_[0][index].first;
}

void SyntheticTree::commit() {
  allocator_.commit();
  for (Open& open : open_) open.is_new = false;
  const std::uint64_t transaction = allocator_.transaction();
  Meta& meta = metas_[transaction % 2];
  meta.transaction = transaction;
  meta.last_page = allocator_.pages() - 1;
  meta.main = {branch_pages(), leaf_pages(), value_pages_, put_, depth(), root()};
  meta.free = {0, 0, 0, allocator_.entries(), 0, allocator_.root()};
  if (meta.free.root != PageAllocator::kNone) meta.free.leaf_pages = meta.free.depth = 1;
}

void SyntheticTree::sort_pages() {
  for (std::size_t level = 0; level < levels_.size(); ++level)
    for (std::uint64_t i = 0; i < levels_[level].size(); ++i)
      by_page_.push_back({levels_[level][i].page, static_cast<std::uint32_t>(level), i});
  std::sort(by_page_.begin(), by_page_.end(), [](const Known& a, const Known& b) { return a.page < b.page; });
  runs_by_page_.resize(runs_.size());
  std::iota(runs_by_page_.begin(), runs_by_page_.end(), 0U);
  std::sort(runs_by_page_.begin(), runs_by_page_.end(),
            [this](std::uint32_t a, std::uint32_t b) { return runs_[a].page < runs_[b].page; });
}

std::uint64_t SyntheticTree::branch_pages() const noexcept {
  std::uint64_t all = 0;
  for (std::size_t level = 1; level < levels_.size(); ++level) all += levels_[level].size();
  return all;
}

// Returns the index of the node of a level that has a given record or child.
std::uint64_t SyntheticTree::index_of(const std::vector<Node>& level, std::uint64_t below) {
  const auto after = std::upper_bound(level.begin(), level.end(), below,
                                      [](std::uint64_t b, const Node& n) { return b < n.first; });
  return static_cast<std::uint64_t>(after - level.begin()) - 1;
}

std::uint64_t SyntheticTree::leaf_of(std::uint64_t ordinal) const {
  return index_of(levels_.front(), ordinal);
}

std::vector<SyntheticTree::Page> SyntheticTree::branch_pages_above(std::uint64_t leaf_index) const {
  std::vector<Page> pages(levels_.size() - 1);
  for (std::size_t level = 1; level < levels_.size(); ++level) {
    leaf_index = index_of(levels_[level], leaf_index);
    pages[levels_.size() - 1 - level] = levels_[level][leaf_index].page;
  }
  return pages;
}

SyntheticTree::Page SyntheticTree::value_page(std::uint64_t ordinal) const {
  const Run& run = *(std::upper_bound(runs_.begin(), runs_.end(), ordinal,
                                      [](std::uint64_t o, const Run& r) { return o < r.first; }) -
                     1);
  if (uniform_) return run.page + (ordinal - run.first) * uniform_->value_pages;
  Page page = run.page;
  for (std::uint64_t i = run.first; i < ordinal; ++i) page += value_pages(i);
  return page;
}

bool SyntheticTree::find_value(Page page, std::uint64_t& ordinal, Page& first) const {
  const auto after = std::upper_bound(runs_by_page_.begin(), runs_by_page_.end(), page,
                                      [this](Page p, std::uint32_t r) { return p < runs_[r].page; });
  if (after == runs_by_page_.begin()) return false;
  const std::size_t run = *(after - 1);
  const std::uint64_t end = run + 1 < runs_.size() ? runs_[run + 1].first : records_.count();
  first = runs_[run].page;
  ordinal = runs_[run].first;
  if (uniform_) {
    const std::uint64_t before = (page - first) / uniform_->value_pages;
    ordinal += before;
    first += before * uniform_->value_pages;
    return ordinal < end;
  }
  for (; ordinal < end; ++ordinal) {
    const std::uint64_t pages = value_pages(ordinal);
    if (page < first + pages) return true;
    first += pages;
  }
  return false;
}

SyntheticTree::Kind SyntheticTree::kind(Page page) const {
  if (page < kMetaPages) return Kind::meta;
  const auto known = std::lower_bound(by_page_.begin(), by_page_.end(), page,
                                      [](const Known& k, Page p) { return k.page < p; });
  if (known != by_page_.end() && known->page == page) return known->level == 0 ? Kind::leaf : Kind::branch;
  std::uint64_t ordinal = 0;
  Page first = 0;
  return find_value(page, ordinal, first) ? Kind::value : Kind::free;
}

void SyntheticTree::make(Page page, std::span<std::byte> to) const {
  std::memset(to.data(), 0, page_bytes());
  if (page < kMetaPages) return make_meta(page, to);
  const auto known = std::lower_bound(by_page_.begin(), by_page_.end(), page,
                                      [](const Known& k, Page p) { return k.page < p; });
  if (known != by_page_.end() && known->page == page) return make_tree_page(known->level, known->index, to);
  make_value_page(page, to);
}

void SyntheticTree::make_tree_pages(std::uint64_t offset, std::span<std::byte> to) const {
  const Page first = offset / page_bytes(), end = first + to.size() / page_bytes();
  const auto room = [&](Page page) {
    return to.subspan(static_cast<std::size_t>(page - first) * page_bytes(), page_bytes());
  };
  for (Page page = first; page < std::min<Page>(end, kMetaPages); ++page) make(page, room(page));
  for (auto known = std::lower_bound(by_page_.begin(), by_page_.end(), first,
                                     [](const Known&k, Page p) { return k.page < p; });
       known != by_page_.end() && known->page < end; ++known)
    make(known->page, room(known->page));
}

void SyntheticTree::make_meta(Page page, std::span<std::byte> to) const {
  const Meta& meta = metas_[page];
  store<std::uint64_t>(to, 0, page);
  store<std::uint16_t>(to, kAtFlags, kMeta);
  std::size_t at = kPageHeader;
  const auto add = [&](auto v) {
    store(to, at, v);
    at += sizeof v;
  };
  const auto add_database = [&](const Database& d, std::uint32_t pad, std::uint16_t flags) {
    add(DbRecord{pad, flags, static_cast<std::uint16_t>(d.depth), d.branch_pages, d.leaf_pages, d.value_pages,
                 d.entries, Pgno{d.root}});
  };
  add(kMagic);
  add(kVersion);
  add(std::uint64_t{0});  // of the mapping
  add(writing_.map_bytes);
  add_database(meta.free, static_cast<std::uint32_t>(page_bytes()),
               static_cast<std::uint16_t>(writing_.environment_flags | kIntegerKey));
  add_database(meta.main, 0, 0);
  add(meta.last_page);
  add(meta.transaction);
}

void SyntheticTree::make_tree_page(std::size_t level, std::uint64_t index, std::span<std::byte> to) const {
  const auto& nodes = levels_[level];
  const std::uint64_t all = level == 0 ? records_.count() : levels_[level - 1].size();
  const std::uint64_t end = index + 1 < nodes.size() ? nodes[index + 1].first : all;
  std::size_t lower = kPageHeader, upper = page_bytes();
  char key[Records::kKeyRoom];
  for (std::uint64_t i = nodes[index].first; i < end; ++i) {
    std::size_t bytes = kNodeHeader + kPointer, length = 0;
    if (level == 0) {
      length = records_.key(i, key);
      bytes = leaf_node_bytes(i);
    } else if (i != nodes[index].first) {
      length = records_.key(first_record_below(level - 1, i), key);
      bytes = even(kNodeHeader + length) + kPointer;
    }
    upper -= bytes - kPointer;
    store<std::uint16_t>(to, lower, static_cast<std::uint16_t>(upper));
    lower += kPointer;
    // The low 48 bits: a page number, or the size of a value.
    const std::uint64_t pages = level == 0 ? value_pages(i) : 0;
    const std::uint64_t number = level == 0 ? records_.value_bytes(i) : levels_[level - 1][i].page;
    store<std::uint32_t>(to, upper, static_cast<std::uint32_t>(number));
    store<std::uint16_t>(to, upper + 4,
                         level == 0 ? static_cast<std::uint16_t>(pages != 0 ? kBigData : 0)
                                    : static_cast<std::uint16_t>(number >> 32));
    if (level == 0) store<std::uint16_t>(to, upper + 2, static_cast<std::uint16_t>(number >> 16));
    store<std::uint16_t>(to, upper + 6, static_cast<std::uint16_t>(length));
    std::memcpy(to.data() + upper + kNodeHeader, key, length);
    if (level != 0) continue;
    if (pages != 0)
      store<std::uint64_t>(to, upper + kNodeHeader + length, value_page(i));
    else
      records_.value(i, to.data() + upper + kNodeHeader + length);
  }
  store<std::uint64_t>(to, 0, nodes[index].page);
  store<std::uint16_t>(to, kAtFlags, level == 0 ? kLeaf : kBranch);
  store<std::uint16_t>(to, kAtLower, static_cast<std::uint16_t>(lower));
  store<std::uint16_t>(to, kAtUpper, static_cast<std::uint16_t>(upper));
}

void SyntheticTree::make_value_page(Page page, std::span<std::byte> to) const {
  std::uint64_t ordinal = 0;
  Page first = 0;
  if (!find_value(page, ordinal, first) || first != page) return;
  store<std::uint64_t>(to, 0, page);
  store<std::uint16_t>(to, kAtFlags, kOverflow);
  store<std::uint32_t>(to, kAtPages, static_cast<std::uint32_t>(value_pages(ordinal)));
}

}  // namespace lmdbio::bench
