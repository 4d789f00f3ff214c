#include "tests/fuzz/damage_run.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <system_error>

#include "tests/fuzz/scratch.h"

namespace lmdbio::test {

namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

/// A step that visits each number below `n` once, scattered.
std::uint64_t scattered(std::uint64_t i, std::uint64_t n) {
  std::uint64_t step = n * 5 / 8 + 1;
  while (std::gcd(step, n) != 1) ++step;
  return i % n * step % n;
}

/// Codes as an index: errno values, then LMDB's.
constexpr int kFirstMdb = -30799, kLastMdb = -30760, kErrnos = 256;
constexpr std::size_t kCodes = kErrnos + static_cast<std::size_t>(kLastMdb - kFirstMdb) + 2;
std::size_t index_of(int rc) noexcept {
  if (rc >= 0 && rc < kErrnos) return static_cast<std::size_t>(rc);
  if (rc >= kFirstMdb && rc <= kLastMdb) return kErrnos + static_cast<std::size_t>(rc - kFirstMdb);
  return kCodes - 1;
}
int code_of(std::size_t index) noexcept {
  if (index < kErrnos) return static_cast<int>(index);
  return index == kCodes - 1 ? -1 : kFirstMdb + static_cast<int>(index - kErrnos);
}

/// What children leave behind, also those that die.
struct Shared {
  volatile std::uint64_t database;
  volatile Call call;
  std::uint64_t codes[kCalls][kCodes];
  std::uint64_t calls, longest_ns, longest_database;
  Call longest_call;
};

std::uint64_t now_ns() noexcept {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

class Recorder final : public Observer {
 public:
  explicit Recorder(Shared& shared) : shared_(shared) {}
  void before(Call call) override {
    shared_.call = call;
    started_ = now_ns();
  }
  void after(Call call, int rc) override {
    const std::uint64_t ns = now_ns() - started_;
    if (call == Call::kTouch) return;
    ++shared_.calls;
    ++shared_.codes[static_cast<std::size_t>(call)][index_of(rc)];
    if (ns <= shared_.longest_ns) return;
    shared_.longest_ns = ns;
    shared_.longest_call = call;
    shared_.longest_database = shared_.database;
  }

 private:
  Shared& shared_;
  std::uint64_t started_ = 0;
};

constexpr int kCannotWrite = 3;

class Runner {
 public:
  Runner(std::uint64_t count, const std::function<Database(std::uint64_t)>& make, const RunOptions& options)
      : count_(count), make_(make), options_(options) {
    shared_ = static_cast<Shared*>(map(sizeof(Shared)));
    cases_ = static_cast<Case*>(map(count * sizeof(Case)));
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  ~Runner() {
    ::munmap(shared_, sizeof(Shared));
    ::munmap(cases_, count_ * sizeof(Case));
  }

  Report run() {
    for (std::uint64_t next = 0; next < count_;) {
      const std::uint64_t end = std::min(next + options_.batch, count_);
      const int status = child(next, end);
      if (!WIFSIGNALED(status)) {
        next = end;
      } else {
        // Its own fault?  Memory may have been broken by one before it in the same process.
        const std::uint64_t at = shared_->database;
        const bool again = at > next && WTERMSIG(status) != SIGALRM;
        const int alone = again ? child(at, at + 1) : status;
        if (WIFSIGNALED(alone))
          cases_[at] = {WTERMSIG(alone) == SIGALRM ? Ending::kTimeout : Ending::kSignal, WTERMSIG(alone),
                        shared_->call, 0};
        else
          report_.not_alone.push_back(at);
        next = at + 1;
      }
      if (options_.progress) options_.progress(next);
    }
    report_.cases.assign(cases_, cases_ + count_);
    for (std::size_t c = 0; c < kCalls; ++c)
      for (std::size_t i = 0; i < kCodes; ++i)
        if (const std::uint64_t n = shared_->codes[c][i]; n != 0)
          report_.codes[{static_cast<Call>(c), code_of(i)}] += n;
    report_.calls = shared_->calls;
    report_.longest_ns = shared_->longest_ns;
    report_.longest_database = shared_->longest_database;
    report_.longest_call = shared_->longest_call;
    return std::move(report_);
  }

 private:
  static void* map(std::size_t bytes) {
    void* const p = ::mmap(nullptr, std::max<std::size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("mmap");
    return p;
  }
  /// A child's wait status.
  int child(std::uint64_t begin, std::uint64_t end) {
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
      for (std::uint64_t n = begin; n < end; ++n) one(n);
      ::_exit(0);
    }
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0)
      if (errno != EINTR) fail("waitpid");
    if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotWrite) {
      errno = ENOSPC;
      fail(place_.path());
    }
    // A sanitizer's report ends the process with a status of its own: a finding like a signal.
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) status = SIGABRT;
    return status;
  }
  void one(std::uint64_t n) {
    shared_->database = n;
    if (!quiet_) {  // the child's copy
      quiet_ = true;
      limit_copies();
      const rlimit none{0, 0};
      (void)::setrlimit(RLIMIT_CORE, &none);
      if (std::getenv("DAMAGE_STDERR") == nullptr)
        if (const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC); null >= 0)
          ::dup2(null, STDERR_FILENO);
    }
    const Database d = make_(n);
    if (!place_.write(d.bytes.data(), d.bytes.size())) ::_exit(kCannotWrite);
    Recorder recorder(*shared_);
    ::alarm(options_.timeout_s);
    const Outcome o = call_everything(place_.path(), d.bytes.size(), d.variant, place_.copy_fd(), recorder);
    ::alarm(0);
    cases_[n] = {o.unbounded != 0 ? Ending::kUnbounded
                 : o.damage != 0  ? Ending::kDamageReported
                                  : Ending::kFine,
                 0, Call::kTouch, o.digest};
  }

  const std::uint64_t count_;
  const std::function<Database(std::uint64_t)>& make_;
  const RunOptions& options_;
  const Scratch place_;
  Shared* shared_ = nullptr;
  Case* cases_ = nullptr;
  bool quiet_ = false;
  Report report_;
};

