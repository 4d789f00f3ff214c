// Measures what page faults take if processes of a node fault on the same file at the same time.
//
//   measure_faults FILE --server PID --processes N [--rounds R]
//
// FILE is on a slow file system, whose server has the process id PID.  The delay of a request must be long
// enough for N processes to begin to wait.  All processes use the CPUs that this program may use.
//
// Prints one line of JSON for each case, the medians of R rounds:
//   "same"      all processes wait for the same page
//   "near"      each waits for one of 16 pages that one request reads
//   "resident"  each maps the same resident pages, 64 KiB with each fault
//
// "cpu_s": CPU time of a fault of one process.  "switches": voluntary context switches of a fault; a process
// that waits once has one, and each further one is a wake-up for nothing.  "span_s": from the first process
// that has its page until the last one.  "server_cpu_s": CPU time of the server, which wakes the processes.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/scale/simulation/measured_file.h"
#include "bench/stats.h"

namespace lmdbio::bench {
namespace {

enum class Case { same, near, resident };
constexpr std::size_t kMost = 256;
constexpr std::uint64_t kResidentFaults = 128;

struct Sample {
  std::uint64_t cpu_ns, switches, end_ns;
};

/// In memory of all processes.
struct Shared {
  pthread_barrier_t barrier;
  Sample of[kMost];
};

Shared* share(unsigned processes) {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) die_errno("mmap");
  auto* const shared = static_cast<Shared*>(memory);
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &attributes, processes + 1);
  return shared;
}

/// Returns the CPU time of all threads of a process, in nanoseconds.
std::uint64_t cpu_of(int pid) {
  std::uint64_t all = 0;
  std::error_code ignored;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", ignored)) {
    std::uint64_t ns = 0;
    std::ifstream(task.path() / "schedstat") >> ns;
    all += ns;
  }
  return all;
}

std::uint64_t switches() {
  rusage use{};
  ::getrusage(RUSAGE_THREAD, &use);
  return static_cast<std::uint64_t>(use.ru_nvcsw);
}

template <class Touches>
Sample sample(const Touches& touches) {
  const std::uint64_t switched = switches(), cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  touches();
  const std::uint64_t used = clock_ns(CLOCK_THREAD_CPUTIME_ID), end = clock_ns();
  return {used - cpu, switches() - switched, end};
}

/// Runs the rounds of process number `i`.
void take_part(const OpenFile& file, Case what, const std::vector<std::uint64_t>& offsets, std::size_t i,
               Shared& shared) {
  for (const std::uint64_t at : offsets) {
    const Mapping mapping(file.fd, file.bytes);
    pthread_barrier_wait(&shared.barrier);
    shared.of[i] = sample([&] {
      // Whichever of the 16 pages is read first, the request includes all of them.
      if (what == Case::same) mapping.touch(at + kReadAround / 2);
      if (what == Case::near) mapping.touch(at + (8 + i % 16) * kPage);
      if (what == Case::resident)
        for (std::uint64_t n = 0; n < kResidentFaults; ++n) mapping.touch(at + n * kFaultAround);
    });
    pthread_barrier_wait(&shared.barrier);
  }
}

/// Returns the CPU time that sample() measures for a page that is mapped.
double overhead_ns(const OpenFile& file) {
  const Mapping mapping(file.fd, kPage);
  std::vector<double> each;
  for (int n = 0; n < 200; ++n) each.push_back(static_cast<double>(sample([&] { mapping.touch(0); }).cpu_ns));
  return median(each);
}

nlohmann::json measure(const OpenFile& file, Case what, unsigned processes, std::size_t rounds, int server) {
  const bool waits = what == Case::same || what == Case::near;
  std::vector<std::uint64_t> offsets;
  if (waits) {
    drop(file);
    offsets = places(file.bytes - kReadAround, 4 * kReadAround, what == Case::same ? 11 : 12);
    if (offsets.size() > rounds) offsets.resize(rounds);
  } else {
    read_all(file);
    offsets.assign(rounds, 0);
  }
  const double faults = waits ? 1 : static_cast<double>(kResidentFaults), extra = overhead_ns(file);
  Shared* const shared = share(processes);
  std::vector<pid_t> children;
  for (unsigned i = 0; i < processes; ++i) {
    const pid_t child = ::fork();
    if (child < 0) die_errno("fork");
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // otherwise it would wait for a killed parent
      take_part(file, what, offsets, i, *shared);
      ::_exit(0);
    }
    children.push_back(child);
  }
  std::vector<double> cpu, switched, span, of_server;
  for (std::size_t round = 0; round < offsets.size(); ++round) {
    const std::uint64_t before = cpu_of(server);
    pthread_barrier_wait(&shared->barrier);
    pthread_barrier_wait(&shared->barrier);
    const auto* const end = shared->of + processes;
    double sum = 0, times = 0;
    std::uint64_t first = ~std::uint64_t{0}, last = 0;
    for (const Sample* s = shared->of; s != end; ++s) {
      sum += std::max(static_cast<double>(s->cpu_ns) - extra, 0.0);
      times += static_cast<double>(s->switches);
      first = std::min(first, s->end_ns);
      last = std::max(last, s->end_ns);
    }
    cpu.push_back(sum / processes / faults * 1e-9);
    switched.push_back(times / processes / faults);
    span.push_back(static_cast<double>(last - first) * 1e-9);
    of_server.push_back(static_cast<double>(cpu_of(server) - before) * 1e-9);
  }
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  constexpr const char* kNames[] = {"same", "near", "resident"};
  return {{"case", kNames[static_cast<int>(what)]},
          {"processes", processes},
          {"cpu_s", median(cpu)},
          {"switches", median(switched)},
          {"span_s", median(span)},
          {"server_cpu_s", median(of_server)}};
}

int run(int argc, char** argv) {
  CLI::App app{"Measures what page faults of several processes on the same file take.", "measure_faults"};
  std::string path;
  int server = 0;
  unsigned processes = 0;
  std::size_t rounds = 30;
  app.add_option("FILE", path, "on a slow file system")->required();
  app.add_option("--server", server, "process id of the file system's server")->required();
  app.add_option("--processes", processes)->required()->check(CLI::Range(1u, static_cast<unsigned>(kMost)));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  const OpenFile file(path);
  if (file.bytes < std::max<std::uint64_t>(8 * kReadAround, kResidentFaults * kFaultAround))
    die("%s: needs at least %zu bytes", path.c_str(),
        static_cast<std::size_t>(kResidentFaults * kFaultAround));
  for (const Case what : {Case::same, Case::near, Case::resident})
    std::puts(measure(file, what, processes, rounds, server).dump().c_str());
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::run(argc, argv); }
