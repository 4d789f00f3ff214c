// lmdbio diff: shows the records that differ between two databases, or that the last commit has changed.

#include "lmdbio/tree/diff.h"

#include <lmdb.h>
#include <string.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "lmdbio/cli/command.h"
#include "lmdbio/cli/database.h"
#include "lmdbio/cli/progress.h"
#include "lmdbio/cli/text.h"
#include "lmdbio/cli/totals_json.h"

namespace lmdbio::cli {
namespace {

// The comparison takes no lock.  If a writer commits meanwhile, it starts again, up to this many times in
// total.
constexpr int kTries = 3;
/// Values are printed up to this size.
constexpr std::size_t kMostShown = 40;

struct Options {
  std::string path, other;
  std::optional<std::string> database;
  bool json = false, quiet = false, copy = false;
  std::size_t limit = 1000;
};

const char* name_of(tree::Change c) {
  switch (c) {
    case tree::Change::inserted:
      return "inserted";
    case tree::Change::replaced:
      return "replaced";
    case tree::Change::deleted:
      break;
  }
  return "deleted";
}

std::string text_of(Bytes b) { return {reinterpret_cast<const char*>(b.data()), b.size()}; }

struct Found {
  tree::Change change;
  bool is_database;
  std::string database, key;
  std::optional<std::uint64_t> older_bytes, newer_bytes;
  std::string value;  ///< the value, if it is short: of the newer snapshot if the record is there
  bool shows_value = false;
};

/// Keeps the first differences, counts all of them, and shows the progress.
class Collector : public tree::DiffVisitor {
 public:
  explicit Collector(const Options& options) : options_(options), progress_("comparing") {}

  bool record(const tree::ChangedRecord& r) override {
    ++counts[static_cast<std::size_t>(r.change)];
    if (options_.quiet) return false;
    if (found.size() >= options_.limit) return true;
    Found f{r.change, false, std::string(r.database), text_of(r.key), {}, {}, {}};
    if (r.change != tree::Change::inserted) f.older_bytes = r.older.size();
    if (r.change != tree::Change::deleted) f.newer_bytes = r.newer.size();
    const Bytes value = r.change == tree::Change::deleted ? r.older : r.newer;
    f.shows_value = value.size() <= kMostShown;
    if (f.shows_value) f.value = text_of(value);
    found.push_back(std::move(f));
    return true;
  }
  void database(std::string_view name, tree::Change change) override {
    ++databases;
    if (found.size() < options_.limit) found.push_back({change, true, std::string(name), {}, {}, {}, {}});
  }
  void progress(std::uint64_t done, std::uint64_t total) override { progress_.set(done, total); }

  bool differs() const { return counts[0] + counts[1] + counts[2] + databases != 0; }

  std::vector<Found> found;
  std::uint64_t counts[3] = {}, databases = 0;

 private:
  const Options& options_;
  Progress progress_;
};

/// One of the two states that are compared.
struct Side {
  Database* database;
  tree::DiffSide side;
};

struct Report {
  tree::Snapshot older, newer;
  std::unique_ptr<Collector> collector;
  tree::DiffCounters counters;
};

std::string shown(const std::string& database) { return database.empty() ? "(main)" : printable(database); }

std::string size_of(const Found& f) {
  if (!f.older_bytes) return counted(*f.newer_bytes, "byte");
  if (!f.newer_bytes || *f.older_bytes == *f.newer_bytes) return counted(*f.older_bytes, "byte");
  return format_text("%llu -> ", static_cast<unsigned long long>(*f.older_bytes)) +
         counted(*f.newer_bytes, "byte");
}

void show_text(const Report& r, const Options& options) {
  const Collector& c = *r.collector;
  if (options.quiet) return;
  for (const Found& f : c.found) {
    if (f.is_database) {
      std::printf("%-8s  database %s\n", name_of(f.change), shown(f.database).c_str());
      continue;
    }
    std::printf("%-8s  %s  %s  %s%s%s\n", name_of(f.change), shown(f.database).c_str(),
                printable(f.key).c_str(), size_of(f).c_str(), f.shows_value ? ": " : "",
                printable(f.value).c_str());
  }
  const std::uint64_t all = c.counts[0] + c.counts[1] + c.counts[2] + c.databases;
  if (all > c.found.size())
    std::printf("... and %llu more (--limit)\n", static_cast<unsigned long long>(all - c.found.size()));
  std::printf("transactions %llu and %llu: %llu inserted, %llu replaced, %llu deleted; %s compared\n",
              static_cast<unsigned long long>(r.older.txnid), static_cast<unsigned long long>(r.newer.txnid),
              static_cast<unsigned long long>(c.counts[0]), static_cast<unsigned long long>(c.counts[1]),
              static_cast<unsigned long long>(c.counts[2]), counted(r.counters.pages, "page").c_str());
}

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) out += format_text("%02x", static_cast<unsigned char>(c));
  return out;
}

