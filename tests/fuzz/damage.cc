// lmdbio_damage: many damaged databases, read in every way; who dies of which is counted.
//
// The functions of LMDB are called by name, so that the library in front answers: run it once alone and once
// with LD_PRELOAD=liblmdbio.so, and compare.
//
//   lmdbio_damage --count 100000 --timeout 1 --json stock.json
//   LD_PRELOAD=.. lmdbio_damage --count 100000 --compare stock.json
#include <dlfcn.h>
#include <lmdb.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/fuzz/damage_run.h"

namespace {

using namespace lmdbio::test;
using nlohmann::json;
using std::uint64_t;

constexpr std::size_t kEndings = kEndingNames.size();

struct Options {
  std::string corpus = LMDBIO_SHIM_CORPUS, json_path, compare, write;
  uint64_t count = 10000, seed = 1;
  std::int64_t only = -1;
  RunOptions run;
};

unsigned long long ull(uint64_t n) { return n; }

bool is_bad(Ending e) { return e == Ending::kSignal || e == Ending::kTimeout || e == Ending::kUnbounded; }

/// The library that answers, as it says itself.
std::string library() {
  const auto version = reinterpret_cast<const char* (*)()>(::dlsym(RTLD_DEFAULT, "lmdbio_version"));
  const char* const disabled = std::getenv("LMDBIO_DISABLE");
  const std::string stock = mdb_version(nullptr, nullptr, nullptr);
  return version == nullptr || (disabled != nullptr && std::strcmp(disabled, "1") == 0)
             ? stock
             : std::string("LMDBIO ") + version() + ", " + stock;
}

/// Healthy databases read without any damage reported: else the rest says nothing.
bool prove_healthy(const Catalogue& catalogue, const Options& o, json& out) {
  const Report r = run_databases(
      catalogue.bases(), [&](uint64_t n) { return catalogue.healthy(n); }, o.run);
  bool good = true;
  for (std::size_t i = 0; i < r.cases.size(); ++i) {
    out["healthy_digests"].push_back(r.cases[i].digest);
    if (r.cases[i].ending == Ending::kFine) continue;
    std::fprintf(stderr, "healthy-%s: %s, signal %d in %s\n", catalogue.healthy(i).what.c_str(),
                 kEndingNames[static_cast<std::size_t>(r.cases[i].ending)], r.cases[i].signal,
                 name_of(r.cases[i].call));
    good = false;
  }
  return good;
}

void print_endings(const Report& r) {
  uint64_t n[kDamageNames.size()][kEndings] = {};
  for (uint64_t i = 0; i < r.cases.size(); ++i)
    ++n[static_cast<std::size_t>(Catalogue::kind_of(i))][static_cast<std::size_t>(r.cases[i].ending)];
  std::printf("%-12s", "");
  for (const char* e : kEndingNames) std::printf(" %16s", e);
  std::printf("\n");
  for (std::size_t k = 0; k < static_cast<std::size_t>(Damage::kHealthy); ++k) {
    std::printf("%-12s", kDamageNames[k]);
    for (const uint64_t e : n[k]) std::printf(" %16llu", ull(e));
    std::printf("\n");
  }
}

void print_deaths(const Catalogue& catalogue, const Report& r, const Options& o) {
  struct Kind {
    uint64_t n = 0, first = 0;
  };
  std::map<std::tuple<Ending, int, Call>, Kind> kinds;
  for (uint64_t i = 0; i < r.cases.size(); ++i) {
    const Case& c = r.cases[i];
    if (!is_bad(c.ending)) continue;
    Kind& k = kinds[{c.ending, c.signal, c.call}];
    if (k.n++ == 0) k.first = i;
  }
  for (const auto& [what, k] : kinds) {
    const auto& [ending, signal, call] = what;
    std::printf("%s%s%s: %llu, the first: %llu (%s)\n", kEndingNames[static_cast<std::size_t>(ending)],
                ending == Ending::kSignal ? (std::string(" ") + ::strsignal(signal)).c_str() : "",
                ending == Ending::kUnbounded ? "" : (std::string(" in ") + name_of(call)).c_str(), ull(k.n),
                ull(k.first), catalogue.damaged(k.first, o.seed).what.c_str());
  }
  if (!r.not_alone.empty())
    std::printf("died only after others in one process: %zu, the first: %llu\n", r.not_alone.size(),
                ull(r.not_alone[0]));
}

void print_codes(const Report& r) {
  std::map<Call, std::string> lines;
  for (const auto& [key, n] : r.codes)
    lines[key.first] += " " + std::to_string(key.second) + ":" + std::to_string(n);
  for (const auto& [call, line] : lines) std::printf("  %-26s%s\n", name_of(call), line.c_str());
}

json as_json(const Report& r, const Options& o) {
  json j;
  j["library"] = library();
  j["seed"] = o.seed;
  j["count"] = r.cases.size();
  j["calls"] = r.calls;
  j["longest_call"] = {
      {"ns", r.longest_ns}, {"call", name_of(r.longest_call)}, {"database", r.longest_database}};
  for (const auto& [key, n] : r.codes) j["codes"][name_of(key.first)][std::to_string(key.second)] = n;
  std::string endings;
  for (uint64_t i = 0; i < r.cases.size(); ++i) {
    const Case& c = r.cases[i];
    endings += static_cast<char>('0' + static_cast<int>(c.ending));
    j["digests"].push_back(c.digest);
    if (is_bad(c.ending))
      j["findings"].push_back({{"database", i},
                               {"ending", kEndingNames[static_cast<std::size_t>(c.ending)]},
                               {"signal", c.signal},
                               {"call", name_of(c.call)}});
  }
  j["endings"] = endings;
  j["ending_names"] = kEndingNames;
  j["not_alone"] = r.not_alone;
  return j;
}

/// How this run's endings meet those of another library's run over the same databases.  False: not
/// comparable.
bool compare(const Catalogue& catalogue, const json& ours, const Report& r, const Options& o) {
  std::ifstream in(o.compare);
  const json other = json::parse(in, nullptr, false);
  if (other.is_discarded() || !other.contains("endings") || other["seed"] != o.seed ||
      other["count"] != r.cases.size()) {
    std::fprintf(stderr, "%s: not a run over the same databases\n", o.compare.c_str());
    return false;
  }
  const auto endings = other["endings"].get<std::string>();
  const auto digests = other["digests"].get<std::vector<uint64_t>>();
  uint64_t n[kEndings][kEndings] = {}, other_bytes = 0, stricter = 0, first_other = 0, first_stricter = 0;
  for (uint64_t i = 0; i < r.cases.size(); ++i) {
    const auto theirs = static_cast<std::size_t>(endings[i] - '0'),
               mine = static_cast<std::size_t>(r.cases[i].ending);
    ++n[theirs][mine];
    const bool they_fine = theirs == static_cast<std::size_t>(Ending::kFine);
    if (they_fine && r.cases[i].ending == Ending::kFine && digests[i] != r.cases[i].digest &&
        other_bytes++ == 0)
      first_other = i;
    if (they_fine && r.cases[i].ending == Ending::kDamageReported && stricter++ == 0) first_stricter = i;
  }
  std::printf("\n%s (down), %s (across)\n%-16s", other["library"].get<std::string>().c_str(),
              library().c_str(), "");
  for (const char* e : kEndingNames) std::printf(" %16s", e);
  std::printf("\n");
  for (std::size_t i = 0; i < kEndings; ++i) {
    std::printf("%-16s", kEndingNames[i]);
    for (const uint64_t e : n[i]) std::printf(" %16llu", ull(e));
    std::printf("\n");
  }
  if (stricter != 0)
    std::printf("damage reported only here: %llu, the first: %llu (%s)\n", ull(stricter), ull(first_stricter),
                catalogue.damaged(first_stricter, o.seed).what.c_str());
  if (other_bytes != 0)
    std::printf("no damage seen by either, other answers: %llu, the first: %llu (%s)\n", ull(other_bytes),
                ull(first_other), catalogue.damaged(first_other, o.seed).what.c_str());
  const bool same = other["healthy_digests"] == ours["healthy_digests"];
  if (!same) std::printf("healthy databases are not read alike\n");
  return same;
}

int run_only(const Catalogue& catalogue, const Options& o) {
  const Database d = catalogue.damaged(static_cast<uint64_t>(o.only), o.seed);
  std::printf("%s; variant 0x%x; %s\n", d.what.c_str(), d.variant.bits, library().c_str());
  if (!o.write.empty()) {
    std::ofstream out(o.write, std::ios::binary);
    out.write(reinterpret_cast<const char*>(d.bytes.data()), static_cast<std::streamsize>(d.bytes.size()));
    if (!out.flush()) {
      std::fprintf(stderr, "%s: cannot be written\n", o.write.c_str());
      return 2;
    }
    return 0;
  }
  const Outcome outcome = run_here(d);
  std::printf("%llu calls, %llu of them reported damage, digest %016llx\n", ull(outcome.calls),
              ull(outcome.damage), ull(outcome.digest));
  return outcome.unbounded == 0 ? 0 : 1;
}

int run_all(const Catalogue& catalogue, Options& o) {
  json healthy;
  if (!prove_healthy(catalogue, o, healthy)) return 2;
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  if (terminal)
    o.run.progress = [&](uint64_t done) {
      std::fprintf(stderr, "\r%llu of %llu, %.0f a second ", ull(done), ull(o.count),
                   static_cast<double>(done) / seconds());
    };
  const Report r = run_databases(
      o.count, [&](uint64_t n) { return catalogue.damaged(n, o.seed); }, o.run);
  if (terminal) std::fprintf(stderr, "\r%50s\r", "");
  std::printf("%s: %llu databases of seed %llu in %.1f s (%.0f a second), %llu calls\n", library().c_str(),
              ull(o.count), ull(o.seed), seconds(), static_cast<double>(o.count) / seconds(), ull(r.calls));
  std::printf("of %zu healthy ones: %llu changes of a field, %llu lengths\n\n", catalogue.bases(),
              ull(catalogue.single_fields()), ull(catalogue.lengths()));
  print_endings(r);
  std::printf("\n");
  print_deaths(catalogue, r, o);
  std::printf("longest call: %s, %.3f ms, database %llu\ncodes by call:\n", name_of(r.longest_call),
              static_cast<double>(r.longest_ns) / 1e6, ull(r.longest_database));
  print_codes(r);
  json j = as_json(r, o);
  j["healthy_digests"] = healthy["healthy_digests"];
  if (!o.json_path.empty() && !(std::ofstream(o.json_path) << j.dump(1) << '\n')) {
    std::fprintf(stderr, "%s: cannot be written\n", o.json_path.c_str());
    return 2;
  }
  const bool alike = o.compare.empty() || compare(catalogue, j, r, o);
  const bool died = !r.not_alone.empty() || std::any_of(r.cases.begin(), r.cases.end(),
                                                        [](const Case& c) { return is_bad(c.ending); });
  return alike && (!died || library().find("LMDBIO") == std::string::npos) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Damaged LMDB databases, read in every way in processes that may die.  Exit 1: LMDBIO answers, and a "
      "signal, a call without end or a scan without end occurred."};
  Options o;
  app.add_option("--count,-n", o.count, "databases")->capture_default_str();
  app.add_option("--seed", o.seed, "other databases")->capture_default_str()->check(CLI::Range(0, 1 << 20));
  app.add_option("--corpus", o.corpus, "directory with healthy-* files")->capture_default_str();
  app.add_option("--batch", o.run.batch, "databases per process; 1: each in its own")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--timeout", o.run.timeout_s, "seconds until a database's process is stopped")
      ->capture_default_str()
      ->check(CLI::Range(1, 3600));
  app.add_option("--json", o.json_path, "write the results here");
  app.add_option("--compare", o.compare, "another library's --json over the same databases");
  auto* const only =
      app.add_option("--only", o.only, "this database alone, in this process, each call printed")
          ->check(CLI::NonNegativeNumber);
  app.add_option("--write", o.write, "with --only: write the database here and read nothing")->needs(only);
  CLI11_PARSE(app, argc, argv);
  try {
    const Catalogue catalogue(o.corpus);
    return o.only >= 0 ? run_only(catalogue, o) : run_all(catalogue, o);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", argv[0], e.what());
    return 2;
  }
}
