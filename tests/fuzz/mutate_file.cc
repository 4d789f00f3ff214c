#include "tests/fuzz/mutate_file.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include "lmdbio/format/layout.h"
#include "lmdbio/format/layout_09.h"

namespace lmdbio::test {

namespace {

using namespace lmdbio::format;
using Span = std::span<const std::uint8_t>;
using K = FieldKind;

constexpr const char* kNames[] = {
    "magic",      "version",      "address",      "map-size",       "page-size",   "last-page",   "txnid",
    "record-pad", "record-flags", "record-depth", "record-count",   "record-root", "page-number", "page-pad",
    "page-flags", "lower",        "upper",        "overflow-pages", "slot",        "node-lo",     "node-hi",
    "node-flags", "key-size",     "child",        "overflow-page"};
static_assert(std::size(kNames) == static_cast<std::size_t>(K::kOverflowPage) + 1);

constexpr std::size_t kMeta0Record = kPageHeader;
constexpr std::size_t kAtDbs = kMeta0Record + 24, kAtLastPage = kMeta0Record + 120,
                      kAtTxnid = kMeta0Record + 128;
constexpr std::size_t kRecordBytes = sizeof(DbRecord), kAtRoot = 40;

std::uint64_t number(Span file, std::size_t at, std::size_t bytes) noexcept {
  std::uint64_t v = 0;
  if (at <= file.size() && bytes <= file.size() - at) std::memcpy(&v, file.data() + at, bytes);
  return v;
}
template <class T>
T get(Span file, std::size_t at) noexcept {
  return static_cast<T>(number(file, at, sizeof(T)));
}
template <class T>
void put(FileBytes& file, std::size_t at, T v) noexcept {
  if (at <= file.size() && sizeof v <= file.size() - at) std::memcpy(file.data() + at, &v, sizeof v);
}

bool is_meta(Span file, std::size_t at) noexcept {
  return (get<std::uint16_t>(file, at + kAtFlags) & kMeta) != 0 &&
         get<std::uint32_t>(file, at + kPageHeader) == kMagic;
}
bool is_page_size(std::uint64_t n) noexcept {
  return n >= kMinPageSize && n <= kMaxPageSize && (n & (n - 1)) == 0;
}

/// The meta that readers use.
std::size_t newer_meta(Span file, std::size_t page_size) noexcept {
  return get<std::uint64_t>(file, page_size + kAtTxnid) > get<std::uint64_t>(file, kAtTxnid) ? page_size : 0;
}

class Parser {
 public:
  explicit Parser(Span file) : file_(file), page_size_(page_size_of(file)) {}
  std::vector<Field> parse() {
    for (std::size_t p = 0; p * page_size_ < file_.size(); ++p) {
      page_ = static_cast<std::uint32_t>(p);
      const std::size_t at = p * page_size_;
      if (p < 2)
        meta(at);
      else
        tree_page(at, std::min(page_size_, file_.size() - at), false);
    }
    return std::move(fields_);
  }

