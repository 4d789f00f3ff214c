// Records of a share that is the same in each epoch, which a rank has read itself and keeps.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lmdbio/ranks/payload.h"

namespace lmdbio::ranks {

/// One thread; what find() gave out lives on by itself.
class KeptRecords {
 public:
  /// Of one record, beside its bytes.
  static constexpr std::uint64_t kBytesOfPlace = 32;
  /// At most `limit` bytes; blocks of records are taken from `memory`.
  KeptRecords(std::uint64_t limit, std::shared_ptr<PayloadMemory> memory) noexcept
      : left_(limit), memory_(std::move(memory)) {}

  struct Record {
    std::uint64_t position;  ///< in the share
    lmdbio_record record;
  };
  /// Keeps copies, as long as there is room; once there was none for one, of none any more.  May throw
  /// bad_alloc.
  void add(std::span<const Record> records);
  /// `keep` is to live as long as the record's bytes.
  bool find(std::uint64_t position, lmdbio_record& out, std::shared_ptr<const void>& keep) const;
  bool has(std::uint64_t position) const noexcept {
    return position < places_.size() && places_[static_cast<std::size_t>(position)].block != 0;
  }
  bool full() const noexcept { return full_; }

 private:
  struct Place {
    std::uint64_t ordinal = 0, offset = 0;
    std::uint32_t block = 0;  ///< 1 + which of blocks_; 0: it is not kept
    std::uint32_t key = 0, value = 0;
  };
  bool make_room(std::uint64_t size);
  static_assert(sizeof(Place) <= kBytesOfPlace);

  std::uint64_t left_;
  const std::shared_ptr<PayloadMemory> memory_;
  bool full_ = false;
  std::vector<Place> places_;
  std::vector<std::shared_ptr<const Payload>> blocks_;
  std::uint64_t used_ = 0;  ///< of the last block
};

}  // namespace lmdbio::ranks
