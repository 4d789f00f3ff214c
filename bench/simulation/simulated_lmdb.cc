#include "bench/simulation/simulated_lmdb.h"

#include "lmdbio/format/layout.h"

namespace lmdbio::bench {

void SimulatedMapping::touch(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0) return;
  const PageCache::Page last = (offset + bytes - 1) / PageCache::kPageBytes;
  for (PageCache::Page p = offset / PageCache::kPageBytes; p <= last; ++p)
    while (!file_.touch(p)) wait_for(p);
}

void SimulatedMapping::read(std::uint64_t offset) {
  const PageCache::Page page = offset / PageCache::kPageBytes;
  while (!file_.read(page)) wait_for(page);
}

void SimulatedMapping::wait_for(PageCache::Page page) {
  cache_.when_there(page, [this] { there_->release(); });
  there_->acquire();
}

// mdb_env_read_header reads both meta pages, mdb_env_pick_meta looks at them in the mapping.
SimulatedLmdb::SimulatedLmdb(Machine& machine)
    : tree_(machine.tree()), records_(machine.records()), mapping_(machine) {
  for (const std::uint64_t meta : {0u, 1u}) mapping_.read(meta * tree_.page_bytes());
  for (const std::uint64_t meta : {0u, 1u}) touch(meta);
}

Place SimulatedLmdb::first_or_next(bool first) {
  if (first) {
    ordinal_ = leaf_ = 0;
    descend(leaf_);
  } else if (++ordinal_; leaf_ + 1 < tree_.leaf_pages() && ordinal_ == tree_.first_record(leaf_ + 1)) {
    descend(++leaf_);  // mdb_cursor_sibling: what it touches beside the leaf has been touched, or is new
  }
  return place(ordinal_, leaf_);
}

Place SimulatedLmdb::get(std::uint64_t ordinal) {
  const std::uint64_t leaf = tree_.leaf_of(ordinal);
  descend(leaf);
  return place(ordinal, leaf);
}

void SimulatedLmdb::descend(std::uint64_t leaf) {
  for (const SyntheticTree::Page page : tree_.branch_pages_above(leaf)) touch(page);
  touch(tree_.leaf_page(leaf));
}

Place SimulatedLmdb::place(std::uint64_t ordinal, std::uint64_t leaf) const {
  const std::uint64_t bytes = records_.value_bytes(ordinal);
  if (tree_.value_pages(ordinal) == 0) return {tree_.leaf_page(leaf) * tree_.page_bytes(), bytes};
  return {tree_.value_page(ordinal) * tree_.page_bytes() + format::kPageHeader, bytes};
}

}  // namespace lmdbio::bench
