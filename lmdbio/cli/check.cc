// lmdbio check: checks the structure of a database.

#include "lmdbio/check/check.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <vector>

#include "lmdbio/cli/command.h"
#include "lmdbio/cli/database.h"
#include "lmdbio/cli/progress.h"
#include "lmdbio/cli/text.h"
#include "lmdbio/cli/totals_json.h"

namespace lmdbio::cli {
namespace {

// If a writer commits twice during a walk, the findings are not reliable.  The check then starts again, up
// to this many walks in total.
constexpr int kTries = 3;

struct Options {
  std::string path;
  bool json = false, any_order = false, quiet = false;
  unsigned meta = 2;  ///< 2: the newest
  std::size_t limit = 1000;
};

struct Found {
  check::Severity severity;
  std::uint64_t page, pages;
  std::string database, reason;
};

/// Keeps the first findings, counts the others, and shows the progress.
class Collector : public check::Visitor {
 public:
  explicit Collector(std::size_t limit) : limit_(limit) {}

  bool finding(const check::Finding& f) override {
    if (found.size() < limit_)
      found.push_back({f.severity, f.page, f.pages, std::string(f.database), f.reason});
    else
      ++left_out;
    return true;
  }
  void progress(std::uint64_t done, std::uint64_t total) override {
    seen = done;
    progress_.set(done, total);
  }

  std::vector<Found> found;
  std::uint64_t left_out = 0;
  std::uint64_t seen = 0;  ///< pages walked

 private:
  std::size_t limit_;
  Progress progress_{"checking"};
};

const char* name_of(check::Severity s) { return s == check::Severity::error ? "error" : "warning"; }

struct Report {
  tree::Snapshot snapshot;
  check::Totals totals;
  std::vector<Found> metas, found;
  std::uint64_t left_out = 0;
  std::uint64_t seen = 0;  ///< pages walked

