// Makes the readers of lmdbio.h.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compat/exclusions.h"
#include "compat/prove.h"
#include "compat/reader_handle.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/in_parallel.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/cache/image.h"
#include "lmdbio/gather/cached_engine.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/records/joined_locations.h"
#include "lmdbio/records/open_locations.h"
#include "lmdbio/window/kept_chunks.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::compat {

namespace {

Status invalid(std::string& why, const char* text) {
  why = text;
  return Status::from_errno(EINVAL);
}

/// Returns MDB_NOSUBDIR if `path` is a data file that LMDB cannot open through its directory; otherwise 0.
/// Replaces the path of a directory's data.mdb with the path of the directory: with another lock file, a
/// writer would not see the reader.
unsigned kind_of(std::string& path, unsigned flags) {
  struct stat st {};
  if ((flags & MDB_NOSUBDIR) != 0 || ::stat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) return 0;
  constexpr std::string_view kName = "data.mdb";
  const std::size_t slash = path.rfind('/');
  const std::size_t name = slash == std::string::npos ? 0 : slash + 1;
  if (path.substr(name) != kName || ::access((path + "-lock").c_str(), F_OK) == 0) return MDB_NOSUBDIR;
  path = slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
  return 0;
}

/// The memory of a reader.  It is part of the process's memory, unless LMDBIO_MEMORY is 0.
struct ReaderMemory {
  std::uint64_t limit = 0;                   ///< bytes
  std::shared_ptr<records::Memory> process;  ///< the process's memory; null: the reader has memory of its own
};

Status reader_memory(const std::string& name, const lmdbio_reader_options& options, ReaderMemory& out,
                     std::string& why) {
  window::Prefetcher* const prefetcher = window::Prefetcher::get();
  if (prefetcher == nullptr) return Status::from_errno(ENOMEM);
  const std::uint64_t all = prefetcher->memory().limit();
  out.limit = options.memory != 0 ? options.memory : all;
  if (all != 0) {
    out.limit = std::min(out.limit, all);
    out.process = records::Memory::of_process(prefetcher->memory());
    prefetcher->memory().set_reclaim(records::Memory::reclaim);
    return {};
  }
  if (out.limit != 0) return {};
  why = name +
        ": LMDBIO_MEMORY leaves a reader no memory: set it to 8M or more, or give the reader its own limit "
        "(option `memory`)";
  return Status::from_errno(ENOMEM);
}

/// Environments that are open at the same time while databases are counted.
constexpr unsigned kOpenThreads = 16;

/// The program's progress function.
struct Progress {
  lmdbio_progress_func* call;
  void* context;
  static bool on(void* self, std::uint64_t done, std::uint64_t total) noexcept {
    const Progress& p = *static_cast<Progress*>(self);
    const AsyncSignalsAllowed program;
    return p.call(p.context, "index", done, total) == 0;
  }
};

/// One of several databases, as it was when it was counted.
struct Counted {
  records::Database database;
  FileSet::Part part;
  std::vector<records::Excluded> excluded;
  format::PageFormat pages{0};
  std::shared_ptr<Opened> opened;
  Status status;
  std::string why;
};

Status count(const char* path, const lmdbio_reader_options& options, Counted& out) {
  out.opened = std::make_shared<Opened>();
  if (const Status st = open_environment(path, options, *out.opened, out.why); !st.ok()) return st;
  ReadTxn* t = nullptr;
  if (const Status st = served(path, *out.opened, t, out.why); !st.ok()) return st;
  const EnvHandle& env = *t->env;
  const MDB_dbi dbi = out.opened->dbi;
  const Origin origin = env.engine->file().origin();
  records::Database& d = out.database;
  d.name = env.stats.path;
  d.txnid = t->txn.id();
  d.pages = std::min(t->txn.snapshot().last_pg + 1, env.engine->file_pages(d.txnid));
  d.db = t->txn.record_now(dbi);
  d.key_order = env.engine->dbx(dbi).key_order;
  d.dup_order = env.engine->dbx(dbi).dup_order;
  out.pages = env.engine->pages();
  out.part = {data_file(env.setup.path.c_str(), env.setup.open_flags), origin.id, d.pages * out.pages.size};
  return find_excluded(*t, dbi, options, d.name, out.excluded, out.why);
}

}  // namespace

