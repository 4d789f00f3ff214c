#include "bench/scaling/loader.h"

#include <algorithm>
#include <cstring>

#include "bench/common.h"
#include "bench/scaling/finders.h"

namespace lmdbio::bench {

namespace {

/// Each rank steps over all records with a cursor of the real LMDB, and copies its own.
class StockLoader final : public Loader {
 public:
  explicit StockLoader(const LoaderSettings& s) : settings_(s), finder_(cursor_walk(s.database)) {
    int rank = 0, ranks = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    rank_ = static_cast<std::uint64_t>(rank);
    ranks_ = static_cast<std::uint64_t>(ranks);
    steps_ = steps_per_epoch(records(), s.batch, ranks_);
    if (steps_ == 0)
      die("%s: %llu records are fewer than one batch for each rank", s.database.c_str(),
          static_cast<unsigned long long>(records()));
  }
  std::uint64_t records() const override { return finder_->records(); }
  LoaderCounters counters() const override {
    LoaderCounters c;
    c.reads = true;
    return c;
  }
  std::span<const Value> next() override {
    const std::uint64_t all = settings_.batch * ranks_;
    const Window window{step_ * all, all};
    step_ = (step_ + 1) % steps_;
    std::vector<std::uint64_t> mine(settings_.batch);
    for (std::uint64_t i = 0; i < settings_.batch; ++i)
      mine[i] = window.first + (settings_.assignment == Assignment::strided ? i * ranks_ + rank_
                                                                            : settings_.batch * rank_ + i);
    const std::vector<Place> places = finder_->find(window, mine);
    std::size_t size = 0;
    for (const Place& p : places) size += p.bytes;
    bytes_.resize(size);
    values_.clear();
    std::byte* to = bytes_.data();
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (places[i].bytes != 0) std::memcpy(to, finder_->mapped() + places[i].offset, places[i].bytes);
      values_.push_back({mine[i], {to, static_cast<std::size_t>(places[i].bytes)}});
      to += places[i].bytes;
    }
    return values_;
  }

 private:
  const LoaderSettings settings_;
  const std::unique_ptr<Finder> finder_;
  std::uint64_t rank_ = 0, ranks_ = 1, steps_ = 0, step_ = 0;
  std::vector<std::byte> bytes_;
  std::vector<Value> values_;
};

}  // namespace

std::unique_ptr<Loader> stock_loader(const LoaderSettings& settings) {
  return std::make_unique<StockLoader>(settings);
}

std::unique_ptr<Loader> make_loader(const LoaderSettings& settings, World& world) {
  if (const std::string why = refusal(settings.strategy); !why.empty()) die("%s", why.c_str());
  if (is_stock(settings.strategy)) return stock_loader(settings);
  if (is_of_library(settings.strategy)) return library_loader(settings);
  return node_loader(settings, world);
}

}  // namespace lmdbio::bench
