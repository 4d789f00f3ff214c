#include "tests/diff/campaign.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "tests/diff/executor.h"
#include "tests/diff/generator.h"
#include "tests/diff/sabotage.h"
#include "tests/diff/stock_state.h"

namespace lmdbio::diff {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kMaxJobs = 16;
constexpr int kFailed = 3;            // a worker's exit status
constexpr unsigned kMaxDwells = 400;  // programs spent on one cell before it is taken as out of reach

double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

/// Copies and commits cost a third of the time where the file system is memory.
std::string temporary_directory() {
  const bool memory = std::getenv("TMPDIR") == nullptr && access("/dev/shm", W_OK | X_OK) == 0;
  return memory ? "/dev/shm" : fs::temp_directory_path().string();
}

const char* const kRoles[] = {"reference", "tested", "other stock"};

}  // namespace

struct Campaign::Shared {
  Coverage coverage;
  std::atomic<std::uint64_t> next;
  std::atomic<std::uint32_t> dwells[test::kDbKinds][kStates][kOps];
  struct Slot {
    std::atomic<std::uint64_t> seed;
    std::atomic<std::uint32_t> call;
    std::atomic<int> side;
    char doing[600];
    Failure failure;
  } slots[kMaxJobs];
};

struct Campaign::Worker {
  pid_t pid = -1;
  int slot = 0;
  std::uint64_t seen = 0;
  Clock::time_point moved;
};

Campaign::Campaign(Options options) : options_(std::move(options)) {
  dir_ = options_.dir;
  if (dir_.empty()) {
    dir_ = temporary_directory() + "/lmdbio_diff." + std::to_string(getpid());
    remove_dir_ = true;
  }
  fs::remove_all(dir_ + "/master");
  fs::create_directories(dir_);
  reference_ = test::load_lmdb(options_.reference);
  set_stock_release(reference_.is_10());
  if (!options_.other.empty()) other_ = test::load_lmdb(options_.other);
  if (!options_.other.empty() && other_.is_10() != reference_.is_10())
    throw std::runtime_error("--other is of another release than --reference");
  environments_ = build_environments(reference_, options_.catalogue, options_.large, dir_ + "/master");
  void* p = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::runtime_error("mmap");
  shared_ = new (p) Shared();
}

Campaign::~Campaign() {
  munmap(shared_, sizeof(Shared));
  std::error_code ignored;
  if (remove_dir_) fs::remove_all(dir_, ignored);
}

const Coverage& Campaign::coverage() const noexcept { return shared_->coverage; }

std::uint64_t Campaign::started() const noexcept { return shared_->next; }

std::string Campaign::command(std::uint64_t seed) const {
  std::string s = "lmdbio_diff --reference " + options_.reference;
  if (!options_.tested.empty()) s += " --tested " + options_.tested;
  if (!options_.tested_on.empty()) s += " --tested-on " + options_.tested_on;
  if (!options_.other.empty()) s += " --other " + options_.other;
  if (options_.sabotage >= 0) s += " --sabotage " + std::to_string(options_.sabotage);
  if (options_.foreign_order) s += " --foreign-order";
  if (options_.tell) s += " --tell";
  if (options_.large) s += " --large";
  return s + " --catalogue " + std::to_string(options_.catalogue) + " --length " +
         std::to_string(options_.length) + " --replay " + std::to_string(seed) + " --shrink";
}

// ---- in a worker ----

namespace {

/// The libraries and the executor of one worker process.
struct Bench {
  test::LmdbApi tested;
  std::unique_ptr<Writer> writer;
  std::unique_ptr<Executor> executor;

