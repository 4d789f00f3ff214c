// lmdbio info: describes a database, and how LMDBIO serves it.

#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "lmdbio/base/config.h"
#include "lmdbio/check/check.h"
#include "lmdbio/cli/command.h"
#include "lmdbio/cli/database.h"
#include "lmdbio/cli/outlook.h"
#include "lmdbio/cli/pack.h"
#include "lmdbio/cli/progress.h"
#include "lmdbio/cli/survey.h"
#include "lmdbio/cli/text.h"
#include "lmdbio/cli/totals_json.h"
#include "lmdbio/io/residency.h"
#include "lmdbio/records/index_file.h"
#include "lmdbio/records/index_path.h"

namespace lmdbio::cli {
namespace {

struct Options {
  std::string path;
  bool json = false, fast = false, pack = false;
  PackRates rates;
};

struct Verdict {
  bool ours;
  std::string text;
};

/// Returns how LMDBIO treats a program that opens the database, as docs/abi.md describes.
std::vector<Verdict> verdicts(const Database& database, std::uint64_t map_bytes) {
  std::vector<Verdict> out;
  for (unsigned i = 0; i < 2; ++i)
    if (!database.meta(i).usable)
      return {
          {false, format_text("cannot be opened: meta page %u is damaged, and LMDB returns MDB_INVALID", i)}};
  rlimit space{};
  // The address space must have room for stock LMDB's mapping and for LMDBIO's.
  const bool fits = ::getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY ||
                    map_bytes < space.rlim_cur / 2;
  if (config().disable)
    out.push_back({false, "opened with MDB_RDONLY: passed through to stock LMDB: LMDBIO_DISABLE=1"});
  else if (fits)
    out.push_back({true, "opened with MDB_RDONLY: served by LMDBIO"});
  else
    out.push_back({false,
                   "opened with MDB_RDONLY: passed through to stock LMDB: RLIMIT_AS does not allow a second "
                   "mapping of " +
                       bytes_text(static_cast<double>(map_bytes))});
  out.push_back({false, "opened for writing: passed through to stock LMDB"});
  const std::string& file = database.path();
  const std::string lock =
      database.in_directory() ? file.substr(0, file.rfind('/') + 1) + "lock.mdb" : file + "-lock";
  const std::size_t slash = lock.rfind('/');
  const std::string dir = slash == std::string::npos ? "." : slash == 0 ? "/" : lock.substr(0, slash);
  if (::access(lock.c_str(), F_OK) == 0 ? ::access(lock.c_str(), R_OK | W_OK) != 0
                                        : ::access(dir.c_str(), W_OK) != 0)
    out.push_back(
        {fits && !config().disable,
         "no permission to write to its lock file, or to create it: stock LMDB opens the environment "
         "only with MDB_NOLOCK or on a read-only file system; LMDBIO opens it without locks, unless "
         "LMDBIO_STRICT=1"});
  return out;
}

unsigned long long ull(std::uint64_t v) { return v; }

void line(const char* name, const std::string& text) { std::printf("%-16s %s\n", name, text.c_str()); }

void show_histogram(const char* what, const Histogram& h) {
  if (h.records == 0) return;
  std::printf("\n%s (bytes) of %s: average %s, maximum %s\n", what, counted(h.records, "record").c_str(),
              bytes_text(static_cast<double>(h.bytes) / static_cast<double>(h.records)).c_str(),
              bytes_text(static_cast<double>(h.most)).c_str());
  std::uint64_t peak = 1;
  unsigned first = 33, last = 0;
  for (unsigned b = 0; b < 33; ++b) {
    if (h.count[b] == 0) continue;
    peak = std::max(peak, h.count[b]);
    first = std::min(first, b);
    last = b;
  }
  for (unsigned b = first; b <= last; ++b) {
    if (h.count[b] == 0) continue;
    const std::uint64_t from = b == 0 ? 0 : std::uint64_t{1} << (b - 1);
    const auto width = static_cast<int>((h.count[b] * 40 + peak - 1) / peak);
    // Print exact numbers, because both ends belong to the bucket.
    std::printf("  %10llu to %10llu  %12llu  %.*s\n", ull(from), ull(b == 0 ? 0 : 2 * from - 1),
                ull(h.count[b]), width, "########################################");
  }
}

/// Returns the releases of LMDB that have the format of the file.
const char* format_name(const Database& database) {
  return database.version() == format::Version::v09 ? "0.9" : "1.0";
}

double fill_of(const check::DatabaseTotals& d, std::size_t page_size) {
  const std::uint64_t pages = d.branch_pages + d.leaf_pages + d.leaf2_pages;
  return pages == 0 ? 0
                    : static_cast<double>(d.tree_bytes) /
                          (static_cast<double>(pages) * static_cast<double>(page_size));
}

void show_rows(const std::vector<Row>& rows, std::size_t page_size) {
  std::printf("\n%-20s %-20s %5s %12s %12s %8s %10s %10s %10s %6s\n", "database", "flags", "depth", "keys",
              "entries", "branch", "leaf", "leaf2", "overflow", "fill");
  for (const Row& r : rows) {
    const check::DatabaseTotals& d = r.totals;
    const bool free = d.kind == check::DatabaseTotals::Kind::free;
    std::printf("%-20s %-20s %5u %12llu %12llu %8llu %10llu %10llu %10llu %5.0f%%\n",
                printable(r.name).c_str(), free ? "-" : flags_text(d.record.flags).c_str(), d.depth,
                ull(d.keys), ull(d.entries), ull(d.branch_pages), ull(d.leaf_pages), ull(d.leaf2_pages),
                ull(d.overflow_pages), 100 * fill_of(d, page_size));
  }
}

struct Facts {
  tree::Snapshot snapshot;
  std::uint64_t map_bytes;
  std::optional<double> cached;  ///< part of the file in the page cache, 0 to 1
  const char* cached_how = "";   ///< the system call that reported it
  std::string index_file;        ///< path of the main database's index file, whether it exists or not
  std::string index_state;       ///< "none", "valid" or why it is ignored
  bool walked = false;
  check::Totals totals;
  std::uint64_t newest = 0;  ///< newest transaction after the walk
  std::optional<PackReport> pack;
  std::optional<Outlook> outlook;  ///< if LMDBIO serves programs that read

