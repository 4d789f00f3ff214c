// A whole file of any bytes, read as a program reads one: through the shim's C functions, with the real LMDB
// as its companion.
//
// The input is the file; the pad of page 0's header, which no reader looks at, says how it is opened
// (call_sequence.h).  A signal, a report of a sanitizer, a scan or a copy without end is a finding; codes are
// not.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/call_sequence.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutate_file.h"
#include "tests/fuzz/scratch.h"

// libFuzzer's own mutations; absent in the replayed target.
extern "C" __attribute__((weak)) std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size,
                                                              std::size_t max_size);
extern "C" const char* lmdbio_version(void);

namespace {

using namespace lmdbio::test;

/// Set up once for all inputs.
struct Stage {
  Stage() {
    FUZZ_REQUIRE(lmdbio_version() != nullptr);  // linked, not stock alone
    (void)::setenv("LMDBIO_LOG", "error", 0);   // a line for each damaged page is for tests that look at it
    limit_copies();
  }
  Scratch scratch;
};

class Bounded final : public Observer {
 public:
  void unbounded(const char* what) override {
    std::fprintf(stderr, "%s\n", what);
    std::abort();
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Stage stage;
  FUZZ_REQUIRE(stage.scratch.write(data, size));
  Bounded observer;
  (void)call_everything(stage.scratch.path(), size, variant_of(data, size), stage.scratch.copy_fd(),
                        observer);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  Rng rng(seed);
  if (&LLVMFuzzerMutate != nullptr && rng.percent(20)) return LLVMFuzzerMutate(data, size, max_size);
  FileBytes file(data, data + size);
  if (rng.percent(10) && size >= 10)
    file[8 + rng.below(2)] = static_cast<std::uint8_t>(rng.next());  // read in another way
  else
    mutate_file(file, rng, max_size);
  std::copy(file.begin(), file.end(), data);
  return file.size();
}
