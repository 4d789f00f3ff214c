// LMDB's C API as a table of function pointers, so that one program can hold several implementations.
#pragma once

#include <lmdb.h>

#include <string>

namespace lmdbio::test {

// Every function of lmdb.h.
#define LMDBIO_LMDB_API(X)                                                                                   \
  X(version)                                                                                                 \
  X(strerror)                                                                                                \
  X(env_create)                                                                                              \
  X(env_open)                                                                                                \
  X(env_copy)                                                                                                \
  X(env_copyfd) X(env_copy2) X(env_copyfd2) X(env_stat) X(env_info) X(env_sync) X(env_close)                 \
      X(env_set_flags) X(env_get_flags) X(env_get_path) X(env_get_fd) X(env_set_mapsize)                     \
          X(env_set_maxreaders) X(env_get_maxreaders) X(env_set_maxdbs) X(env_get_maxkeysize)                \
              X(env_set_userctx) X(env_get_userctx) X(env_set_assert) X(txn_begin) X(txn_env) X(txn_id)      \
                  X(txn_commit) X(txn_abort) X(txn_reset) X(txn_renew) X(dbi_open) X(stat) X(dbi_flags)      \
                      X(dbi_close) X(drop) X(set_compare) X(set_dupsort) X(set_relfunc) X(set_relctx) X(get) \
                          X(put) X(del) X(cursor_open) X(cursor_close) X(cursor_renew) X(cursor_txn)         \
                              X(cursor_dbi) X(cursor_get) X(cursor_put) X(cursor_del) X(cursor_count) X(cmp) \
                                  X(dcmp) X(reader_list) X(reader_check)

struct LmdbApi {
#define LMDBIO_X(name) decltype(&::mdb_##name) name = nullptr;
  LMDBIO_LMDB_API(LMDBIO_X)
#undef LMDBIO_X
  std::string path;    ///< as given to load_lmdb
  int major = 0;       ///< the first number of mdb_version
  int patch = 0;       ///< the third one
  std::string banner;  ///< mdb_version's text

  bool is_10() const noexcept { return major == 1; }
  /// The patch level of a 0.9; more for 1.0.
  int level() const noexcept { return is_10() ? 1000 : patch; }
};

/// Loads the shared object at `path` (a file, or a name that the loader finds) apart from all others and
/// resolves every function.  The object stays loaded.  Throws std::runtime_error with the loader's message.
LmdbApi load_lmdb(const std::string& path);

}  // namespace lmdbio::test
