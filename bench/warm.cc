// The warm table: the cost of a call when the file is in the page cache, ours compared with stock.
//
// A sample starts one process per backend (stock, stock again as A/A control, ours), all pinned to one core.
// Each process runs a first pass with empty page tables.  Then it maps all pages, and the processes run
// second passes in turns.  The sample is the median of the turns' ratios.  Each sample starts new processes,
// because the placement of its memory may make a process faster or slower for its whole life.  Samples are
// added until the A/A interval is narrow enough.
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "bench/dataset.h"
#include "bench/runner.h"
#include "bench/stats.h"
#include "bench/workload_warm.h"

namespace lmdbio::bench {
namespace {

struct Options {
  std::string dir, library = default_library(), json;
  std::vector<std::uint64_t> values{200, 3072, 12288, 112640};
  std::vector<std::string> rows;
  std::uint64_t small_bytes = 10 * last_level_cache_bytes();  // size of the database of the smallest values
  std::uint64_t large_bytes = std::uint64_t{1} << 30;         // size of other databases
  std::uint64_t key_records = 1000000;  // of the databases of --random-keys, --long-prefix
  bool random_keys = false, long_prefix = false;
  std::size_t samples = 7, max_samples = 41, rounds = 5;
  std::uint64_t lookups = 200000, min_scan = 1000000;
  bool tls = false, cpu_time = false, check = false, smoke = false, only_generate = false;
};

constexpr std::size_t kFirstPerSecond = 5;  // limit on first passes, as a multiple of max_samples
constexpr std::uint64_t kEnoughBytes = 256u << 20;

enum Backend : std::size_t { kStock, kControl, kOurs, kBackends };

/// Returns the limit that the project promises for the median of ours/stock.
double limit(const RowInfo& row, std::uint64_t value_bytes, bool first_pass) {
  const bool small = value_bytes < 1024;
  if (first_pass) return 1.03;
  switch (row.row) {
    case Row::kNext:
      return small ? 0.40 : 0.55;
    case Row::kNextRead:
      return small ? 0.60 : 1.03;
    case Row::kGet:
      return 0.80;
    case Row::kAbsent:
      return 0.80;
    case Row::kRange:
      return 0.75;
    case Row::kBegin:
      return 0.90;
    case Row::kRenew:
      return 0.88;
  }
  return 1;
}

/// The samples of one row and pass.
struct Series {
  std::vector<double> ratio, control, stock_ns, ours_ns;

  void add(const std::vector<std::array<double, kBackends>>& turns) {
    std::vector<double> r, c, s, o;
    for (const auto& ns : turns) {
      r.push_back(ns[kOurs] / ns[kStock]);
      c.push_back(ns[kControl] / ns[kStock]);
      s.push_back(ns[kStock]);
      o.push_back(ns[kOurs]);
    }
    ratio.push_back(median(r));
    control.push_back(median(c));
    stock_ns.push_back(median(s));
    ours_ns.push_back(median(o));
  }
  bool settled() const { return median_interval(control).within(0.97, 1.03); }
};

class WarmTable {
 public:
  explicit WarmTable(Options options) : o_(std::move(options)), tty_(isatty(STDERR_FILENO) != 0) {}

  /// Writes the databases and prints where they are.
  int generate() {
    for (const Dataset& set : datasets()) std::printf("%s %s\n", set.path.c_str(), key_kind_name(set.keys));
    return 0;
  }

  int run() {
    report_["machine"] = machine_facts();
    cpu_ = worker_cpu();
    keep_off_cpu(cpu_);
    std::puts(
        "| database | row | pass | stock ns | ours ns | ours/stock [95 %] | A/A [95 %] | n | at most |");
    std::puts("|---|---|---|---|---|---|---|---|---|");
    for (const Dataset& set : datasets()) measure(set);
    report_["machine"]["load_average_at_end"] = machine_facts()["load_average"];
    report_["options"] = {
        {"lookups", o_.lookups},  {"rounds", o_.rounds},
        {"samples", o_.samples},  {"max_samples", o_.max_samples},
        {"thread_bound", o_.tls}, {"clock", o_.cpu_time ? "process CPU time" : "monotonic"}};
    if (!o_.json.empty()) write_json(o_.json, report_);
    if (above_ > 0)
      std::printf("\n%zu of %zu medians above what is promised\n", above_, report_["rows"].size());
    return o_.check && above_ > 0 ? 1 : 0;
  }

