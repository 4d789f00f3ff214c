// Keeps records that a rank has read itself, if its share is the same in each epoch.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lmdbio/ranks/payload.h"

namespace lmdbio::ranks {

/// Copies of records, by their position in the share.  One thread.  Records that find() returned may outlive
/// this object.
class KeptRecords {
 public:
  /// Bytes that a kept record takes besides its key and value.
  static constexpr std::uint64_t kBytesPerEntry = 32;
  /// Keeps at most `limit` bytes.  Allocates blocks for records from `memory`.
  KeptRecords(std::uint64_t limit, std::shared_ptr<PayloadMemory> memory) noexcept
      : left_(limit), memory_(std::move(memory)) {}

  struct Record {
    std::uint64_t position;  ///< position in the share
    lmdbio_record record;
  };
  /// Copies records while memory is available.  After a record that does not fit, copies no more records.
  /// May throw bad_alloc.
  void add(std::span<const Record> records);
  /// Returns whether the record is kept.  If so, sets `out` to the record, and `keep` to the owner of its
  /// bytes.
  bool find(std::uint64_t position, lmdbio_record& out, std::shared_ptr<const void>& keep) const;
  bool has(std::uint64_t position) const noexcept {
    return position < entries_.size() && entries_[static_cast<std::size_t>(position)].block != 0;
  }
  bool full() const noexcept { return full_; }

 private:
  struct Entry {
    std::uint64_t ordinal = 0, offset = 0;
    std::uint32_t block = 0;  ///< 1 + index in blocks_; 0: not kept
    std::uint32_t key = 0, value = 0;
  };
  bool make_room(std::uint64_t size);
  static_assert(sizeof(Entry) <= kBytesPerEntry);

  std::uint64_t left_;
  const std::shared_ptr<PayloadMemory> memory_;
  bool full_ = false;
  std::vector<Entry> entries_;
  std::vector<std::shared_ptr<const Payload>> blocks_;
  std::uint64_t used_ = 0;  ///< bytes of the last block that are in use
};

}  // namespace lmdbio::ranks
