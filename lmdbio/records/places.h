// Where records are, as a reader asks for it, and the record index as one that answers.
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

/// Any number of threads.
class Places {
 public:
  virtual ~Places() = default;
  virtual std::uint64_t records() const noexcept = 0;
  /// Until it is known where records are; nothing below can be asked before.  Costs next to nothing once it
  /// is.  ECANCELED: `cancelled` was set meanwhile.  Another error: it never will be, and `why` says what is
  /// wrong, in one line that names the file.  May throw bad_alloc.
  virtual Status await(const std::atomic<bool>&, std::string&) const { return {}; }
  /// Of out.size() records from `first` on, all of them below records().  What it says of pages need not be
  /// true: each use is checked.
  virtual void places(std::uint64_t first, std::span<RecordPlace> out) const noexcept = 0;
  /// Ordinals that nobody knows; places() and ordinal_of() number these records differently.
  virtual UnknownOrdinals unknown() const noexcept { return {}; }
  /// The ordinal of the first record of entry `slot` of the leaf page number `leaf`, which is `page`.
  /// MDB_CORRUPTED: no such entry is known.  May throw bad_alloc.
  virtual Status ordinal_of(std::uint64_t leaf, unsigned slot, const format::PageView& page,
                            std::uint64_t& out) const = 0;
};

class IndexPlaces final : public Places {
 public:
  explicit IndexPlaces(RecordIndex index) noexcept : index_(std::move(index)) {}
  /// `taken`: of `memory`, for the index.
  IndexPlaces(RecordIndex index, std::shared_ptr<Memory> memory, TakenMemory taken) noexcept
      : index_(std::move(index)), memory_(std::move(memory)), taken_(std::move(taken)) {}
  const RecordIndex& index() const noexcept { return index_; }

  std::uint64_t records() const noexcept override { return index_.records(); }
  void places(std::uint64_t first, std::span<RecordPlace> out) const noexcept override {
    index_.places(first, out);
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
