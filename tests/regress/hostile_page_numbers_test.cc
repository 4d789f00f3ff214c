// Page numbers far beyond the file in branch and leaf pages: whatever reads ahead plans with them, and has
// tables by chunk of the file.  Each record before the damage is right, the damage is a code.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <lmdb.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/tree/cursor.h"
#include "lmdbio/tree/env.h"
#include "lmdbio/tree/txn.h"
#include "lmdbio/window/window.h"
#include "tests/support/child.h"
#include "tests/support/damaged.h"
#include "tests/support/file_image.h"
#include "tests/support/format_version.h"
#include "tests/support/temp_file.h"

namespace lmdbio::tree {
namespace {

using testing::as_val;
using testing::FileImage;

/// Values so large that a walk finds out which of them are used; a file of more than one chunk.
constexpr std::size_t kPage = 4096, kValue = 160'000;
constexpr unsigned kInLeaf = 4, kInBranch = 3, kBranches = 2, kRecords = kInLeaf * kInBranch * kBranches;
constexpr std::uint64_t kMap = std::uint64_t{1} << 30;

std::string key_of(unsigned i) {
  char text[16];
  (void)std::snprintf(text, sizeof text, "%07u", i);
  return text;
}
std::string value_of(unsigned i) {
  std::string v(kValue, static_cast<char>('a' + i));
  v.replace(kValue - 7, 7, key_of(i));
  return v;
}
bool right(const MDB_val& v, unsigned i) {
  const std::string want = value_of(i);
  return v.mv_size == want.size() && std::memcmp(v.mv_data, want.data(), want.size()) == 0;
}

/// What a page number is put in the place of, and the records that cannot be read then.
struct Site {
  const char* name;
  std::uint64_t page;
  unsigned entry;
  bool is_value;
  unsigned first_bad, end_bad;
};

struct Database {
  Database() : image(kPage) {
    std::vector<testing::BranchEntry> top;
    for (unsigned b = 0, i = 0; b < kBranches; ++b) {
      std::vector<testing::BranchEntry> leaves;
      for (unsigned l = 0; l < kInBranch; ++l) {
        std::vector<testing::LeafEntry> entries;
        for (unsigned e = 0; e < kInLeaf; ++e, ++i)
          entries.push_back(
              FileImage::big(key_of(i), image.overflow(value_of(i)), static_cast<std::uint32_t>(kValue)));
        leaf.push_back(image.leaf(entries));
        leaves.push_back({entries.front().key, leaf.back()});
      }
      branch.push_back(image.branch(leaves));
      top.push_back({leaves.front().key, branch.back()});
    }
    root = image.branch(top);
    format::DbRecord main = FileImage::record(0, 3, root, kRecords);
    main.branch_pages = kBranches + 1;
    main.leaf_pages = kBranches * kInBranch;
    main.overflow_pages = kRecords * format::overflow_pages(testing::version(), kValue, 12);
    image.metas(main, 7);
  }
  std::vector<Site> sites() const {
    return {{"a branch page", root, 1, false, kInLeaf * kInBranch, kRecords},
            {"a leaf page", branch[0], 1, false, kInLeaf, 2 * kInLeaf},
            {"a value", leaf[0], 2, true, 2, 3},
            {"a value of a later leaf", leaf[4], 1, true, 4 * kInLeaf + 1, 4 * kInLeaf + 2}};
  }
  FileImage image;
  std::vector<std::uint64_t> leaf, branch;
  std::uint64_t root = 0;
};

/// The bytes of the file, with one number changed.
FileImage damaged(const Database& db, const Site& site, std::uint64_t number, bool longer) {
  FileImage f = db.image;
  format::PageView page;
  format::Node node;
  if (!format::PageView::open(testing::version(), f.page(site.page), kPage, format::Pgno{site.page}, page) ||
      !page.node(site.entry, node))
    std::abort();
  if (site.is_value) {
    testing::put(f.page(site.page) + (node.data() - f.page(site.page)), number);
  } else {
    std::byte* const at = f.page(site.page) + (node.at - f.page(site.page));
    testing::put(at, static_cast<std::uint32_t>(number));
    testing::put(at + 4, static_cast<std::uint16_t>(number >> 32));
  }
  // The metas say that the file had pages behind its end.
  for (std::uint64_t meta = 0; longer && meta < 2; ++meta) {
    auto m = load<format::MetaRecord>(f.page(meta) + testing::kPageHeader);
    m.last_pg = kMap / kPage - 1;
    m.mapsize = kMap;
    testing::put(f.page(meta) + testing::kPageHeader, m);
  }
  return f;
}

/// An environment over a file that nothing in memory has, and a transaction.
class Cold {
 public:
  Cold(const testing::TempFile& file, bool mapped) : mapped_(mapped) {
    // Without read-ahead: page faults on the way down are to bring no more than their page.
    const Env::Options options{testing::pages_of(kPage), kMap,         1, true, {},
                               ~std::uint64_t{0} - 1,    "hostile.mdb"};
    auto made = mapped ? Env::open(file.fd(), options) : Env::open_unmapped(file.fd(), options);
    env_ = std::move(made).value();
    txn_ = std::make_unique<Txn>(*env_);
    begin();
    (void)::fdatasync(file.fd());
    if (mapped) {
      const window::Window& w = *env_->window();
      (void)::madvise(const_cast<std::byte*>(w.base()), w.length(), MADV_DONTNEED);
    }
    (void)::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  }
  Txn& txn() { return *txn_; }
  /// Damage ends a transaction: the next one sees it anew.
  void begin() {
    if (!txn_->finished()) txn_->end(true);
    if (!mapped_) {
      if (!txn_->begin_unmapped().ok()) std::abort();
      return;
    }
    const MetaSource source(env_->metas().records);
    std::uint64_t txnid = 0;
    if (!source.renew(txnid).ok() || !txn_->begin(txnid, source).ok()) std::abort();
  }

