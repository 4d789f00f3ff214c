// Readers of records: lmdbio.h over lmdbio/reader.
#include <lmdbio/lmdbio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compat/abi.h"
#include "compat/error_text.h"
#include "compat/guard.h"
#include "compat/prove.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/cache/prefetcher.h"
#include "lmdbio/io/engine_select.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/io/page_filler.h"
#include "lmdbio/reader/open_places.h"
#include "lmdbio/reader/reader.h"
#include "lmdbio/reader/stream.h"

using namespace lmdbio;
using namespace lmdbio::compat;

struct lmdbio_reader {
  std::unique_ptr<reader::Reader> core;
  EnvHandle* env = nullptr;
};
struct lmdbio_stream {
  std::unique_ptr<reader::Stream> core;
};

namespace {

/// As guarded(); a failure's text becomes that of lmdbio_error().
template <class Body>
int told(Body&& body) noexcept {
  return guarded([&] {
    std::string why;
    Status st;
    try {
      st = body(why);
    } catch (const std::bad_alloc&) {
      why.clear();
      st = Status::from_errno(ENOMEM);
    }
    if (st.ok() || (st.raw() == MDB_NOTFOUND && why.empty())) return st;  // the end of a stream
    if (why.empty()) why = mdb_strerror(st.raw());
    set_error_text(why);
    return st;
  });
}

Status invalid(std::string& why, const char* text) {
  why = text;
  return Status::from_errno(EINVAL);
}

/// A struct of a program's that may be older or newer than ours: what it lacks is zero; what we do not know
/// has to be.  `size` is its first member.
template <class T>
bool read_sized(const T* given, T& out) noexcept {
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  constexpr std::size_t kMost = 4096;
  if (size < sizeof size || size > kMost) return false;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(T); i < size; ++i)
    if (bytes[i] != 0) return false;
  out = T{};
  std::memcpy(&out, given, std::min(size, sizeof(T)));
  return true;
}

/// What lmdbio_reader_open opened, as long as the reader needs it.
struct Opened {
  MDB_env* env = nullptr;
  MDB_txn* txn = nullptr;
  MDB_dbi dbi = 0;
  ~Opened() {
    if (txn != nullptr) mdb_txn_abort(txn);
    if (env != nullptr) mdb_env_close(env);
  }
};

/// MDB_NOSUBDIR if `path` is a file that is a database by itself.  The data file of a directory becomes that
/// directory: with another lock file beside it, a writer would not see the reader.
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

/// What a reader may have: `limit` bytes, of the process's or, where LMDBIO_MEMORY allows nothing, its own.
struct ReaderMemory {
  std::uint64_t limit = 0;
  std::shared_ptr<reader::Memory> process;  ///< null: its own
};

Status reader_memory(const std::string& name, const lmdbio_reader_options& options, ReaderMemory& out,
                     std::string& why) {
  cache::Prefetcher* const prefetcher = cache::Prefetcher::get();
  if (prefetcher == nullptr) return Status::from_errno(ENOMEM);
  const std::uint64_t all = prefetcher->memory_limit();
  out.limit = options.memory != 0 ? options.memory : all;
  if (all != 0) {
    out.limit = std::min(out.limit, all);
    out.process = reader::Memory::of_process(*prefetcher);
    prefetcher->set_reclaim(reader::Memory::reclaim);
    return {};
  }
  if (out.limit != 0) return {};
  why = name +
        ": LMDBIO_MEMORY leaves a reader no memory: set it to 8M or more, or give the reader its own limit "
        "(option `memory`)";
  return Status::from_errno(ENOMEM);
}

Result<std::unique_ptr<IoEngine>> make_engine(const File& file, unsigned depth) noexcept {
  if (!file.direct() && config().engine == IoEngineChoice::automatic) {
    auto filling = select_engine(file, depth, EngineKind::populate_copied, nullptr);
    if (filling) return filling;
  }
  return select_engine(file, depth, engine_kind(config().engine), nullptr);
}

struct Progress {
  lmdbio_progress_func* call;
  void* context;
  static bool on(void* self, std::uint64_t done, std::uint64_t total) noexcept {
    const Progress& p = *static_cast<Progress*>(self);
    const AsyncSignalsAllowed program;
    return p.call(p.context, "index", done, total) == 0;
  }
};

