#include "bench/scale/loader.h"

#include "bench/common.h"
#include "bench/scale/world.h"

namespace lmdbio::bench {

std::unique_ptr<Loader> make_loader(const LoaderSettings& settings, World& world) {
  if (const std::string why = refusal(settings.strategy, settings.order); !why.empty())
    die("%s", why.c_str());
  if (settings.workers != 0) return workers_loader(settings, world);
  if (is_stock(settings.strategy)) return stock_loader(settings, world);
  if (is_of_library(settings.strategy)) return world.library_loader(settings);
  return node_loader(settings, world);
}

}  // namespace lmdbio::bench