Status open_environment(const char* path, const lmdbio_reader_options& options, Opened& o, std::string& why) {
  int rc = mdb_env_create(&o.env);
  if (rc == 0 && options.database != nullptr) rc = mdb_env_set_maxdbs(o.env, 1);
  std::string place = path;
  const unsigned flags = MDB_RDONLY | MDB_NOTLS | options.flags | kind_of(place, options.flags);
  if (rc == 0) rc = mdb_env_open(o.env, place.c_str(), flags, 0644);
  if (rc == 0) rc = mdb_txn_begin(o.env, nullptr, MDB_RDONLY, &o.txn);
  if (rc == 0) rc = mdb_dbi_open(o.txn, options.database, 0, &o.dbi);
  if (rc == 0) return {};
  why = std::string(path) + ": ";
  if (o.txn != nullptr && options.database != nullptr)
    why += "database " + std::string(options.database) + ": ";
  why += mdb_strerror(rc);
  return as_status(rc);
}

Status served(const char* path, const Opened& o, ReadTxn*& out, std::string& why) {
  out = as<ReadTxn>(o.txn);
  if (out != nullptr) return {};
  const EnvHandle* const e = as<EnvHandle>(o.env);
  why = std::string(path) + ": not served by LMDBIO: " +
        (e == nullptr ? "LMDBIO_DISABLE is set, or this release of LMDB is not supported" : e->stats.reason);
  return Status::from_errno(ENOTSUP);
}

Status make_reader(ReadTxn& t, MDB_dbi dbi, const lmdbio_reader_options& options, const std::string& database,
                   const std::shared_ptr<Opened>& opened, const ReaderPart& part,
                   std::unique_ptr<records::Reader>& out, std::string& why) {
  EnvHandle& env = *t.env;
  const std::string& name = env.stats.path;
  const Origin origin = env.engine->file().origin();
  const Result<std::shared_ptr<const OpenFile>> file = OpenFile::get(origin, OpenFile::With::exact_alone);
  if (!file) {
    if (PrivateTable::get() == nullptr) {
      why =
          name +
          ": readers need a descriptor table of their own, which this system does not allow (close_range and "
          "unshare are refused)";
      return Status::from_errno(ENOTSUP);
    }
    why = name + ": " + mdb_strerror(file.error().raw());
    return file.error();
  }
  records::Source source;
  source.file = file.value();
  source.name = name;
  source.path = data_file(env.setup.path.c_str(), env.setup.open_flags);
  source.snapshot = opened;
  source.programs_fd = origin.fd;
  source.available = memory_facts().available;
  source.page_size = env.engine->page_size();
  source.version = env.engine->pages().version;
  source.txnid = t.txn.id();
  source.pages = std::min(t.txn.snapshot().last_pg + 1, env.engine->file_pages(source.txnid));
  source.reads_around = part.reads_around && config().engine == IoEngineChoice::automatic;
  source.db = t.txn.record_now(dbi);
  source.key_order = env.engine->dbx(dbi).key_order;
  source.dup_order = env.engine->dbx(dbi).dup_order;

  source.image = cache::Image::get(source.file, name.c_str(), source.txnid);
  source.served = gather::ServedFile::get(source.file, name.c_str(), source.txnid, source.image);
  if (const gather::Sources sources{source.image, source.served}; sources)
    source.make_engine = gather::cached_engines(sources, true);

  // The environment outlives the reader.  Kept chunks load the whole file, so a rank that reads a part of it
  // does not use them.
  if (source.served != nullptr && part.of_file >= 1)
    if (std::shared_ptr<window::WindowFile> chunks = env.engine->file().window_file(source.pages);
        chunks != nullptr && chunks->has_page_cache())
      source.kept = std::make_shared<window::KeptChunks>(std::move(chunks), source.pages * source.page_size);

  ReadFacts facts;
  facts.setting = config().io;
  facts.file_bytes =
      static_cast<std::uint64_t>(static_cast<double>(source.pages * source.page_size) * part.of_file);
  facts.available = source.available;
  facts.direct_works = true;
  // Open the file for direct reads before anything is read, because the open may drop its pages from the page
  // cache.
  if (choose_read_path(Access::reader, facts) == ReadPath::direct)
    facts.direct_works = source.direct() != nullptr;
  const ReadDecision read = choose_read_path(Access::reader, facts);

  Progress progress{options.progress, options.progress_context};
  ReaderMemory memory;
  if (const Status st = reader_memory(name, options, memory, why); !st.ok()) return st;
  records::LocationsRequest request;
  request.database = database;
  request.memory = memory.process;
  request.index_file = options.no_index_file == 0;
  request.deferred = part.deferred_index;
  if (options.progress != nullptr) {
    request.progress = Progress::on;
    request.context = &progress;
  }
  std::unique_ptr<records::RecordLocations> locations;
  bool loaded = false;
  std::vector<records::Excluded> excluded;
  if (const Status st = find_excluded(t, dbi, options, name, excluded, why); !st.ok()) return st;
  if (const Status st = records::open_locations(source, request, locations, loaded, why); !st.ok()) return st;
  // The index file belongs to the database file, so the image replaces the latter only now.
  if (std::shared_ptr<const OpenFile> whole = source.image != nullptr ? source.image->whole_file() : nullptr;
      whole != nullptr) {
    source.file = std::move(whole);
    source.is_image = true;
    source.served = nullptr;
    source.kept = nullptr;
    source.programs_fd = -1;
    source.make_engine = {};
  }
  if (!excluded.empty()) {
    std::vector<records::JoinedLocations::Part> parts(1);
    parts[0] = {name, locations->records(), std::move(excluded), 0, std::move(locations)};
    locations = std::make_unique<records::JoinedLocations>(std::move(parts), nullptr);
  }
  auto made = std::make_unique<records::Reader>(std::move(source), std::move(locations), memory.limit, read,
                                                memory.process);
  if (!records::take_least(made->shared())) {
    why = name + ": not enough memory for a reader, which needs 1 MiB" + made->shared().memory().reason();
    return Status::from_errno(ENOMEM);
  }
  made->shared().counters.index_read = loaded;
  stats_reader_made(env, made->shared());
  out = std::move(made);
  return {};
}

