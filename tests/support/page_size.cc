#include "tests/support/page_size.h"

#include <unistd.h>

#include <atomic>

namespace {
std::atomic<long> page_size_override{0};
}

extern "C" {
long __sysconf(int name);  // glibc's own, under its other exported name

__attribute__((visibility("default"))) long sysconf(int name) noexcept {
  const long override_bytes = page_size_override.load(std::memory_order_relaxed);
  return name == _SC_PAGESIZE && override_bytes != 0 ? override_bytes : __sysconf(name);
}
}

namespace lmdbio::test {

PageSizeOverride::PageSizeOverride(unsigned bytes) noexcept { page_size_override = bytes; }
PageSizeOverride::~PageSizeOverride() { page_size_override = 0; }

}  // namespace lmdbio::test
