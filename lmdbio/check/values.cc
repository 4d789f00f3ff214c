// Checks the contents of leaf pages: values, overflow runs, duplicates.
#include "lmdbio/check/walk.h"

namespace lmdbio::check {

using format::DbRecord;
using format::Pgno;

void Checker::value(Tree& tree, std::uint64_t p, unsigned i, unsigned flags, const Key& key,
                    const std::byte* data, std::uint32_t data_size) {
  const bool main = tree.db.totals.kind == DatabaseTotals::Kind::main;
  if (tree.dup) {
    if (flags != 0 || data_size != 0)
      report_.wrong(tree, p, "the duplicate of slot %u has flags 0x%x and %u bytes of data", i, flags,
                    data_size);
    ++tree.entries;
    place(tree, key.size, key.at, key.size, false);  // the key itself is the value
    return;
  }
  ++tree.db.totals.keys;
  if (tree.db.totals.kind == DatabaseTotals::Kind::free &&
      (key.size != sizeof(std::uint64_t) || load<std::uint64_t>(key.at) > snapshot_.txnid))
    report_.wrong(tree, p, "the key of slot %u is not a transaction number up to %llu", i,
                  ull(snapshot_.txnid));
  switch (flags) {
    case 0:
      ++tree.entries;
      if (tree.db.totals.kind == DatabaseTotals::Kind::free)
        accounts_.free_list(tree, p, i, data, data_size);
      else
        place(tree, key.size, data, data_size, false);
      return;
    case format::kBigData:
      ++tree.entries;
      overflow(tree, p, i, key.size, data, data_size);
      return;
    case format::kSubData:
      ++tree.entries;
      if (main && !tree.db.dups && data_size == sizeof(DbRecord)) {
        const auto record = load<DbRecord>(data);
        database(DatabaseTotals::Kind::named,
                 {reinterpret_cast<const char*>(key.at), format::name_bytes(file_.version(), key.size)}, p,
                 record);
        return;
      }
      break;
    case format::kSubData | format::kDupData:
      if (tree.db.dups && data_size == sizeof(DbRecord)) {
        const auto record = load<DbRecord>(data);
        Tree sub{tree.db, record, p, true};
        ++tree.db.totals.dup_trees;
        dup_key_bytes_ = key.size;
        walk(sub);
        tree.entries += sub.entries;
        tree.broken |= sub.broken;
        return;
      }
      break;
    case format::kDupData:
      if (tree.db.dups) {
        ++tree.db.totals.sub_pages;
        dup_key_bytes_ = key.size;
        sub_page(tree, p, i, data, data_size);
        return;
      }
      break;
    default:
      break;
  }
  report_.wrong(tree, p,
                "the node of slot %u has flags 0x%x and %u bytes, which is not valid in this database", i,
                flags, data_size);
}

void Checker::overflow(Tree& tree, std::uint64_t p, unsigned i, std::size_t key_size, const std::byte* record,
                       std::uint32_t size) {
  const bool v10 = file_.version() == format::Version::v10;
  const auto first = load<std::uint64_t>(record);
  const std::uint64_t value = file_.overflow_pages(size);
  // 1.0 has the number of pages in the node, too.
  const std::uint64_t need = v10 ? load<std::uint64_t>(record + 2 * sizeof first) : value;
  if (need < value) {
    report_.wrong(tree, p, "the node of slot %u gives %llu pages, but its %u bytes need %llu", i, ull(need),
                  size, ull(value));
    return;
  }
  if (!accounts_.reachable(tree, first, need, p, "overflow run")) return;
  const bool free = tree.db.totals.kind == DatabaseTotals::Kind::free;
  const std::byte* const at = file_.at(Pgno{first});
  if (!free && !options_.overflow_headers) {
    use_run(tree, p, first, need);
    place(tree, key_size, at + header_bytes(), size, true);
    return;
  }
  const auto number = load<std::uint64_t>(at);
  const unsigned kind = header(at).flags() & kKinds;
  const std::uint64_t says = header(at).pages();
  std::uint64_t pages = need;
  if (number != first || kind != format::kOverflow) {
    report_.wrong(tree, first,
                  "not an overflow page, though slot %u of page %llu refers to it: number %llu, flags 0x%x",
                  i, ull(p), ull(number), kind);
  } else if (says < need) {
    report_.wrong(tree, first,
                  "its header gives %llu pages, but the %u bytes of slot %u of page %llu need %llu",
                  ull(says), size, i, ull(p), ull(need));
  } else if (accounts_.reachable(tree, first, says, first, "overflow run")) {
    pages = says;  // more than needed: stock writes a shorter value over a longer one of the same transaction
  }
  if (!use_run(tree, p, first, pages)) return;
  if (free)
    accounts_.free_list(tree, p, i, at + header_bytes(), size);
  else
    place(tree, key_size, at + header_bytes(), size, true);
}

bool Checker::use_run(Tree& tree, std::uint64_t p, std::uint64_t first, std::uint64_t pages) {
  if (!accounts_.use(tree, first, pages, p)) return false;
  report_.seen(pages, accounts_.limit());
  tree.overflow += pages;
  tree.db.totals.overflow_pages += pages;
  return true;
}

void Checker::sub_page(Tree& tree, std::uint64_t p, unsigned slot, const std::byte* at, std::size_t size) {
  if (size < header_bytes()) {
    report_.wrong(tree, p, "the sub-page of slot %u has %zu bytes", slot, size);
    return;
  }
  const bool fixed = tree.db.dups_fixed;
  const unsigned flags = header(at).flags() & kKinds;
  const std::size_t lower = header(at).lower(), upper = header(at).upper();
  if (flags != (format::kLeaf | format::kSubPage | (fixed ? format::kLeaf2 : 0u))) {
    report_.wrong(tree, p, "the sub-page of slot %u has flags 0x%x", slot, flags);
    return;
  }
  if (lower <= header_bytes() || lower % 2 != 0 || (!fixed && (lower > upper || upper > size))) {
    report_.wrong(tree, p, "the sub-page of slot %u has wrong bounds: lower %zu, upper %zu, size %zu", slot,
                  lower, upper, size);
    return;
  }
  const unsigned count = static_cast<unsigned>((lower - header_bytes()) / 2);
  tree.entries += count;
  Tree sub{tree.db, tree.record, p, true};
  if (fixed) {
    items(sub, at, size, p, count, header(at).pad(), {}, {});
    tree.broken |= sub.broken;
    return;
  }
  scratch_.clear(size);
  for (unsigned i = 0; i < count && !report_.stopped(); ++i) {
    const std::size_t off = header(at).slot(i);
    if (off < upper || off % 2 != 0 || off + format::kNodeHeader > size) {
      report_.wrong(tree, p,
                    "slot %u of the sub-page of slot %u points to the invalid offset %zu; the size is %zu", i,
                    slot, off, size);
      return;
    }
    const auto header = load<std::uint64_t>(at + off);
    const std::size_t key_size = header >> 48, end = off + format::kNodeHeader + key_size;
    if ((header & 0xffffffffffffu) != 0 || end > size || !scratch_.take(off, end)) {
      report_.wrong(tree, p,
                    "node %u of the sub-page of slot %u is not a duplicate, lies outside the sub-page, or "
                    "overlaps another node",
                    i, slot);
      return;
    }
    const Key value{at + off + format::kNodeHeader, key_size, at + size};
    if (options_.order && sub.last.at != nullptr && !before(sub, sub.last, value)) bad_order(sub, p);
    sub.last = value;
    place(sub, key_size, value.at, key_size, false);
  }
}

void Checker::items(Tree& tree, const std::byte* at, std::size_t size, std::uint64_t p, unsigned count,
                    std::size_t item, const Key& low, const Key& high) {
  if (item == 0 || header_bytes() + count * item > size) {
    report_.wrong(tree, p, "%u items of %zu bytes do not fit into its %zu bytes", count, item, size);
    return;
  }
  if (!options_.order && !options_.records) return;
  for (unsigned i = 0; i < count; ++i) {
    const Key key{at + header_bytes() + i * item, item, at + size};
    if (options_.order) {
      if (i == 0 && low.at != nullptr && before(tree, key, low)) bad_order(tree, p);
      if (tree.last.at != nullptr && !before(tree, tree.last, key)) bad_order(tree, p);
      tree.last = key;
    }
    place(tree, item, key.at, item, false);
  }
  if (options_.order && high.at != nullptr && !before(tree, tree.last, high)) bad_order(tree, p);
}

void Checker::place(const Tree& tree, std::size_t key_bytes, const std::byte* value, std::size_t bytes,
                    bool overflow) {
  if (options_.records)
    visitor_.record({tree.dup ? dup_key_bytes_ : key_bytes, bytes,
                     static_cast<std::uint64_t>(value - file_.base()), overflow});
}

}  // namespace lmdbio::check
