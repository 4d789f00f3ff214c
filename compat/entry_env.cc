// Entry points of environments.
#include <limits.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "compat/abi.h"
#include "compat/alone.h"
#include "compat/companion.h"
#include "compat/guard.h"
#include "compat/lifecycle.h"
#include "compat/open_alone.h"
#include "compat/prove.h"
#include "compat/route.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/node/table.h"
#include "lmdbio/window/window.h"

using namespace lmdbio;
using namespace lmdbio::compat;

namespace {

EnvHandle* as_env(const MDB_env* e) noexcept { return as<EnvHandle>(e); }

/// Starts the engine over the companion that has just been opened.  Returns nullptr, or why there is no
/// engine.
const char* start_engine(EnvHandle& env, unsigned open_flags) {
  const Stock& stock = *env.stock;
  MDB_env* const real = env.passed();
  unsigned flags = 0;
  MDB_envinfo info{};
  MDB_stat stat{};
  mdb_filehandle_t fd = -1;
  if (stock.env_get_flags(real, &flags) != 0 || stock.env_info(real, &info) != 0 ||
      stock.env_stat(real, &stat) != 0 || stock.env_get_fd(real, &fd) != 0)
    return "stock LMDB gave no information about the environment";
  struct stat file;
  const bool regular = ::fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
  const format::PageFormat pages{stat.ms_psize, stock.format()};
  if (const char* const why = route({flags, open_flags, pages, regular, env.setup.own_pages}); why != nullptr)
    return why;
  Result<std::unique_ptr<tree::Env>> engine =
      tree::Env::open(fd, {pages, info.me_mapsize, env.max_dbs, (flags & MDB_NORDAHEAD) != 0,
                           behaviour_of(stock), info.me_last_pgno, env.stats.path.c_str(), identity_of(file),
                           data_file(env.setup.path.c_str(), open_flags)});
  if (!engine) {
    log_line(LogLevel::info,
             "%s: not enough address space for a second mapping of %zu bytes; stock LMDB serves it",
             env.stats.path.c_str(), info.me_mapsize);
    return "not enough address space";
  }
  env.engine = std::move(engine).value();
  env.fd = fd;
  env.setup.map_bytes = info.me_mapsize;
  close_on_exec(stock, real);
  env.flags = env.lockless ? flags & ~(~env.setup.open_flags & MDB_NOLOCK) : flags;
  env.max_key = stock.env_get_maxkeysize(real);
  (void)stock.env_get_maxreaders(real, &env.max_readers);
  // Keep the companions' transactions after the program's have ended.  Not with MDB_NOTLS and a reader table,
  // because other processes would see their reader slots.
  env.keep_companions = (flags & MDB_NOTLS) == 0 || (flags & MDB_NOLOCK) != 0;
  env.serve();
  if (config().node != NodeMode::off) node::Table::remove_dead();
  return nullptr;
}

int create(const Caller& caller, MDB_env** env) {
  const Stock* const real = caller.stock;
  if (real == nullptr) return ENOSYS;
  if (caller.own_handles || config().disable || real->series == Series::other || env == nullptr)
    return real->env_create(env);
  return guarded([&] {
    auto handle = std::make_unique<EnvHandle>();
    handle->stock = real;
    MDB_env* made = nullptr;
    if (const int rc = real->env_create(&made); rc != 0) return as_status(rc);
    handle->real.store(made, std::memory_order_relaxed);
    first_use();
    stats_environment_made(*handle);
    *env = give(handle.release());
    return Status();
  });
}

}  // namespace

