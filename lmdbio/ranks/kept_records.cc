#include "lmdbio/ranks/kept_records.h"

#include <algorithm>
#include <cstring>

namespace lmdbio::ranks {

namespace {

/// Size of a block, in bytes, unless a record is larger or memory ends.  Memory in huge pages costs less.
constexpr std::uint64_t kBlockBytes = std::uint64_t{4} << 20;

}  // namespace

// Makes room for `size` bytes in the last block, or in a new block.  Returns false if there is no room.
bool KeptRecords::make_room(std::uint64_t size) {
  if (!blocks_.empty() && blocks_.back()->size() - used_ >= size) return true;
  // Leave room for the entries of further records of this size.
  const std::uint64_t entries = left_ / (size + kBytesPerEntry) * kBytesPerEntry;
  const std::uint64_t bytes = std::max(size, std::min(kBlockBytes, left_ - entries));
  if (bytes > left_) return false;
  auto block = std::make_shared<Payload>();
  blocks_.reserve(blocks_.size() + 1);
  if (!block->make(memory_, static_cast<std::size_t>(bytes))) return false;
  left_ -= bytes;
  used_ = 0;
  blocks_.push_back(std::move(block));
  return true;
}

void KeptRecords::add(std::span<const Record> records) {
  for (const auto& [position, r] : records) {
    if (full_) return;
    const auto end = static_cast<std::size_t>(position + 1);
    if (end > entries_.size()) {
      const std::uint64_t bytes = (end - entries_.size()) * kBytesPerEntry;
      full_ = bytes > left_;
      if (full_) return;
      entries_.resize(end);
      left_ -= bytes;
    }
    full_ = !make_room(r.key.mv_size + r.value.mv_size);
    if (full_) return;
    entries_[end - 1] = {r.ordinal, used_, static_cast<std::uint32_t>(blocks_.size()),
                         static_cast<std::uint32_t>(r.key.mv_size),
                         static_cast<std::uint32_t>(r.value.mv_size)};
    for (const MDB_val& part : {r.key, r.value}) {
      if (part.mv_size != 0) std::memcpy(blocks_.back()->data() + used_, part.mv_data, part.mv_size);
      used_ += part.mv_size;
    }
  }
}

bool KeptRecords::find(std::uint64_t position, lmdbio_record& out, std::shared_ptr<const void>& keep) const {
  if (!has(position)) return false;
  const Entry& entry = entries_[static_cast<std::size_t>(position)];
  const std::shared_ptr<const Payload>& block = blocks_[entry.block - 1];
  std::byte* const at = block->data() + entry.offset;
  out.ordinal = entry.ordinal;
  out.key = {entry.key, at};
  out.value = {entry.value, at + entry.key};
  keep = block;
  return true;
}

}  // namespace lmdbio::ranks
