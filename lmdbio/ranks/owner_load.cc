#include "lmdbio/ranks/owner_load.h"

#include <cerrno>
#include <numeric>
#include <string>
#include <utility>

namespace lmdbio::ranks {

namespace {

/// Maximum number of records to load for each record that was used.
constexpr std::uint64_t kLoadedForUsed = 8;
/// Number of blocks to read at a time.
constexpr std::size_t kReads = 4;

}  // namespace

OwnerLoad::OwnerLoad(const Assignment& assignment, std::uint32_t reader, PartSource& source) noexcept
    : assignment_(assignment), reader_(reader), source_(source), blocks_(assignment.owner_blocks(reader)) {}

void OwnerLoad::progress(std::uint64_t used) {
  std::erase_if(reads_, [](const std::unique_ptr<PartRead>& read) { return read->done(); });
  reads_.reserve(kReads);
  while (next_ < blocks_ && reads_.size() < kReads && records_ < used * kLoadedForUsed) {
    const Range block = assignment_.owner_block(reader_, next_);
    std::vector<std::uint64_t> ordinals(static_cast<std::size_t>(block.size()));
    std::iota(ordinals.begin(), ordinals.end(), block.begin);
    std::string why;
    std::unique_ptr<PartRead> read;
    const Status st = source_.start(ordinals, {}, read, why);
    if (st.raw() == ENOMEM) return;  // the next call tries again
    ++next_;
    records_ += block.size();
    if (st.ok()) reads_.push_back(std::move(read));  // otherwise the rounds report the error
  }
}

}  // namespace lmdbio::ranks
