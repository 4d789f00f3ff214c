// A reader of bench/random and bench/index that calls lmdbio.h.  Reads all bytes of all values, in batches of
// a known order.  Runs with liblmdbio.so preloaded; exits with status 77 if that library has no readers.
//
//   run_reader DATABASE --order sequential|strided|shuffle|list|keys [--records N] [--count N] [--seed S]
//              [--step K] [--phase P] [--batch B] [--no-index-file]
//   run_reader DATABASE --only-open [--no-index-file]
//
// --only-open: reads no records, and times only the building or loading of the index.  list, keys: the order
// of run_random with --count of the database's --records records.  --count: records (0: all).
#define LMDBIO_WEAK
#include <lmdbio/lmdbio.h>

#include <algorithm>

#include "bench/keys.h"
#include "bench/random_run.h"

namespace lmdbio::bench {
namespace {

struct Options {
  const char* path = nullptr;
  std::string order;
  bool only_open = false, no_index_file = false;
  std::uint64_t records = 0, count = 0, seed = 1, step = 1, phase = 0, batch = 64;
};

Options parse(int argc, char** argv) {
  Options o;
  const std::pair<const char*, std::uint64_t*> numbers[] = {
      {"--records", &o.records}, {"--count", &o.count}, {"--seed", &o.seed},
      {"--step", &o.step},       {"--phase", &o.phase}, {"--batch", &o.batch},
  };
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const auto* number =
        std::find_if(std::begin(numbers), std::end(numbers), [&](const auto& n) { return a == n.first; });
    if (number != std::end(numbers) && i + 1 < argc) {
      *number->second = std::strtoull(argv[++i], nullptr, 10);
    } else if (a == "--order" && i + 1 < argc) {
      o.order = argv[++i];
    } else if (a == "--only-open") {
      o.only_open = true;
    } else if (a == "--no-index-file") {
      o.no_index_file = true;
    } else if (a[0] != '-' && o.path == nullptr) {
      o.path = argv[i];
    } else {
      die("run_reader: %s: see run_reader.cc", a.c_str());
    }
  }
  if (o.path == nullptr || (o.order.empty() && !o.only_open)) die("run_reader: a database and --order");
  return o;
}

void succeed(int rc, const char* what) {
  if (rc != 0) die("%s: %s (%s)", what, mdb_strerror(rc), lmdbio_error());
}

/// An order, and the memory to which it points.  Must not be moved.
struct Plan {
  lmdbio_order order{};
  std::vector<std::uint64_t> list;
  std::vector<char> bytes;
  std::vector<MDB_val> keys;

  explicit Plan(const Options& o) {
    order.size = sizeof order;
    order.batch = o.batch;
    order.seed = o.seed;
    if (o.order == "strided") {
      order.step = o.step;
      order.offset = o.phase;
    } else if (o.order == "shuffle") {
      order.kind = LMDBIO_ORDER_SHUFFLE;
    } else if (o.order == "list") {
      order.kind = LMDBIO_ORDER_LIST;
      for (const std::uint32_t i : random_order(o.records, o.count, o.seed)) list.push_back(i);
      order.list = list.data();
      order.length = list.size();
    } else if (o.order == "keys") {
      order.kind = LMDBIO_ORDER_KEYS;
      const auto chosen = random_order(o.records, o.count, o.seed);
      bytes.resize(chosen.size() * kKeyRoom);
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        char* const at = &bytes[i * kKeyRoom];
        keys.push_back({make_key(KeyKind::kImage, chosen[i], false, at), at});
      }
      order.keys = keys.data();
      order.length = keys.size();
    } else if (o.order != "sequential") {
      die("--order: %s", o.order.c_str());
    }
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
};

void read_all(lmdbio_reader* reader, const lmdbio_order& order, std::uint64_t count, RandomResult& r) {
  lmdbio_stream* stream = nullptr;
  succeed(lmdbio_stream_open(reader, &order, &stream), "lmdbio_stream_open");
  int rc = 0;
  while (count == 0 || r.records < count) {
    const lmdbio_batch* batch = nullptr;
    rc = lmdbio_stream_next(stream, &batch);
    if (rc == MDB_NOTFOUND) break;
    succeed(rc, "lmdbio_stream_next");
    for (std::size_t i = 0; i < batch->count && (count == 0 || r.records < count); ++i) {
      const lmdbio_record& record = batch->records[i];
      if (record.ordinal == UINT64_MAX) die("a record was not found");
      r.add(record.ordinal, record.value.mv_data, record.value.mv_size);
    }
    lmdbio_batch_release(batch);
  }
  lmdbio_stream_close(stream);
}

int run(int argc, char** argv) {
  const Options o = parse(argc, argv);
  if (lmdbio_reader_open == nullptr || lmdbio_stream_open == nullptr) {
    std::fputs("the library has no readers\n", stderr);
    return 77;
  }
  RandomResult result;
  result.library = library_of(reinterpret_cast<void*>(&lmdbio_reader_open));
  lmdbio_reader_options options{};
  options.size = sizeof options;
  options.no_index_file = o.no_index_file ? 1 : 0;
  // With a progress function, the open builds the whole index.  Otherwise a thread builds it afterwards.
  if (o.only_open) options.progress = [](void*, const char*, std::uint64_t, std::uint64_t) { return 0; };
  Options read = o;
  if (o.only_open) read.order = "sequential";
  const Plan plan(read);
  lmdbio_reader* reader = nullptr;
  const std::uint64_t start = clock_ns();
  succeed(lmdbio_reader_open(o.path, &options, &reader), "lmdbio_reader_open");
  result.open_seconds = static_cast<double>(clock_ns() - start) * 1e-9;
  std::uint64_t entries = 0;
  succeed(lmdbio_reader_count(reader, &entries), "lmdbio_reader_count");
  result.entries = entries;
  if (!o.only_open) read_all(reader, plan.order, o.count, result);
  lmdbio_reader_close(reader);
  result.seconds = static_cast<double>(clock_ns() - start) * 1e-9;
  print_result(result);
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::run(argc, argv); }
