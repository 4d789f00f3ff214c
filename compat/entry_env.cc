// Environments.
#include <cerrno>
#include <string>

#include "compat/abi.h"
#include "compat/guard.h"
#include "compat/lifecycle.h"
#include "compat/route.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/log.h"
#include "lmdbio/io/file.h"

using namespace lmdbio;
using namespace lmdbio::compat;

namespace {

EnvHandle* as_env(const MDB_env* e) noexcept { return as<EnvHandle>(e); }

MDB_txn* real_txn(MDB_txn* t) noexcept {
  if (const ReadTxn* const r = as<ReadTxn>(t); r != nullptr) return r->companion;
  if (const ForwardTxn* const f = as<ForwardTxn>(t); f != nullptr) return f->real;
  return t;
}

/// Stock divides by the page size that a meta page names: proved before.  All else that is wrong with the
/// metas stock finds itself.
Status prove_page_size(const char* path, unsigned flags) {
  const std::string data = (flags & MDB_NOSUBDIR) != 0 ? path : std::string(path) + "/data.mdb";
  const Result<File> file = File::open(data.c_str(), File::Mode::buffered);
  if (!file || db::page_size_is_sane(file.value())) return {};
  log_line(LogLevel::warn, "%s: the meta pages name a page size that no LMDB file has", data.c_str());
  return Status::from_mdb(MDB_INVALID);
}

/// The engine over the companion that has just been opened, or the reason why there is none.
const char* start_engine(EnvHandle& env, unsigned open_flags) {
  const Stock& stock = *env.stock;
  unsigned flags = 0;
  MDB_envinfo info{};
  MDB_stat stat{};
  mdb_filehandle_t fd = -1;
  if (stock.env_get_flags(env.real, &flags) != 0 || stock.env_info(env.real, &info) != 0 ||
      stock.env_stat(env.real, &stat) != 0 || stock.env_get_fd(env.real, &fd) != 0)
    return "no facts from the real library";
  if (const char* const why = route({flags, open_flags, stat.ms_psize}); why != nullptr) return why;
  Result<std::unique_ptr<db::Env>> engine =
      db::Env::open(fd, {stat.ms_psize, info.me_mapsize, env.max_dbs, (flags & MDB_NORDAHEAD) != 0,
                         db::Behaviour::of_release(stock.patch)});
  if (!engine) {
    log_line(LogLevel::info, "%s: no address range of %zu bytes: served by stock", env.stats.path.c_str(),
             info.me_mapsize);
    return "no address range";
  }
  env.engine = std::move(engine).value();
  // Where the reader table shows a transaction's slot only while it runs, its companion has to end with it.
  env.keep_companions = (flags & MDB_NOTLS) == 0 || (flags & MDB_NOLOCK) != 0;
  return nullptr;
}

}  // namespace

extern "C" {

LMDBIO_ABI int mdb_env_create(MDB_env** env) {
  const Stock* const real = stock_for(__builtin_return_address(0));
  if (real == nullptr) return ENOSYS;
  if (config().disable || !real->supported || env == nullptr) return real->env_create(env);
  return guarded([&] {
    auto handle = std::make_unique<EnvHandle>();
    handle->stock = real;
    if (const int rc = real->env_create(&handle->real); rc != 0)
      return rc > 0 ? Status::from_errno(rc) : Status::from_mdb(rc);
    first_use();
    stats_environment_made(*handle);
    *env = give(handle.release());
    return Status();
  });
}

LMDBIO_ABI int mdb_env_open(MDB_env* env, const char* path, unsigned int flags, mdb_mode_t mode) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_open, ENOSYS, env, path, flags, mode);
  if (path != nullptr && (flags & MDB_RDONLY) != 0 && e->engine == nullptr) {  // writers: as stock
    if (const int rc = guarded([&] { return prove_page_size(path, flags); }); rc != 0) return rc;
  }
  if (const int rc = e->stock->env_open(e->real, path, flags, mode); rc != 0) return rc;
  (void)guarded([&] {
    e->stats.reason = "out of memory";
    e->stats.opened(path, e->stats.reason);
    e->stats.reason = start_engine(*e, flags);
    if (e->stats.reason != nullptr)
      log_line(LogLevel::debug, "%s: passed through: %s", path, e->stats.reason);
    return Status();
  });
  return 0;
}

LMDBIO_ABI void mdb_env_close(MDB_env* env) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_close, void(), env);
  const int saved = errno;
  e->close_transactions();
  stats_environment_gone(*e);
  e->stock->env_close(e->real);
  e->tag = 0;
  delete e;
  errno = saved;
}

LMDBIO_ABI int mdb_env_set_mapsize(MDB_env* env, size_t size) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_set_mapsize, ENOSYS, env, size);
  if (e->engine == nullptr) return e->stock->env_set_mapsize(e->real, size);
  // Ours goes first: stock must not lack the address space that it would have alone.
  (void)guarded([&] {
    e->engine->retire_window(e->idle());
    return Status();
  });
  const int rc = e->stock->env_set_mapsize(e->real, size);
  (void)guarded([&] {
    MDB_envinfo info{};
    (void)e->stock->env_info(e->real, &info);
    const Status mapped = e->engine->remap(info.me_mapsize);
    if (!mapped.ok())
      log_line(LogLevel::info, "%s: no address range of %zu bytes: served by stock", e->stats.path.c_str(),
               info.me_mapsize);
    return mapped;
  });
  return rc;
}

