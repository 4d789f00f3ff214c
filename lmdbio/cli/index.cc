// lmdbio index: builds the record index of a database and writes it to a file.

#include <lmdb.h>
#include <string.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "lmdbio/base/config.h"
#include "lmdbio/cli/command.h"
#include "lmdbio/cli/database.h"
#include "lmdbio/cli/progress.h"
#include "lmdbio/cli/text.h"
#include "lmdbio/cli/totals_json.h"
#include "lmdbio/format/page_view.h"
#include "lmdbio/records/build_index.h"
#include "lmdbio/records/index_file.h"
#include "lmdbio/records/index_path.h"

namespace lmdbio::cli {
namespace {

// An index describes one transaction: a commit during the build makes it stale.  The build starts again, up
// to this many builds in total.
constexpr int kTries = 3;

struct Options {
  std::string path;
  std::vector<std::string> names;
  bool all = false, dry_run = false, json = false;
};

std::string shown(const std::string& name) { return name.empty() ? "(main)" : printable(name); }

std::string errno_text(int e) {
  const char* const text = ::strerrordesc_np(e);
  return text != nullptr ? text : "unknown error";
}

bool show_progress(void* progress, std::uint64_t done, std::uint64_t total) noexcept {
  static_cast<Progress*>(progress)->set(done, total);
  return true;
}

struct Made {
  std::string name;
  format::DbRecord record;
  records::RecordIndex index;
  records::IndexReads reads;
  double seconds = 0;
  std::string path;  ///< empty: not written
  std::uint64_t file_bytes = 0;
};

/// The state of the file that is indexed.
struct State {
  tree::Snapshot snapshot;
  FileIdentity identity;
  window::WindowView view;
};

FileIdentity identity_of(const Database& database) {
  const Result<FileIdentity> id = database.file().buffered().identity();
  if (!id) throw Failure(database.path() + ": " + errno_text(id.error().raw()));
  return id.value();
}

Made make(const Database& database, const State& state, const std::string& name,
          const format::DbRecord& record) {
  Made m;
  m.name = name;
  m.record = record;
  Progress progress("indexing " + shown(name));
  records::IndexRequest request;
  request.file = &database.file();
  request.file_pages = std::min(state.view.pages(), state.snapshot.last_pg + 1);
  request.page_size = database.page_size();
  request.version = database.version();
  request.record = record;
  request.progress = show_progress;
  request.context = &progress;
  records::IndexProblem problem;
  const auto begin = std::chrono::steady_clock::now();
  const Status st = records::build_index(request, m.index, problem, &m.reads);
  m.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (st.raw() == ENOMEM) throw std::bad_alloc();
  if (st.raw() == MDB_CORRUPTED)
    throw Failure(format_text("%s: %s: page %llu: %s; see lmdbio check", database.path().c_str(),
                              shown(name).c_str(), static_cast<unsigned long long>(problem.page),
                              problem.reason));
  if (!st.ok())
    throw Failure(database.path() + ": " + shown(name) + ": cannot be read: " + errno_text(st.raw()));
  return m;
}

/// Returns the named databases, which are entries of the main database.
std::vector<std::pair<std::string, format::DbRecord>> named(const State& state,
                                                            const records::RecordIndex& main) {
  std::vector<std::pair<std::string, format::DbRecord>> out;
  for (std::uint64_t i = 0; i < main.records(); ++i) {
    const records::RecordLocation at = main.location(i);
    if (at.nth != 0 || at.overflow != 0 || at.dup_leaf != 0) continue;
    const std::byte* const bytes = state.view.at(format::Pgno{at.leaf});
    format::PageView page;
    format::Node n;
    if (bytes == nullptr ||
        !format::PageView::open(state.view.version(), bytes, state.view.page_size(), format::Pgno{at.leaf},
                                page) ||
        !page.is_leaf() || page.is_leaf2() || at.slot >= page.count() || !page.node(at.slot, n))
      continue;
    constexpr unsigned kKind = format::kSubData | format::kDupData | format::kBigData;
    if ((n.flags() & kKind) != format::kSubData || n.data_size() != sizeof(format::DbRecord)) continue;
    out.emplace_back(std::string(reinterpret_cast<const char*>(n.key()),
                                 format::name_bytes(state.view.version(), n.key_size())),
                     load<format::DbRecord>(n.data()));
  }
  return out;
}

std::vector<Made> make_all(const Database& database, const State& state, const Options& options) {
  std::vector<Made> out;
  Made main = make(database, state, "", state.snapshot.dbs[1]);
  if (options.names.empty() && !options.all) {
    out.push_back(std::move(main));
    return out;
  }
  const auto found = named(state, main.index);
  if (options.all) out.push_back(std::move(main));
  for (const std::string& name : options.names)
    if (std::none_of(found.begin(), found.end(), [&](const auto& f) { return f.first == name; }))
      throw Failure(database.path() + ": no database named " + printable(name));
  for (const auto& [name, record] : found)
    if (options.all || std::find(options.names.begin(), options.names.end(), name) != options.names.end())
      out.push_back(make(database, state, name, record));
  return out;
}

void write(const Database& database, const State& state, Made& m) {
  records::IndexTag tag;
  tag.database = m.name;
  tag.txnid = state.snapshot.txnid;
  tag.page_size = database.page_size();
  tag.version = database.version();
  tag.file_pages = state.view.pages();
  tag.record = m.record;
  tag.identity = state.identity;
  const Result<std::string> path =
      records::index_path(database.path(), m.name, state.identity.ino, config().index_dir);
  if (!path) throw Failure(database.path() + ": " + errno_text(path.error().raw()));
  const Status st = records::save_index(m.index, tag, path.value(), database.status(), &m.file_bytes);
  if (!st.ok())
    throw Failure(path.value() + ": cannot be written: " + errno_text(st.raw()) +
                  (config().index_dir.empty() ? " (LMDBIO_INDEX_DIR selects another directory)" : ""));
  m.path = path.value();
}

double each(const Made& m) {
  return m.index.records() == 0
             ? 0
             : static_cast<double>(m.index.memory_bytes()) / static_cast<double>(m.index.records());
}

void show_text(const std::vector<Made>& all) {
  for (const Made& m : all) {
    std::printf("%s: %s on %s, %.2f s, %s (%.2f bytes per record)%s%s\n", shown(m.name).c_str(),
                counted(m.index.records(), "record").c_str(),
                counted(m.index.leaf_pages(), "leaf page").c_str(), m.seconds,
                bytes_text(static_cast<double>(m.index.memory_bytes())).c_str(), each(m),
                m.path.empty() ? "" : ": ", m.path.c_str());
  }
}

void show_json(const Database& database, const State& state, const std::vector<Made>& all) {
  Json j{{"path", database.path()}, {"transaction", state.snapshot.txnid}};
  j["indexes"] = Json::array();
  for (const Made& m : all) {
    const records::IndexTotals& t = m.index.totals();
    Json one{{"database", m.name},
             {"records", t.records},
             {"branch_pages", t.branch_pages},
             {"leaf_pages", t.leaf_pages},
             {"overflow_values", t.overflow_values},
             {"seconds", m.seconds},
             {"read", {{"requests", m.reads.requests}, {"bytes", m.reads.bytes}, {"direct", m.reads.direct}}},
             {"threads", m.reads.threads},
             {"memory_bytes", m.index.memory_bytes()},
             {"bytes_per_record", each(m)}};
    one["file"] = m.path.empty() ? Json() : Json(m.path);
    one["file_bytes"] = m.path.empty() ? Json() : Json(m.file_bytes);
    j["indexes"].push_back(std::move(one));
  }
  std::printf("%s\n", dump(j).c_str());
}

int index(const Options& options) {
  Database database(options.path);
  State state;
  std::vector<Made> all;
  for (int attempt = 1;; ++attempt) {
    state.identity = identity_of(database);
    state.snapshot = database.snapshot();
    state.view = database.view();
    // The build takes no lock: its results are valid only if no writer has committed meanwhile.
    const auto undisturbed = [&] {
      return database.newest() == state.snapshot.txnid && identity_of(database) == state.identity;
    };
    try {
      all = make_all(database, state, options);
      if (undisturbed()) break;
    } catch (const Failure&) {
      if (undisturbed()) throw;
    }
    if (attempt == kTries)
      throw Failure(database.path() +
                    ": a writer is active: each index was out of date when it was built; try again when the "
                    "writer is idle");
  }
  if (!options.dry_run)
    for (Made& m : all) write(database, state, m);
  options.json ? show_json(database, state, all) : show_text(all);
  return kClean;
}

}  // namespace

void add_index(CLI::App& app, int& status) {
  const auto options = std::make_shared<Options>();
  CLI::App* const sub = app.add_subcommand(
      "index", "write the record index of a database, which readers use to find records by ordinal");
  sub->add_option("PATH", options->path, "directory that contains data.mdb, or the data file")->required();
  sub->add_option("--db", options->names,
                  "index this named database instead of the main database; may be repeated")
      ->type_name("NAME")
      ->expected(1)
      ->take_all();
  sub->add_flag("--all", options->all, "index the main database and all named databases");
  sub->add_flag("--dry-run", options->dry_run, "build the index, but write no file");
  sub->add_flag("--json", options->json, "print one JSON object");
  sub->callback([options, &status] { status = index(*options); });
}

}  // namespace lmdbio::cli