void show_json(const Database& older, const Database& newer, const Report& r) {
  const Collector& c = *r.collector;
  Json j{{"older", {{"path", older.path()}, {"transaction", r.older.txnid}}},
         {"newer", {{"path", newer.path()}, {"transaction", r.newer.txnid}}},
         {"same", !c.differs()},
         {"inserted", c.counts[0]},
         {"replaced", c.counts[1]},
         {"deleted", c.counts[2]},
         {"pages", r.counters.pages}};
  j["databases"] = Json::array();
  j["records"] = Json::array();
  for (const Found& f : c.found) {
    if (f.is_database) {
      j["databases"].push_back({{"name", f.database}, {"change", name_of(f.change)}});
      continue;
    }
    Json one{
        {"change", name_of(f.change)}, {"database", f.database}, {"key", f.key}, {"key_hex", hex(f.key)}};
    one["older_bytes"] = f.older_bytes ? Json(*f.older_bytes) : Json();
    one["newer_bytes"] = f.newer_bytes ? Json(*f.newer_bytes) : Json();
    one["value_hex"] = f.shows_value ? Json(hex(f.value)) : Json();
    j["records"].push_back(std::move(one));
  }
  j["left_out"] = c.counts[0] + c.counts[1] + c.counts[2] + c.databases - c.found.size();
  std::printf("%s\n", dump(j).c_str());
}

Side side_of(Database& database, const window::WindowView& view, const tree::Snapshot& snapshot) {
  return {&database, {view, snapshot, &database.file().buffered()}};
}

[[noreturn]] void fail(const Side& older, const Side& newer, Status st, const tree::DiffProblem& problem,
                       const Options& options) {
  const Side& where = problem.newer ? newer : older;
  if (st.raw() == MDB_NOTFOUND)
    throw Failure(where.database->path() + ": no database named " + printable(options.database.value_or("")));
  if (st.raw() != MDB_CORRUPTED && st.raw() != MDB_INCOMPATIBLE) {
    const char* const text = ::strerrordesc_np(st.raw());
    throw Failure(where.database->path() + ": " + (text != nullptr ? text : "unknown error"));
  }
  throw Failure(format_text("%s: page %llu: %s%s", where.database->path().c_str(),
                            static_cast<unsigned long long>(problem.page), problem.reason,
                            st.raw() == MDB_CORRUPTED ? "; see lmdbio check" : ""));
}

/// Returns the snapshot of the commit before `newest`, which the other meta page has.
tree::Snapshot previous(Database& database, const tree::Snapshot& newest) {
  const unsigned other = 1 - static_cast<unsigned>(newest.txnid & 1);
  const tree::Snapshot s = database.snapshot(other);
  // A higher transaction belongs to a commit since then; the caller starts again.
  if (s.txnid + 1 >= newest.txnid) return s;
  throw Failure(format_text(
      "%s: the meta pages are of transactions %llu and %llu, so the file does not have the state before the "
      "last commit",
      database.path().c_str(), static_cast<unsigned long long>(s.txnid),
      static_cast<unsigned long long>(newest.txnid)));
}