 private:
  const bool mapped_;
  std::unique_ptr<Env> env_;
  std::unique_ptr<Txn> txn_;
};

/// Of a process: one setting of LMDBIO_IO.
class Reading {
 public:
  Reading(const Database& db, bool mapped) : db_(db), mapped_(mapped), file_(db.image.bytes()) {}

  int all() {
    const std::uint64_t pages = db_.image.pages(), chunk = (std::uint64_t{2} << 20) / kPage;
    for (const Site& site : db_.sites()) {
      std::vector<std::uint64_t> numbers = {pages + 3 * chunk, std::uint64_t{1} << 40,
                                            (std::uint64_t{1} << 48) - 1};
      if (site.is_value)
        numbers = {pages, std::uint64_t{1} << 40, (std::uint64_t{1} << 52) + 2, ~std::uint64_t{0}};
      for (const std::uint64_t number : numbers) {
        read(site, number, false);
        if (number < kMap / kPage) read(site, number, true);
      }
    }
    return failures_ == 0 ? 0 : 1;
  }

 private:
  void read(const Site& site, std::uint64_t number, bool longer) {
    char what[128];
    (void)std::snprintf(what, sizeof what, "%s %llx%s", site.name, static_cast<unsigned long long>(number),
                        longer ? ", a longer file" : "");
    what_ = what;
    code_ = longer ? MDB_CORRUPTED : MDB_PAGE_NOTFOUND;
    FileImage f = damaged(db_, site, number, longer);
    write(f, site.page);
    const testing::TempFile& file = file_;
    for (const bool reads : {true, false}) {
      walk(file, site.first_bad, MDB_FIRST, MDB_NEXT, reads);
      walk(file, kRecords - site.end_bad, MDB_LAST, MDB_PREV, reads);
    }
    look_up(file, site, false);
    look_up(file, site, true);
    f = db_.image;
    write(f, site.page);
  }
  /// The metas and one page.
  void write(FileImage& f, std::uint64_t page) const {
    for (const std::uint64_t p : {std::uint64_t{0}, std::uint64_t{1}, page})
      if (::pwrite(file_.fd(), f.page(p), kPage, static_cast<off_t>(p * kPage)) != ssize_t{kPage})
        std::abort();
  }

