// LMDB on a simulated node: models which pages its calls touch.
#pragma once

#include <cstdint>

#include "bench/scale/lmdb_access.h"
#include "bench/scale/simulation/cpu_time.h"
#include "bench/scale/simulation/machine.h"
#include "bench/scale/simulation/page_cache.h"

namespace lmdbio::bench {

/// The file as the calling rank has mapped it.  The rank waits for pages that are not resident.  `machine`
/// and `cpu` must outlive this object.
class SimulatedMapping {
 public:
  SimulatedMapping(Machine& machine, CpuTime& cpu)
      : cpu_(cpu),
        cores_(machine.cores(machine.node())),
        cache_(machine.page_cache(machine.node())),
        file_(cache_) {}
  /// Touches all pages that contain bytes [offset, offset + bytes) of the mapping.
  void touch(std::uint64_t offset, std::uint64_t bytes);
  /// Copies these bytes.
  void copy(std::uint64_t offset, std::uint64_t bytes);
  /// Reads the page at `offset` with pread(2).
  void read(std::uint64_t offset);

 private:
  void fault(PageCache::Page page);
  void wait_for(PageCache::Page page);
  CpuTime& cpu_;
  RunQueue& cores_;
  PageCache& cache_;
  MappedFile file_;
  const s4u::SemaphorePtr there_ = s4u::Semaphore::create(0);
};

class SimulatedLmdb final : public LmdbAccess {
 public:
  SimulatedLmdb(Machine& machine, CpuTime& cpu);
  std::uint64_t records() const override { return records_.count(); }
  /// If the value is in a leaf page, its place begins where the page begins.
  Place step_to(std::uint64_t ordinal) override;
  Place get(std::uint64_t ordinal) override;
  void copy(Place value, std::byte*) override { mapping_.copy(value.offset, value.bytes); }

 private:
  void touch(SyntheticTree::Page page) { mapping_.touch(page * tree_.page_bytes(), 1); }
  /// Steps over the records before `next`, which lie in one leaf page.
  void step(std::uint64_t next);
  void descend(std::uint64_t leaf);
  Place place(std::uint64_t ordinal, std::uint64_t leaf) const;

  const SyntheticTree& tree_;
  const Records& records_;
  CpuTime& cpu_;
  SimulatedMapping mapping_;
  std::uint64_t next_ = 0;  ///< the record after the cursor's
  std::uint64_t leaf_ = 0;  ///< the cursor's leaf page
};

}  // namespace lmdbio::bench
