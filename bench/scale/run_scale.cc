// A training loop over MPI: the ranks load batches by a given strategy, and compute (docs/strategies.md).
//
//   mpirun -n P run_scale DATABASE [options]            (--help lists them)
//
// Rank 0 prints one line of JSON.
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/common.h"
#include "bench/scale/loader.h"
#include "bench/scale/prepare.h"
#include "bench/scale/training.h"
#include "bench/scale/world.h"

namespace lmdbio::bench {
namespace {

using S = Strategy;

struct Options {
  std::string strategy = "stock";
  std::uint64_t global_batch = 0;
  Data data;
  bool dry_run = false;
  LoaderSettings loading;
  TrainingSettings training;
};

void add_names(CLI::Option* option, const auto& names) {
  std::string all;
  for (const auto& [name, value] : names) all += (all.empty() ? "{" : ",") + name;
  CLI::CheckedTransformer transformer(names, CLI::ignore_case);
  option->transform(transformer.description(""))->type_name(all + "}");
}

void add_database(CLI::App& app, Options& o) {
  app.add_option("database", o.data.database, "directory")->required();
  add_names(app.add_option(
                "--make", o.data.content,
                "write the database with stock LMDB if the directory is not there: values of 3 KiB, of 110 "
                "KiB, of 192 KiB (raw), or of sizes that are distributed as those of photographs, 110 KiB on "
                "average, of those of DLIO's CosmoFlow (2.8 MB), ResNet-50 (115 kB) or 3D U-Net (147 MB)"),
            std::map<std::string, Content>{{"cifar10-like", Content::cifar10_like},
                                           {"imagenet-like", Content::imagenet_like},
                                           {"raw-imagenet-like", Content::raw_imagenet_like},
                                           {"photographs", Content::photographs},
                                           {"cosmoflow-like", Content::cosmoflow_like},
                                           {"resnet50-like", Content::resnet50_like},
                                           {"unet3d-like", Content::unet3d_like}});
  app.add_option("--bytes", o.data.bytes, "of such a database, e.g. 1GiB (default: 256MiB)")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->type_name("SIZE");
  app.add_option("--multiple", o.data.multiple,
                 "of which its number of records is, e.g. the records of all ranks and a step")
      ->check(CLI::PositiveNumber);
  app.add_flag("--dry-run", o.dry_run, "look at the options, and end");
}

void add_training(CLI::App& app, Options& o) {
  app.add_option("--batch", o.loading.batch, "records of a rank and step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option(
      "--global-batch", o.global_batch,
      "records of all ranks together and step, instead of --batch (strong scaling); rounded down to a "
      "multiple of the ranks");
  app.add_option("--epochs", o.loading.epochs)->check(CLI::PositiveNumber)->capture_default_str();
  add_names(app.add_option("--order", o.loading.order, "of the records in an epoch (default: sequential)"),
            std::map<std::string, Order>{{"sequential", Order::sequential}, {"shuffled", Order::shuffled}});
  add_names(app.add_option("--assignment", o.loading.assignment,
                           "which records of a fetch a rank uses: each P-th, or one of P equal parts "
                           "(default: contiguous)"),
            std::map<std::string, Assignment>{{"strided", Assignment::strided},
                                              {"contiguous", Assignment::contiguous}});
  app.add_option("--compute", o.training.compute_s, "seconds of computation after each batch: a sleep")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--allreduce-mb", o.training.allreduce_mb, "sum so many MB over all ranks after each batch")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--barrier", o.training.barrier, "wait for all ranks after each batch");
  app.add_flag("--progress", o.training.progress, "show it on standard error");
}

/// Adds an option whose value replaces a part of the strategy.
template <class T>
void knob(CLI::App& app, const char* name, T& to, const std::map<std::string, T>& names, const char* what) {
  CLI::Option* const option = app.add_option(name, to, what)->group("Single choices");
  add_names(option, names);
}

void add_strategy(CLI::App& app, Options& o) {
  std::vector<std::string> names;
  for (const auto& [name, strategy] : presets()) names.push_back(name);
  app.add_option("--strategy", o.strategy, "how ranks get their records; single choices replace parts of it")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
  S& s = o.loading.strategy;
  knob(app, "--readers", s.readers,
       {{"every-rank", S::Readers::every_rank}, {"node", S::Readers::some_of_node}}, "who reads");
  app.add_option("--readers-per-node", s.readers_per_node, "with --readers node")->group("Single choices");
  knob(app, "--access", s.access, {{"mapped", S::Access::mapped}, {"direct", S::Access::direct}}, "how");
  knob(app, "--finding", s.finding,
       {{"walk", S::Finding::walk},
        {"handed-on", S::Finding::handed_on},
        {"guessed", S::Finding::guessed},
        {"index", S::Finding::index}},
       "how a reader finds its records");
  app.add_option("--request-bytes", s.request_bytes, "that a reader fetches at a time, at least; 0: a batch")
      ->group("Single choices");
  app.add_option("--group", s.group, "readers that take turns; 0: none")->group("Single choices");
  knob(app, "--exchange", s.exchange,
       {{"none", S::Exchange::none}, {"redistributed", S::Exchange::redistributed}}, "between nodes");
  knob(app, "--overlap", s.overlap, {{"none", S::Overlap::none}, {"ahead", S::Overlap::ahead}},
       "of fetching and computation");
  knob(app, "--later", s.later, {{"page-cache", S::Later::page_cache}, {"node-homes", S::Later::node_homes}},
       "where later epochs come from");
}

/// Returns the value of an option that is given as --option VALUE or --option=VALUE, or an empty string.
std::string argument(int argc, char** argv, const std::string& option) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == option && i + 1 < argc) return argv[i + 1];
    if (word.starts_with(option + "=")) return word.substr(option.size() + 1);
  }
  return {};
}

