// One of the processes of bench/node.  Reads the records that the data reader of one rank of Intel-Caffe
// reads, with a cursor of Caffe's interface.  Reads all bytes of each value, in several epochs.
//
//   run_caffe_lmdb DATABASE --pattern caffe|caffe-shuffled --records N [--procs P] [--rank R]
//                  [--epochs N] [--seed S]
//   run_caffe_lmdbio ..    the same with the backend of caffe_patch
//
//   caffe           the cursor stays open: the rank uses the records R, R + P, .. of the sequence of all
//                   epochs
//   caffe-shuffled  `shuffle: true`: walks once, keeps a pointer to each value, and shuffles the pointers in
//                   each epoch; the rank uses each P-th one
//
// epochs_of_run.h describes the output, and when an epoch begins.  The first epoch includes the opening of
// the database, and the walk.
#include <CLI/CLI.hpp>
#include <exception>
#include <memory>
#include <string>

#include "bench/epochs_of_run.h"
#include "caffe/data_reader.hpp"
#include "caffe/database.hpp"

namespace lmdbio::bench {
namespace {

struct Options {
  std::string path, pattern;
  std::uint64_t records = 0, procs = 1, rank = 0, epochs = 1, seed = 1;
};

int parse(int argc, char** argv, Options& o) {
  CLI::App app{"Reads a database as the data reader of one rank of Intel-Caffe."};
  app.add_option("database", o.path)->required();
  app.add_option("--pattern", o.pattern)->required()->check(CLI::IsMember({"caffe", "caffe-shuffled"}));
  app.add_option("--records", o.records, "that it has")->required()->check(CLI::PositiveNumber);
  app.add_option("--procs", o.procs)->check(CLI::PositiveNumber);
  app.add_option("--rank", o.rank);
  app.add_option("--epochs", o.epochs)->check(CLI::PositiveNumber);
  app.add_option("--seed", o.seed, "of the shuffles");
  try {
    app.parse(argc, argv);
    if (o.rank >= o.procs) throw CLI::ValidationError("--rank", "must be below --procs");
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return -1;
}

/// Returns the path of the library whose functions are called.
std::string library() {
#ifdef USE_LMDBIO
  return library_of(reinterpret_cast<void*>(&lmdbio_reader_open));
#else
  return library_of(dlsym(RTLD_DEFAULT, "mdb_cursor_get"));
#endif
}

int run(int argc, char** argv) {
  Options o;
  if (const int status = parse(argc, argv, o); status >= 0) return status;
  print_ready(library());
  std::unique_ptr<testing::CaffeDatabase> db;
  std::unique_ptr<testing::CaffeReader> reader;
  ProcessUse before_close;
  std::uint64_t place = o.rank;  // in the sequence of all epochs
  for (std::uint64_t epoch = 0; epoch < o.epochs; ++epoch) {
    const EpochLine line;
    if (epoch == 0) {
      db = std::make_unique<testing::CaffeDatabase>(o.path);
      reader = testing::caffe_reader(db->cursor(), o.rank, o.procs, o.pattern == "caffe-shuffled",
                                     static_cast<unsigned>(o.seed));
    }
    RandomResult read;
    for (; place < (epoch + 1) * o.records; place += o.procs) {
      const std::string value = reader->read_one();
      read.add(reader->taken(), value.data(), value.size());
    }
    line.print_end(read);
    before_close = process_use();
  }
  reader.reset();
  db.reset();
  print_closed(before_close);
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) {
  try {
    return lmdbio::bench::run(argc, argv);
  } catch (const std::exception& e) {
    lmdbio::bench::die("run_caffe: %s", e.what());
  }
}
