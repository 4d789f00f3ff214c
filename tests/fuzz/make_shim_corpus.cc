// Writes corpus/shim anew: small healthy databases of every kind, and files with one named damage each.
//
// make_shim_corpus DIR
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/corpus.h"
#include "tests/support/dbgen.h"
#include "tests/support/file_image.h"

namespace {

using namespace lmdbio::test;
using namespace lmdbio::testing;
using namespace lmdbio::format;
using DK = DbKind;

constexpr unsigned kDup = MDB_DUPSORT, kFixed = MDB_DUPSORT | MDB_DUPFIXED;
constexpr std::size_t kPage = 512;
const std::size_t kFreeRecord = kPageHeader + 24, kMainRecord = kFreeRecord + 48,
                  kAtLastPage = kMainRecord + 48;

struct Healthy {
  const char* name;
  unsigned page_size;
  bool churn;
  std::vector<DbSpec> dbs;
};

const std::vector<Healthy>& healthy() {
  static const std::vector<Healthy> all = {
      {"plain", 512, false, {spec(DK::kPlain, 0, 60, 1, 24, 0, 40)}},
      {"one", 512, false, {spec(DK::kOne, 0, 1, 3, 3, 5, 5)}},
      {"deep", 512, false, {spec(DK::kDeep, 0, 90, 60, 78, 0, 8)}},
      {"overflow", 512, false, {spec(DK::kOverflow, 0, 10, 1, 20, 100, 1500)}},
      {"dupsort-sub-pages", 512, false, {spec(DK::kDupsort, kDup, 14, 1, 12, 1, 12, 5)}},
      {"dupsort-sub-databases", 512, false, {spec(DK::kDupsort, kDup, 8, 1, 12, 1, 30, 90)}},
      {"dupfixed-1", 512, false, {spec(DK::kDupfixed, kFixed, 6, 1, 12, 1, 1, 100)}},
      {"dupfixed-8", 512, false, {spec(DK::kDupfixed, kFixed, 8, 1, 12, 8, 8, 150)}},
      {"integerdup", 512, false, {spec(DK::kIntegerDup, kFixed | MDB_INTEGERDUP, 8, 4, 4, 4, 4, 200)}},
      {"integerkey", 512, false, {spec(DK::kIntegerKey, MDB_INTEGERKEY, 60, 8, 8, 0, 30)}},
      {"reverse",
       512,
       false,
       {spec(DK::kReverseKey, MDB_REVERSEKEY | kDup | MDB_REVERSEDUP, 12, 1, 12, 1, 20, 20)}},
      {"named",
       512,
       false,
       {spec(DK::kDirectory, 0, 4, 1, 12, 0, 20), spec(DK::kNamed, 0, 30, 1, 12, 0, 40, 1, "plain"),
        spec(DK::kDupfixed, kFixed, 6, 1, 12, 4, 4, 150, "fixed"),
        spec(DK::kDupsort, kDup, 6, 1, 12, 1, 20, 40, "dups"),
        spec(DK::kEmpty, 0, 0, 1, 12, 0, 20, 1, "empty")}},
      {"free-list", 512, true, {spec(DK::kPlain, 0, 50, 1, 24, 0, 200)}},
      {"never-written", 512, false, {}},
      {"named-4096",
       4096,
       true,
       {spec(DK::kDirectory, 0, 4, 1, 12, 0, 20), spec(DK::kOverflow, 0, 4, 1, 12, 100, 5000, 1, "overflow"),
        spec(DK::kDupsort, kDup, 8, 1, 12, 1, 40, 150, "dups")}},
      {"dupfixed-32768", 32768, false, {spec(DK::kDupfixed, kFixed, 5, 1, 12, 16, 16, 900)}},
  };
  return all;
}

bool write_healthy(const std::filesystem::path& out) {
  const LmdbApi lmdb = load_lmdb("liblmdb.so.0");
  for (const Healthy& h : healthy()) {
    EnvSpec e;
    e.name = h.name;
    e.seed = 1;
    e.page_size = h.page_size;
    e.map_bytes = 1 << 20;
    e.dbs = h.dbs;
    e.churn = h.churn;
    char dir[] = "/tmp/lmdbio_corpus_XXXXXX";
    if (mkdtemp(dir) == nullptr) return false;
    generate(lmdb, e, dir);
    std::ifstream in(std::string(dir) + "/data.mdb", std::ios::binary);
    const std::string file{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    std::filesystem::remove_all(dir);
    save(out / (std::string("healthy-") + h.name), file);
  }
  return true;
}

// The damaged ones: a file of few pages, whose last page is the main root.

template <class T>
void both_metas(FileImage& f, std::size_t at, T value) {
  for (const std::uint64_t m : {0u, 1u}) put(f.page(m) + at, value);
}
/// The metas of a file that has no free pages, so that a compacting copy has its root where LMDB expects it.
void finish(FileImage& f, const DbRecord& main) {
  f.metas(main, 3);
  DbRecord free = FileImage::record(MDB_INTEGERKEY, 0, raw(kNoPage), 0, kPage);
  free.leaf_pages = 0;
  both_metas(f, kFreeRecord, free);
}

/// Pages 2 and 3 are leaves, 4 the root.
FileImage plain(const std::vector<LeafEntry>& first = {{"a", "1"}, {"b", "2"}, {"c", "3"}},
                const std::vector<LeafEntry>& second = {{"m", "7"}, {"n", "8"}}) {
  FileImage f(kPage);
  f.leaf(first);
  f.leaf(second);
  f.branch({{"", 2}, {"m", 3}});
  finish(f, FileImage::record(0, 2, 4, first.size() + second.size()));
  return f;
}
/// Page 2 is the only one.
FileImage one_leaf(const std::vector<LeafEntry>& entries, unsigned flags = 0) {
  FileImage f(kPage);
  f.leaf(entries);
  finish(f, FileImage::record(flags, 1, 2, entries.size()));
  return f;
}
/// Page 2 is the tree of the duplicates of "a", of items of 4 bytes; 3 the root.
FileImage dup_tree(std::uint32_t pad, unsigned more_flags = 0) {
  FileImage f(kPage);
  f.leaf2(4, {"1111", "2222", "3333"});
  f.leaf({{"a", FileImage::as_data(FileImage::record(MDB_DUPFIXED | more_flags, 1, 2, 3, pad)),
           kSubData | kDupData}});
  finish(f, FileImage::record(kFixed, 1, 3, 3));
  return f;
}
/// Page 2 is the root of "sub"; 3 the main root.
FileImage named(std::uint64_t root = 2) {
  FileImage f(kPage);
  f.leaf({{"x", "1"}, {"y", "2"}});
  f.leaf({{"other", "record"}, {"sub", FileImage::as_data(FileImage::record(0, 1, root, 2)), kSubData}});
  finish(f, FileImage::record(0, 1, 3, 2));
  return f;
}

/// Where entry `i` of page `p` lies in its page.
std::size_t node_at(FileImage& f, std::uint64_t p, std::size_t i) {
  return lmdbio::load<std::uint16_t>(f.page(p) + kPageHeader + 2 * i);
}
template <class T>
void patch_node(FileImage& f, std::uint64_t p, std::size_t i, std::size_t at, T value) {
  put(f.page(p) + node_at(f, p, i) + at, value);
}
template <class T>
FileImage patched(FileImage f, std::uint64_t page, std::size_t at, T value) {
  put(f.page(page) + at, value);
  return f;
}
template <class T>
FileImage meta_patched(std::size_t at, T value) {
  FileImage f = plain();
  both_metas(f, at, value);
  return f;
}

using U16 = std::uint16_t;
using U32 = std::uint32_t;
using U64 = std::uint64_t;

FileImage chain(unsigned depth) {
  FileImage f(kPage);
  std::uint64_t below = f.leaf({{"a", "1"}, {"b", "2"}});
  const std::uint64_t right = f.leaf({{"m", "1"}, {"n", "2"}});
  for (unsigned i = 1; i < depth; ++i) below = f.branch({{"", below}, {"m", right}});
  finish(f, FileImage::record(0, depth, below, 2));
  return f;
}
FileImage shared_subtrees() {
  FileImage f(kPage);
  std::uint64_t below = f.leaf({{"a", "1"}, {"b", "2"}});
  for (unsigned i = 0; i < 24; ++i) below = f.branch({{"", below}, {"a", below}});
  finish(f, FileImage::record(0, 25, below, 2));
  return f;
}
FileImage big_value(std::uint64_t first, std::uint32_t size, std::uint32_t pages) {
  FileImage f(kPage);
  const std::uint64_t run = f.overflow(std::string(1200, 'v'));  // pages 2 to 4
  put(f.page(run) + kAtPages, pages);
  f.leaf({FileImage::big("a", first, size), {"b", "2"}});
  finish(f, FileImage::record(0, 1, 5, 2));
  both_metas(f, kMainRecord + 24, U64{3});  // overflow pages
  return f;
}
FileImage free_list(std::uint64_t count) {
  FileImage f = plain();
  const std::uint64_t p = f.leaf({{number_bytes(1), number_bytes(count) + number_bytes(2), 0}});
  finish(f, FileImage::record(0, 2, 4, 5));
  DbRecord r = FileImage::record(MDB_INTEGERKEY, 1, p, 1, kPage);
  both_metas(f, kFreeRecord, r);
  return f;
}
FileImage sub_page(const std::function<void(std::byte*)>& damage, std::size_t keep = ~std::size_t{0}) {
  std::string s = FileImage::sub_page({"1", "2", "3"});
  damage(reinterpret_cast<std::byte*>(s.data()));
  if (keep < s.size()) s.resize(keep);
  return one_leaf({{"a", s, kDupData}, {"b", "2"}}, kDup);
}
FileImage fixed_sub_page(std::uint16_t pad) {
  std::string s = FileImage::sub_page2(4, {"1111", "2222"});
  put(reinterpret_cast<std::byte*>(s.data()) + kAtPad, pad);
  return one_leaf({{"a", s, kDupData}}, kFixed);
}

struct Damaged {
  const char* name;
  FileImage image;
  std::size_t keep = ~std::size_t{0};  ///< bytes of the file that are left
};

std::vector<Damaged> damaged() {
  const auto node = [](auto value, std::size_t at) {
    FileImage f = plain();
    patch_node(f, 2, 1, at, value);
    return f;
  };
  FileImage to_child = plain(), to_root = plain(), beyond = plain();
  patch_node(to_child, 4, 1, 0, U32{900});  // and nothing in the file says that there are so many pages
  patch_node(to_root, 4, 1, 0, U32{4});
  patch_node(beyond, 4, 1, 0, U32{900});
  both_metas(beyond, kAtLastPage, U64{1000});
  FileImage last_txnid = to_root, overflowing = meta_patched(kPageHeader + 16, U64{0});
  both_metas(last_txnid, kAtLastPage + 8, ~U64{0});
  both_metas(overflowing, kAtLastPage, U64{1} << 55);  // x 512: no bytes of map at all
  FileImage two(kPage);                                // 2 leaf, 3 and 4 branches that lead to each other
  two.leaf({{"a", "1"}});
  two.branch({{"", 2}, {"m", 4}});
  two.branch({{"", 3}, {"z", 2}});
  finish(two, FileImage::record(0, 2, 3, 1));
  FileImage dup_root = dup_tree(4), no_keys = plain(), one_key = plain();
  patch_node(dup_root, 3, 0, kNodeHeader + 1 + 40, U64{3});
  put(no_keys.page(4) + kAtLower, U16{16});
  put(one_key.page(4) + kAtLower, U16{18});
  FileImage short_record(kPage);
  short_record.leaf({{"sub", std::string(20, '\0'), kSubData}});
  finish(short_record, FileImage::record(0, 1, 2, 1));
  FileImage second_size = plain();
  put(second_size.page(1) + kFreeRecord, U32{4096});
  FileImage no_free_root = plain();
  both_metas(no_free_root, kFreeRecord, FileImage::record(MDB_INTEGERKEY, 1, 700, 1, kPage));

  return {
      // What each is: github.com/jnwatson/py-lmdb/issues/210 and the reports that the CVE entries name.
      {"cve-2019-16224-free-db-flags-0x18", meta_patched(kFreeRecord + 4, U16{0x18})},
      {"cve-2019-16225-leaf-flags-0x12-dirty", patched(plain(), 2, kAtFlags, U16{0x12})},
      {"cve-2019-16226-node-hi-0x8001", node(U16{0x8001}, 2)},
      {"cve-2019-16227-node-flags-0x0f", node(U16{0x0f}, 4)},
      {"cve-2019-16228-page-size-0", meta_patched(kFreeRecord, U32{0})},
      // What py-lmdb's patches check.
      {"page-upper-beyond-page", patched(plain(), 2, kAtUpper, U16{0xfff0})},
      {"slot-beyond-page", patched(plain(), 2, kPageHeader + 2, U16{0xfffe})},
      {"depth-33", chain(33)},
      {"depth-65535-in-record", meta_patched(kMainRecord + 6, U16{0xffff})},
      {"root-is-a-meta", meta_patched(kMainRecord + 40, U64{1})},
      {"child-beyond-last-page", to_child},
      {"child-beyond-file", beyond},
      {"overflow-run-beyond-file", big_value(2, 40000, 3)},
      {"overflow-page-beyond-last-page", big_value(900, 1200, 3)},
      {"overflow-pages-0xffffffff", big_value(2, 1200, 0xffffffff)},
      {"dupfixed-item-size-0", dup_tree(0)},
      {"dupfixed-item-size-0x8000", dup_tree(0x8000)},
      {"dupfixed-sub-page-item-size-0", fixed_sub_page(0)},
      {"dupfixed-sub-page-item-size-0xffff", fixed_sub_page(0xffff)},
      {"sub-page-lower-beyond-node", sub_page([](std::byte* s) {
         put(s + kAtLower, U16{0x180});
         put(s + kAtUpper, U16{0x180});
       })},
      {"sub-page-slot-beyond-node", sub_page([](std::byte* s) { put(s + kPageHeader + 2, U16{0x1f0}); })},
      {"sub-page-shorter-than-header", sub_page([](std::byte*) {}, 6)},
      {"duplicates-record-short", one_leaf({{"a", std::string(8, '\1'), kSubData | kDupData}}, kDup)},
      {"named-record-short", short_record},
      {"cycle-branch-to-itself", to_root},
      {"cycle-of-two-branches", two},
      {"cycle-named-root-is-main-root", named(3)},
      {"cycle-duplicates-root-is-main-root", dup_root},
      {"shared-subtrees", shared_subtrees()},
      {"branch-without-keys", no_keys},
      {"branch-with-one-key", one_key},
      {"page-number-differs", patched(plain(), 2, 0, U64{3})},
      // Metas, lengths, the free list.
      {"meta-version-2", meta_patched(kPageHeader + 4, U32{2})},
      {"meta-txnid-all-ones-over-a-cycle", last_txnid},
      {"meta-map-size-0-last-page-2-to-55", overflowing},
      {"meta-map-size-2-to-63", meta_patched(kPageHeader + 16, U64{1} << 63)},
      {"meta-last-page-0", meta_patched(kAtLastPage, U64{0})},
      {"meta-last-page-2-to-63", meta_patched(kAtLastPage, U64{1} << 63)},
      {"meta-second-page-size-differs", second_size},
      {"free-list-count-2-to-60", free_list(U64{1} << 60)},
      {"free-db-root-beyond-last-page", no_free_root},
      {"truncated-after-first-meta-of-page-size-0", meta_patched(kFreeRecord, U32{0}),
       meta_bytes(Version::v09)},
      {"truncated-in-second-meta", plain(), kPage + 100},
      {"truncated-after-second-meta", plain(), kPage + meta_bytes(Version::v09)},
      {"truncated-after-metas", plain(), 2 * kPage},
      {"truncated-in-root", plain(), 4 * kPage + 100},
  };
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s DIR\n", argv[0]);
    return 2;
  }
  const std::filesystem::path out = argv[1];
  std::filesystem::create_directories(out);
  if (!write_healthy(out)) return 1;
  for (const Damaged& d : damaged()) {
    const lmdbio::Bytes bytes = d.image.bytes();
    save(out / d.name,
         std::string(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), d.keep)));
  }
  return 0;
}
