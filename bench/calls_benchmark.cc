// Measures single calls with Google Benchmark, for work on one function.  Published results come from
// warm.cc.
//
//   calls_benchmark [--smoke] [--libraries=stock,PATH] [--records=N] [--value=BYTES]
//                   [--benchmark_... options]
//
// Loads each library privately (RTLD_LOCAL).  Each has its own database with the same content, because two
// environments of one file in one process would share locks.  For interleaved runs, use
// --benchmark_enable_random_interleaving=true --benchmark_repetitions=9.
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bench/dataset.h"
#include "bench/runner.h"

namespace lmdbio::bench {
namespace {

/// LMDB's functions as one library defines them.
struct Api {
  explicit Api(const std::string& path) : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) die("%s", dlerror());
#define LMDBIO_BENCH_FIND(member) find(member, "mdb_" #member)
    LMDBIO_BENCH_FIND(env_create);
    LMDBIO_BENCH_FIND(env_open);
    LMDBIO_BENCH_FIND(env_close);
    LMDBIO_BENCH_FIND(txn_begin);
    LMDBIO_BENCH_FIND(txn_abort);
    LMDBIO_BENCH_FIND(txn_reset);
    LMDBIO_BENCH_FIND(txn_renew);
    LMDBIO_BENCH_FIND(dbi_open);
    LMDBIO_BENCH_FIND(get);
    LMDBIO_BENCH_FIND(cursor_open);
    LMDBIO_BENCH_FIND(cursor_close);
    LMDBIO_BENCH_FIND(cursor_get);
#undef LMDBIO_BENCH_FIND
  }

  void* handle;
  decltype(&mdb_env_create) env_create;
  decltype(&mdb_env_open) env_open;
  decltype(&mdb_env_close) env_close;
  decltype(&mdb_txn_begin) txn_begin;
  decltype(&mdb_txn_abort) txn_abort;
  decltype(&mdb_txn_reset) txn_reset;
  decltype(&mdb_txn_renew) txn_renew;
  decltype(&mdb_dbi_open) dbi_open;
  decltype(&mdb_get) get;
  decltype(&mdb_cursor_open) cursor_open;
  decltype(&mdb_cursor_close) cursor_close;
  decltype(&mdb_cursor_get) cursor_get;

 private:
  template <class F>
  void find(F& function, const char* name) {
    void* symbol = dlsym(handle, name);
    if (symbol == nullptr) die("%s", dlerror());
    static_assert(sizeof function == sizeof symbol);
    std::memcpy(&function, &symbol, sizeof symbol);
  }
};