 private:
  std::vector<Dataset> datasets() {
    std::vector<Dataset> sets;
    for (const std::uint64_t v : o_.values)
      sets.push_back(make_dataset(o_.dir, KeyKind::kImage, v,
                                  records_for(v < 1024 ? o_.small_bytes : o_.large_bytes, v)));
    if (o_.random_keys) sets.push_back(make_dataset(o_.dir, KeyKind::kRandom, 200, o_.key_records));
    if (o_.long_prefix) sets.push_back(make_dataset(o_.dir, KeyKind::kPrefix, 200, o_.key_records));
    return sets;
  }

  std::vector<Worker> start(const Dataset& set) {
    std::vector<std::string> argv{program_dir() + "/run_lmdb", set.path, "--keys",
                                  key_kind_name(set.keys),     "--cpu",  std::to_string(cpu_)};
    if (o_.tls) argv.emplace_back("--tls");
    if (o_.cpu_time) argv.emplace_back("--cpu-time");
    const std::string preload = o_.library == "stock" ? "" : o_.library;
    std::vector<Worker> workers;
    workers.emplace_back(WorkerSpec{"stock", argv, ""});
    workers.emplace_back(WorkerSpec{"stock (A/A)", argv, ""});
    workers.emplace_back(WorkerSpec{"ours", argv, preload});
    std::array<Reply, kBackends> who;
    for (std::size_t b = 0; b < kBackends; ++b) who[b] = workers[b].call({Action::kHello});
    const std::string stock = who[kStock].provider, ours = who[kOurs].provider;
    if (!preload.empty() && ours == stock)
      die("%s is not in use: calls go to %s", preload.c_str(), ours.c_str());
    report_["libraries"] = {{"stock", {{"file", stock}, {"version", who[kStock].version}}},
                            {"ours", {{"file", ours}, {"version", who[kOurs].version}}}};
    return workers;
  }

  /// Ends the program unless all backends return the same bytes in the same order.
  void verify(const Dataset& set) {
    std::vector<Worker> workers = start(set);
    std::array<Reply, kBackends> all, gets;
    for (std::size_t b = 0; b < kBackends; ++b) {
      all[b] = workers[b].call({Action::kReadAll});
      const auto row = static_cast<std::uint32_t>(Row::kGet);
      gets[b] = workers[b].call({Action::kRun, row, 42, std::min<std::uint64_t>(o_.lookups, 20000)});
      if (all[b].digest != all[kStock].digest || all[b].ops != all[kStock].ops ||
          gets[b].digest != gets[kStock].digest)
        die("%s: '%s' reads other bytes than stock", set.name.c_str(), workers[b].label().c_str());
    }
    report_["databases"][set.name] = {{"value_bytes", set.value_bytes},
                                      {"records", all[kStock].ops},
                                      {"file_bytes", set.file_bytes},
                                      {"keys", key_kind_name(set.keys)}};
  }

  void measure(const Dataset& set) {
    progress(set.name + ": reading the file");
    const double there = make_resident(set);
    if (there < 0.999)
      std::fprintf(stderr, "warning: only %.1f %% of %s is in the page cache\n", 100 * there,
                   set.name.c_str());
    verify(set);
    for (std::uint32_t r = 0; r < kRows.size(); ++r) {
      const RowInfo& row = kRows[r];
      if (!o_.rows.empty() && std::find(o_.rows.begin(), o_.rows.end(), row.name) == o_.rows.end()) continue;
      Series first, second;
      std::size_t n = 0;
      for (; n < o_.max_samples && (n < o_.samples || !second.settled()); ++n) {
        sample(set, r, n, first, &second);
        tell(set, row, "second", second);
      }
      // A first pass is short, and a process runs only one.  So first passes need more processes, but these
      // are cheap.
      for (; n < kFirstPerSecond * o_.max_samples && !first.settled() && o_.max_samples > o_.samples; ++n) {
        sample(set, r, n, first, nullptr);
        tell(set, row, "first", first);
      }
      progress("");
      publish(set, row, "first", first);
      publish(set, row, "second", second);
    }
  }

