#include "bench/scale/strategy.h"

namespace lmdbio::bench {

namespace {

constexpr std::uint64_t kCoalesced = std::uint64_t{4} << 20;

using S = Strategy;

}  // namespace

const std::vector<std::pair<std::string, Strategy>>& presets() {
  static const std::vector<std::pair<std::string, Strategy>> all = [] {
    S lmm;
    lmm.readers = S::Readers::some_of_node;
    S dm = lmm;
    dm.finding = S::Finding::handed_on;
    S dio = lmm;
    dio.access = S::Access::direct;
    S prov = dio;
    prov.finding = S::Finding::guessed;
    S coal = prov;
    coal.request_bytes = kCoalesced;
    S stag = coal;
    stag.group = 2;
    S full;
    full.readers = S::Readers::some_of_node;
    full.access = S::Access::direct;
    full.finding = S::Finding::index;
    full.request_bytes = kCoalesced;
    full.exchange = S::Exchange::redistributed;
    full.overlap = S::Overlap::ahead;
    full.later = S::Later::node_homes;
    return std::vector<std::pair<std::string, S>>{{"stock", S{}},
                                                  {"lmm", lmm},
                                                  {"lmm-dm", dm},
                                                  {"lmm-dio", dio},
                                                  {"lmm-dio-prov", prov},
                                                  {"lmm-dio-prov-coal", coal},
                                                  {"lmm-dio-prov-coal-stag", stag},
                                                  {"full", full}};
  }();
  return all;
}

std::string refusal(const Strategy& s, Order order) {
  const bool direct = s.access == S::Access::direct, exchanged = s.exchange == S::Exchange::redistributed;
  if (s.readers_per_node == 0) return "a node has at least one reader";
  if (s.readers_per_node != 1 && s.readers == S::Readers::every_rank)
    return "if every rank reads, a node has as many readers as ranks";
  if (is_of_library(s)) {
    if (!direct || s.request_bytes != kCoalesced || s.overlap != S::Overlap::ahead)
      return "the index is that of LMDBIO's readers, which read directly, about 4 MiB at a time, and ahead";
    if (exchanged != (s.readers == S::Readers::some_of_node))
      return "with the index, either every rank reads for itself, or some of each node read and redistribute";
    if (exchanged != (s.later == S::Later::node_homes))
      return "later epochs come from the nodes' memory if records are redistributed, and only then";
    if (s.group != 0 && !exchanged) return "readers take turns only if they read for others";
    return {};
  }
  if (order == Order::shuffled && !is_stock(s))
    return "a walk finds records in the order of keys, and so are guesses checked; shuffled ones are found "
           "by "
           "key (stock) or in the index";
  if (exchanged) return "records are redistributed by LMDBIO's streams, which need the index";
  if (s.later != S::Later::page_cache) return "only LMDBIO's streams keep records in the nodes' memory";
  if (!direct && s.request_bytes != 0) return "the kernel decides how large the reads of page faults are";
  if (!direct && s.overlap != S::Overlap::none) return "page faults are not taken ahead";
  if (!direct && s.finding == S::Finding::guessed) return "guessed places are read by direct requests";
  if (s.group != 0 && s.overlap != S::Overlap::none)
    return "a reader has its turn when it fetches, and nothing is fetched ahead then";
  return {};
}

}  // namespace lmdbio::bench
