// Finds the record of a database for a comparison.
#include <lmdb.h>

#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "lmdbio/tree/diff_pages.h"
#include "lmdbio/tree/env.h"

namespace lmdbio::tree {

using format::DbRecord;

namespace {

/// Finds a named database among the records of some leaf pages.
Status find_in(DiffItems& items, Bytes name, DbRecord& record) {
  for (;;) {
    DiffItem item;
    bool ended = false;
    if (const Status st = items.next(item, ended); !st.ok()) return st;
    if (ended) return Status::from_mdb(MDB_NOTFOUND);
    if (item.key_bytes != name.size() || std::memcmp(item.key, name.data(), name.size()) != 0) continue;
    if (!is_database(item)) return Status::from_mdb(MDB_NOTFOUND);
    record = load<DbRecord>(item.data);
    return {};
  }
}

}  // namespace

Status find_database(const DiffSide& side, std::string_view name, DbRecord& record, DiffProblem& problem,
                     const DiffOptions& options, DiffCounters* counters) {
  record = side.snapshot.dbs[kMainDbi];
  if (name.empty()) return {};
  const DbRecord main = record;
  DiffCounters unused;
  if (counters == nullptr) counters = &unused;
  const format::Comparator order = format::default_key_order(main.flags);
  std::string stored(name);
  stored.resize(format::name_key_bytes(side.view.version(), name.size()));  // adds a zero byte in 1.0
  const Bytes key = std::as_bytes(std::span(stored));
  std::vector<std::uint64_t> leaves, none;
  {
    DiffPages pages(side, true, options.cancelled, *counters, problem);
    Status st = leaves_behind(pages, main, order, key, leaves, true);
    if (st.ok()) {
      DiffItems items(pages, order);
      items.take_leaves(std::move(leaves), main.pad);
      st = find_in(items, key, record);
    }
    if (st.raw() != MDB_INCOMPATIBLE) return st;
  }
  // The main database has a program's own order.
  DiffPages pages(side, true, options.cancelled, *counters, problem);
  if (const Status st =
          find_leaves({&pages, main}, {&pages, empty_tree(main)}, Shared::nothing, leaves, none);
      !st.ok())
    return st;
  DiffItems items(pages, order, false);
  items.take_leaves(std::move(leaves), main.pad);
  return find_in(items, key, record);
}

}  // namespace lmdbio::tree
