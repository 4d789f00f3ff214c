// Copies the records of an environment of LMDB 0.9 to a file in the format of LMDB 1.0.
//   make_format_10 DIRECTORY FILE PAGE_SIZE
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <vector>

#include "tests/support/format_10.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    const auto lmdb = lmdbio::test::load_lmdb("liblmdb.so.0");
    const std::vector<std::byte> file =
        lmdbio::test::in_format_10(lmdb, argv[1], std::strtoul(argv[3], nullptr, 10), 1);
    std::ofstream out(argv[2], std::ios::binary);
    out.write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
    return out.good() ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
