#include "tests/support/format_10.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "tests/support/file_image.h"
#include "tests/support/rng.h"

namespace lmdbio::test {
namespace {

using format::DbRecord;
using testing::BranchEntry;
using testing::FileImage;
using testing::LeafEntry;

constexpr format::Version kV = format::Version::v10;
constexpr std::uint64_t kTxnid = 9;
constexpr std::size_t kSlot = 2;

std::size_t even(std::size_t n) { return n + n % 2; }
std::string copy_of(const MDB_val& v) { return {static_cast<const char*>(v.mv_data), v.mv_size}; }

/// A record, or a key with its duplicates.
struct Group {
  std::string key;
  std::vector<std::string> values;
};

/// What a database of the source has.
struct Source {
  std::string name;
  unsigned flags = 0;
  std::vector<Group> groups;
};

class Writer10 {
 public:
  Writer10(std::size_t page_size, std::uint64_t seed) : f_(page_size, kV), page_(page_size), rng_(seed) {}

  static std::size_t most_node(std::size_t page) {
    return (((page - format::page_header(kV)) / 2) & ~std::size_t{1}) - kSlot;
  }
  /// The record of a database, whose pages are written.
  DbRecord database(const Source& source) {
    std::vector<LeafEntry> entries;
    std::uint64_t overflow = 0, count = 0;
    for (const Group& g : source.groups) {
      count += g.values.size();
      entries.push_back(g.values.size() > 1 ? duplicates(g, source.flags)
                                            : single(g.key, g.values[0], overflow));
    }
    DbRecord r = tree(entries);
    r.flags = static_cast<std::uint16_t>(source.flags);
    r.entries = count;
    r.overflow_pages = overflow;
    if ((source.flags & MDB_DUPFIXED) != 0 && !source.groups.empty())
      r.pad = static_cast<std::uint32_t>(source.groups[0].values[0].size());
    return r;
  }
  /// The main database, with the records of the named ones.
  std::vector<std::byte> file(const Source& main,
                              const std::vector<std::pair<std::string, DbRecord>>& named) {
    std::vector<LeafEntry> entries;
    std::uint64_t overflow = 0;
    DbRecord r{};
    if (named.empty()) {
      r = database(main);
    } else {
      for (const Group& g : main.groups) entries.push_back(single(g.key, g.values[0], overflow));
      for (const auto& [name, record] : named)
        entries.push_back({FileImage::name_key(name, kV), FileImage::as_data(record), format::kSubData});
      std::sort(entries.begin(), entries.end(),
                [](const LeafEntry& a, const LeafEntry& b) { return a.key < b.key; });
      r = tree(entries);
      r.flags = static_cast<std::uint16_t>(main.flags);
      r.entries = entries.size();
      r.overflow_pages = overflow;
    }
    f_.metas(r, kTxnid);
    return {f_.bytes().begin(), f_.bytes().end()};
  }

 private:
  LeafEntry single(const std::string& key, const std::string& value, std::uint64_t& overflow) {
    if (format::kNodeHeader + even(key.size()) + value.size() <= most_node(page_)) return {key, value};
    const std::uint64_t before = f_.pages(), first = f_.overflow(value);
    overflow += f_.pages() - before;
    return FileImage::big(key, first, static_cast<std::uint32_t>(value.size()), page_, kV);
  }
  LeafEntry duplicates(const Group& g, unsigned flags) {
    const bool fixed = (flags & MDB_DUPFIXED) != 0;
    const std::size_t item = g.values[0].size();
    std::size_t bytes = format::page_header(kV);
    for (const std::string& v : g.values)
      bytes += fixed ? item : kSlot + format::kNodeHeader + even(v.size());
    if (format::kNodeHeader + even(g.key.size()) + bytes <= most_node(page_) && rng_.percent(80))
      return {g.key, fixed ? FileImage::sub_page2(item, g.values, kV) : FileImage::sub_page(g.values, kV),
              format::kDupData};
    DbRecord r;
    if (fixed) {
      r = fixed_tree(g.values, item);
      r.pad = static_cast<std::uint32_t>(item);
      r.flags = MDB_DUPFIXED | ((flags & MDB_INTEGERDUP) != 0 ? MDB_INTEGERKEY : 0);
    } else {
      std::vector<LeafEntry> entries;
      for (const std::string& v : g.values) entries.push_back({v, ""});
      r = tree(entries);
    }
    r.entries = g.values.size();
    return {g.key, FileImage::as_data(r), format::kSubData | format::kDupData};
  }
  /// Divides `n` things into runs whose sizes, `size_of(i)`, fit into pages, and calls made(first, end).
  template <class Size, class Made>
  void fill(std::size_t n, std::size_t least, Size&& size_of, Made&& made) {
    const std::size_t room = page_ - format::page_header(kV);
    for (std::size_t i = 0; i < n;) {
      const std::size_t first = i, limit = rng_.percent(50) ? room : room / 2;
      for (std::size_t used = 0; i < n; ++i) {
        const std::size_t bytes = i == first && least == 2 ? kSlot + format::kNodeHeader : size_of(i);
        if (used + bytes > (i - first < least ? room : limit)) break;
        used += bytes;
      }
      if (n - i == 1 && least == 2 && i - first > 2)
        --i;  // no branch page of one entry
      else if (n - i == 1 && least == 2)
        ++i;
      made(first, i);
    }
  }
  DbRecord above(std::vector<BranchEntry> level, DbRecord r) {
    for (r.depth = 1; level.size() > 1; ++r.depth) {
      std::vector<BranchEntry> next;
      fill(
          level.size(), 2,
          [&](std::size_t i) { return kSlot + even(format::kNodeHeader + level[i].key.size()); },
          [&](std::size_t first, std::size_t end) {
            std::vector<BranchEntry> some(level.begin() + static_cast<std::ptrdiff_t>(first),
                                          level.begin() + static_cast<std::ptrdiff_t>(end));
            const std::string key = std::exchange(some[0].key, "");
            next.push_back({key, f_.branch(some)});
            ++r.branch_pages;
          });
      level = std::move(next);
    }
    r.root = format::Pgno{level[0].child};
    return r;
  }
  static DbRecord empty() {
    DbRecord r{};
    r.root = format::kNoPage;
    return r;
  }
  DbRecord tree(const std::vector<LeafEntry>& entries) {
    DbRecord r = empty();
    if (entries.empty()) return r;
    std::vector<BranchEntry> leaves;
    fill(
        entries.size(), 1,
        [&](std::size_t i) {
          return kSlot + even(format::kNodeHeader + even(entries[i].key.size()) + entries[i].data.size());
        },
        [&](std::size_t first, std::size_t end) {
          leaves.push_back(
              {entries[first].key, f_.leaf({entries.begin() + static_cast<std::ptrdiff_t>(first),
                                            entries.begin() + static_cast<std::ptrdiff_t>(end)})});
        });
    r.leaf_pages = leaves.size();
    return above(std::move(leaves), r);
  }
  DbRecord fixed_tree(const std::vector<std::string>& items, std::size_t item) {
    DbRecord r = empty();
    std::vector<BranchEntry> leaves;
    fill(
        items.size(), 1, [&](std::size_t) { return item; },
        [&](std::size_t first, std::size_t end) {
          leaves.push_back(
              {items[first], f_.leaf2(item, {items.begin() + static_cast<std::ptrdiff_t>(first),
                                             items.begin() + static_cast<std::ptrdiff_t>(end)})});
        });
    r.leaf_pages = leaves.size();
    return above(std::move(leaves), r);
  }