  /// Takes one sample with one process per backend: a first pass and, if `second` is not null, the second
  /// passes.
  void sample(const Dataset& set, std::uint32_t row, std::size_t n, Series& first, Series* second) {
    std::vector<Worker> workers = start(set);
    const RowInfo& info = kRows[row];
    const std::uint64_t count = info.row == Row::kRange ? o_.lookups / 4 + 1 : o_.lookups;
    // Repeat a scan of few records until it is long enough to measure.
    const std::uint64_t enough = info.row == Row::kNextRead ? kEnoughBytes / set.value_bytes : o_.min_scan;
    const std::uint64_t again = std::max(std::min(enough, o_.min_scan), set.records);
    const auto turn = [&](std::size_t round, std::uint64_t steps) {
      std::array<double, kBackends> ns{};
      for (const std::size_t b : round_order(kBackends, round)) {
        // Each worker gets other keys: the previous worker would leave the cache lines of equal keys in the
        // shared cache.
        const Reply reply = workers[b].call({Action::kRun, row, seed_ += o_.lookups + 1, steps});
        ns[b] = static_cast<double>(reply.ns) / static_cast<double>(reply.ops);
      }
      return ns;
    };
    first.add({turn(n, info.scan ? set.records : count)});
    if (second == nullptr) return;
    if (!info.scan)
      for (Worker& w : workers) (void)w.call({Action::kTouch});
    std::vector<std::array<double, kBackends>> turns;
    for (std::size_t r = 0; r < o_.rounds; ++r) turns.push_back(turn(n + r, info.scan ? again : count));
    second->add(turns);
  }

  void tell(const Dataset& set, const RowInfo& row, const char* pass, const Series& s) const {
    progress(set.name + ": " + row.title + ", " + pass + " pass: sample " + std::to_string(s.ratio.size()) +
             ", ours/stock " + text(median_interval(s.ratio)) + ", A/A " + text(median_interval(s.control)));
  }

  static std::string text(const Interval& i) {
    char s[64];
    if (std::isnan(i.low)) {
      std::snprintf(s, sizeof s, "%.3f [-]", i.middle);
    } else {
      std::snprintf(s, sizeof s, "%.3f [%.3f, %.3f]", i.middle, i.low, i.high);
    }
    return s;
  }

  void publish(const Dataset& set, const RowInfo& row, const char* pass, const Series& s) {
    const Interval ratio = median_interval(s.ratio), control = median_interval(s.control);
    const double at_most = limit(row, set.value_bytes, std::strcmp(pass, "first") == 0);
    const bool above = ratio.middle > at_most;
    above_ += above ? 1 : 0;
    std::printf("| %s | %s | %s | %.1f | %.1f | %s | %s%s | %zu | %.2f%s |\n", set.name.c_str(), row.title,
                pass, median(s.stock_ns), median(s.ours_ns), text(ratio).c_str(), text(control).c_str(),
                s.settled() ? "" : " not settled", s.ratio.size(), at_most, above ? " ABOVE" : "");
    std::fflush(stdout);
    const auto interval = [](const Interval& i) {
      nlohmann::json j{{"median", i.middle}};
      if (!std::isnan(i.low)) j["low"] = i.low, j["high"] = i.high;
      return j;
    };
    report_["rows"].push_back(
        {{"database", set.name},
         {"value_bytes", set.value_bytes},
         {"keys", key_kind_name(set.keys)},
         {"row", row.name},
         {"title", row.title},
         {"pass", pass},
         {"stock_ns", median(s.stock_ns)},
         {"ours_ns", median(s.ours_ns)},
         {"ratio", interval(ratio)},
         {"control", interval(control)},
         {"settled", s.settled()},
         {"at_most", at_most},
         {"samples",
          {{"ratio", s.ratio}, {"control", s.control}, {"stock_ns", s.stock_ns}, {"ours_ns", s.ours_ns}}}});
  }

