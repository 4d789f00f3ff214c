// LMDBIO's own functions for transactions: lmdbio_prefetch() and others.
#include <lmdbio/lmdbio.h>

#include <cerrno>
#include <cstdint>
#include <span>
#include <string>

#include "compat/abi.h"
#include "compat/error_text.h"
#include "compat/guard.h"
#include "lmdbio/tree/after_page.h"
#include "lmdbio/tree/damage.h"

using namespace lmdbio;
using namespace lmdbio::compat;

namespace {

/// Returns 0 if all keys are valid; otherwise the error code.
int judge(std::span<const MDB_val> keys) noexcept {
  for (const MDB_val& k : keys) {
    if (k.mv_size == 0) return MDB_BAD_VALSIZE;
    if (k.mv_data == nullptr) return EINVAL;
  }
  return 0;
}

/// Returns `rc`, and sets the text of lmdbio_error().
[[gnu::cold]] int failed(int rc) noexcept {
  (void)guarded([&] {
    set_error_text(std::string("lmdbio_prefetch: ") + mdb_strerror(rc));
    return Status();
  });
  return rc;
}

}  // namespace

extern "C" {

LMDBIO_ABI int lmdbio_prefetch(MDB_txn* txn, MDB_dbi dbi, const MDB_val* keys, size_t n) {
  if (txn == nullptr || (keys == nullptr && n != 0)) return failed(EINVAL);
  const std::span<const MDB_val> prefetched(keys, n);
  if (ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) {
    if (t->env == nullptr || !t->txn.has_dbi(dbi)) return failed(EINVAL);
    if (t->txn.blocked()) return failed(MDB_BAD_TXN);
    if (const int rc = judge(prefetched); rc != 0) return failed(rc);
    const int rc = guarded([&] {
      t->txn.prefetch(dbi, prefetched);
      return Status();
    });
    return rc == 0 ? 0 : failed(rc);
  }
  // The real library serves the transaction: only check the arguments.
  if (const ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) {
    unsigned flags = 0;
    if (const int rc = t->env->stock->dbi_flags(t->real, dbi, &flags); rc != 0) return failed(rc);
  } else {
    unsigned flags = 0;
    if (const int rc = LMDBIO_FORWARD(dbi_flags, EINVAL, txn, dbi, &flags); rc != 0) return failed(rc);
  }
  const int rc = judge(prefetched);
  return rc == 0 ? 0 : failed(rc);
}

LMDBIO_ABI int lmdbio_txn_pardon(MDB_txn* txn) {
  ReadTxn* const t = txn != nullptr ? as<ReadTxn>(txn) : nullptr;
  if (t == nullptr || t->env == nullptr) return EINVAL;
  return t->txn.pardon() ? 0 : MDB_BAD_TXN;
}

LMDBIO_ABI int lmdbio_key_after_page(MDB_txn* txn, MDB_dbi dbi, MDB_val* key, size_t* page) {
  if (const int rc = lmdbio_txn_pardon(txn); rc != 0) return rc;
  tree::Txn& t = as<ReadTxn>(txn)->txn;
  if (!t.has_dbi(dbi)) return EINVAL;
  const int rc = guarded([&] {
    format::Pgno bad{};
    const Status st = tree::key_after_page(t, dbi, *key, bad);
    *page = static_cast<std::size_t>(format::raw(bad));
    return st;
  });
  (void)t.pardon();
  return rc;
}

LMDBIO_ABI MDB_txn* lmdbio_txn_in(const void* object, size_t bytes) {
  if (object == nullptr || reinterpret_cast<std::uintptr_t>(object) % alignof(std::uintptr_t) != 0)
    return nullptr;
  const std::span words(static_cast<const std::uintptr_t*>(object), bytes / sizeof(std::uintptr_t));
  TxnHandle* found = nullptr;
  lock_handles();
  for_each_served([&](EnvHandle& e) {
    if (found == nullptr) found = e.live_among(words);
  });
  unlock_handles();
  return found != nullptr ? give(found) : nullptr;
}

}  // extern "C"