  bool damaged() const { return totals.errors != 0 && newest <= snapshot.txnid + 1; }
  bool moving() const { return totals.errors != 0 && !damaged(); }
};

void show_text(const Database& database, const Facts& f, const Survey& survey) {
  const std::size_t page_size = database.page_size();
  const auto size = static_cast<std::uint64_t>(database.status().st_size);
  line("file", database.path());
  line("size", format_text("%s (%llu bytes), pages of %zu bytes, format of LMDB %s",
                           bytes_text(static_cast<double>(size)).c_str(), ull(size), page_size,
                           format_name(database)));
  line("map size", bytes_text(static_cast<double>(f.map_bytes)));
  line("last page", format_text("%llu", ull(f.snapshot.last_pg)));
  std::string metas;
  for (unsigned i = 0; i < 2; ++i) {
    const Meta& m = database.meta(i);
    metas += format_text("%smeta %u: ", i == 0 ? "" : ", ", i) + (m.problem.empty() ? "" : m.problem + " ");
    if (m.usable) metas += format_text("%llu", ull(m.record.txnid));
  }
  line("transactions", metas);
  line("in page cache", f.cached ? percent_text(*f.cached, 1) + " (" + f.cached_how + ")"
                                 : "unknown (the kernel does not show it to this user)");
  line("record index", f.index_state == "none" ? f.index_state : f.index_file + ": " + f.index_state);
  if (f.walked) {
    const check::Totals& t = f.totals;
    const auto all = static_cast<double>(f.snapshot.last_pg + 1);
    if (t.stopped)
      line("INTERRUPTED", format_text("after %llu of %llu pages; the results cover these pages only",
                                      ull(survey.seen), ull(f.snapshot.last_pg + 1)));
    line("pages",
         format_text("%llu meta, %llu branch, %llu leaf, %llu leaf2, %llu overflow", ull(t.meta_pages),
                     ull(t.branch_pages), ull(t.leaf_pages), ull(t.leaf2_pages), ull(t.overflow_pages)));
    line("free pages", format_text("%llu (%s), lost: ", ull(t.free_pages),
                                   percent_text(static_cast<double>(t.free_pages), all).c_str()) +
                           (t.stopped ? "unknown" : format_text("%llu", ull(t.lost_pages))));
    line("entries", format_text("%llu in ", ull(t.entries)) + counted(t.named + 1, "database"));
    const Layout& l = survey.layout;
    if (l.steps != 0)
      line("value order",
           format_text(
               "%s of the values are on the page of the previous value or on a later page, %s on the same or "
               "the next page; average gap: %.1f pages; %s on overflow pages",
               percent_text(static_cast<double>(l.forward), static_cast<double>(l.steps)).c_str(),
               percent_text(static_cast<double>(l.adjacent), static_cast<double>(l.steps)).c_str(),
               l.forward == 0 ? 0.0 : static_cast<double>(l.gap_pages) / static_cast<double>(l.forward),
               percent_text(static_cast<double>(l.overflow), static_cast<double>(survey.values.records))
                   .c_str()));
  } else {
    const format::DbRecord& r = f.snapshot.dbs[1];
    line("main database",
         format_text(
             "%s, depth %u, %llu entries, %llu branch, %llu leaf and %llu overflow pages (from its record; "
             "run without --fast to list named databases)",
             flags_text(r.flags).c_str(), unsigned{r.depth}, ull(r.entries), ull(r.branch_pages),
             ull(r.leaf_pages), ull(r.overflow_pages)));
  }
  for (const Verdict& v : verdicts(database, f.map_bytes)) line("LMDBIO", v.text);
  if (f.damaged()) line("DAMAGED", counted(f.totals.errors, "error") + "; run lmdbio check");
  if (f.moving()) line("CHANGING", "a writer committed meanwhile; the numbers may be inconsistent");
  if (f.walked) {
    show_rows(survey.rows, page_size);
    show_histogram("key sizes", survey.keys);
    show_histogram("value sizes", survey.values);
  }
  if (f.pack) f.pack->show();
  const Histogram& values = survey.values;
  if (f.outlook)
    f.outlook->show(f.cached, values.records == 0
                                  ? 0
                                  : static_cast<double>(values.bytes) / static_cast<double>(values.records));
}

Json histogram_json(const Histogram& h) {
  Json buckets = Json::array();
  for (unsigned b = 0; b < 33; ++b)
    if (h.count[b] != 0)
      buckets.push_back({{"from", b == 0 ? 0 : std::uint64_t{1} << (b - 1)}, {"count", h.count[b]}});
  return {{"records", h.records}, {"bytes", h.bytes}, {"largest", h.most}, {"by_size", buckets}};
}

void show_json(const Database& database, const Facts& f, const Survey& survey) {
  Json j{{"path", database.path()},           {"size", static_cast<std::uint64_t>(database.status().st_size)},
         {"page_size", database.page_size()}, {"format", format_name(database)},
         {"map_size", f.map_bytes},           {"last_page", f.snapshot.last_pg},
         {"transaction", f.snapshot.txnid}};
  j["metas"] = Json::array();
  for (unsigned i = 0; i < 2; ++i) {
    const Meta& m = database.meta(i);
    Json meta{{"page", i}, {"problem", m.problem}};
    meta["transaction"] = m.usable ? Json(m.record.txnid) : Json();
    j["metas"].push_back(std::move(meta));
  }
  j["page_cache"] = {{"share", f.cached ? Json(*f.cached) : Json()}, {"how", f.cached_how}};
  j["index"] = {{"file", f.index_file}, {"state", f.index_state}};
  j["lmdbio"] = Json::array();
  for (const Verdict& v : verdicts(database, f.map_bytes))
    j["lmdbio"].push_back({{"ours", v.ours}, {"text", v.text}});
  j["walked"] = f.walked;
  if (f.walked) {
    j["complete"] = !f.totals.stopped;
    j["errors"] = f.totals.errors;
    j["changing"] = f.moving();
    j["pages"] = pages_json(f.totals);
    j["entries"] = f.totals.entries;
    j["databases"] = Json::array();
    for (const Row& r : survey.rows) {
      const check::DatabaseTotals& d = r.totals;
      constexpr const char* kKinds[] = {"free", "main", "named"};
      j["databases"].push_back({{"name", r.name},
                                {"kind", kKinds[static_cast<int>(d.kind)]},
                                {"flags", flags_text(d.record.flags)},
                                {"depth", d.depth},
                                {"keys", d.keys},
                                {"entries", d.entries},
                                {"pages",
                                 {{"branch", d.branch_pages},
                                  {"leaf", d.leaf_pages},
                                  {"leaf2", d.leaf2_pages},
                                  {"overflow", d.overflow_pages}}},
                                {"duplicate_trees", d.dup_trees},
                                {"sub_pages", d.sub_pages},
                                {"fill", fill_of(d, database.page_size())}});
    }
    const Layout& l = survey.layout;
    j["value_order"] = {{"steps", l.steps},
                        {"forward", l.forward},
                        {"adjacent", l.adjacent},
                        {"gap_pages", l.gap_pages},
                        {"overflow", l.overflow}};
    j["key_sizes"] = histogram_json(survey.keys);
    j["value_sizes"] = histogram_json(survey.values);
  }
  if (f.pack) j["pack"] = f.pack->json();
  if (f.outlook) j["reads"] = f.outlook->json();
  std::printf("%s\n", dump(j).c_str());
}

/// Sets the index file and its state, for the main database.
void look_for_index(const Database& database, Facts& f) {
  records::IndexTag tag;
  tag.txnid = f.snapshot.txnid;
  tag.page_size = database.page_size();
  tag.version = database.version();
  tag.record = f.snapshot.dbs[1];
  const auto& st = database.status();
  tag.owner = st.st_uid;
  tag.identity.ino = st.st_ino;
  tag.identity.size = static_cast<std::uint64_t>(st.st_size);
  tag.identity.mtime_ns = std::int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
  tag.file_pages = tag.identity.size / tag.page_size;
  const Result<std::string> path =
      records::index_path(database.path(), "", tag.identity.ino, config().index_dir);
  f.index_state = "none";
  if (!path) return;
  f.index_file = path.value();
  char why[128] = "";
  records::RecordIndex index;
  const Status found = records::load_index(f.index_file, tag, index, why);
  if (found.raw() != ENOENT) f.index_state = found.ok() ? "valid" : std::string("ignored: ") + why;
}

int info(const Options& options) {
  Database database(options.path);
  database.read_exactly();
  Facts f{};
  f.snapshot = database.snapshot();
  // Measure this before the walk, which reads the whole file.
  const Residency cache(database.fd(), Residency::Sampling::no);
  f.cached = cache.share(0, static_cast<std::uint64_t>(database.status().st_size));
  if (f.cached) f.cached_how = cache.how();
  for (unsigned i = 0; i < 2; ++i)
    if (database.meta(i).usable) f.map_bytes = std::max(f.map_bytes, database.meta(i).record.mapsize);
  f.map_bytes = std::max(f.map_bytes, static_cast<std::uint64_t>(database.status().st_size));
  look_for_index(database, f);
  const window::WindowView file = database.view();
  Survey survey(file.shift());
  if (!options.fast) {
    check::Options what;
    what.order = false;
    what.records = true;
    what.overflow_headers = false;
    what.file = &database.file().buffered();
    what.cancelled = &interrupted();
    catch_interrupts();
    {
      Progress bar("reading");
      survey.bar = &bar;
      if (!check::check_snapshot(file, f.snapshot, what, survey, f.totals).ok()) throw std::bad_alloc();
      survey.bar = nullptr;
    }
    f.walked = true;
    f.newest = database.newest();
  }
  if (options.pack) f.pack.emplace(database, options.rates);
  if (verdicts(database, f.map_bytes)[0].ours)
    f.outlook.emplace(database, (f.snapshot.last_pg + 1) * database.page_size());
  options.json ? show_json(database, f, survey) : show_text(database, f, survey);
  return f.totals.stopped ? interrupted_status() : int{kClean};
}

}  // namespace

void add_info(CLI::App& app, int& status) {
  const auto options = std::make_shared<Options>();
  CLI::App* const sub = app.add_subcommand("info",
                                           "print page counts, record sizes and the layout of a database, "
                                           "whether LMDBIO serves it, and how it would read it");
  sub->add_option("PATH", options->path, "directory that contains data.mdb, or the data file")->required();
  sub->add_flag("--json", options->json, "print one JSON object");
  sub->add_flag("--fast", options->fast, "read only the meta pages, not the database");
  CLI::Option* const pack =
      sub->add_flag("--pack", options->pack,
                    "compress samples: ratio and speed of each codec, and which one a cache would use");
  sub->add_option("--cache-rate", options->rates.cache, "with --pack: read rate of the local disk, in MB/s")
      ->check(CLI::PositiveNumber)
      ->needs(pack);
  sub->add_option("--file-rate", options->rates.file, "with --pack: read rate of the original file, in MB/s")
      ->check(CLI::PositiveNumber)
      ->needs(pack);
  sub->callback([options, &status] { status = info(*options); });
}

}  // namespace lmdbio::cli
