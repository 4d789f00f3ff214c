// A program that knows nothing of LMDB and loads a module that does, in a thread, and unloads it, again and
// again:
//   campaign_unload MODULE DIR MODEL ROUNDS SEED
// Each round works on a copy of the database of its own, DIR/0, DIR/1, ..: what an unloaded module left open
// stays open.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/support/rng.h"

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  lmdbio::test::Rng rng(std::strtoull(argv[5], nullptr, 10));
  for (int round = 0; round < std::atoi(argv[4]); ++round) {
    const unsigned what = (1 + rng.below(3)) | (rng.percent(25) ? 4 : 0);
    std::thread([&] {
      void* const module = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
      using Go = const char*(const char*, const char*, unsigned);
      Go* const go = module == nullptr ? nullptr : reinterpret_cast<Go*>(dlsym(module, "campaign_module_go"));
      if (go == nullptr) {
        std::fprintf(stderr, "FAULT error: %s\n", dlerror());
        std::abort();
      }
      const std::string dir = std::string(argv[2]) + "/" + std::to_string(round);
      if (const char* const wrong = go(dir.c_str(), argv[3], what); wrong != nullptr) {
        std::fprintf(stderr, "FAULT module, round %d, %u: %s\n", round, what, wrong);
        std::abort();
      }
      dlclose(module);
    }).join();
    usleep(rng.below(50000));  // what threads there are may run on
    const pid_t child = fork();
    if (child == 0) _exit(0);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      std::fprintf(stderr, "FAULT child: round %d, %u: status %x\n", round, what,
                   static_cast<unsigned>(status));
      std::abort();
    }
  }
  std::puts("unloaded");
  return 0;
}
