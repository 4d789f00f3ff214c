#include "lmdbio/records/record_locations.h"

#include <lmdb.h>

#include <new>

namespace lmdbio::records {

Status IndexLocations::ordinal_of(std::uint64_t leaf, unsigned slot, const format::PageView& page,
                                  std::uint64_t& out) const {
  std::call_once(once_, [this] {
    Result<LeafLookup> made = LeafLookup::make(index_);
    if (!made) throw std::bad_alloc();  // the next call tries again
    lookup_.emplace(std::move(made).value());
    lookup_taken_.count(memory_, MemoryUse::index, lookup_->memory_bytes());
  });
  const std::optional<std::uint64_t> found = lookup_->ordinal_of(leaf, page, slot);
  if (!found) return Status::from_mdb(MDB_CORRUPTED);
  out = *found;
  return {};
}

}  // namespace lmdbio::records