/// One library's environment, with a read transaction and a cursor.
struct Fixture {
  Fixture(const std::string& library, const std::string& dir, std::uint64_t value, std::uint64_t n)
      : api(library), records(n) {
    const Dataset set = make_dataset(dir, KeyKind::kImage, value, n);
    must(api.env_create(&env), "mdb_env_create");
    must(api.env_open(env, set.path.c_str(), MDB_RDONLY | MDB_NOTLS, 0644), "mdb_env_open");
    must(api.txn_begin(env, nullptr, MDB_RDONLY, &txn), "mdb_txn_begin");
    must(api.dbi_open(txn, nullptr, 0, &dbi), "mdb_dbi_open");
    must(api.cursor_open(txn, dbi, &cursor), "mdb_cursor_open");
    constexpr std::size_t kKeys = 1u << 16;
    for (const bool absent : {false, true})
      for (std::size_t i = 0; i < kKeys; ++i)
        key_size = make_key(KeyKind::kImage, mix(i) % records, absent, keys[absent].emplace_back().data());
  }
  ~Fixture() {
    api.cursor_close(cursor);
    api.txn_abort(txn);
    api.env_close(env);
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  MDB_val next_key(bool absent = false) {
    std::vector<std::array<char, kKeyRoom>>& list = keys[absent];
    return {key_size, list[turn++ % list.size()].data()};
  }

  const Api api;
  std::uint64_t records;
  MDB_env* env = nullptr;
  MDB_txn* txn = nullptr;
  MDB_dbi dbi = 0;
  MDB_cursor* cursor = nullptr;
  std::vector<std::array<char, kKeyRoom>> keys[2];  // present, absent
  std::size_t key_size = 0, turn = 0;
};

void expect(benchmark::State& state, int rc, int wanted) {
  if (rc != wanted) state.SkipWithError(mdb_strerror(rc));
}

void bench_get(benchmark::State& state, Fixture& f, bool absent) {
  for (auto _ : state) {
    MDB_val key = f.next_key(absent), value{};
    expect(state, f.api.get(f.txn, f.dbi, &key, &value), absent ? MDB_NOTFOUND : 0);
    benchmark::DoNotOptimize(value);
  }
}

void bench_step(benchmark::State& state, Fixture& f, MDB_cursor_op start, MDB_cursor_op step) {
  MDB_val key{}, value{};
  expect(state, f.api.cursor_get(f.cursor, &key, &value, start), 0);
  for (auto _ : state) {
    const int rc = f.api.cursor_get(f.cursor, &key, &value, step);
    if (rc == MDB_NOTFOUND) expect(state, f.api.cursor_get(f.cursor, &key, &value, start), 0);
    benchmark::DoNotOptimize(value);
  }
}

void bench_seek(benchmark::State& state, Fixture& f, MDB_cursor_op op) {
  for (auto _ : state) {
    MDB_val key = f.next_key(), value{};
    expect(state, f.api.cursor_get(f.cursor, &key, &value, op), 0);
    benchmark::DoNotOptimize(value);
  }
}

void bench_current(benchmark::State& state, Fixture& f) {
  MDB_val key{}, value{};
  expect(state, f.api.cursor_get(f.cursor, &key, &value, MDB_FIRST), 0);
  for (auto _ : state) expect(state, f.api.cursor_get(f.cursor, &key, &value, MDB_GET_CURRENT), 0);
}

void bench_begin_abort(benchmark::State& state, Fixture& f) {
  for (auto _ : state) {
    MDB_txn* txn = nullptr;
    expect(state, f.api.txn_begin(f.env, nullptr, MDB_RDONLY, &txn), 0);
    f.api.txn_abort(txn);
  }
}

void bench_renew_reset(benchmark::State& state, Fixture& f) {
  MDB_txn* txn = nullptr;
  expect(state, f.api.txn_begin(f.env, nullptr, MDB_RDONLY, &txn), 0);
  for (auto _ : state) {
    f.api.txn_reset(txn);
    expect(state, f.api.txn_renew(txn), 0);
  }
  f.api.txn_abort(txn);
}

void bench_cursor_open_close(benchmark::State& state, Fixture& f) {
  for (auto _ : state) {
    MDB_cursor* cursor = nullptr;
    expect(state, f.api.cursor_open(f.txn, f.dbi, &cursor), 0);
    f.api.cursor_close(cursor);
  }
}

template <class Body>
void add(const std::string& call, const std::string& label, Body body) {
  benchmark::RegisterBenchmark((call + "/" + label).c_str(), body);
}

void register_calls(const std::string& label, Fixture& f) {
  using State = benchmark::State;
  add("get", label, [&f](State& s) { bench_get(s, f, false); });
  add("get_absent", label, [&f](State& s) { bench_get(s, f, true); });
  add("next", label, [&f](State& s) { bench_step(s, f, MDB_FIRST, MDB_NEXT); });
  add("prev", label, [&f](State& s) { bench_step(s, f, MDB_LAST, MDB_PREV); });
  add("set", label, [&f](State& s) { bench_seek(s, f, MDB_SET); });
  add("set_key", label, [&f](State& s) { bench_seek(s, f, MDB_SET_KEY); });
  add("set_range", label, [&f](State& s) { bench_seek(s, f, MDB_SET_RANGE); });
  add("get_current", label, [&f](State& s) { bench_current(s, f); });
  add("begin_abort", label, [&f](State& s) { bench_begin_abort(s, f); });
  add("renew_reset", label, [&f](State& s) { bench_renew_reset(s, f); });
  add("cursor_open_close", label, [&f](State& s) { bench_cursor_open_close(s, f); });
}

int main_(int argc, char** argv) {
  std::string libraries = "stock," + default_library();
  std::uint64_t records = 1000000, value = 200;
  std::vector<char*> rest;
  char shortest[] = "--benchmark_min_time=0.001";
  for (int i = 0; i < argc; ++i) {
    const std::string a = argv[i];
    const auto is = [&](const char* name) { return a.rfind(name, 0) == 0; };
    const std::string v = a.substr(a.find('=') + 1);
    if (a == "--smoke") {
      records = 1000;
      rest.push_back(shortest);
    } else if (is("--libraries=")) {
      libraries = v;
    } else if (is("--records=")) {
      records = std::stoull(v);
    } else if (is("--value=")) {
      value = std::stoull(v);
    } else {
      rest.push_back(argv[i]);
    }
  }
  int count = static_cast<int>(rest.size());
  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 1;

  char dir[] = "/tmp/lmdbio-calls-XXXXXX";
  if (mkdtemp(dir) == nullptr) die_errno("mkdtemp");
  std::vector<std::unique_ptr<Fixture>> fixtures;
  std::stringstream list(libraries);
  for (std::string name; std::getline(list, name, ',');) {
    const std::string label = name == "stock" ? "stock" : std::filesystem::path(name).stem().string();
    const std::string own = std::string(dir) + "/" + std::to_string(fixtures.size());
    std::filesystem::create_directory(own);
    fixtures.push_back(
        std::make_unique<Fixture>(name == "stock" ? "liblmdb.so.0" : name, own, value, records));
    register_calls(label, *fixtures.back());
  }
  benchmark::RunSpecifiedBenchmarks();
  fixtures.clear();
  std::filesystem::remove_all(dir);
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::main_(argc, argv); }
