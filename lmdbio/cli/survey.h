// Measurements of `lmdbio info` during a walk over a database.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "lmdbio/check/check.h"
#include "lmdbio/cli/progress.h"

namespace lmdbio::cli {

/// Counts sizes by power of two: bucket b holds 2^(b-1) to 2^b - 1, bucket 0 holds 0.
struct Histogram {
  std::uint64_t count[33]{};
  std::uint64_t records = 0, bytes = 0, most = 0;

  void add(std::uint64_t size) noexcept {
    ++count[std::bit_width(size)];
    ++records;
    bytes += size;
    most = std::max(most, size);
  }
};

/// The order of values in the file when they are visited in key order.  It compares pages, because LMDB
/// fills a leaf page from its end.
struct Layout {
  std::uint64_t steps = 0;      ///< from a value to the next one
  std::uint64_t forward = 0;    ///< to the same page or a later one
  std::uint64_t adjacent = 0;   ///< of these: to the same page or the next one
  std::uint64_t gap_pages = 0;  ///< pages skipped by forward steps
  std::uint64_t overflow = 0;   ///< values on overflow pages

  void add(std::uint64_t first, std::uint64_t last) noexcept {
    if (before_ != kNone) {
      ++steps;
      if (first >= before_) {
        ++forward;
        const std::uint64_t gap = first > before_ ? first - before_ - 1 : 0;
        adjacent += gap == 0;
        gap_pages += gap;
      }
    }
    before_ = last;
  }
  void restart() noexcept { before_ = kNone; }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::uint64_t before_ = kNone;
};

/// The totals of one database, with its name.
struct Row {
  check::DatabaseTotals totals;
  std::string name;
};

/// Visits all records of a snapshot, and measures them.
class Survey : public check::Visitor {
 public:
  explicit Survey(unsigned page_shift) noexcept : shift_(page_shift) {}
  bool finding(const check::Finding&) override { return true; }
  void progress(std::uint64_t done, std::uint64_t total) override {
    seen = done;
    if (bar != nullptr) bar->set(done, total);
  }
  void database(const check::DatabaseTotals& d) override {
    rows.push_back({d, std::string(d.name)});
    layout.restart();
  }
  void record(const check::RecordPlace& r) override {
    keys.add(r.key_bytes);
    values.add(r.value_bytes);
    layout.overflow += r.overflow;
    const std::uint64_t end = r.offset + (r.value_bytes == 0 ? 1 : r.value_bytes);
    layout.add(r.offset >> shift_, (end - 1) >> shift_);
  }

  std::vector<Row> rows;
  Histogram keys, values;
  Layout layout;
  std::uint64_t seen = 0;  ///< pages walked
  Progress* bar = nullptr;

 private:
  unsigned shift_;
};

}  // namespace lmdbio::cli
