#include "lmdbio/tree/after_page.h"

#include "lmdbio/format/compare.h"
#include "lmdbio/format/page_view.h"

namespace lmdbio::tree {

Status key_after_page(Txn& txn, MDB_dbi dbi, MDB_val& key, format::Pgno& bad) {
  bad = {};
  const Result<const format::DbRecord*> record = txn.record(dbi);
  if (!record) return record.error();
  MDB_val next{};  // the smallest separator after `key`: lower pages have smaller ones
  format::Pgno at = record.value()->root;
  for (unsigned level = 0; at != format::kNoPage; ++level) {
    format::PageView page = format::PageView::none();
    format::Node below, after;
    bool good = level < format::kMaxDepth && txn.page(at, page).ok();
    if (good && !page.is_branch()) break;
    good = good && page.count() != 0 && page.node(0, below);  // the first entry of a branch page has no key
    for (unsigned i = 1; good && i < page.count(); ++i, below = after) {
      good = page.node(i, after);
      if (!good) break;
      const MDB_val separator{after.key_size(), const_cast<std::byte*>(after.key())};
      if (key.mv_size != 0 && format::compare_values(txn.env().dbx(dbi).key_order, key, separator) >= 0)
        continue;
      next = separator;
      break;
    }
    if (!good) {
      bad = at;
      break;
    }
    at = below.child();
  }
  key = next;
  return next.mv_data == nullptr ? Status::from_mdb(MDB_NOTFOUND) : Status();
}

}  // namespace lmdbio::tree
