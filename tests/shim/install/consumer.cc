// The C header from C++, and no use of LMDB: linking to LMDBIO alone is enough.
#include <lmdbio/lmdbio.h>

#include <cstdio>

int main() {
  std::printf("%s\n", lmdbio_version());
  return 0;
}