  Bench(const Options& o, const test::LmdbApi& reference, const test::LmdbApi& other,
        const std::vector<Environment>& environments, const std::string& dir, Coverage& coverage) {
    writer = std::make_unique<Writer>(reference, environments);  // forks: before anything is opened
    setenv("LMDBIO_STRICT", "1", 1);                             // stock's refusals too
    if (!o.tested_on.empty()) setenv("LMDBIO_STOCK_LIB", o.tested_on.c_str(), 1);
    tested = test::load_lmdb(o.tested.empty() ? o.reference : o.tested);
    if (o.sabotage >= 0) sabotage(o.sabotage, &tested);
    std::vector<Side> sides(o.other.empty() ? 2 : 3);
    const test::LmdbApi* libraries[] = {&reference, &tested, &other};
    for (std::size_t i = 0; i < sides.size(); ++i) {
      sides[i].lmdb = libraries[i];
      sides[i].name = kRoles[i];
      sides[i].role = static_cast<Role>(i);
      sides[i].dir = dir + "/" + std::to_string(i);
    }
    executor = std::make_unique<Executor>(std::move(sides), environments, *writer, coverage);
    executor->foreign_order = o.foreign_order;
    if (o.tell) {
      void* const library = ::dlopen(o.tested.c_str(), RTLD_NOW | RTLD_NOLOAD);
      if (library != nullptr)
        executor->prefetch =
            reinterpret_cast<decltype(executor->prefetch)>(::dlsym(library, "lmdbio_prefetch"));
      if (executor->prefetch == nullptr)
        throw std::runtime_error("--tell: the tested library has no lmdbio_prefetch");
    }
  }
};

bool generate_and_run(Executor& executor, std::uint64_t seed, unsigned length) {
  executor.start_program();
  Generator generator(Seed(seed), executor);
  for (unsigned i = 0; i < length; ++i)
    if (!executor.run(generator.next())) return false;
  return executor.finish_program();
}

bool run_calls(Executor& executor, const Program& program) {
  executor.start_program();
  for (const Call& c : program)
    if (executor.feasible(c) && !executor.run(c)) return false;
  return executor.finish_program();
}

template <class Slot>
void watch(Executor& executor, Slot& slot, std::ofstream* journal) {
  executor.running_side = &slot.side;
  executor.before_call = [&slot, journal](const Call& c) {
    slot.call.fetch_add(1, std::memory_order_relaxed);
    if (journal == nullptr) return;
    const std::string text = to_c(c);
    std::snprintf(slot.doing, sizeof slot.doing, "%s", text.c_str());
    write_call(*journal, c);
    journal->flush();
  };
}

template <class Slot>
[[noreturn]] void give_up(Slot& slot, const Executor& executor) {
  slot.failure = Failure();
  slot.failure.seed = slot.seed;
  slot.failure.call = slot.call;
  slot.failure.side = 1;
  std::snprintf(slot.failure.text, sizeof slot.failure.text, "%s", executor.failure().c_str());
  _exit(kFailed);
}

}  // namespace

std::uint64_t Campaign::choose_seed(std::uint64_t index) const {
  const std::uint64_t number = options_.seed + index;
  if (options_.min_cell == 0) return number;
  test::Rng rng(number);
  std::vector<Cell> wanted;
  for (int k = 0; k < test::kDbKinds; ++k)
    for (int s = 0; s < kStates; ++s)
      for (int o = 0; o < kOps; ++o) {
        const Cell cell{static_cast<test::DbKind>(k), static_cast<CursorState>(s), o, 0};
        if (reachable(cell.kind, cell.state) && shared_->coverage.cursor[k][s][o] < options_.min_cell &&
            shared_->dwells[k][s][o] < kMaxDwells)
          wanted.push_back(cell);
      }
  if (wanted.empty() || rng.percent(10)) return number;
  const Cell cell = wanted[rng.below(wanted.size())];
  ++shared_->dwells[static_cast<int>(cell.kind)][static_cast<int>(cell.state)][cell.op];
  return Seed::dwelling_on(cell, number).value();
}

bool Campaign::enough() const {
  const Coverage& c = shared_->coverage;
  if (c.programs < options_.seeds || c.calls < options_.calls) return false;
  if (options_.min_cell == 0) return true;
  for (int k = 0; k < test::kDbKinds; ++k)
    for (int s = 0; s < kStates; ++s)
      for (int o = 0; o < kOps; ++o)
        if (reachable(static_cast<test::DbKind>(k), static_cast<CursorState>(s)) &&
            c.cursor[k][s][o] < options_.min_cell && shared_->dwells[k][s][o] < kMaxDwells)
          return false;
  return true;
}

void Campaign::work(int index) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Shared::Slot& slot = shared_->slots[index];
  Bench bench(options_, reference_, other_, environments_, dir_ + "/worker" + std::to_string(index),
              shared_->coverage);
  watch(*bench.executor, slot, nullptr);
  while (!enough()) {
    slot.seed = choose_seed(shared_->next.fetch_add(1));
    slot.call = 0;
    if (!generate_and_run(*bench.executor, slot.seed, options_.length)) give_up(slot, *bench.executor);
    shared_->coverage.programs.fetch_add(1);
  }
  bench.writer.reset();
  _exit(0);
}

// ---- in the parent ----