 private:
  void add(std::size_t at, unsigned bytes, K kind, bool in_sub_page = false) {
    if (at + bytes <= file_.size())
      fields_.push_back(
          {static_cast<std::uint32_t>(at), page_, static_cast<std::uint8_t>(bytes), kind, in_sub_page});
  }
  void record(std::size_t at, bool free_db_of_meta = false) {
    add(at, 4, free_db_of_meta ? K::kPageSize : K::kRecordPad);
    add(at + 4, 2, K::kRecordFlags);
    add(at + 6, 2, K::kRecordDepth);
    for (std::size_t i = 0; i < 4; ++i) add(at + 8 + 8 * i, 8, K::kRecordCount);
    add(at + kAtRoot, 8, K::kRecordRoot);
  }
  void meta(std::size_t at) {
    header(at, false);
    add(at + kPageHeader, 4, K::kMagic);
    add(at + kPageHeader + 4, 4, K::kVersion);
    add(at + kPageHeader + 8, 8, K::kAddress);
    add(at + kPageHeader + 16, 8, K::kMapSize);
    record(at + kAtDbs, true);
    record(at + kAtDbs + kRecordBytes);
    add(at + kAtLastPage, 8, K::kLastPage);
    add(at + kAtTxnid, 8, K::kTxnid);
  }
  void header(std::size_t at, bool sub) {
    add(at, 8, K::kPageNumber, sub);
    add(at + kAtPad, 2, K::kPagePad, sub);
    add(at + kAtFlags, 2, K::kPageFlags, sub);
  }
  void tree_page(std::size_t at, std::size_t size, bool sub) {
    if (size < kPageHeader) return;
    const unsigned flags = get<std::uint16_t>(file_, at + kAtFlags);
    if ((flags & (kBranch | kLeaf | kOverflow)) == 0) return;  // the inside of an overflow run, or free
    header(at, sub);
    if ((flags & kOverflow) != 0) {
      add(at + kAtPages, 4, K::kOverflowPages, sub);
      return;
    }
    add(at + kAtLower, 2, K::kLower, sub);
    add(at + kAtUpper, 2, K::kUpper, sub);
    if ((flags & kLeaf2) != 0) return;
    const std::size_t lower = get<std::uint16_t>(file_, at + kAtLower);
    for (std::size_t slot = kPageHeader; slot + 2 <= std::min(lower, size); slot += 2) {
      add(at + slot, 2, K::kSlot, sub);
      const std::size_t node = get<std::uint16_t>(file_, at + slot);
      if (node >= kPageHeader && node + kNodeHeader <= size) this->node(at, node, size, flags, sub);
    }
  }
  void node(std::size_t page, std::size_t offset, std::size_t size, unsigned page_flags, bool sub) {
    const std::size_t at = page + offset;
    const unsigned flags = get<std::uint16_t>(file_, at + 4), key = get<std::uint16_t>(file_, at + 6);
    if ((page_flags & kBranch) != 0) {
      add(at, 6, K::kChild, sub);
      add(at + 6, 2, K::kKeySize, sub);
      return;
    }
    add(at, 2, K::kNodeLo, sub);
    add(at + 2, 2, K::kNodeHi, sub);
    add(at + 4, 2, K::kNodeFlags, sub);
    add(at + 6, 2, K::kKeySize, sub);
    const std::size_t data = offset + kNodeHeader + key, data_size = get<std::uint32_t>(file_, at);
    if ((flags & kBigData) != 0) {
      if (data + 8 <= size) add(page + data, 8, K::kOverflowPage, sub);
    } else if ((flags & kSubData) != 0) {
      if (data + kRecordBytes <= size) record(page + data);
    } else if ((flags & kDupData) != 0 && !sub && data <= size && data_size <= size - data) {
      tree_page(page + data, data_size, true);
    }
  }

  const Span file_;
  const std::size_t page_size_;
  std::uint32_t page_ = 0;
  std::vector<Field> fields_;
};

std::uint64_t mask(unsigned bytes) noexcept {
  return bytes >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * bytes) - 1;
}

/// A page that the tree has: what a broken pointer may well point to.
std::size_t some_page(Span file, std::size_t page_size, Rng& rng, unsigned flags) {
  std::vector<std::size_t> pages;
  for (std::size_t p = 2; (p + 1) * page_size <= file.size(); ++p)
    if ((get<std::uint16_t>(file, p * page_size + kAtFlags) & flags) != 0) pages.push_back(p);
  return pages.empty() ? 0 : pages[rng.below(pages.size())];
}

class Structure {
 public:
  Structure(FileBytes& file, Rng& rng) : file_(file), rng_(rng), page_size_(page_size_of(file)) {}

  void run() {
    switch (rng_.below(11)) {
      case 0:
        return cycle();
      case 1:
        return chain();
      case 2:
        return copy_page(false);
      case 3:
        return copy_page(true);
      case 4:
        return swap_pages();
      case 5:
        return exchange_records();
      case 6:
        return truncate();
      case 7:
        return grow();
      case 8:
        return change_flags();
      case 9:
        return copy_bytes();
      default:
        return meta_over_meta();
    }
  }

