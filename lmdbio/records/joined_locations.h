// The locations of the records of several databases as one, without the records that the reader leaves out.
#pragma once

#include <lmdb.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "lmdbio/records/record_locations.h"

namespace lmdbio::records {

/// Records that are left out: `count` consecutive records, from the first record of `key` on.
struct Excluded {
  std::string key;
  std::uint64_t count = 0;
};

/// Joins the locations of several databases.  Ordinals count the records that are not left out, those of the
/// first database first.  A reader with one database uses it if it leaves out records.
class JoinedLocations final : public RecordLocations {
 public:
  struct Part {
    std::string name;                ///< used in messages
    std::uint64_t records = 0;       ///< including those that are left out
    std::vector<Excluded> excluded;  ///< in key order, and disjoint
    std::uint64_t first_page = 0;    ///< added to page numbers
    /// If null, Open makes them when they are needed.
    std::unique_ptr<RecordLocations> locations;
  };
  /// Makes the locations of a part.  Any thread.
  using Open = std::function<Status(std::size_t part, const std::atomic<bool>& cancelled,
                                    std::unique_ptr<RecordLocations>& out, std::string& why)>;
  /// Calls `tell` with the number of the leaf page, plus first_page, the slot and the page of each key that
  /// exists in a part.  Any thread.
  using Tell =
      std::function<void(std::size_t key, std::uint64_t leaf, unsigned slot, const format::PageView&)>;
  using Find = std::function<Status(std::size_t part, std::span<const MDB_val> keys, const Tell& tell,
                                    std::string& why)>;

  JoinedLocations(std::vector<Part> parts, Open open);
  /// Sets the function that finds the keys of records that are left out.  Call it once, before all other
  /// functions except parts() and records().
  void set_find(Find find) { find_ = std::move(find); }

  std::size_t parts() const noexcept { return states_.size(); }
  /// Waits until the locations of a part are known.  Errors: as await().
  Status ready(std::size_t part, const std::atomic<bool>& cancelled, std::string& why) const;

  std::uint64_t records() const noexcept override { return firsts_.back(); }
  std::span<const std::uint64_t> firsts() const noexcept override { return firsts_; }
  JoinedLocations* joined() noexcept override { return this; }
  Status await(const std::atomic<bool>& cancelled, std::string& why) const override;
  Status prepare(std::span<const std::uint64_t> ordinals, const std::atomic<bool>& cancelled,
                 std::string& why) const override;
  void locations(std::uint64_t first, std::span<RecordLocation> out) const noexcept override;
  UnknownOrdinals unknown(std::uint64_t ordinal) const noexcept override;
  /// `leaf`: the page number plus first_page.  The part must be ready.  The ordinal of a record that is left
  /// out is UINT64_MAX.
  Status ordinal_of(std::uint64_t leaf, unsigned slot, const format::PageView& page,
                    std::uint64_t& out) const override;

 private:
  /// Consecutive records of a part that are left out.
  struct Gap {
    std::uint64_t first;   ///< ordinal in the database
    std::uint64_t before;  ///< number of records before it that are not left out
    std::uint64_t count;
  };
  struct State {
    Part part;
    std::vector<Gap> gaps;  ///< sorted
    std::atomic<bool> ready{false};
    std::mutex mutex;  ///< held while the members are set
  };
  std::size_t part_of(std::uint64_t ordinal) const noexcept;
  Status make(std::size_t part, const std::atomic<bool>& cancelled, std::string& why) const;
  Status find_gaps(std::size_t part, std::vector<Gap>& gaps, std::string& why) const;
  static std::uint64_t rank(const State& s, std::uint64_t raw, bool& left_out) noexcept;

  /// What locations() needs of a part that is ready: few bytes, because a shuffled order needs another part
  /// for each record.
  struct Ready {
    const RecordLocations* locations = nullptr;
    std::uint64_t first_page = 0;
    const State* with_gaps = nullptr;  ///< null: no records are left out
  };
  std::vector<std::unique_ptr<State>> states_;
  mutable std::vector<Ready> ready_;          ///< an element is constant once its State is ready
  mutable std::atomic<std::size_t> missing_;  ///< number of parts that are not ready
  mutable std::atomic<bool> damaged_{false};  ///< a part that is ready has unknown ordinals
  std::vector<std::uint64_t> firsts_;         ///< first ordinal of each part, and the number of records
  const Open open_;
  Find find_;
};

}  // namespace lmdbio::records
