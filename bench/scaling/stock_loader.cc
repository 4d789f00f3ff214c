#include <algorithm>
#include <cstring>

#include "bench/common.h"
#include "bench/scaling/loader.h"
#include "bench/scaling/prepare.h"
#include "bench/stock_lmdb.h"

namespace lmdbio::bench {

namespace {

/// Each rank steps over all records with a cursor of the real LMDB, and copies its own.  Shuffled: it has a
/// list of all keys, and looks up its own.
class StockLoader final : public Loader {
 public:
  explicit StockLoader(const LoaderSettings& s) : settings_(s), reader_(s.database) {
    int rank = 0, ranks = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    rank_ = static_cast<std::uint64_t>(rank);
    ranks_ = static_cast<std::uint64_t>(ranks);
    if (s.order == Order::shuffled) keys_ = std::make_unique<Keys>(s.keys);
    if (keys_ != nullptr && keys_->count() != records())
      die("%s: keys of %zu records, not %llu", s.keys.c_str(), keys_->count(),
          static_cast<unsigned long long>(records()));
    sequence_ = Sequence(s.order, records());
    steps_ = steps_per_epoch(records(), s.batch, ranks_);
    if (steps_ == 0)
      die("%s: %llu records are fewer than one batch for each rank", s.database.c_str(),
          static_cast<unsigned long long>(records()));
  }
  std::uint64_t records() const override { return reader_.records(); }
  LoaderCounters counters() const override {
    LoaderCounters c;
    c.reads = true;
    return c;
  }
  std::span<const Value> next() override {
    const std::uint64_t all = settings_.batch * ranks_, first = step_ * all;
    std::vector<MDB_val> found(settings_.batch);
    values_.clear();
    const auto element = [&](std::uint64_t i) {
      return first +
             (settings_.assignment == Assignment::strided ? i * ranks_ + rank_ : settings_.batch * rank_ + i);
    };
    if (keys_ == nullptr) {
      for (std::uint64_t o = first, i = 0; o < first + all; ++o) {
        const MDB_val value = reader_.first_or_next(o == 0);
        if (i < settings_.batch && element(i) == o) found[i++] = value;
      }
    } else {
      for (std::uint64_t i = 0; i < settings_.batch; ++i) {
        const std::string_view key = (*keys_)[sequence_.ordinal(epoch_, element(i))];
        found[i] = reader_.get({key.size(), const_cast<char*>(key.data())});
      }
    }
    std::size_t size = 0;
    for (const MDB_val& v : found) size += v.mv_size;
    bytes_.resize(size);
    std::byte* to = bytes_.data();
    for (std::uint64_t i = 0; i < settings_.batch; ++i) {
      if (found[i].mv_size != 0) std::memcpy(to, found[i].mv_data, found[i].mv_size);
      values_.push_back({sequence_.ordinal(epoch_, element(i)), {to, found[i].mv_size}});
      to += found[i].mv_size;
    }
    if (++step_ == steps_) {
      step_ = 0;
      ++epoch_;
    }
    return values_;
  }

 private:
  const LoaderSettings settings_;
  StockReader reader_;
  std::unique_ptr<Keys> keys_;
  Sequence sequence_;
  std::uint64_t rank_ = 0, ranks_ = 1, steps_ = 0, step_ = 0, epoch_ = 0;
  std::vector<std::byte> bytes_;
  std::vector<Value> values_;
};

}  // namespace

std::unique_ptr<Loader> stock_loader(const LoaderSettings& settings) {
  return std::make_unique<StockLoader>(settings);
}

}  // namespace lmdbio::bench