/// Returns an exit status, or -1 if the program goes on.
int parse(int argc, char** argv, Options& o, WorldMaker& maker) {
  CLI::App app{
      "A training loop over the records of an LMDB database.  Each rank takes its batches by a strategy "
      "(docs/strategies.md), and computes."};
  o.loading.batch = 64;
  o.loading.library = "liblmdbio_mpi.so";
  add_database(app, o);
  add_training(app, o);
  add_strategy(app, o);
  maker.add_options(app, {o.data, o.loading, o.training});
  // Set the strategy first, because other options replace parts of it.
  for (const auto& [name, strategy] : presets())
    if (name == argument(argc, argv, "--strategy")) o.loading.strategy = strategy;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank != 0) return e.get_exit_code() == 0 ? 0 : 2;
    return app.exit(e) == 0 ? 0 : 2;
  }
  Data& data = o.data;
  while (data.database.size() > 1 && data.database.ends_with('/')) data.database.pop_back();
  if (data.sums.empty()) data.sums = data.database + ".sums";
  o.loading.database = data.database;
  o.loading.keys = data.sums;
  return -1;
}

int run(int argc, char** argv) {
  Options o;
  const std::unique_ptr<WorldMaker> maker = LMDBIO_BENCH_WORLD();
  if (const int status = parse(argc, argv, o, *maker); status >= 0) return status;
  int rank = 0, ranks = 1, level = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Query_thread(&level);
  if (const std::string why = refusal(o.loading.strategy, o.loading.order); !why.empty()) {
    if (rank == 0) std::fprintf(stderr, "error: there is no such strategy: %s\n", why.c_str());
    return 2;
  }
  if (o.loading.workers != 0 && !is_stock(o.loading.strategy)) {
    if (rank == 0) std::fputs("error: --workers is for the strategy stock\n", stderr);
    return 2;
  }
  if (o.dry_run) return 0;
  const std::unique_ptr<World> world = maker->make();
  if (rank == 0) world->prepare(o.data, o.loading.order);
  MPI_Barrier(MPI_COMM_WORLD);
  if (o.data.only_prepare) return 0;
  o.training.sums = world->sums(o.data);
  if (o.global_batch != 0)
    o.loading.batch = std::max<std::uint64_t>(o.global_batch / static_cast<std::uint64_t>(ranks), 1);
  nlohmann::json result = train(o.training, o.loading, *world);
  result["strategy"] = o.strategy;
  result["thread_level"] = level;
  if (rank == 0) std::puts(result.dump().c_str());
  return 0;
}

int wanted_level(const std::string& name) {
  return name == "single"       ? MPI_THREAD_SINGLE
         : name == "funneled"   ? MPI_THREAD_FUNNELED
         : name == "serialized" ? MPI_THREAD_SERIALIZED
                                : MPI_THREAD_MULTIPLE;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv,
                  lmdbio::bench::wanted_level(lmdbio::bench::argument(argc, argv, "--thread-level")), &level);
  const int status = lmdbio::bench::run(argc, argv);
  MPI_Finalize();
  return status;
}
