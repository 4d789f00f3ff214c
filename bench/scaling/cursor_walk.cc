#include <cinttypes>
#include <cstdio>
#include <fstream>

#include "bench/common.h"
#include "bench/scaling/finders.h"
#include "bench/stock_lmdb.h"

namespace lmdbio::bench {

namespace {

/// Where this process has mapped the file at which `inside` points.
const std::byte* base_of(const void* inside) {
  const auto at = reinterpret_cast<std::uintptr_t>(inside);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    std::uint64_t offset = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*s %" SCNx64, &begin, &end, &offset) == 3 &&
        begin <= at && at < end)
      return reinterpret_cast<const std::byte*>(begin - offset);
  }
  die("/proc/self/maps does not have LMDB's mapping");
}

class CursorWalk final : public Finder {
 public:
  explicit CursorWalk(const std::string& directory) : reader_(directory) {}

  std::uint64_t records() const override { return reader_.records(); }
  const std::byte* mapped() override { return base_; }
  std::vector<Place> find(Window window, const std::vector<std::uint64_t>& ordinals) override {
    std::vector<Place> places;
    places.reserve(ordinals.size());
    auto next = ordinals.begin();
    for (std::uint64_t o = window.first; o < window.end(); ++o) {
      const MDB_val value = reader_.first_or_next(o == 0);
      if (base_ == nullptr) base_ = base_of(value.mv_data);
      if (next == ordinals.end() || *next != o) continue;
      places.push_back(
          {static_cast<std::uint64_t>(static_cast<const std::byte*>(value.mv_data) - base_), value.mv_size});
      ++next;
    }
    return places;
  }

 private:
  StockReader reader_;
  const std::byte* base_ = nullptr;
};

}  // namespace

std::unique_ptr<Finder> cursor_walk(const std::string& directory) {
  return std::make_unique<CursorWalk>(directory);
}

}  // namespace lmdbio::bench