 private:
  std::size_t pages() const { return file_.size() / page_size_; }
  std::size_t any_page() { return pages() <= 2 ? 0 : 2 + rng_.below(pages() - 2); }
  std::size_t main_record() const { return newer_meta(file_, page_size_) + kAtDbs + kRecordBytes; }
  void set_child(std::size_t node, std::uint64_t page) {
    put(file_, node, static_cast<std::uint32_t>(page));
    put(file_, node + 4, static_cast<std::uint16_t>(page >> 32));
  }

  // A branch page leads back to itself, to another branch page or to a root.
  void cycle() {
    const std::size_t p = some_page(file_, page_size_, rng_, kBranch);
    if (p == 0) {  // no branch page: a named or a duplicates' tree that is the main one
      const std::vector<Field> fields = fields_of(file_);
      for (const Field& f : fields)
        if (f.kind == K::kRecordRoot && f.page >= 2)
          write_field(file_, f, get<std::uint64_t>(file_, main_record() + kAtRoot));
      return;
    }
    const std::size_t slots =
        (std::max<std::size_t>(get<std::uint16_t>(file_, p * page_size_ + kAtLower), kPageHeader) -
         kPageHeader) /
        2;
    const std::size_t slot = p * page_size_ + kPageHeader +
                             2 * rng_.below(std::min<std::size_t>(slots, page_size_ / 2 - kPageHeader));
    const std::size_t node = p * page_size_ + get<std::uint16_t>(file_, slot);
    const std::uint64_t to = rng_.percent(40)   ? p
                             : rng_.percent(50) ? some_page(file_, page_size_, rng_, kBranch)
                                                : get<std::uint64_t>(file_, main_record() + kAtRoot);
    set_child(node, to);
  }
  // Branch pages one below the other, over the old root.
  void chain() {
    const std::size_t record = main_record(), meta = record - kAtDbs - kRecordBytes;
    const unsigned length = rng_.percent(50) ? 28 + rng_.below(8) : 1 + rng_.below(40);
    std::uint64_t below = get<std::uint64_t>(file_, record + kAtRoot);
    file_.resize(pages() * page_size_);
    if (file_.size() > (1 << 20)) return;
    for (unsigned i = 0; i < length; ++i) {
      const std::size_t p = pages(), at = p * page_size_, lower = kPageHeader + 4,
                        upper = page_size_ - 2 * (kNodeHeader + 2);
      file_.resize(at + page_size_);
      put(file_, at, std::uint64_t{p});
      put(file_, at + kAtFlags, static_cast<std::uint16_t>(kBranch));
      put(file_, at + kAtLower, static_cast<std::uint16_t>(lower));
      put(file_, at + kAtUpper, static_cast<std::uint16_t>(upper));
      for (std::size_t n = 0; n < 2; ++n) {  // all keys below "\xff\xff" go to the left
        const std::size_t node = upper + n * (kNodeHeader + 2);
        put(file_, at + kPageHeader + 2 * n, static_cast<std::uint16_t>(node));
        set_child(at + node, n == 0 ? below : 0xffff);
        put(file_, at + node + 6, static_cast<std::uint16_t>(2 * n));
        put(file_, at + node + 8, std::uint16_t{0xffff});
      }
      below = p;
    }
    put(file_, record + kAtRoot, below);
    put(file_, record + 6,
        static_cast<std::uint16_t>(get<std::uint16_t>(file_, record + 6) + (rng_.percent(70) ? length : 0)));
    put(file_, meta + kAtLastPage, std::uint64_t{pages() - 1});
  }
  void copy_page(bool keep_number) {
    const std::size_t from = any_page(), to = any_page();
    if (from == to) return;
    const std::uint64_t own = get<std::uint64_t>(file_, to * page_size_);
    std::copy_n(file_.begin() + static_cast<std::ptrdiff_t>(from * page_size_), page_size_,
                file_.begin() + static_cast<std::ptrdiff_t>(to * page_size_));
    if (keep_number) put(file_, to * page_size_, own);
  }
  void swap_pages() {
    const std::size_t a = any_page(), b = any_page();
    if (a == b) return;
    const auto first = file_.begin() + static_cast<std::ptrdiff_t>(a * page_size_);
    std::swap_ranges(first, first + static_cast<std::ptrdiff_t>(page_size_),
                     file_.begin() + static_cast<std::ptrdiff_t>(b * page_size_));
  }
  // One database under another's name, a tree of one kind read as another's.
  void exchange_records() {
    std::vector<std::size_t> records;
    for (const Field& f : fields_of(file_))
      if (f.kind == K::kRecordPad || f.kind == K::kPageSize) records.push_back(f.at);
    if (records.size() < 2) return;
    const std::size_t from = records[rng_.below(records.size())], to = records[rng_.below(records.size())];
    if (from + kRecordBytes > file_.size() || to + kRecordBytes > file_.size()) return;
    // Seldom the item size too, which is the page size in a meta's record of the free database.
    const std::size_t skip = rng_.percent(5) ? 0 : rng_.percent(50) ? 4 : rng_.percent(50) ? 8 : kAtRoot;
    std::array<std::uint8_t, kRecordBytes> copy;
    std::copy_n(file_.begin() + static_cast<std::ptrdiff_t>(from), copy.size(), copy.begin());
    std::copy(copy.begin() + static_cast<std::ptrdiff_t>(skip), copy.end(),
              file_.begin() + static_cast<std::ptrdiff_t>(to + skip));
  }
  void truncate() {
    if (rng_.percent(50))
      file_.resize(rng_.below(file_.size() + 1));
    else
      file_.resize(std::min(file_.size(), std::size_t{rng_.below(pages() + 1)} * page_size_));
  }
  void grow() { file_.resize(std::min<std::size_t>(file_.size() + rng_.below(3 * page_size_), 1 << 20)); }
  void change_flags() {
    const std::size_t p = any_page();
    constexpr std::uint16_t kFlags[] = {
        kBranch,          kLeaf,        kOverflow,       kMeta, kLeaf | kLeaf2, kBranch | kLeaf2,
        kLeaf | kSubPage, kLeaf | 0x10, kBranch | kLeaf, 0,     0xffff};
    if (p != 0) put(file_, p * page_size_ + kAtFlags, kFlags[rng_.below(std::size(kFlags))]);
  }
  void copy_bytes() {
    if (file_.size() < 2) return;
    const std::size_t n = 1 + rng_.below(std::min<std::size_t>(file_.size(), 256) - 1);
    const std::size_t from = rng_.below(file_.size() - n), to = rng_.below(file_.size() - n);
    std::copy_n(FileBytes(file_.begin() + static_cast<std::ptrdiff_t>(from),
                          file_.begin() + static_cast<std::ptrdiff_t>(from + n))
                    .begin(),
                n, file_.begin() + static_cast<std::ptrdiff_t>(to));
  }
  void meta_over_meta() {
    if (pages() < 2) return;
    const std::size_t n = newer_meta(file_, page_size_), older = page_size_ - n;
    std::copy_n(file_.begin() + static_cast<std::ptrdiff_t>(older + kPageHeader),
                sizeof(MetaRecord) - (rng_.percent(50) ? 8 : 0),
                file_.begin() + static_cast<std::ptrdiff_t>(n + kPageHeader));
  }

