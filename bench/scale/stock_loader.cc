#include "bench/common.h"
#include "bench/scale/lmdb_access.h"
#include "bench/scale/loader.h"
#include "bench/scale/world.h"

namespace lmdbio::bench {

namespace {

/// Each rank steps over all records with a cursor of LMDB, and copies its own.  If the order is shuffled,
/// each rank looks up its records by their keys.
class StockLoader final : public Loader {
 public:
  StockLoader(const LoaderSettings& s, World& world, std::uint64_t first, std::uint64_t stride)
      : settings_(s),
        stride_(stride),
        has_values_(world.has_values()),
        lmdb_(world.lmdb(s.database, s.order == Order::shuffled ? s.keys : "")) {
    int rank = 0, ranks = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    rank_ = static_cast<std::uint64_t>(rank);
    ranks_ = static_cast<std::uint64_t>(ranks);
    sequence_ = Sequence(s.order, records());
    steps_ = steps_per_epoch(records(), s.batch, ranks_);
    if (steps_ == 0)
      die("%s: %llu records are fewer than one batch for each rank", s.database.c_str(),
          static_cast<unsigned long long>(records()));
    go_to(first);
  }
  std::uint64_t records() const override { return lmdb_->records(); }
  LoaderCounters counters() const override {
    LoaderCounters c;
    c.reads = true;
    return c;
  }
  std::span<const Value> next() override {
    const std::uint64_t all = settings_.batch * ranks_, first = step_ * all;
    std::vector<Place> found(settings_.batch);
    values_.clear();
    const auto element = [&](std::uint64_t i) {
      return first +
             (settings_.assignment == Assignment::strided ? i * ranks_ + rank_ : settings_.batch * rank_ + i);
    };
    if (settings_.order == Order::sequential) {
      for (std::uint64_t i = 0; i < settings_.batch; ++i) found[i] = lmdb_->step_to(element(i));
      if (const std::uint64_t last = first + all - 1; element(settings_.batch - 1) != last)
        (void)lmdb_->step_to(last);
    } else {
      for (std::uint64_t i = 0; i < settings_.batch; ++i)
        found[i] = lmdb_->get(sequence_.ordinal(epoch_, element(i)));
    }
    std::size_t size = 0;
    for (const Place& p : found) size += p.bytes;
    if (has_values_) bytes_.resize(size);
    std::byte* to = bytes_.data();
    for (std::uint64_t i = 0; i < settings_.batch; ++i) {
      lmdb_->copy(found[i], to);
      values_.push_back(
          {sequence_.ordinal(epoch_, element(i)), {to, static_cast<std::size_t>(found[i].bytes)}});
      if (has_values_) to += found[i].bytes;
    }
    go_to(epoch_ * steps_ + step_ + stride_);
    return values_;
  }

 private:
  /// `step`: counted from the first step of the first epoch.
  void go_to(std::uint64_t step) noexcept {
    epoch_ = step / steps_;
    step_ = step % steps_;
  }
  const LoaderSettings settings_;
  const std::uint64_t stride_;
  const bool has_values_;
  const std::unique_ptr<LmdbAccess> lmdb_;
  Sequence sequence_;
  std::uint64_t rank_ = 0, ranks_ = 1, steps_ = 0, step_ = 0, epoch_ = 0;
  std::vector<std::byte> bytes_;
  std::vector<Value> values_;
};

}  // namespace

std::unique_ptr<Loader> stock_loader(const LoaderSettings& settings, World& world, std::uint64_t first,
                                     std::uint64_t stride) {
  return std::make_unique<StockLoader>(settings, world, first, stride);
}

}  // namespace lmdbio::bench
