// The interface through which readers find records, and its implementation with a record index.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "lmdbio/records/leaf_lookup.h"
#include "lmdbio/records/memory.h"
#include "lmdbio/records/record_index.h"

namespace lmdbio::records {

/// Maps ordinals to the locations of records.  Any thread.
class RecordLocations {
 public:
  virtual ~RecordLocations() = default;
  virtual std::uint64_t records() const noexcept = 0;
  /// Waits until the locations are known; call nothing below before.  Once they are known, a call costs
  /// almost nothing.  Returns ECANCELED if `cancelled` is set during the wait.  Any other error is
  /// permanent unless it is ENOMEM or EAGAIN; `why` then explains it in one line that names the file.  May
  /// throw bad_alloc.
  virtual Status await(const std::atomic<bool>&, std::string&) const { return {}; }
  /// Sets `out` to the locations of out.size() records from `first` on.  All of them are below records().
  /// A location may be wrong if the index is damaged: each use checks it.
  virtual void locations(std::uint64_t first, std::span<RecordLocation> out) const noexcept = 0;
  /// Returns the range of ordinals that are unknown because of damage. locations() and ordinal_of() number
  /// the records in it arbitrarily.
  virtual UnknownOrdinals unknown() const noexcept { return {}; }
  /// Sets `out` to the ordinal of the first record of entry `slot` of leaf page number `leaf`, whose bytes
  /// `page` shows.  Returns MDB_CORRUPTED if there is no such entry.  May throw bad_alloc.
  virtual Status ordinal_of(std::uint64_t leaf, unsigned slot, const format::PageView& page,
                            std::uint64_t& out) const = 0;
};

/// Locations from a complete record index.
class IndexLocations final : public RecordLocations {
 public:
  explicit IndexLocations(RecordIndex index) noexcept : index_(std::move(index)) {}
  /// `taken`: bytes of `memory` that the index takes.
  IndexLocations(RecordIndex index, std::shared_ptr<Memory> memory, TakenMemory taken) noexcept
      : index_(std::move(index)), memory_(std::move(memory)), taken_(std::move(taken)) {}
  const RecordIndex& index() const noexcept { return index_; }

  std::uint64_t records() const noexcept override { return index_.records(); }
  void locations(std::uint64_t first, std::span<RecordLocation> out) const noexcept override {
    index_.locations(first, out);
  }
  UnknownOrdinals unknown() const noexcept override { return index_.unknown(); }
  /// The first call makes a LeafLookup.
  Status ordinal_of(std::uint64_t leaf, unsigned slot, const format::PageView& page,
                    std::uint64_t& out) const override;

 private:
  const RecordIndex index_;
  const std::shared_ptr<Memory> memory_;
  const TakenMemory taken_;
  mutable TakenMemory lookup_taken_;
  mutable std::once_flag once_;
  mutable std::optional<LeafLookup> lookup_;
};

}  // namespace lmdbio::records