  std::uint64_t errors() const { return metas.size() + totals.errors; }
  bool clean() const { return errors() + totals.warnings == 0; }
};

void show_text(const Database& database, const Report& r, const Options& options) {
  if (!options.quiet || !r.clean()) {
    for (unsigned i = 0; i < 2; ++i) {
      const Meta& m = database.meta(i);
      std::printf("meta page %u: %s", i, m.problem.empty() ? "good" : m.problem.c_str());
      if (m.usable) std::printf(", transaction %llu", static_cast<unsigned long long>(m.record.txnid));
      std::printf("\n");
    }
    std::printf("checked: transaction %llu, last page %llu\n",
                static_cast<unsigned long long>(r.snapshot.txnid),
                static_cast<unsigned long long>(r.snapshot.last_pg));
  }
  for (const auto* list : {&r.metas, &r.found}) {
    for (const Found& f : *list) {
      std::printf("page %llu", static_cast<unsigned long long>(f.page));
      if (f.pages > 1) std::printf("-%llu", static_cast<unsigned long long>(f.page + f.pages - 1));
      std::printf(": %s: %s%s%s\n", name_of(f.severity),
                  f.database.empty() ? "" : printable(f.database).c_str(), f.database.empty() ? "" : ": ",
                  f.reason.c_str());
    }
  }
  if (r.left_out != 0)
    std::printf("... and %llu more (--limit)\n", static_cast<unsigned long long>(r.left_out));
  const check::Totals& t = r.totals;
  if (t.stopped)
    std::printf("INTERRUPTED after %llu of %llu pages; the results cover these pages only\n",
                static_cast<unsigned long long>(r.seen),
                static_cast<unsigned long long>(r.snapshot.last_pg + 1));
  if (!r.clean() || t.stopped)
    std::printf("%s, %s\n", counted(r.errors(), "error").c_str(), counted(t.warnings, "warning").c_str());
  else if (!options.quiet)
    std::printf("clean: %s in %s; pages in use: %llu, free: %llu\n",
                counted(t.entries, "entry", "entries").c_str(), counted(t.named + 1, "database").c_str(),
                static_cast<unsigned long long>(t.meta_pages + t.branch_pages + t.leaf_pages + t.leaf2_pages +
                                                t.overflow_pages),
                static_cast<unsigned long long>(t.free_pages));
}

void show_json(const Database& database, const Report& r) {
  Json j{{"path", database.path()},
         {"clean", r.clean() && !r.totals.stopped},
         {"complete", !r.totals.stopped},
         {"page_size", database.page_size()}};
  j["metas"] = Json::array();
  for (unsigned i = 0; i < 2; ++i) {
    const Meta& m = database.meta(i);
    Json meta{{"page", i}, {"good", m.problem.empty()}, {"problem", m.problem}};
    meta["transaction"] = m.usable ? Json(m.record.txnid) : Json();
    j["metas"].push_back(std::move(meta));
  }
  j["transaction"] = r.snapshot.txnid;
  j["last_page"] = r.snapshot.last_pg;
  j["errors"] = r.errors();
  j["warnings"] = r.totals.warnings;
  j["findings"] = Json::array();
  for (const auto* list : {&r.metas, &r.found})
    for (const Found& f : *list)
      j["findings"].push_back({{"page", f.page},
                               {"pages", f.pages},
                               {"severity", name_of(f.severity)},
                               {"database", f.database},
                               {"reason", f.reason}});
  j["findings_left_out"] = r.left_out;
  j["pages"] = pages_json(r.totals);
  j["entries"] = r.totals.entries;
  j["named_databases"] = r.totals.named;
  j["depth"] = r.totals.depth;
  std::printf("%s\n", dump(j).c_str());
}

/// Returns the problems of the two meta pages as findings.
std::vector<Found> judge(const Database& database) {
  std::vector<Found> out;
  for (unsigned i = 0; i < 2; ++i)
    if (const Meta& m = database.meta(i); !m.problem.empty())
      out.push_back({check::Severity::error, i, 1, "", "meta page: " + m.problem});
  return out;
}

int check(const Options& options) {
  Database database(options.path);
  database.read_exactly();
  catch_interrupts();
  const std::optional<unsigned> which = options.meta < 2 ? std::optional(options.meta) : std::nullopt;
  Report r;
  r.metas = judge(database);
  for (int attempt = 1;; ++attempt) {
    r.snapshot = database.snapshot(which);
    const window::WindowView file = database.view();
    check::Options what;
    what.order = !options.any_order;
    what.file = &database.file().buffered();
    what.cancelled = &interrupted();
    {
      Collector collector(options.limit);
      if (!check::check_snapshot(file, r.snapshot, what, collector, r.totals).ok()) throw std::bad_alloc();
      r.found = std::move(collector.found);
      r.left_out = collector.left_out;
      r.seen = collector.seen;
    }
    // After at most one commit, no writer has begun to overwrite pages of this snapshot.
    const std::uint64_t newest = database.newest();
    if (r.totals.stopped || r.totals.errors + r.totals.warnings == 0 || newest <= r.snapshot.txnid + 1) break;
    if (attempt == kTries || which)
      throw Failure(format_text(
          "%s: a writer is active: transaction %llu was checked, but the newest is now %llu, so the writer "
          "may have caused the findings; check again when the writer is idle, or check a copy (mdb_copy)",
          database.path().c_str(), static_cast<unsigned long long>(r.snapshot.txnid),
          static_cast<unsigned long long>(newest)));
  }
  options.json ? show_json(database, r) : show_text(database, r, options);
  if (r.totals.stopped) return interrupted_status();
  return r.clean() ? kClean : kFindings;
}

}  // namespace

void add_check(CLI::App& app, int& status) {
  const auto options = std::make_shared<Options>();
  CLI::App* const sub = app.add_subcommand(
      "check", "verify the structure of a database; exit status 0: clean, 1: findings, 2: error");
  sub->add_option("PATH", options->path, "directory that contains data.mdb, or the data file")->required();
  sub->add_flag("--json", options->json, "print one JSON object");
  sub->add_option("--meta", options->meta, "check the snapshot of this meta page instead of the newest")
      ->check(CLI::Range(0, 1))
      ->type_name("0|1");
  sub->add_flag("--any-order", options->any_order,
                "do not check the order of keys, for programs that set their own comparators");
  sub->add_option("--limit", options->limit, "print at most N findings")
      ->capture_default_str()
      ->type_name("N");
  sub->add_flag("--quiet,-q", options->quiet, "print nothing if the database is clean");
  sub->callback([options, &status] { status = check(*options); });
}

}  // namespace lmdbio::cli
