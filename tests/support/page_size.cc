#include "tests/support/page_size.h"

#include <unistd.h>

namespace {
long page_size_override = 0;  // by __atomic built-ins: see sysconf
}

extern "C" {
long __sysconf(int name);  // glibc's own, under its other exported name

// The thread sanitizer asks before it is ready to see it.
__attribute__((visibility("default"), no_sanitize("thread"))) long sysconf(int name) noexcept {
  const long override_bytes = __atomic_load_n(&page_size_override, __ATOMIC_RELAXED);
  return name == _SC_PAGESIZE && override_bytes != 0 ? override_bytes : __sysconf(name);
}
}

namespace lmdbio::test {

PageSizeOverride::PageSizeOverride(unsigned bytes) noexcept {
  __atomic_store_n(&page_size_override, static_cast<long>(bytes), __ATOMIC_RELAXED);
}
PageSizeOverride::~PageSizeOverride() { __atomic_store_n(&page_size_override, 0L, __ATOMIC_RELAXED); }

}  // namespace lmdbio::test