  void progress(const std::string& line) const {
    if (tty_) std::fprintf(stderr, "\r%s\033[K", line.c_str());
  }

  const Options o_;
  const bool tty_;
  int cpu_ = -1;
  std::uint64_t seed_ = 1;
  std::size_t above_ = 0;
  nlohmann::json report_;
};

int main_(int argc, char** argv) {
  Options o;
  CLI::App app{"What LMDB calls cost when the file is in the page cache: ours against stock."};
  app.add_option("--dir", o.dir, "where databases are kept and reused (default: a new temporary one)");
  app.add_option("--library", o.library, "library to preload, or 'stock' to compare stock with itself")
      ->capture_default_str();
  app.add_option("--values", o.values, "sizes of values, bytes")->delimiter(',')->capture_default_str();
  app.add_option("--rows", o.rows, "only these: next, next_read, get, absent, range, begin, renew")
      ->delimiter(',');
  app.add_option("--small-bytes", o.small_bytes,
                 "size of databases of values below 1 KiB (default: 10 x last-level cache)")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("--large-bytes", o.large_bytes, "size of the other databases")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_flag("--random-keys", o.random_keys, "also 16 B random keys (200 B values)");
  app.add_flag("--long-prefix", o.long_prefix, "also keys with a long common prefix (200 B values)");
  app.add_option("--key-records", o.key_records, "records of those two databases")->capture_default_str();
  app.add_option("--samples", o.samples, "fewest samples of a row")->capture_default_str();
  app.add_option("--max-samples", o.max_samples, "most samples, if A/A does not settle in 0.97-1.03")
      ->capture_default_str();
  app.add_option("--rounds", o.rounds, "second passes of a sample")->capture_default_str();
  app.add_option("--lookups", o.lookups, "random keys of a pass")->capture_default_str();
  app.add_flag("--tls", o.tls, "thread-bound transactions (without MDB_NOTLS)");
  app.add_flag("--cpu-time", o.cpu_time,
               "CPU time instead of wall time: for tuning on a busy machine, not for results");
  app.add_flag("--check", o.check, "exit 1 if a median is above what is promised");
  app.add_option("--json", o.json, "write all samples and the machine's facts there");
  app.add_flag("--only-generate", o.only_generate,
               "write the databases into --dir, print their paths and keys, and stop");
  app.add_flag("--smoke", o.smoke,
               "a few seconds on tiny databases: proves that this program works, measures nothing");
  CLI11_PARSE(app, argc, argv);

  if (o.smoke) {
    o.small_bytes = o.large_bytes = 2u << 20;
    o.key_records = 5000;
    o.samples = o.max_samples = 1;
    o.rounds = 1;
    o.lookups = 1000;
    o.min_scan = 1000;
    o.random_keys = o.long_prefix = true;
  }
  if (o.only_generate && o.dir.empty()) die("--only-generate needs --dir");
  if (o.only_generate) return WarmTable(o).generate();
  if (o.library != "stock" && access(o.library.c_str(), R_OK) != 0) die_errno(o.library.c_str());
  o.max_samples = std::max(o.max_samples, o.samples);
  if (!o.dir.empty()) return WarmTable(o).run();

  char temporary[] = "/tmp/lmdbio-warm-XXXXXX";
  if (mkdtemp(temporary) == nullptr) die_errno("mkdtemp");
  o.dir = temporary;
  const int rc = WarmTable(o).run();
  std::filesystem::remove_all(temporary);
  return rc;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::main_(argc, argv); }