class Printer final : public Observer {
 public:
  void before(Call call) override {
    if (call == Call::kTouch) return;
    std::printf("%s", name_of(call));
    std::fflush(stdout);
  }
  void after(Call call, int rc) override {
    if (call == Call::kTouch) return;
    std::printf(" = %d\n", rc);
    std::fflush(stdout);
  }
  void unbounded(const char* what) override { std::printf("%s\n", what); }
};

}  // namespace

Catalogue::Catalogue(const std::string& dir) {
  std::vector<std::filesystem::path> paths;
  std::error_code ignored;
  for (const auto& e : std::filesystem::directory_iterator(dir, ignored))
    if (e.path().filename().string().starts_with("healthy-")) paths.push_back(e.path());
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    Base b{path.filename().string().substr(8),
           {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()},
           lengths_};
    for (const Field& f : fields_of(b.bytes))
      for (const std::uint64_t value : values_for(b.bytes, f))
        changes_.push_back({static_cast<std::uint32_t>(bases_.size()), f, value});
    lengths_ += b.bytes.size();
    bases_.push_back(std::move(b));
  }
  if (bases_.empty()) throw std::runtime_error(dir + ": no healthy-* files");
}

Database Catalogue::healthy(std::size_t base) const { return {bases_[base].bytes, {}, bases_[base].name}; }

Database Catalogue::damaged(std::uint64_t n, std::uint64_t seed) const {
  Rng rng(Rng(seed << 40 ^ n).next());  // streams of neighbouring seeds overlap
  const std::uint64_t turn = n / 4 + seed * 0x10001;
  Database d;
  d.variant = {rng.percent(40) ? 0 : rng.below(0x200)};
  if (!d.variant.defined()) d.variant.bits &= ~Variant::kMainFlags;
  switch (kind_of(n)) {
    case Damage::kField: {
      const Change& c = changes_[scattered(turn, changes_.size())];
      d.bytes = bases_[c.base].bytes;
      d.what = bases_[c.base].name + ", " + describe(d.bytes, c.field, c.value);
      write_field(d.bytes, c.field, c.value);
      break;
    }
    case Damage::kTruncated: {
      const std::uint64_t at = scattered(turn, lengths_);
      const auto base =
          std::prev(std::upper_bound(bases_.begin(), bases_.end(), at,
                                     [](std::uint64_t v, const Base& b) { return v < b.first_length; }));
      d.bytes = base->bytes;
      d.bytes.resize(at - base->first_length);
      d.what = base->name + ", " + std::to_string(d.bytes.size()) + " bytes left of " +
               std::to_string(base->bytes.size());
      break;
    }
    default: {
      const Base& base = bases_[rng.below(bases_.size())];
      d.bytes = base.bytes;
      d.what = base.name;
      if (kind_of(n) == Damage::kFields)
        mutate_file(d.bytes, rng, 4 << 20);
      else
        for (unsigned i = rng.between(1, 40); i > 0; --i) mutate_bytes(d.bytes, rng);
      break;
    }
  }
  return d;
}

Report run_databases(std::uint64_t count, const std::function<Database(std::uint64_t)>& make,
                     const RunOptions& options) {
  return Runner(count, make, options).run();
}

Outcome run_here(const Database& database) {
  limit_copies();
  const Scratch place;
  if (!place.write(database.bytes.data(), database.bytes.size())) fail(place.path());
  Printer printer;
  return call_everything(place.path(), database.bytes.size(), database.variant, place.copy_fd(), printer);
}

}  // namespace lmdbio::test
