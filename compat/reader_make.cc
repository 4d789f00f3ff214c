// Makes the readers of lmdbio.h.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "compat/prove.h"
#include "compat/reader_handle.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/records/open_locations.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::compat {

namespace {

Status invalid(std::string& why, const char* text) {
  why = text;
  return Status::from_errno(EINVAL);
}

/// Returns MDB_NOSUBDIR if `path` is a data file that LMDB must open by itself; otherwise 0.  Replaces the
/// path of a directory's data.mdb with the path of the directory: with another lock file, a writer would not
/// see the reader.
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
  source.txnid = t.txn.id();
  source.pages = std::min(t.txn.snapshot().last_pg + 1, env.engine->file_pages(source.txnid));
  source.reads_around = part.reads_around && config().engine == IoEngineChoice::automatic;
  source.db = t.txn.record_now(dbi);
  source.key_order = env.engine->dbx(dbi).key_order;
  source.dup_order = env.engine->dbx(dbi).dup_order;

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
  if (const Status st = records::open_locations(source, request, locations, loaded, why); !st.ok()) return st;
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

Status read_options(const lmdbio_reader_options* given, bool opens, lmdbio_reader_options& out,
                    std::string& why) {
  out = {};
  if (given != nullptr && !read_sized(given, out))
    return invalid(why, "lmdbio_reader_options: size is not valid, or an unknown field is not 0");
  if (opens && (out.flags & ~unsigned{MDB_NOSUBDIR | MDB_NOLOCK}) != 0)
    return invalid(why, "lmdbio_reader_options: flags may be only MDB_NOSUBDIR and MDB_NOLOCK");
  return {};
}

}  // namespace lmdbio::compat