extern "C" {

LMDBIO_ABI int mdb_env_create(MDB_env** env) { return create(caller_at(__builtin_return_address(0)), env); }
LMDBIO_ABI int mdb10_env_create(MDB_env** env) {
  return create(caller_at(__builtin_return_address(0), Names::v10), env);
}

LMDBIO_ABI int mdb_env_open(MDB_env* env, const char* path, unsigned int flags, mdb_mode_t mode) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_open, ENOSYS, env, path, flags, mode);
  if (e->passed() == nullptr || e->refused || (e->opened && e->engine != nullptr)) return EINVAL;
  const Uncancelled wait;
  // Stock LMDB opens environments for writing, and those with the program's own functions for pages.
  const bool read_only = path != nullptr && (flags & MDB_RDONLY) != 0 && !e->opened && !e->setup.own_pages;
  char file[PATH_MAX];
  Proof proof;
  if (read_only) {
    const int saved = errno;
    e->proof.reset();  // kept by an open that failed
    // Stock rejects longer paths.
    const Status st =
        data_file(path, flags, file) ? prove_openable(file, *e->stock, e->proof, proof) : Status();
    e->local = proof.local;
    errno = saved;
    if (!st.ok()) {
      e->refused = true;
      return st.raw();
    }
  }
  const AsyncSignalsBlocked fork_safe;  // once for all that follows
  bool alone = false;
  if (proof.other_release) {
    (void)guarded([&] {
      alone = open_other_format(*e, path, flags, mode);
      return Status();
    });
    if (alone) return 0;
  }
  if (const int rc = guarded([&] { return as_status(open_companion(*e, path, flags, mode)); }); rc != 0) {
    if (read_only) {
      (void)guarded([&] {
        e->proof.open(file);
        alone = open_unmapped(*e, path, flags);
        return Status();
      });
      if (alone) return 0;
      (void)guarded([&] {
        explain_refusal(file, e->proof);
        return Status();
      });
    }
    return rc;
  }
  (void)guarded([&] {
    e->stats.reason = "out of memory";
    e->stats.path = path;
    const char* const why_not = start_engine(*e, flags);
    e->stats.opened(path, why_not, e->fd);
    if (e->stats.reason != nullptr)
      log_line(LogLevel::debug, "%s: passed through to stock LMDB: %s", path, e->stats.reason);
    return Status();
  });
  return 0;
}

LMDBIO_ABI void mdb_env_close(MDB_env* env) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_close, void(), env);
  const int saved = errno;
  const Uncancelled wait;
  const AsyncSignalsBlocked fork_safe;
  e->close_transactions();
  stats_environment_gone(*e);
  if (MDB_env* const real = e->passed(); real != nullptr) e->stock->env_close(real);
  e->tag = 0;
  delete e;
  errno = saved;
}

LMDBIO_ABI int mdb_env_set_mapsize(MDB_env* env, size_t size) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_set_mapsize, ENOSYS, env, size);
  if (e->engine == nullptr) {
    const int rc = e->stock->env_set_mapsize(e->passed(), size);
    if (rc == 0 && !e->opened) e->setup.map_bytes = size;
    return rc;
  }
  if (e->alone) {
    if (!e->idle()) return EINVAL;  // stock does so only while a write transaction runs
    return guarded([&] {
      MDB_envinfo now{};
      if (const int failed = alone::env_info(*e, &now); failed != 0) return as_status(failed);
      const std::uint64_t used = (now.me_last_pgno + 1) * e->engine->page_size();
      e->engine->retire_window(true);
      e->setup.map_bytes = std::max<std::uint64_t>(size, used);
      return e->engine->remap(e->setup.map_bytes, now.me_last_pgno);
    });
  }
  int rc = 0;
  MDB_env* const real = companion(*e, rc);
  if (real == nullptr) return rc;
  // Release our window first, so that stock has as much address space as without LMDBIO.
  (void)guarded([&] {
    e->engine->retire_window(e->idle());
    if (size != 0 && !Mapping::reserve(size, 1)) (void)window::Window::shrink_all();
    return Status();
  });
  rc = e->stock->env_set_mapsize(real, size);
  (void)guarded([&] {
    MDB_envinfo info{};
    (void)e->stock->env_info(real, &info);
    e->setup.map_bytes = info.me_mapsize;
    const Status mapped = e->engine->remap(info.me_mapsize, info.me_last_pgno);
    if (!mapped.ok())
      log_line(LogLevel::warn, "%s: not enough address space to map the file: new transactions will fail",
               e->stats.path.c_str());
    return mapped;
  });
  return rc;
}

LMDBIO_ABI int mdb_env_set_maxdbs(MDB_env* env, MDB_dbi dbs) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_set_maxdbs, ENOSYS, env, dbs);
  if (e->engine != nullptr) return EINVAL;
  const int rc = e->stock->env_set_maxdbs(e->passed(), dbs);
  if (rc == 0) e->max_dbs = dbs;
  return rc;
}

LMDBIO_ABI int mdb_env_set_maxreaders(MDB_env* env, unsigned int readers) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_set_maxreaders, ENOSYS, env, readers);
  if (e->engine != nullptr) return EINVAL;
  const int rc = e->stock->env_set_maxreaders(e->passed(), readers);
  if (rc == 0) e->setup.readers = readers;
  return rc;
}

LMDBIO_ABI int mdb_env_set_userctx(MDB_env* env, void* ctx) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_set_userctx, EINVAL, env, ctx);
  e->setup.userctx = ctx;
  MDB_env* const real = e->passed();
  return real != nullptr ? e->stock->env_set_userctx(real, ctx) : 0;
}

