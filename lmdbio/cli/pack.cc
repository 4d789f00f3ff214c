#include "lmdbio/cli/pack.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "lmdbio/cli/command.h"
#include "lmdbio/cli/text.h"

namespace lmdbio::cli {
namespace {

using cache::Codec;
using cache::Filter;
using cache::Trial;

constexpr double kMB = 1e6, kAssumedCache = 1000, kAssumedFile = 200;
constexpr unsigned kMostCores = 4;
constexpr struct {
  double share;
  const char* text;
} kSizes[] = {{1, "the whole file"}, {0.5, "1/2 of the file"}, {0.25, "1/4 of the file"}};

std::uint64_t processor_time() noexcept {
  timespec t{};
  (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}

/// Returns how many cores decompress while the program uses one.
unsigned cores_to_unpack() noexcept {
  cpu_set_t cpus;
  const int all = ::sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
  return std::clamp(static_cast<unsigned>(all) - 1, 1u, kMostCores);
}

const char* codec_text(Codec codec) {
  constexpr const char* kNames[] = {"raw", "lz4", "zstd-1", "zstd-3"};
  return kNames[static_cast<unsigned>(codec)];
}

std::string filter_text(Filter filter) {
  if (filter.kind == Filter::Kind::none) return "-";
  return (filter.kind == Filter::Kind::shuffle ? "shuffle " : "delta ") + std::to_string(filter.width);
}

std::string recipe_text(const Trial& t) {
  const bool filtered = t.recipe.filter.kind != Filter::Kind::none;
  return codec_text(t.recipe.codec) + (filtered ? ", " + filter_text(t.recipe.filter) : "");
}

}  // namespace

PackReport::PackReport(const Database& database, const PackRates& rates)
    : cache_given_(rates.cache > 0),
      file_given_(rates.file > 0),
      cache_rate_(kMB * (cache_given_ ? rates.cache : kAssumedCache)),
      file_rate_(kMB * (file_given_ ? rates.file : kAssumedFile)),
      idle_cores_(cores_to_unpack()) {
  const auto size = static_cast<std::uint64_t>(database.status().st_size);
  std::vector<std::byte> bytes(cache::kSamplePlaces * cache::kFrameBytes);
  std::vector<Bytes> pieces;
  for (unsigned i = 0; i < cache::kSamplePlaces; ++i) {
    const std::uint64_t from = cache::sample_offset(i, size);
    if (i > 0 && from == cache::sample_offset(i - 1, size)) continue;
    std::byte* const to = bytes.data() + i * cache::kFrameBytes;
    ssize_t n;
    do n = ::pread(database.fd(), to, cache::kFrameBytes, static_cast<off_t>(from));
    while (n < 0 && errno == EINTR);
    if (n < 0) throw Failure(database.path() + ": cannot be read: " + std::strerror(errno));
    if (n > 0) pieces.push_back({to, static_cast<std::size_t>(n)});
  }
  cache::Scratch scratch;
  const Result<cache::Trials> trials = cache::try_recipes(pieces, processor_time, scratch);
  if (!trials) throw std::bad_alloc();
  trials_ = trials.value();
  for (unsigned i = 0; i < trials_.pieces; ++i) sampled_ += pieces[i].size();
  for (const auto& of : kSizes)
    for (const bool prefetching : {true, false}) {
      const auto all = static_cast<double>(size);
      const cache::Conditions c = {.image_rate = cache_rate_,
                                   .original_rate = file_rate_,
                                   .idle_cores = idle_cores_,
                                   .prefetching = prefetching,
                                   .budget = of.share * all,
                                   .size = all};
      const std::size_t best = choose_recipe(trials_.span(), c, cache::Goal::fastest);
      choices_.push_back({c, best, seconds_per_byte_without(c) / seconds_per_byte(trials_.all[best], c)});
    }
}

void PackReport::show() const {
  std::printf("\ncompression of %s in %s, rates of one core\n%-8s %-14s %6s %12s %12s\n",
              bytes_text(static_cast<double>(sampled_)).c_str(), counted(trials_.pieces, "sample").c_str(),
              "codec", "filter", "ratio", "pack MB/s", "unpack MB/s");
  for (const Trial& t : trials_.span())
    std::printf("%-8s %-14s %6.2f %12.0f %12.0f\n", codec_text(t.recipe.codec),
                filter_text(t.recipe.filter).c_str(), t.ratio, t.pack_rate / kMB, t.unpack_rate / kMB);
  std::printf(
      "\ncache on local disk, if reads of the disk have %.0f MB/s (%s), and reads of the file %.0f MB/s "
      "(%s)\n"
      "%-18s %-42s %s\n",
      cache_rate_ / kMB, cache_given_ ? "given" : "assumed", file_rate_ / kMB,
      file_given_ ? "given" : "assumed", "size of the cache",
      format_text("with prefetching, %s", counted(idle_cores_, "idle core").c_str()).c_str(),
      "the program waits for each read");
  for (std::size_t i = 0; i < std::size(kSizes); ++i) {
    std::string cells[2];
    for (unsigned p = 0; p < 2; ++p) {
      const Choice& c = choices_[2 * i + p];
      cells[p] = c.speed_up <= 1
                     ? "no cache"
                     : recipe_text(trials_.all[c.trial]) + format_text(": %.1f times as fast", c.speed_up);
    }
    std::printf("%-18s %-42s %s\n", kSizes[i].text, cells[0].c_str(), cells[1].c_str());
  }
}

Json PackReport::json() const {
  const auto recipe = [](const Trial& t) {
    constexpr const char* kKinds[] = {"none", "shuffle", "delta"};
    return Json{{"codec", codec_text(t.recipe.codec)},
                {"filter", kKinds[static_cast<unsigned>(t.recipe.filter.kind)]},
                {"width", t.recipe.filter.width}};
  };
  Json j{{"samples", trials_.pieces}, {"bytes", sampled_}};
  j["recipes"] = Json::array();
  for (const Trial& t : trials_.span()) {
    Json r = recipe(t);
    r["ratio"] = t.ratio;
    r["pack_bytes_per_second"] = t.pack_rate;
    r["unpack_bytes_per_second"] = t.unpack_rate;
    j["recipes"].push_back(std::move(r));
  }
  const auto rate = [](double bytes, bool given) {
    return Json{{"bytes_per_second", bytes}, {"source", given ? "given" : "assumed"}};
  };
  j["cache_rate"] = rate(cache_rate_, cache_given_);
  j["file_rate"] = rate(file_rate_, file_given_);
  j["idle_cores"] = idle_cores_;
  j["choices"] = Json::array();
  for (const Choice& c : choices_) {
    Json r{{"cache_share", c.conditions.budget / c.conditions.size},
           {"prefetching", c.conditions.prefetching},
           {"use_cache", c.speed_up > 1}};
    r.update(recipe(trials_.all[c.trial]));
    r["ratio"] = trials_.all[c.trial].ratio;
    r["speed_up"] = c.speed_up;
    j["choices"].push_back(std::move(r));
  }
  return j;
}

}  // namespace lmdbio::cli