/// Throws if `copy` is surely no earlier copy of `of`, made page by page.
void refuse_unless_copy(const Database& copy, const tree::Snapshot& older, const Database& of,
                        const tree::Snapshot& newer) {
  const auto refuse = [&](const std::string& why) {
    throw Failure(copy.path() + " is no earlier copy of " + of.path() + ": " + why);
  };
  if (copy.version() != format::Version::v10 || of.version() != format::Version::v10)
    throw Failure("--copy is for files of LMDB 1.0, whose pages have the transactions that wrote them");
  if (copy.page_size() != of.page_size()) refuse("its pages have another size");
  if (older.txnid > newer.txnid) refuse("its newest transaction is later");
  constexpr std::uint64_t kOfCompacted = 1;
  if (older.txnid == kOfCompacted) refuse("it has transaction 1 only, as a compacted copy");
}

int diff(const Options& options) {
  Database first(options.path);
  first.read_exactly();
  std::optional<Database> second;
  if (!options.other.empty()) {
    second.emplace(options.other);
    second->read_exactly();
  }
  catch_interrupts();
  Report r;
  for (int attempt = 1;; ++attempt) {
    Database& newer_file = second ? *second : first;
    r.newer = newer_file.snapshot();
    r.older = second ? first.snapshot() : previous(first, r.newer);
    if (options.copy) refuse_unless_copy(first, r.older, *second, r.newer);
    // One view of each file: if it has grown, a second one would end the first.
    const window::WindowView of_first = first.view(), of_newer = second ? second->view() : of_first;
    const Side newer = side_of(newer_file, of_newer, r.newer), older = side_of(first, of_first, r.older);
    r.collector = std::make_unique<Collector>(options);
    r.counters = {};
    tree::DiffOptions what;
    what.older_is_held = !second;
    what.older_is_copy = options.copy;
    what.cancelled = &interrupted();
    const std::string_view only = options.database ? std::string_view(*options.database) : std::string_view();
    if (options.database) what.only = &only;
    tree::DiffProblem problem;
    const Status st = tree::diff_snapshots(older.side, newer.side, what, *r.collector, r.counters, problem);
    if (interrupted().load(std::memory_order_relaxed)) return interrupted_status();
    // After at most one commit, no writer has begun to overwrite pages of a snapshot.
    const bool undisturbed = (second || r.older.txnid <= r.newer.txnid) &&
                             first.newest() <= r.older.txnid + 1 && newer_file.newest() <= r.newer.txnid + 1;
    if (undisturbed) {
      if (!st.ok() && st.raw() != ECANCELED) fail(older, newer, st, problem, options);
      break;
    }
    if (attempt == kTries)
      throw Failure((second ? options.path + " and " + options.other : options.path) +
                    ": a writer is active and may have overwritten the pages that were compared; try again "
                    "when the writer is idle, or compare copies (mdb_copy)");
  }
  if (options.json)
    show_json(first, second ? *second : first, r);
  else
    show_text(r, options);
  return r.collector->differs() ? kFindings : kClean;
}

}  // namespace

void add_diff(CLI::App& app, int& status) {
  const auto options = std::make_shared<Options>();
  CLI::App* const sub = app.add_subcommand(
      "diff",
      "show the records that differ between two databases, or that the last commit has changed; exit status "
      "0: none, 1: some, 2: error");
  sub->add_option("PATH", options->path, "directory that contains data.mdb, or the data file")->required();
  CLI::Option* const other = sub->add_option(
      "OTHER", options->other,
      "the database to compare it with; without OTHER: the state before the last commit of PATH "
      "is compared with the state after it");
  sub->add_flag("--copy", options->copy,
                "PATH is an earlier copy of OTHER: skip pages that have not changed since; for files of LMDB "
                "1.0")
      ->needs(other);
  sub->add_option("--db", options->database, "compare only this named database; an empty name: the main one")
      ->type_name("NAME");
  CLI::Option* const json = sub->add_flag("--json", options->json, "print one JSON object");
  sub->add_option("--limit", options->limit, "print at most N differences")
      ->capture_default_str()
      ->check([](const std::string& n) {
        return n.find('-') == std::string::npos ? std::string() : "must be at least 0, not " + n;
      })
      ->type_name("N");
  sub->add_flag("--quiet,-q", options->quiet, "print nothing; stop at the first record that differs")
      ->excludes(json);
  sub->callback([options, &status] { status = diff(*options); });
}

}  // namespace lmdbio::cli