  /// `good` records, then the code.
  void walk(const testing::TempFile& file, unsigned good, MDB_cursor_op op, MDB_cursor_op next, bool reads) {
    Cold cold(file, mapped_);
    Cursor c(cold.txn(), kMainDbi);
    for (unsigned n = 0;; ++n, op = next) {
      MDB_val k{}, v{};
      const Status st = c.get(&k, &v, op);
      if (!st.ok()) {
        if (n != good || st.raw() != code_) fail("walk", st.raw(), n);
        return;
      }
      const unsigned i = next == MDB_NEXT ? n : kRecords - 1 - n;
      if (n >= good || k.mv_size != 7 || std::memcmp(k.mv_data, key_of(i).data(), 7) != 0 ||
          v.mv_size != kValue || (reads && !right(v, i))) {
        fail("record", 0, n);
        return;
      }
    }
  }

  void look_up(const testing::TempFile& file, const Site& site, bool told) {
    Cold cold(file, mapped_);
    std::vector<std::string> keys;
    std::vector<MDB_val> vals;
    for (unsigned i = 0; i < kRecords; ++i) keys.push_back(key_of(i));
    for (const std::string& k : keys) vals.push_back(as_val(k));
    if (told) cold.txn().prefetch(kMainDbi, vals);
    // Those that can be read first: they are what was told.
    for (const bool bad : {false, true}) {
      for (unsigned i = 0; i < kRecords; ++i) {
        if ((i >= site.first_bad && i < site.end_bad) != bad) continue;
        MDB_val v{};
        const Status st = cold.txn().get(kMainDbi, vals[i], v);
        if (bad ? st.raw() != code_ : !st.ok() || !right(v, i)) fail(told ? "told" : "lookup", st.raw(), i);
        if (!st.ok()) cold.begin();
        if (!st.ok() && told) cold.txn().prefetch(kMainDbi, vals);
      }
    }
  }

  void fail(const char* where, int code, unsigned record) {
    std::fprintf(stderr, "%s: %s, record %u: %d\n", what_.c_str(), where, record, code);
    ++failures_;
  }

  const Database& db_;
  const bool mapped_;
  const testing::TempFile file_;
  std::string what_;
  int code_ = 0;
  unsigned failures_ = 0;
};

class HostilePageNumbers : public ::testing::TestWithParam<std::pair<const char*, bool>> {};

TEST_P(HostilePageNumbers, AreCodes) {
  const Database db;
  const auto [io, mapped] = GetParam();
#if defined(__SANITIZE_THREAD__)
  if (!mapped) GTEST_SKIP() << "ThreadSanitizer leaves no addresses for the map";
#endif
  const testing::ChildResult r = testing::in_child([&] {
    ::alarm(100);
    ::setenv("LMDBIO_IO", io, 1);
    ::setenv("LMDBIO_MEMORY", "8M", 1);
    ::setenv("LMDBIO_LOG", "error", 1);
    return Reading(db, mapped).all();
  });
  EXPECT_EQ(r.exit_code, 0) << r.err;
}

INSTANTIATE_TEST_SUITE_P(Each, HostilePageNumbers,
                         ::testing::Values(std::pair("direct", true), std::pair("buffered", true),
                                           std::pair("auto", true), std::pair("direct", false)),
                         [](const auto& i) {
                           return std::string(i.param.first) + (i.param.second ? "" : "Unmapped");
                         });

}  // namespace
}  // namespace lmdbio::tree