/// A reader of `t`'s snapshot.  `record`: of the database, looked up.
Status make_reader(ReadTxn& t, MDB_dbi dbi, const lmdbio_reader_options& options, std::string database,
                   std::shared_ptr<Opened> opened, lmdbio_reader** out, std::string& why) {
  EnvHandle& env = *t.env;
  const std::string& name = env.stats.path;
  const Origin origin = env.engine->origin();
  const Result<std::shared_ptr<const OpenFile>> file = OpenFile::get(origin, OpenFile::With::direct);
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
  reader::Source source{file.value(),
                        name,
                        data_file(env.setup.path.c_str(), env.setup.open_flags),
                        0,
                        0,
                        0,
                        {},
                        {},
                        {},
                        std::move(opened),
                        origin.fd,
                        memory_facts().available};
  source.page_size = env.engine->page_size();
  source.txnid = t.txn.id();
  source.pages = std::min(t.txn.snapshot().last_pg + 1, env.engine->file_pages(source.txnid));
  source.db = t.txn.record_now(dbi);
  source.key_order = env.engine->dbx(dbi).key_order;
  source.dup_order = env.engine->dbx(dbi).dup_order;

  Progress progress{options.progress, options.progress_context};
  ReaderMemory memory;
  if (const Status st = reader_memory(name, options, memory, why); !st.ok()) return st;
  reader::PlacesRequest request;
  request.database = std::move(database);
  request.memory = memory.process;
  request.sidecar = options.no_sidecar == 0;
  if (options.progress != nullptr) {
    request.progress = Progress::on;
    request.context = &progress;
  }
  std::unique_ptr<reader::Places> places;
  bool loaded = false;
  if (const Status st = reader::open_places(source, request, places, loaded, why); !st.ok()) return st;
  auto made = std::make_unique<lmdbio_reader>();
  ReadFacts facts;
  facts.setting = config().io;
  facts.file_bytes = source.pages * source.page_size;
  facts.available = source.available;
  const ReadDecision read = choose_read_path(Access::reader, facts);
  made->core = std::make_unique<reader::Reader>(std::move(source), std::move(places), memory.limit, read,
                                                make_engine, memory.process);
  if (!reader::take_least(made->core->shared())) {
    why = name + ": not enough memory for a reader, which needs 1 MiB" + memory.process->reason();
    return Status::from_errno(ENOMEM);
  }
  made->env = &env;
  made->core->shared().counters.index_read = loaded;
  stats_reader_made(env, made->core->shared());
  *out = made.release();
  return {};
}

/// Options as given, or the defaults.
Status read_options(const lmdbio_reader_options* given, bool opens, lmdbio_reader_options& out,
                    std::string& why) {
  out = {};
  if (given != nullptr && !read_sized(given, out))
    return invalid(why, "lmdbio_reader_options: size is not valid, or an unknown field is not 0");
  if (opens && (out.flags & ~unsigned{MDB_NOSUBDIR | MDB_NOLOCK}) != 0)
    return invalid(why, "lmdbio_reader_options: flags may be only MDB_NOSUBDIR and MDB_NOLOCK");
  return {};
}

/// The batch as a program holds it.
const lmdbio_batch* give(std::unique_ptr<reader::Batch> b) noexcept { return b.release(); }

}  // namespace