  FileBytes& file_;
  Rng& rng_;
  const std::size_t page_size_;
};

}  // namespace

const char* name_of(FieldKind kind) noexcept { return kNames[static_cast<std::size_t>(kind)]; }

std::size_t page_size_of(Span file) noexcept {
  const auto named = get<std::uint32_t>(file, kAtDbs);
  if (is_meta(file, 0) && is_page_size(named)) return named;
  for (std::size_t size = kMinPageSize; size <= kMaxPageSize; size *= 2)
    if (is_meta(file, size)) return size;
  return 4096;
}

std::vector<Field> fields_of(Span file) { return Parser(file).parse(); }

std::uint64_t read_field(Span file, const Field& f) noexcept { return number(file, f.at, f.bytes); }

void write_field(std::span<std::uint8_t> file, const Field& f, std::uint64_t value) noexcept {
  if (f.at + std::size_t{f.bytes} <= file.size()) std::memcpy(file.data() + f.at, &value, f.bytes);
}

std::vector<std::uint64_t> values_for(Span file, const Field& f) {
  const std::uint64_t page_size = page_size_of(file), pages = (file.size() + page_size - 1) / page_size;
  const std::uint64_t now = read_field(file, f);
  std::vector<std::uint64_t> v = {0, 1, now - 1, now + 1};
  const auto add = [&](std::initializer_list<std::uint64_t> more) { v.insert(v.end(), more); };
  const auto bits = [&](std::initializer_list<unsigned> which) {
    for (const unsigned b : which) v.push_back(now ^ std::uint64_t{1} << b);
  };
  switch (f.kind) {
    case K::kMagic:
    case K::kAddress:
    case K::kPageNumber:
    case K::kRecordCount:
      add({~std::uint64_t{0}});
      bits({f.bytes * 8u - 1});
      break;
    case K::kVersion:
      add({2, 3, 999, 0xffffffff});
      break;
    case K::kMapSize:
      add({page_size, file.size(), file.size() - 1, std::uint64_t{1} << 40, std::uint64_t{1} << 47,
           std::uint64_t{1} << 63, ~std::uint64_t{0}});
      break;
    case K::kPageSize:
      add({2, 3, 16, 256, 512, 1024, 4096, 8192, 32768, 65536, 0x80000000, 0xffffffff});
      break;
    case K::kTxnid:
      add({2, 3, now + 2, now - 2, std::uint64_t{1} << 63, ~std::uint64_t{0}});
      break;
    case K::kLastPage:
    case K::kRecordRoot:
    case K::kChild:
    case K::kOverflowPage:
      // Every page of the file, in its place or not; and beyond.
      for (std::uint64_t p = 2; p <= std::min<std::uint64_t>(pages + 1, 24); ++p) v.push_back(p);
      add({f.page, pages - 1, pages, pages + 1, std::uint64_t{1} << 31, std::uint64_t{1} << 32,
           (std::uint64_t{1} << 48) - 1, (std::uint64_t{1} << 52) + f.page, std::uint64_t{1} << 63,
           ~std::uint64_t{0} - 1, ~std::uint64_t{0}});
      break;
    case K::kRecordPad:
    case K::kPagePad:
      add({2, 3, 4, 8, 16, 64, page_size - 16, page_size, 0x7fff, 0x8000, 0xffff, 0x80000000, 0xffffffff});
      break;
    case K::kRecordFlags:
      add({0x04, 0x08, 0x10, 0x14, 0x18, 0x24, 0x34, 0x54, 0x7c, 0x7f, 0x8000, 0xffff});
      bits({1, 2, 3, 4, 5, 6});
      break;
    case K::kRecordDepth:
      add({2, 3, 31, 32, 33, 255, 0x7fff, 0xffff});
      break;
    case K::kPageFlags:
      add({0x01, 0x02, 0x03, 0x04, 0x06, 0x08, 0x12, 0x21, 0x22, 0x42, 0x62, 0x4002, 0x8002, 0xffff});
      bits({0, 1, 2, 3, 4, 5, 6, 14, 15});
      break;
    case K::kLower:
    case K::kUpper:
    case K::kSlot:
      add({15, 16, 17, 18, 20, now - 2, now + 2, page_size - 9, page_size - 8, page_size - 1, page_size,
           page_size + 1, 0x7fff, 0x8000, 0xfff0, 0xfffe, 0xffff});
      break;
    case K::kOverflowPages:
      add({2, 3, pages, pages + 1, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff});
      break;
    case K::kNodeLo:
    case K::kKeySize:
      add({2, 7, 8, 15, 16, 47, 48, 49, now + 2, now + 8, page_size - 16, page_size, 0x7fff, 0x8000, 0xffff});
      break;
    case K::kNodeHi:
      add({2, 0x7fff, 0x8000, 0x8001, 0xffff});
      break;
    case K::kNodeFlags:
      add({2, 3, 4, 5, 6, 7, 8, 0xf, 0x10, 0x8000, 0xffff});
      break;
  }
  std::vector<std::uint64_t> unique;
  for (std::uint64_t x : v) {
    x &= mask(f.bytes);
    if (x != now && std::find(unique.begin(), unique.end(), x) == unique.end()) unique.push_back(x);
  }
  return unique;
}

