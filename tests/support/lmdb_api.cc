#include "tests/support/lmdb_api.h"

#include <dlfcn.h>

#include <stdexcept>

namespace lmdbio::test {

LmdbApi load_lmdb(const std::string& path) {
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) throw std::runtime_error(dlerror());
  LmdbApi api;
  api.path = path;
#define LMDBIO_X(name)                                                          \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(object, "mdb_" #name)); \
  if (api.name == nullptr) throw std::runtime_error(path + " has no mdb_" #name);
  LMDBIO_LMDB_API(LMDBIO_X)
#undef LMDBIO_X
  int minor = 0;
  api.banner = api.version(&api.major, &minor, &api.patch);
  return api;
}

}  // namespace lmdbio::test
