#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string_view>

#include "bench/common.h"
#include "bench/scale/lmdb_access.h"
#include "bench/scale/prepare.h"
#include "bench/stock_lmdb.h"

namespace lmdbio::bench {

namespace {

/// Returns the address at which this process has mapped the file that contains `inside`.
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

class RealLmdb final : public LmdbAccess {
 public:
  RealLmdb(const std::string& directory, const std::string& keys) : reader_(directory) {
    if (keys.empty()) return;
    keys_ = std::make_unique<Keys>(keys);
    if (keys_->count() != records())
      die("%s: keys of %zu records, not %llu", keys.c_str(), keys_->count(),
          static_cast<unsigned long long>(records()));
  }

  std::uint64_t records() const override { return reader_.records(); }
  Place step_to(std::uint64_t ordinal) override {
    if (ordinal < next_) next_ = 0;
    MDB_val value;
    do value = reader_.first_or_next(next_ == 0);
    while (next_++ != ordinal);
    return place(value);
  }
  Place get(std::uint64_t ordinal) override {
    const std::string_view key = (*keys_)[ordinal];
    return place(reader_.get({key.size(), const_cast<char*>(key.data())}));
  }
  void copy(Place value, std::byte* to) override {
    if (value.bytes != 0) std::memcpy(to, base_ + value.offset, value.bytes);
  }

 private:
  Place place(const MDB_val& value) {
    if (base_ == nullptr) base_ = base_of(value.mv_data);
    return {static_cast<std::uint64_t>(static_cast<const std::byte*>(value.mv_data) - base_), value.mv_size};
  }

  StockReader reader_;
  std::unique_ptr<Keys> keys_;
  const std::byte* base_ = nullptr;
  std::uint64_t next_ = 0;  ///< the record after the cursor's
};

}  // namespace

std::unique_ptr<LmdbAccess> real_lmdb(const std::string& directory, const std::string& keys) {
  return std::make_unique<RealLmdb>(directory, keys);
}

}  // namespace lmdbio::bench
