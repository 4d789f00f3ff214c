// A fuzz target without a fuzzer: each file of the corpus, and mutated copies of it.
//
// replay MUTATIONS SEED FILE..
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "tests/support/rng.h"

// A target's own mutations, where it has some: every second one then.
extern "C" __attribute__((weak)) std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                                                     std::size_t max_size, unsigned seed);

namespace {

using Input = std::vector<std::uint8_t>;
using lmdbio::test::Rng;
constexpr std::size_t kMostGrowth = 64 << 10;

Input read_all(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Pages are full of small numbers and page offsets, so that is what goes wrong.
void mutate(Input& in, Rng& rng) {
  constexpr std::array<std::uint16_t, 12> kEdges = {0,  1,      2,      7,      8,      15,
                                                    16, 0x7fff, 0x8000, 0xfff0, 0xfffe, 0xffff};
  for (unsigned n = rng.between(1, 6); n > 0 && !in.empty(); --n) {
    const std::size_t at = rng.below(in.size()), page = at & ~std::size_t{511};
    switch (rng.below(8)) {
      case 0:
        in[at] = static_cast<std::uint8_t>(rng.next());
        break;
      case 1:
        in[at] = static_cast<std::uint8_t>(in[at] ^ 1u << rng.below(8));
        break;
      case 2: {  // a field of a page's head
        const std::size_t field = page + rng.below(40);
        if (field < in.size()) in[field] = static_cast<std::uint8_t>(rng.next());
        break;
      }
      case 3: {
        const std::size_t field = page + 2 * rng.below(32);
        const std::uint16_t edge = kEdges[rng.below(kEdges.size())];
        if (field + 2 <= in.size()) {
          in[field] = static_cast<std::uint8_t>(edge);
          in[field + 1] = static_cast<std::uint8_t>(edge >> 8);
        }
        break;
      }
      case 4: {  // one page over another
        const std::size_t from = rng.below(in.size()) & ~std::size_t{511};
        const std::size_t bytes = std::min<std::size_t>({512, in.size() - from, in.size() - page});
        std::copy_n(in.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                    in.begin() + static_cast<std::ptrdiff_t>(page));
        break;
      }
      case 5:
        if (rng.percent(10)) in.resize(at);
        break;
      case 6:
        in[at] = static_cast<std::uint8_t>(in[at] + 1);
        break;
      case 7: {  // a small number: a page, a size
        in[at] = static_cast<std::uint8_t>(rng.below(32));
        break;
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s MUTATIONS SEED FILE..\n", argv[0]);
    return 2;
  }
  const unsigned long mutations = std::strtoul(argv[1], nullptr, 10);
  const unsigned long seed = std::strtoul(argv[2], nullptr, 10);
  const char* const keep = std::getenv("FUZZ_KEEP");  // a file for the input that is being tried
  std::printf("%d files, %lu mutations each, seed %lu\n", argc - 3, mutations, seed);
  for (int i = 3; i < argc; ++i) {
    const Input original = read_all(argv[i]);
    if (original.empty()) {
      std::fprintf(stderr, "%s: empty or not readable\n", argv[i]);
      return 2;
    }
    Rng rng(seed + static_cast<unsigned long>(i));
    for (unsigned long m = 0; m <= mutations; ++m) {
      Input in = original;
      if (m % 2 == 0 && m > 0 && &LLVMFuzzerCustomMutator != nullptr) {
        in.resize(original.size() + kMostGrowth);
        in.resize(LLVMFuzzerCustomMutator(in.data(), original.size(), in.size(),
                                          static_cast<unsigned>(rng.next())));
      } else if (m > 0) {
        mutate(in, rng);
      }
      if (keep != nullptr)
        std::ofstream(keep, std::ios::binary)
            .write(reinterpret_cast<const char*>(in.data()), static_cast<std::streamsize>(in.size()));
      LLVMFuzzerTestOneInput(in.data(), in.size());
    }
  }
  return 0;
}
