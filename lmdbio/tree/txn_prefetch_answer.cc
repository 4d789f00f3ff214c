// Answers lookups of a transaction that has prefetched keys, and waits for reads in flight.
#include <algorithm>
#include <cerrno>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/uncancelled.h"
#include "lmdbio/tree/txn_prefetch.h"

namespace lmdbio::tree {

using window::ValueArena;
using Kind = PrefetchedKey::Kind;

bool TxnPrefetch::answer(const PrefetchedTree& tree, const MDB_val& key, const window::WindowView& view,
                         MDB_val& data, Status& st) noexcept {
  if (forks_ != file_->prefetcher().forks()) [[unlikely]] {
    if (lost()) return false;
    after_fork();
  }
  PrefetchedKey* const found = table_.find(tree, key);
  if (found == nullptr) return false;
  PrefetchedKey& e = *found;
  const std::byte* run = nullptr;
  switch (e.kind) {
    case Kind::gone:
      return false;
    case Kind::absent:
      st = Status::from_mdb(MDB_NOTFOUND);
      break;
    case Kind::arena:
      if (!e.given_out && !give_out(e, view)) {
        e.kind = Kind::gone;
        ++counters_.dropped;
        return false;
      }
      run = e.slab->memory.data() + e.at + format::page_header(view.version());
      break;
    case Kind::cached:
      if (!e.group->done() && !wait_for_page_cache(e)) {
        e.kind = Kind::gone;
        ++counters_.dropped;
        return false;
      }
      if (!view.find(format::Pgno{e.page}, e.bytes, run)) return false;
      break;
  }
  if (run != nullptr) {
    data = {e.bytes, const_cast<std::byte*>(run)};
    st = {};
  }
  passed_ = std::max(passed_, e.number);
  ++counters_.hits;
  if (!queues_.is_waiting()) return true;
  const int saved = errno;
  const Uncancelled wait;
  const AsyncSignalsBlocked fork_safe;
  const Busy busy(busy_);
  queues_.pump();
  errno = saved;
  return true;
}

// Checks a value in the arena at its first lookup.  Its read must have completed, and the page must be the
// one that the tree names.
bool TxnPrefetch::give_out(PrefetchedKey& e, const window::WindowView& view) noexcept {
  if (e.use != e.slab->use) return false;  // its memory was reused
  const int saved = errno;
  const AsyncSignalsBlocked fork_safe(e.at >= e.slab->safe);
  const Busy busy(busy_);
  const bool there = e.at < e.slab->safe || wait_for_slab(e);
  errno = saved;
  if (!there || !e.read->group.status.ok()) return false;
  const std::byte* const page = e.slab->memory.data() + e.at;
  if (load<std::uint64_t>(page) != e.page ||
      (load<std::uint16_t>(page + format::at_flags(view.version())) & format::kOverflow) == 0 ||
      load<std::uint32_t>(page + format::at_pages(view.version())) < view.overflow_pages(e.bytes))
    return false;
  e.slab->given_out = e.given_out = true;
  return true;
}

bool TxnPrefetch::wait_for_slab(PrefetchedKey& e) noexcept {
  const Uncancelled wait;
  direct_->pump();
  ValueArena::Slab& slab = *e.slab;
  if (!e.read->group.done()) ++counters_.waits;
  (void)direct_->wait(e.read->group);
  // Wait for all reads begun in the slab, because a forked child inherits a slab as a whole.
  for (std::size_t i = slab.safe_reads; i < slab.reads.size(); ++i) (void)direct_->wait(slab.reads[i]->group);
  if (forked_here()) return false;
  count_reads();
  return arena_.make_safe(slab);
}

bool TxnPrefetch::wait_for_page_cache(PrefetchedKey& e) noexcept {
  const int saved = errno;
  const Uncancelled wait;
  const AsyncSignalsBlocked fork_safe;
  const Busy busy(busy_);
  ++counters_.waits;
  const bool read = cached_->wait(*e.group).ok(), good = !forked_here() && read;
  count_reads();
  errno = saved;
  return good;
}

}  // namespace lmdbio::tree