LMDBIO_ABI int mdb_env_set_maxdbs(MDB_env* env, MDB_dbi dbs) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_set_maxdbs, ENOSYS, env, dbs);
  const int rc = e->stock->env_set_maxdbs(e->real, dbs);
  if (rc == 0) e->max_dbs = dbs;
  return rc;
}

// The rest is the companion's work.

#define LMDBIO_ENV_CALL(name, absent, ...)                                     \
  EnvHandle* const e = as_env(env);                                            \
  if (e == nullptr) return LMDBIO_FORWARD(name, absent, env, ##__VA_ARGS__); \
  return e->stock->name(e->real, ##__VA_ARGS__)

LMDBIO_ABI int mdb_env_copy(MDB_env* env, const char* path) { LMDBIO_ENV_CALL(env_copy, ENOSYS, path); }
LMDBIO_ABI int mdb_env_copyfd(MDB_env* env, mdb_filehandle_t fd) { LMDBIO_ENV_CALL(env_copyfd, ENOSYS, fd); }
LMDBIO_ABI int mdb_env_copy2(MDB_env* env, const char* path, unsigned int flags) {
  LMDBIO_ENV_CALL(env_copy2, ENOSYS, path, flags);
}
LMDBIO_ABI int mdb_env_copyfd2(MDB_env* env, mdb_filehandle_t fd, unsigned int flags) {
  LMDBIO_ENV_CALL(env_copyfd2, ENOSYS, fd, flags);
}
LMDBIO_ABI int mdb_env_stat(MDB_env* env, MDB_stat* stat) { LMDBIO_ENV_CALL(env_stat, EINVAL, stat); }
LMDBIO_ABI int mdb_env_info(MDB_env* env, MDB_envinfo* stat) { LMDBIO_ENV_CALL(env_info, EINVAL, stat); }
LMDBIO_ABI int mdb_env_sync(MDB_env* env, int force) { LMDBIO_ENV_CALL(env_sync, ENOSYS, force); }
LMDBIO_ABI int mdb_env_set_flags(MDB_env* env, unsigned int flags, int onoff) {
  LMDBIO_ENV_CALL(env_set_flags, ENOSYS, flags, onoff);
}
LMDBIO_ABI int mdb_env_get_flags(MDB_env* env, unsigned int* flags) {
  LMDBIO_ENV_CALL(env_get_flags, EINVAL, flags);
}
LMDBIO_ABI int mdb_env_get_path(MDB_env* env, const char** path) { LMDBIO_ENV_CALL(env_get_path, EINVAL, path); }
LMDBIO_ABI int mdb_env_get_fd(MDB_env* env, mdb_filehandle_t* fd) { LMDBIO_ENV_CALL(env_get_fd, EINVAL, fd); }
LMDBIO_ABI int mdb_env_set_maxreaders(MDB_env* env, unsigned int readers) {
  LMDBIO_ENV_CALL(env_set_maxreaders, ENOSYS, readers);
}
LMDBIO_ABI int mdb_env_get_maxreaders(MDB_env* env, unsigned int* readers) {
  LMDBIO_ENV_CALL(env_get_maxreaders, EINVAL, readers);
}
LMDBIO_ABI int mdb_env_get_maxkeysize(MDB_env* env) { LMDBIO_ENV_CALL(env_get_maxkeysize, 0); }
LMDBIO_ABI int mdb_env_set_userctx(MDB_env* env, void* ctx) { LMDBIO_ENV_CALL(env_set_userctx, EINVAL, ctx); }
LMDBIO_ABI void* mdb_env_get_userctx(MDB_env* env) { LMDBIO_ENV_CALL(env_get_userctx, nullptr); }
LMDBIO_ABI int mdb_env_set_assert(MDB_env* env, MDB_assert_func* func) {
  LMDBIO_ENV_CALL(env_set_assert, EINVAL, func);
}
LMDBIO_ABI int mdb_reader_list(MDB_env* env, MDB_msg_func* func, void* ctx) {
  LMDBIO_ENV_CALL(reader_list, -1, func, ctx);
}
LMDBIO_ABI int mdb_reader_check(MDB_env* env, int* dead) { LMDBIO_ENV_CALL(reader_check, EINVAL, dead); }

LMDBIO_ABI int mdb_env_copy3(MDB_env* env, const char* path, unsigned int flags, MDB_txn* txn) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_copy3, ENOSYS, env, path, flags, txn);
  return e->stock->env_copy3 != nullptr ? e->stock->env_copy3(e->real, path, flags, real_txn(txn)) : ENOSYS;
}
LMDBIO_ABI int mdb_env_copyfd3(MDB_env* env, mdb_filehandle_t fd, unsigned int flags, MDB_txn* txn) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_copyfd3, ENOSYS, env, fd, flags, txn);
  return e->stock->env_copyfd3 != nullptr ? e->stock->env_copyfd3(e->real, fd, flags, real_txn(txn)) : ENOSYS;
}

}  // extern "C"
