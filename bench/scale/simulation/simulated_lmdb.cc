#include "bench/scale/simulation/simulated_lmdb.h"

#include "lmdbio/format/layout.h"
#include "lmdbio/format/layout_09.h"

namespace lmdbio::bench {

void SimulatedMapping::touch(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0) return;
  const PageCache::Page last = (offset + bytes - 1) / PageCache::kPageBytes;
  for (PageCache::Page p = offset / PageCache::kPageBytes; p <= last; ++p)
    if (!file_.use_mapped(p)) fault(p);
}

void SimulatedMapping::copy(std::uint64_t offset, std::uint64_t bytes) {
  touch(offset, bytes);
  cpu_.spend(static_cast<double>(bytes) / cpu_.costs().copy_bytes_s);
}

// Spend the accumulated CPU time first, because the page may arrive meanwhile.
void SimulatedMapping::fault(PageCache::Page page) {
  const CpuCosts& costs = cpu_.costs();
  cpu_.spend(costs.fault_s);
  if (!cache_.is_there(page)) cpu_.settle();
  for (;;) {
    const std::uint64_t before = cache_.requests();
    const bool is_there = file_.touch(page);
    cpu_.spend(costs.major_fault_s * static_cast<double>(cache_.requests() - before));
    if (is_there) return;
    wait_for(page);
  }
}

void SimulatedMapping::read(std::uint64_t offset) {
  const PageCache::Page page = offset / PageCache::kPageBytes;
  while (!file_.read(page)) wait_for(page);
}

void SimulatedMapping::wait_for(PageCache::Page page) {
  cpu_.settle();
  if (!cache_.is_being_read(page)) return;  // it has arrived while the CPU worked
  cache_.when_woken(page, [this] {
    cpu_.wake(cores_.wake(s4u::Engine::get_clock()));
    there_->release();
  });
  there_->acquire();
  cpu_.spend(cpu_.costs().woken_s);
}

// mdb_env_read_header reads both meta pages, and mdb_env_pick_meta reads them in the mapping.
SimulatedLmdb::SimulatedLmdb(Machine& machine, CpuTime& cpu)
    : tree_(machine.tree()), records_(machine.records()), cpu_(cpu), mapping_(machine, cpu) {
  for (const std::uint64_t meta : {0u, 1u}) mapping_.read(meta * tree_.page_bytes());
  for (const std::uint64_t meta : {0u, 1u}) touch(meta);
}

Place SimulatedLmdb::step_to(std::uint64_t ordinal) {
  if (ordinal < next_) next_ = 0;
  if (next_ == 0) {
    leaf_ = 0;
    descend(leaf_);
  }
  // Steps from leaf page to leaf page: the values of the records between are not touched.
  while (leaf_ + 1 < tree_.leaf_pages() && ordinal >= tree_.first_record(leaf_ + 1)) {
    step(tree_.first_record(leaf_ + 1));
    descend(++leaf_);  // mdb_cursor_sibling: the branch pages have been touched, or are new
  }
  step(ordinal + 1);
  return place(ordinal, leaf_);
}

void SimulatedLmdb::step(std::uint64_t next) {
  cpu_.spend(static_cast<double>(next - next_) * cpu_.costs().next_s);
  next_ = next;
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