void mutate_fields(FileBytes& file, Rng& rng, unsigned count) {
  const std::vector<Field> fields = fields_of(file);
  if (fields.empty()) return mutate_bytes(file, rng);
  const std::size_t page_size = page_size_of(file);
  const std::size_t newer = newer_meta(file, page_size) / page_size;
  for (; count > 0; --count) {
    const Field* f = &fields[rng.below(fields.size())];
    if (f->page < 2 && rng.percent(50)) {
      f = &fields[rng.below(fields.size())];
    } else if (rng.percent(10)) {
      std::vector<const Field*> of_meta;
      for (const Field& m : fields)
        if (m.page == newer) of_meta.push_back(&m);
      if (!of_meta.empty()) f = of_meta[rng.below(of_meta.size())];
    }
    const std::vector<std::uint64_t> values = values_for(file, *f);
    const std::uint64_t value = rng.percent(75)   ? values[rng.below(values.size())]
                                : rng.percent(50) ? rng.next() >> rng.below(64)
                                                  : read_field(file, *f) + rng.below(32) - 16;
    write_field(file, *f, value);
    if (f->page < 2 && rng.percent(50)) {
      Field other = *f;
      other.at = static_cast<std::uint32_t>(f->page == 0 ? f->at + page_size : f->at - page_size);
      write_field(file, other, value);
    }
  }
}

