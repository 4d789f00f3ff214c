// lmdbio_diff: random programs of LMDB calls on two or three implementations, compared call by call.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/diff/campaign.h"
#include "tests/diff/generator.h"
#include "tests/diff/sabotage.h"
#include "tests/diff/shrink.h"

namespace {

using lmdbio::diff::Campaign;
using lmdbio::diff::Failure;
using lmdbio::diff::Options;
using lmdbio::diff::Program;

void print_program(const Program& program, const Campaign& campaign) {
  for (const auto& call : program) {
    std::cout << "  " << to_c(call);
    if (call.fn == lmdbio::diff::Fn::kEnvOpen)
      std::cout << "  // " << campaign.environments()[call.number].spec.name;
    std::cout << '\n';
  }
}

/// Runs a single program, shrinks it if asked, prints it.  The exit status.
int run_one(Campaign& campaign) {
  const Options& o = campaign.options();
  Program program;
  Failure failure;
  bool good = false;
  if (!o.program.empty()) {
    std::ifstream in(o.program, std::ios::binary);
    Program stored;
    for (lmdbio::diff::Call c; read_call(in, &c);) stored.push_back(c);
    if (stored.empty()) {
      std::cerr << o.program << ": no program\n";
      return 2;
    }
    good = campaign.run_program(stored, &failure, &program);
  } else {
    good = campaign.run_seed(o.replay, &failure, &program);
  }
  if (good) {
    std::cout << "no difference in " << program.size() << " calls\n";
    return 0;
  }
  std::cout << "call " << program.size() << ": " << failure.text << '\n';
  if (o.shrink) {
    program = shrink(campaign, std::move(program), &failure, 3000);
    const std::string file = "lmdbio_diff-" + std::to_string(o.replay) + ".program";
    std::ofstream out(file, std::ios::binary);
    for (const auto& call : program) write_call(out, call);
    std::cout << "shrunk to " << program.size() << " calls (" << file << ", for --program):\n";
    print_program(program, campaign);
    std::cout << failure.text << '\n';
  }
  return 1;
}

int run_many(Campaign& campaign) {
  const Options& o = campaign.options();
  const std::vector<Failure> failures = campaign.run();
  const lmdbio::diff::Coverage& c = campaign.coverage();
  const double seconds = campaign.seconds() > 0 ? campaign.seconds() : 1;
  if (!o.quiet) print(std::cout, c);
  std::cout << "seeds " << o.seed << " to " << o.seed + campaign.started() - 1 << ", databases of catalogue "
            << o.catalogue << ": " << c.programs.load() << " programs, " << c.calls.load() << " calls in "
            << seconds << " s (" << static_cast<std::uint64_t>(static_cast<double>(c.calls.load()) / seconds)
            << " a second), " << c.values_checked.load() << " values looked at again, "
            << c.as_loaded_version.load()
            << " answers as the loaded stock version; differences: " << failures.size() << '\n';
  for (const Failure& f : failures)
    std::cout << "seed " << f.seed << ", call " << f.call << ": " << f.text
              << "\n  again: " << campaign.command(f.seed) << '\n';
  const lmdbio::diff::Cell rare = rarest_cell(c);
  const bool thin = o.min_cell > 0 && rare.calls < o.min_cell;
  if (thin)
    std::cout << "cell " << name_of(rare.kind) << '/' << name_of(rare.state) << '/'
              << lmdbio::diff::op_name(rare.op) << " has " << rare.calls << " calls, fewer than "
              << o.min_cell << '\n';
  if (!o.json.empty()) {
    nlohmann::json j = to_json(c);
    j["seed"] = o.seed;
    j["seconds"] = campaign.seconds();
    j["differences"] = failures.size();
    for (const Failure& f : failures)
      j["failures"].push_back({{"seed", f.seed}, {"call", f.call}, {"signal", f.signal}, {"text", f.text}});
    std::ofstream(o.json) << j.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  }
  return failures.empty() && !thin ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app{"Random programs of LMDB calls on two or three implementations, compared call by call."};
  app.add_option("--reference", o.reference, "stock LMDB 0.9 or 1.0, a file or a name for the loader")
      ->capture_default_str();
  app.add_option("--tested", o.tested, "library under test (default: the reference again)");
  app.add_option("--tested-on", o.tested_on, "LMDBIO_STOCK_LIB for the library under test");
  app.add_option("--other", o.other,
                 "another stock version: what differs between the two is counted, not wrong");
  app.add_option("--seed", o.seed, "seed of the first program")->capture_default_str();
  app.add_option("--seeds", o.seeds, "at least so many programs")->capture_default_str();
  app.add_option("--calls", o.calls, "at least so many calls");
  app.add_option("--time", o.seconds, "at most so many seconds");
  app.add_option("--length", o.length, "calls of a program")->capture_default_str();
  app.add_option("--min-cell", o.min_cell,
                 "steer until each cell of the coverage table has so many calls; else fail");
  app.add_option("--jobs,-j", o.jobs, "worker processes")->capture_default_str()->check(CLI::Range(1, 16));
  app.add_option("--hang", o.hang_seconds, "seconds after which a call is given up as hanging")
      ->capture_default_str()
      ->check(CLI::Range(1, 3600));
  app.add_option("--catalogue", o.catalogue, "seed of the databases")->capture_default_str();
  app.add_flag("--large", o.large, "databases of tens of MiB, so that walks are read ahead of in pieces");
  app.add_option("--max-failures", o.max_failures, "stop after so many")->capture_default_str();
  app.add_option(
      "--dir", o.dir,
      "where to put databases (default: a new directory in $TMPDIR or /dev/shm, removed afterwards)");
  app.add_option("--json", o.json, "write results and coverage to this file");
  auto* replay = app.add_option("--replay", o.replay, "run only the program of this seed");
  app.add_option("--program", o.program, "run only the program in this file");
  app.add_flag("--shrink", o.shrink, "cut a failing --replay or --program down and print it");
  app.add_flag("--quiet", o.quiet, "no progress, no table");
  app.add_flag(
      "--foreign-order", o.foreign_order,
      "also search by an order that is not the database's (the result is where stock's search ends)");
  app.add_flag("--tell", o.tell, "the library under test is told of lookups by lmdbio_prefetch");
  app.add_option("--sabotage", o.sabotage, "make the library under test wrong on purpose, in one of 12 ways")
      ->check(CLI::Range(0, lmdbio::diff::kSabotages - 1));
  CLI11_PARSE(app, argc, argv);
  o.replaying = replay->count() > 0;
  try {
    Campaign campaign(o);
    return o.replaying || !o.program.empty() ? run_one(campaign) : run_many(campaign);
  } catch (const std::exception& e) {
    std::cerr << "lmdbio_diff: " << e.what() << '\n';
    return 2;
  }
}
