// Functions of LMDB that take no environment, and functions that only LMDBIO has.
#include <lmdbio/lmdbio.h>

#include <cerrno>
#include <cstring>

#include "compat/abi.h"
#include "compat/object.h"
#include "lmdbio/base/config.h"

using namespace lmdbio::compat;

namespace {

char* version_of(const Stock* real, int* major, int* minor, int* patch) noexcept {
  if (real != nullptr) return real->version(major, minor, patch);
  if (major != nullptr) *major = 0;
  if (minor != nullptr) *minor = 0;
  if (patch != nullptr) *patch = 0;
  static char text[] = "stock LMDB was not found";
  return text;
}

char* text_of(const Stock* real, int err) noexcept {
  if (real != nullptr) return real->strerror(err);
  return err > 0 ? ::strerror(err) : const_cast<char*>("stock LMDB was not found");
}

const Stock* stock_at(const void* return_address, Names names = Names::plain) noexcept {
  return caller_at(return_address, names).stock;
}

}  // namespace

extern "C" {

LMDBIO_ABI const char* lmdbio_version(void) { return LMDBIO_VERSION; }

LMDBIO_ABI int lmdbio_disabled(void) { return lmdbio::config().disable ? 1 : 0; }

LMDBIO_ABI int lmdbio_unreached(char* path, size_t bytes) { return find_unreached(path, bytes) ? 1 : 0; }

LMDBIO_ABI char* mdb_version(int* major, int* minor, int* patch) {
  return version_of(stock_at(__builtin_return_address(0)), major, minor, patch);
}
LMDBIO_ABI char* mdb10_version(int* major, int* minor, int* patch) {
  return version_of(stock_at(__builtin_return_address(0), Names::v10), major, minor, patch);
}

LMDBIO_ABI char* mdb_strerror(int err) { return text_of(stock_at(__builtin_return_address(0)), err); }
LMDBIO_ABI char* mdb10_strerror(int err) {
  return text_of(stock_at(__builtin_return_address(0), Names::v10), err);
}

}  // extern "C"