Status make_many_reader(std::span<const char* const> paths, const lmdbio_reader_options& options,
                        lmdbio_reader& out, std::string& why) {
  lmdbio_reader_options each = options;
  each.flags |= MDB_NOLOCK;
  std::vector<Counted> all(paths.size());
  const bool whole = in_parallel(all.size(), kOpenThreads, [&](std::size_t i) noexcept {
    Counted& c = all[i];
    try {
      c.status = count(paths[i], each, c);
    } catch (...) {
      c.status = Status::from_errno(ENOMEM);
    }
    if (i != 0) c.opened.reset();
  });
  if (!whole) return Status::from_errno(ECANCELED);
  std::vector<records::Database> databases;
  std::vector<FileSet::Part> files;
  format::DbRecord sum{};
  ReadFacts facts;
  facts.setting = config().io;
  for (Counted& c : all) {
    if (!c.status.ok()) {
      why = std::move(c.why);
      return c.status;
    }
    if (c.pages != all[0].pages) {
      why = c.database.name + ": pages have " + std::to_string(c.pages.size) + " bytes, but " +
            std::to_string(all[0].pages.size) + " in " + all[0].database.name +
            "; databases of one reader must have the same page size";
      return Status::from_errno(ENOTSUP);
    }
    sum.leaf_pages += c.database.db.leaf_pages;
    sum.entries += c.database.db.entries;
    facts.file_bytes += c.part.bytes;
    databases.push_back(c.database);
    files.push_back(c.part);
  }
  const std::shared_ptr<Opened> opened = std::move(all[0].opened);
  EnvHandle& env = *as<ReadTxn>(opened->txn)->env;
  const Result<std::shared_ptr<const OpenFile>> file =
      OpenFile::get(env.engine->file().origin(), OpenFile::With::exact_alone);
  if (!file) {
    why = databases[0].name + ": " + mdb_strerror(file.error().raw());
    return file.error();
  }
  facts.available = memory_facts().available;
  facts.direct_works = true;
  if (choose_read_path(Access::reader, facts) == ReadPath::direct) {
    const File* const direct = file.value()->direct();
    facts.direct_works = direct != nullptr && direct->alignment() <= records::kMostAlignment;
  }
  const ReadDecision read = choose_read_path(Access::reader, facts);

  records::Source source;
  source.joined = std::make_shared<records::Databases>(std::move(databases), std::move(files), all[0].pages,
                                                       read == ReadPath::direct);
  source.file = file.value();
  source.name = source.joined->all[0].name;
  if (paths.size() > 1) source.name += " and " + std::to_string(paths.size() - 1) + " other databases";
  source.page_size = all[0].pages.size;
  source.version = all[0].pages.version;
  source.pages = source.joined->files.bytes() / source.page_size;
  source.db = sum;
  source.snapshot = opened;  // only keeps the environment open, for the statistics
  source.available = facts.available;
  source.reads_around = config().engine == IoEngineChoice::automatic;
  source.make_engine = [files_of = std::shared_ptr<FileSet>(source.joined, &source.joined->files)](
                           const File& like, unsigned depth, EngineKind wanted, const char** name) {
    if (name != nullptr) *name = "threads";
    return FileSet::engine(files_of, like, depth, wanted);
  };

  ReaderMemory memory;
  if (const Status st = reader_memory(source.name, options, memory, why); !st.ok()) return st;
  records::LocationsRequest request;
  request.database = options.database != nullptr ? options.database : "";
  request.memory = memory.process;
  request.index_file = options.no_index_file == 0;
  const auto make_locations = [joined = source.joined, request](
                                  std::size_t i, const std::atomic<bool>& cancelled,
                                  std::unique_ptr<records::RecordLocations>& made, std::string& reason) {
    return records::open_locations(*joined, i, request, cancelled, made, reason);
  };
  std::vector<records::JoinedLocations::Part> parts(all.size());
  Progress progress{options.progress, options.progress_context};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const records::Database& d = source.joined->all[i];
    parts[i] = {d.name, d.db.entries, std::move(all[i].excluded), d.first_page, nullptr};
    if (options.progress == nullptr) continue;
    const std::atomic<bool> never{false};
    records::LocationsRequest shown = request;
    shown.progress = Progress::on;
    shown.context = &progress;
    if (const Status st = records::open_locations(*source.joined, i, shown, never, parts[i].locations, why);
        !st.ok())
      return st;
  }
  const std::string name = source.name;
  auto made = std::make_unique<records::Reader>(
      std::move(source), std::make_unique<records::JoinedLocations>(std::move(parts), make_locations),
      memory.limit, read, memory.process);
  if (!records::take_least(made->shared())) {
    why = name + ": not enough memory for a reader, which needs 1 MiB" + made->shared().memory().reason();
    return Status::from_errno(ENOMEM);
  }
  stats_reader_made(env, made->shared());
  out.env = &env;
  out.core = std::move(made);
  return {};
}

Status read_options(const lmdbio_reader_options* given, bool opens, lmdbio_reader_options& out,
                    std::string& why) {
  out = {};
  if (given != nullptr && !read_sized(given, out))
    return invalid(why, "lmdbio_reader_options: size is not valid, or an unknown field is not 0");
  if (opens && (out.flags & ~unsigned{MDB_NOSUBDIR | MDB_NOLOCK}) != 0)
    return invalid(why, "lmdbio_reader_options: flags may be only MDB_NOSUBDIR and MDB_NOLOCK");
  if ((out.exclude == nullptr && out.exclude_count != 0) ||
      (out.exclude_prefixes == nullptr && out.exclude_prefix_count != 0))
    return invalid(why, "lmdbio_reader_options: exclude and exclude_prefixes must not be NULL");
  const auto empty = [](const MDB_val& v) { return v.mv_size == 0 || v.mv_data == nullptr; };
  if (std::any_of(out.exclude, out.exclude + out.exclude_count, empty) ||
      std::any_of(out.exclude_prefixes, out.exclude_prefixes + out.exclude_prefix_count, empty))
    return invalid(why, "lmdbio_reader_options: keys and prefixes to exclude must not be empty");
  return {};
}

}  // namespace lmdbio::compat