void mutate_structure(FileBytes& file, Rng& rng) {
  if (!file.empty()) Structure(file, rng).run();
}

void mutate_bytes(FileBytes& file, Rng& rng) {
  if (file.empty()) return file.resize(1 + rng.below(4096));
  for (unsigned n = rng.between(1, 8); n > 0; --n) {
    std::uint8_t& b = file[rng.below(file.size())];
    switch (rng.below(4)) {
      case 0:
        b = static_cast<std::uint8_t>(rng.next());
        break;
      case 1:
        b = static_cast<std::uint8_t>(b ^ 1u << rng.below(8));
        break;
      case 2:
        b = static_cast<std::uint8_t>(b + (rng.percent(50) ? 1 : 255));
        break;
      default:
        b = rng.percent(50) ? 0 : 0xff;
        break;
    }
  }
}

void mutate_file(FileBytes& file, Rng& rng, std::size_t max_bytes) {
  for (unsigned n = rng.between(1, 3); n > 0; --n) {
    const unsigned what = rng.below(10);
    if (what < 6)
      mutate_fields(file, rng, rng.between(1, 3));
    else if (what < 9)
      mutate_structure(file, rng);
    else
      mutate_bytes(file, rng);
  }
  if (file.size() > max_bytes) file.resize(max_bytes);
}

std::string describe(Span file, const Field& f, std::uint64_t value) {
  char text[160];
  std::snprintf(text, sizeof text, "page %u, %s%s at %u: %llu -> %llu", f.page,
                f.in_sub_page ? "sub-page " : "", name_of(f.kind), f.at,
                static_cast<unsigned long long>(read_field(file, f)),
                static_cast<unsigned long long>(value & mask(f.bytes)));
  return text;
}

}  // namespace lmdbio::test
