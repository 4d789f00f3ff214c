#include "lmdbio/tree/prefetch_table.h"

#include <algorithm>

namespace lmdbio::tree {

namespace {

std::string_view text(const MDB_val& v) noexcept { return {static_cast<const char*>(v.mv_data), v.mv_size}; }

}  // namespace

PrefetchedKey* PrefetchTable::find(const PrefetchedTree& tree, const MDB_val& key) noexcept {
  const auto found = table_.find(KeyRef{tree.dbi, text(key)});
  return found == table_.end() || !trees_[found->second.tree].is(tree) ? nullptr : &found->second;
}

std::size_t PrefetchTable::number_of(const PrefetchedTree& tree) {
  auto at =
      std::find_if(trees_.begin(), trees_.end(), [&tree](const PrefetchedTree& t) { return t.is(tree); });
  if (at == trees_.end()) at = trees_.insert(trees_.end(), tree);
  return static_cast<std::size_t>(at - trees_.begin());
}

PrefetchedKey& PrefetchTable::add(std::size_t tree, const MDB_val& key) {
  while (table_.size() >= kMostKeys || order_.size() >= 2 * kMostKeys) drop_oldest();
  const MDB_dbi dbi = trees_[tree].dbi;
  auto found = table_.find(KeyRef{dbi, text(key)});
  const bool made = found == table_.end();
  if (made) found = table_.emplace(Key{dbi, std::string(text(key))}, PrefetchedKey{}).first;
  try {
    order_.push_back({&*found, added_ + 1});
  } catch (...) {
    if (made) table_.erase(found);
    throw;
  }
  PrefetchedKey& k = found->second;
  k.kind = PrefetchedKey::Kind::gone;
  k.given_out = false;
  k.tree = tree;
  k.number = ++added_;
  return k;
}

void PrefetchTable::drop_oldest() noexcept {
  const Queued q = order_.front();
  order_.pop_front();
  if (q.item->second.number != q.number) return;  // the key was prefetched again since
  table_.erase(table_.find(q.item->first));
}

void PrefetchTable::clear() noexcept {
  table_.clear();
  order_.clear();
  trees_.clear();
  added_ = 0;
}

}  // namespace lmdbio::tree