LMDBIO_ABI void* mdb_env_get_userctx(MDB_env* env) {
  const EnvHandle* const e = as_env(env);
  return e != nullptr ? e->setup.userctx : LMDBIO_FORWARD(env_get_userctx, nullptr, env);
}

LMDBIO_ABI int mdb_env_set_assert(MDB_env* env, MDB_assert_func* func) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_set_assert, EINVAL, env, func);
  e->setup.assert_function = func;
  MDB_env* const real = e->passed();
  return real != nullptr ? e->stock->env_set_assert(real, func) : 0;
}

// Calls that a forked child can answer without a companion.

LMDBIO_ABI int mdb_env_stat(MDB_env* env, MDB_stat* stat) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_stat, EINVAL, env, stat);
  int rc = 0;
  MDB_env* const real = companion(*e, rc);
  return real != nullptr ? e->stock->env_stat(real, stat) : alone::env_stat(*e, stat);
}

LMDBIO_ABI int mdb_env_info(MDB_env* env, MDB_envinfo* info) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_info, EINVAL, env, info);
  int rc = 0;
  MDB_env* const real = companion(*e, rc);
  return real != nullptr ? e->stock->env_info(real, info) : alone::env_info(*e, info);
}

LMDBIO_ABI int mdb_env_get_flags(MDB_env* env, unsigned int* flags) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_get_flags, EINVAL, env, flags);
  if (flags == nullptr) return EINVAL;
  if (e->engine != nullptr) {
    *flags = e->flags;
    return 0;
  }
  const int rc = e->stock->env_get_flags(e->passed(), flags);
  if (rc == 0 && e->lockless) *flags &= ~(~e->setup.open_flags & MDB_NOLOCK);
  return rc;
}

LMDBIO_ABI int mdb_env_get_path(MDB_env* env, const char** path) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_get_path, EINVAL, env, path);
  if (MDB_env* const real = e->passed(); real != nullptr && e->engine == nullptr)
    return e->stock->env_get_path(real, path);
  if (path == nullptr) return EINVAL;
  *path = e->stats.path.c_str();
  return 0;
}

LMDBIO_ABI int mdb_env_get_fd(MDB_env* env, mdb_filehandle_t* fd) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_get_fd, EINVAL, env, fd);
  if (e->engine == nullptr) return e->stock->env_get_fd(e->passed(), fd);
  if (fd == nullptr) return EINVAL;
  *fd = e->fd;
  return 0;
}

LMDBIO_ABI int mdb_env_get_maxreaders(MDB_env* env, unsigned int* readers) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_get_maxreaders, EINVAL, env, readers);
  if (e->engine == nullptr) return e->stock->env_get_maxreaders(e->passed(), readers);
  if (readers == nullptr) return EINVAL;
  *readers = e->max_readers;
  return 0;
}

LMDBIO_ABI int mdb_env_get_maxkeysize(MDB_env* env) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_get_maxkeysize, 0, env);
  return e->engine == nullptr ? e->stock->env_get_maxkeysize(e->passed()) : e->max_key;
}

LMDBIO_ABI int mdb_reader_list(MDB_env* env, MDB_msg_func* func, void* ctx) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(reader_list, -1, env, func, ctx);
  int rc = 0;
  MDB_env* const real = companion(*e, rc);
  return real != nullptr ? e->stock->reader_list(real, func, ctx) : alone::reader_list(func, ctx);
}

LMDBIO_ABI int mdb_reader_check(MDB_env* env, int* dead) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(reader_check, EINVAL, env, dead);
  int rc = 0;
  if (MDB_env* const real = companion(*e, rc); real != nullptr) return e->stock->reader_check(real, dead);
  if (dead != nullptr) *dead = 0;
  return 0;
}

LMDBIO_ABI int mdb_env_set_flags(MDB_env* env, unsigned int flags, int onoff) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_set_flags, ENOSYS, env, flags, onoff);
  int rc = 0;
  MDB_env* const real = companion(*e, rc);
  if (real == nullptr) return rc;
  rc = e->stock->env_set_flags(real, flags, onoff);
  if (rc == 0 && e->engine != nullptr) e->flags = onoff != 0 ? e->flags | flags : e->flags & ~flags;
  return rc;
}

LMDBIO_ABI int mdb_env_sync(MDB_env* env, int force) {
  EnvHandle* const e = as_env(env);
  if (e == nullptr) return LMDBIO_FORWARD(env_sync, ENOSYS, env, force);
  int rc = 0;
  MDB_env* const real = companion(*e, rc);
  return real != nullptr ? e->stock->env_sync(real, force) : rc;
}

}  // extern "C"