  FileImage f_;
  const std::size_t page_;
  Rng rng_;
};

class Reader09 {
 public:
  Reader09(const LmdbApi& lmdb, const std::string& dir) : lmdb_(lmdb) {
    check(lmdb.env_create(&env_));
    check(lmdb.env_set_maxdbs(env_, 64));
    check(lmdb.env_open(env_, dir.c_str(), MDB_RDONLY | MDB_NOLOCK, 0644));
    check(lmdb.txn_begin(env_, nullptr, MDB_RDONLY, &txn_));
  }
  ~Reader09() {
    if (txn_ != nullptr) lmdb_.txn_abort(txn_);
    if (env_ != nullptr) lmdb_.env_close(env_);
  }
  Reader09(const Reader09&) = delete;
  Reader09& operator=(const Reader09&) = delete;

  /// `name`: of a named database; null: the main one.  Returns false if there is no such database.
  bool read(const char* name, Source& out) {
    MDB_dbi dbi = 0;
    if (const int rc = lmdb_.dbi_open(txn_, name, 0, &dbi); rc != 0) {
      if (name == nullptr) check(rc);
      return false;
    }
    if (name != nullptr) out.name = name;
    check(lmdb_.dbi_flags(txn_, dbi, &out.flags));
    MDB_cursor* cursor = nullptr;
    check(lmdb_.cursor_open(txn_, dbi, &cursor));
    MDB_val k, v;
    for (int rc = lmdb_.cursor_get(cursor, &k, &v, MDB_FIRST); rc == 0;
         rc = lmdb_.cursor_get(cursor, &k, &v, MDB_NEXT)) {
      const std::string key = copy_of(k);
      const bool same = (out.flags & MDB_DUPSORT) != 0 && !out.groups.empty() && out.groups.back().key == key;
      if (!same) out.groups.push_back({key, {}});
      out.groups.back().values.push_back(copy_of(v));
    }
    lmdb_.cursor_close(cursor);
    return true;
  }

 private:
  void check(int rc) const {
    if (rc != 0) throw std::runtime_error(lmdb_.strerror(rc));
  }
  const LmdbApi& lmdb_;
  MDB_env* env_ = nullptr;
  MDB_txn* txn_ = nullptr;
};

}  // namespace

std::vector<std::byte> in_format_10(const LmdbApi& lmdb, const std::string& dir, std::size_t page_size,
                                    std::uint64_t seed) {
  Reader09 reader(lmdb, dir);
  Source main;
  (void)reader.read(nullptr, main);
  std::vector<Source> named;
  if ((main.flags & MDB_DUPSORT) == 0)
    std::erase_if(main.groups, [&](const Group& g) {
      Source s;
      const bool is_database = g.values[0].size() == sizeof(DbRecord) &&
                               g.key.find('\0') == std::string::npos && reader.read(g.key.c_str(), s);
      if (is_database) named.push_back(std::move(s));
      return is_database;
    });
  std::size_t longest = 0;
  const auto look = [&](const Source& s) {
    for (const Group& g : s.groups) {
      longest = std::max(longest, g.key.size());
      if ((s.flags & MDB_DUPSORT) != 0)
        for (const std::string& v : g.values) longest = std::max(longest, v.size());
    }
  };
  look(main);
  for (const Source& s : named) look(s);
  while (Writer10::most_node(page_size) < format::kNodeHeader + longest + 1 + sizeof(DbRecord))
    page_size *= 2;
  Writer10 writer(page_size, seed);
  std::vector<std::pair<std::string, DbRecord>> records;
  for (const Source& s : named) records.emplace_back(s.name, writer.database(s));
  return writer.file(main, records);
}

}  // namespace lmdbio::test
