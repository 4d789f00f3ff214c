// The interface by which readers locate records, and its implementation with a record index.
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

class JoinedLocations;

/// Maps ordinals to the locations of records.  Any thread.
class RecordLocations {
 public:
  virtual ~RecordLocations() = default;
  virtual std::uint64_t records() const noexcept = 0;
  /// Waits until the locations are known.  Call this function before the functions below.  Later calls cost
  /// almost nothing.  Returns ECANCELED if the flag `cancelled` (the first argument) is set during the wait.
  /// All other errors except ENOMEM and EAGAIN are permanent.  The second argument explains the error in one
  /// line that names the file.  May throw bad_alloc.
  virtual Status await(const std::atomic<bool>&, std::string&) const { return {}; }
  /// As await(), for callers that need only the locations of these records.  Ignores ordinals that do not
  /// exist.
  virtual Status prepare(std::span<const std::uint64_t>, const std::atomic<bool>& cancelled,
                         std::string& why) const {
    return await(cancelled, why);
  }
  /// Returns the first ordinal of each database, and the number of records.  Empty: there is one database.
  virtual std::span<const std::uint64_t> firsts() const noexcept { return {}; }
  /// Returns this object if it is a JoinedLocations, else null.
  virtual JoinedLocations* joined() noexcept { return nullptr; }
  /// Sets `out` to the locations of the records `first` to `first` + out.size() - 1, which must be less than
  /// records().  If the index is damaged, a location may be wrong, so each use must check it.
  virtual void locations(std::uint64_t first, std::span<RecordLocation> out) const noexcept = 0;
  /// Returns the range of ordinals that are unknown because of damage, in the database of record `ordinal`.
  /// The numbers that locations() and ordinal_of() use in this range are arbitrary.
  virtual UnknownOrdinals unknown(std::uint64_t) const noexcept { return {}; }
  /// Sets `out` to the ordinal of the first record of entry `slot` of leaf page `leaf`.  `page` is a view of
  /// that page.  Returns MDB_CORRUPTED if there is no such entry.  May throw bad_alloc.
  virtual Status ordinal_of(std::uint64_t leaf, unsigned slot, const format::PageView& page,
                            std::uint64_t& out) const = 0;
};

/// Returns locations from a complete record index.
class IndexLocations final : public RecordLocations {
 public:
  explicit IndexLocations(RecordIndex index) noexcept : index_(std::move(index)) {}
  /// `taken`: the bytes that the index takes from `memory`.
  IndexLocations(RecordIndex index, std::shared_ptr<Memory> memory, TakenMemory taken) noexcept
      : index_(std::move(index)), memory_(std::move(memory)), taken_(std::move(taken)) {}
  const RecordIndex& index() const noexcept { return index_; }

  std::uint64_t records() const noexcept override { return index_.records(); }
  void locations(std::uint64_t first, std::span<RecordLocation> out) const noexcept override {
    index_.locations(first, out);
  }
  UnknownOrdinals unknown(std::uint64_t) const noexcept override { return index_.unknown(); }
  /// The first call of this function makes a LeafLookup.
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