extern "C" {

LMDBIO_ABI const char* lmdbio_error(void) { return error_text(); }

LMDBIO_ABI int lmdbio_reader_open(const char* path, const lmdbio_reader_options* given,
                                  lmdbio_reader** reader) {
  return told([&](std::string& why) {
    if (path == nullptr || reader == nullptr) return invalid(why, "lmdbio_reader_open: null argument");
    lmdbio_reader_options options;
    if (const Status st = read_options(given, true, options, why); !st.ok()) return st;
    const auto opened = std::make_shared<Opened>();
    if (const Status st = open_environment(path, options, *opened, why); !st.ok()) return st;
    ReadTxn* const t = as<ReadTxn>(opened->txn);
    if (t == nullptr) {
      const EnvHandle* const e = as<EnvHandle>(opened->env);
      why = std::string(path) + ": not served by LMDBIO: " +
            (e == nullptr ? "LMDBIO_DISABLE is set, or this release of LMDB is not supported"
                          : e->stats.reason);
      return Status::from_errno(ENOTSUP);
    }
    return make_reader(*t, opened->dbi, options, options.database != nullptr ? options.database : "", opened,
                       reader, why);
  });
}

LMDBIO_ABI int lmdbio_reader_attach(MDB_txn* txn, MDB_dbi dbi, const lmdbio_reader_options* given,
                                    lmdbio_reader** reader) {
  ReadTxn* const t = as<ReadTxn>(txn);
  // Looks a named database up, by the program's comparator, which may throw.
  const bool usable = t != nullptr && t->env != nullptr && t->txn.has_dbi(dbi) && !t->txn.blocked();
  Status known;
  if (usable && t->txn.stale(dbi))
    if (const auto record = t->txn.record(dbi); !record) known = record.error();
  return told([&](std::string& why) {
    if (txn == nullptr || reader == nullptr) return invalid(why, "lmdbio_reader_attach: null argument");
    if (t == nullptr) {
      const ForwardTxn* const f = as<ForwardTxn>(txn);
      why = f != nullptr ? f->env->stats.path + ": not served by LMDBIO: " + f->env->stats.reason
                         : "LMDBIO does not serve this transaction";
      return Status::from_errno(ENOTSUP);
    }
    if (t->env == nullptr || !t->txn.has_dbi(dbi)) return invalid(why, "no such transaction or database");
    if (t->txn.blocked()) return Status::from_mdb(MDB_BAD_TXN);
    if (!known.ok()) return known;
    lmdbio_reader_options options;
    if (const Status st = read_options(given, false, options, why); !st.ok()) return st;
    const char* const name = dbi == db::kMainDbi ? nullptr : t->env->engine->dbx(dbi).name;
    return make_reader(*t, dbi, options, name != nullptr ? name : "", nullptr, reader, why);
  });
}

LMDBIO_ABI void lmdbio_reader_close(lmdbio_reader* reader) {
  if (reader == nullptr) return;
  (void)guarded([&] {
    stats_reader_gone(*reader->env, reader->core->shared());
    delete reader;
    return Status();
  });
}

LMDBIO_ABI uint64_t lmdbio_reader_count(const lmdbio_reader* reader) {
  return reader != nullptr ? reader->core->count() : 0;
}

LMDBIO_ABI int lmdbio_reader_read(lmdbio_reader* reader, const uint64_t* ordinals, size_t n,
                                  const lmdbio_batch** batch) {
  return told([&](std::string& why) {
    if (reader == nullptr || batch == nullptr || (ordinals == nullptr && n != 0))
      return invalid(why, "lmdbio_reader_read: null argument");
    for (std::size_t i = 0; i < n; ++i)
      if (ordinals[i] == reader::kNoRecord) return invalid(why, "lmdbio_reader_read: no such record");
    std::unique_ptr<reader::Batch> b;
    const Status st = reader->core->read({ordinals, n}, b, why);
    if (st.ok()) *batch = give(std::move(b));
    return st;
  });
}

LMDBIO_ABI int lmdbio_reader_read_keys(lmdbio_reader* reader, const MDB_val* keys, size_t n,
                                       const lmdbio_batch** batch) {
  return told([&](std::string& why) {
    if (reader == nullptr || batch == nullptr || (keys == nullptr && n != 0))
      return invalid(why, "lmdbio_reader_read_keys: null argument");
    std::vector<std::uint64_t> ordinals;
    std::unique_ptr<reader::Batch> b;
    Status st = reader->core->find({keys, n}, ordinals, why);
    if (st.ok()) st = reader->core->read(ordinals, b, why);
    if (st.ok()) *batch = give(std::move(b));
    return st;
  });
}

LMDBIO_ABI void lmdbio_batch_release(const lmdbio_batch* batch) {
  if (batch == nullptr) return;
  (void)guarded([&] {
    delete static_cast<const reader::Batch*>(batch);
    return Status();
  });
}

LMDBIO_ABI int lmdbio_stream_open(lmdbio_reader* reader, const lmdbio_order* given, lmdbio_stream** stream) {
  return told([&](std::string& why) {
    if (reader == nullptr || given == nullptr || stream == nullptr)
      return invalid(why, "lmdbio_stream_open: null argument");
    lmdbio_order order;
    if (!read_sized(given, order))
      return invalid(why, "lmdbio_order: size is not valid, or an unknown field is not 0");
    if (order.kind == LMDBIO_ORDER_KEYS && order.keys == nullptr && order.length != 0)
      return invalid(why, "lmdbio_order: keys: must not be NULL");
    auto made = std::make_unique<lmdbio_stream>();
    const Status st = reader::Stream::open(*reader->core, order, made->core, why);
    if (st.ok()) *stream = made.release();
    return st;
  });
}

LMDBIO_ABI int lmdbio_stream_next(lmdbio_stream* stream, const lmdbio_batch** batch) {
  return told([&](std::string& why) {
    if (stream == nullptr || batch == nullptr) return invalid(why, "lmdbio_stream_next: null argument");
    std::unique_ptr<reader::Batch> b;
    const Status st = stream->core->next(b, why);
    if (st.ok()) *batch = give(std::move(b));
    return st;
  });
}

LMDBIO_ABI void lmdbio_stream_position(const lmdbio_stream* stream, uint64_t* epoch, uint64_t* position) {
  const reader::Spot at = stream != nullptr ? stream->core->position() : reader::Spot();
  if (epoch != nullptr) *epoch = at.epoch;
  if (position != nullptr) *position = at.position;
}

LMDBIO_ABI void lmdbio_stream_cancel(lmdbio_stream* stream) {
  const int saved = errno;
  if (stream != nullptr) stream->core->cancel();
  errno = saved;
}

LMDBIO_ABI void lmdbio_stream_close(lmdbio_stream* stream) {
  if (stream == nullptr) return;
  (void)guarded([&] {
    delete stream;
    return Status();
  });
}

LMDBIO_ABI uint64_t lmdbio_shuffle(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t i) {
  return reader::shuffle(seed, epoch, count, i);
}

}  // extern "C"