void Campaign::collect(Worker& worker, int status, std::vector<Failure>* failures) {
  Shared::Slot& slot = shared_->slots[worker.slot];
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  Failure f;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kFailed) {
    f = slot.failure;
  } else {
    f.seed = slot.seed;
    f.call = slot.call;
    f.signal = WIFSIGNALED(status) ? WTERMSIG(status) : SIGABRT;
    f.side = slot.side;
    std::snprintf(f.text, sizeof f.text, "%s: %s", kRoles[f.side],
                  WIFSIGNALED(status) ? (f.signal == SIGKILL ? "hangs" : strsignal(f.signal)) : "exits");
  }
  failures->push_back(f);
}

std::vector<Failure> Campaign::run() {
  const Clock::time_point begin = Clock::now();
  std::vector<Failure> failures;
  std::vector<Worker> workers(std::min<std::size_t>(options_.jobs, kMaxJobs));
  const auto start = [&](Worker& w) {
    std::fflush(nullptr);
    w.pid = fork();
    if (w.pid == 0) {
      try {
        work(w.slot);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "worker: %s\n", e.what());
        _exit(2);
      }
    }
    w.moved = Clock::now();
  };
  for (std::size_t i = 0; i < workers.size(); ++i) {
    workers[i].slot = static_cast<int>(i);
    start(workers[i]);
  }
  const bool show = !options_.quiet && isatty(STDERR_FILENO) != 0;
  bool stopping = false;
  for (;;) {
    bool running = false;
    for (Worker& w : workers) {
      if (w.pid < 0) continue;
      running = true;
      const std::uint64_t now = shared_->slots[w.slot].seed * 1000 + shared_->slots[w.slot].call;
      if (now != w.seen) {
        w.seen = now;
        w.moved = Clock::now();
      } else if (since(w.moved) > options_.hang_seconds) {
        kill(w.pid, SIGKILL);
      }
      int status = 0;
      if (waitpid(w.pid, &status, WNOHANG) != w.pid) continue;
      w.pid = -1;
      if (stopping) continue;
      collect(w, status, &failures);
      if (failures.size() < options_.max_failures && !enough()) start(w);
    }
    if (!running) break;
    const bool late = options_.seconds > 0 && since(begin) > options_.seconds;
    if ((late || failures.size() >= options_.max_failures) && !stopping) {
      stopping = true;
      for (Worker& w : workers)
        if (w.pid > 0) kill(w.pid, SIGKILL);
    }
    if (show) {
      const Coverage& c = shared_->coverage;
      const Cell rare = rarest_cell(c);
      std::fprintf(stderr, "\r%8.1f s  %12llu calls  %8llu programs  rarest cell %s/%s/%s: %u   ",
                   since(begin), static_cast<unsigned long long>(c.calls.load()),
                   static_cast<unsigned long long>(c.programs.load()), name_of(rare.kind),
                   name_of(rare.state), op_name(rare.op), rare.calls);
    }
    usleep(20000);
  }
  if (show) std::fprintf(stderr, "\n");
  seconds_ = since(begin);
  return failures;
}

bool Campaign::in_child(int index, const std::string& journal_path, Failure* failure, Program* journal,
                        std::uint64_t seed, const Program* program) {
  Shared::Slot& slot = shared_->slots[index];
  slot.seed = seed;
  slot.call = 0;
  slot.side = 0;
  slot.doing[0] = '\0';
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    alarm(static_cast<unsigned>(options_.hang_seconds));
    std::ofstream out(journal_path, std::ios::binary);
    Bench bench(options_, reference_, other_, environments_, dir_ + "/replay", shared_->coverage);
    watch(*bench.executor, slot, &out);
    const bool good = program != nullptr ? run_calls(*bench.executor, *program)
                                         : generate_and_run(*bench.executor, seed, options_.length);
    if (!good) give_up(slot, *bench.executor);
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (journal != nullptr) {
    journal->clear();
    std::ifstream in(journal_path, std::ios::binary);
    for (Call c; read_call(in, &c);) journal->push_back(c);
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  Worker w;
  w.slot = index;
  std::vector<Failure> found;
  collect(w, status, &found);
  *failure = found.at(0);
  if (failure->signal != 0)
    std::snprintf(failure->text, sizeof failure->text, "%s: %s\n    %s", kRoles[failure->side], slot.doing,
                  failure->signal == SIGALRM ? "hangs" : strsignal(failure->signal));
  return false;
}

bool Campaign::run_seed(std::uint64_t seed, Failure* failure, Program* journal) {
  return in_child(0, dir_ + "/journal", failure, journal, seed, nullptr);
}

bool Campaign::run_program(const Program& program, Failure* failure, Program* journal) {
  return in_child(0, dir_ + "/journal", failure, journal, 0, &program);
}

}  // namespace lmdbio::diff
