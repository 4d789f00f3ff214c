#include "compat/alone.h"

#include <cerrno>

namespace lmdbio::compat::alone {

namespace {

Status newest(EnvHandle& env, tree::Snapshot& out) {
  if (env.engine->window() == nullptr) return Status::from_errno(ENOMEM);
  tree::MetaCopies metas;
  if (const Status st = env.engine->read_metas(metas); !st.ok()) return st;
  const tree::MetaSource source(metas.records());
  Status st = source.renew(out.txnid);
  if (st.ok()) st = tree::read_snapshot(metas.records(), source, out);
  return st.raw() != MDB_BAD_TXN ? st : Status::from_mdb(MDB_CORRUPTED);
}

}  // namespace

int env_stat(EnvHandle& env, MDB_stat* stat) {
  if (stat == nullptr) return EINVAL;
  tree::Snapshot now;
  if (const Status st = newest(env, now); !st.ok()) return st.raw();
  fill(*stat, env.engine->page_size(), now.dbs[tree::kMainDbi]);
  return 0;
}

int env_info(EnvHandle& env, MDB_envinfo* info) {
  if (info == nullptr) return EINVAL;
  tree::Snapshot now;
  if (const Status st = newest(env, now); !st.ok()) return st.raw();
  *info = {};
  info->me_mapsize = env.setup.map_bytes;
  info->me_last_pgno = now.last_pg;
  info->me_last_txnid = now.txnid;
  info->me_maxreaders = env.max_readers;
  return 0;
}

int reader_list(MDB_msg_func* func, void* ctx) {
  return func != nullptr ? func("(no reader locks)\n", ctx) : -1;
}

}  // namespace lmdbio::compat::alone
