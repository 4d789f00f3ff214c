// LMDB on a simulated node: which pages its calls touch.
#pragma once

#include <cstdint>

#include "bench/scaling/lmdb_access.h"
#include "bench/simulation/machine.h"
#include "bench/simulation/page_cache.h"

namespace lmdbio::bench {

/// The file as the calling rank has mapped it; the rank waits for what is not there.  `machine` outlives it.
class SimulatedMapping {
 public:
  explicit SimulatedMapping(Machine& machine) : cache_(machine.page_cache(machine.node())), file_(cache_) {}
  /// Reads from bytes [offset, offset + bytes) of the mapping.
  void touch(std::uint64_t offset, std::uint64_t bytes);
  /// pread of some bytes at `offset`.
  void read(std::uint64_t offset);

 private:
  void wait_for(PageCache::Page page);
  PageCache& cache_;
  MappedFile file_;
  const s4u::SemaphorePtr there_ = s4u::Semaphore::create(0);
};

class SimulatedLmdb final : public LmdbAccess {
 public:
  explicit SimulatedLmdb(Machine& machine);
  std::uint64_t records() const override { return records_.count(); }
  /// Of a value in a leaf page: the place is that page's beginning.
  Place first_or_next(bool first) override;
  Place get(std::uint64_t ordinal) override;
  void copy(Place value, std::byte*) override { mapping_.touch(value.offset, value.bytes); }

 private:
  void touch(SyntheticTree::Page page) { mapping_.touch(page * tree_.page_bytes(), 1); }
  void descend(std::uint64_t leaf);
  Place place(std::uint64_t ordinal, std::uint64_t leaf) const;

  const SyntheticTree& tree_;
  const Records& records_;
  SimulatedMapping mapping_;
  std::uint64_t ordinal_ = 0, leaf_ = 0;  ///< of the cursor
};

}  // namespace lmdbio::bench
