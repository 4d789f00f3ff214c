// An LMDB file built page by page: trees that stock would never write are as easy as those it does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/base/bytes.h"
#include "lmdbio/format/layout.h"
#include "tests/support/format_version.h"

namespace lmdbio::testing {

/// Bytes in a heap block of exactly their size: AddressSanitizer sees each access beside them.
class ExactBytes {
 public:
  explicit ExactBytes(Bytes bytes) : data_(new std::byte[bytes.size()]), size_(bytes.size()) {
    if (size_ != 0) std::memcpy(data_.get(), bytes.data(), size_);
  }
  Bytes bytes() const { return {data_.get(), size_}; }
  std::byte* data() const { return data_.get(); }
  bool holds(const void* p, std::size_t n) const {
    const auto at = static_cast<const std::byte*>(p);
    return at >= data_.get() && at <= data_.get() + size_ &&
           n <= static_cast<std::size_t>(data_.get() + size_ - at);
  }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_;
};

template <class T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

inline std::string number_bytes(std::uint64_t n, std::size_t size = 8) {
  return {reinterpret_cast<const char*>(&n), size};
}

/// An entry of a leaf.
struct LeafEntry {
  std::string key, data;
  unsigned flags = 0;
  std::uint32_t data_size = ~std::uint32_t{0};  ///< what the node says; default: size of `data`
};
/// An entry of a branch page.
struct BranchEntry {
  std::string key;
  std::uint64_t child;
};

class FileImage {
 public:
  using Version = format::Version;

  explicit FileImage(std::size_t page_size, Version v = testing::version())
      : page_size_(page_size), version_(v), bytes_(2 * page_size) {}

  std::size_t page_size() const { return page_size_; }
  format::PageFormat like() const { return {page_size_, version_}; }
  std::uint64_t pages() const { return bytes_.size() / page_size_; }
  std::byte* page(std::uint64_t p) { return bytes_.data() + p * page_size_; }
  Bytes bytes() const { return bytes_; }

  std::uint64_t leaf(const std::vector<LeafEntry>& entries) {
    const std::uint64_t p = add(1);
    leaf_at(version_, page(p), page_size_, p, format::kLeaf, entries);
    return p;
  }
  std::uint64_t branch(const std::vector<BranchEntry>& entries) {
    const std::uint64_t p = add(1);
    std::byte* const at = page(p);
    Writer w(version_, at, page_size_, p, format::kBranch);
    for (const BranchEntry& e : entries) {
      std::byte* const n = w.node(e.key, 0);
      put(n, static_cast<std::uint32_t>(e.child));
      put(n + 4, static_cast<std::uint16_t>(e.child >> 32));
    }
    return p;
  }
  std::uint64_t leaf2(std::size_t item_size, const std::vector<std::string>& items) {
    const std::uint64_t p = add(1);
    leaf2_at(version_, page(p), page_size_, p, format::kLeaf, item_size, items);
    return p;
  }
  /// An overflow run.
  std::uint64_t overflow(const std::string& value) {
    const std::uint64_t n = run_pages(value.size(), page_size_, version_);
    const std::uint64_t p = add(n);
    put(page(p), p);
    if (version_ == Version::v10) put(page(p) + format::kAtTxnid, kWrittenBy);
    put(page(p) + format::at_flags(version_), static_cast<std::uint16_t>(format::kOverflow));
    put(page(p) + format::at_pages(version_), static_cast<std::uint32_t>(n));
    std::memcpy(page(p) + format::page_header(version_), value.data(), value.size());
    return p;
  }
  /// A value of one node: `first` of the run, `size` of the value.
  static LeafEntry big(std::string key, std::uint64_t first, std::uint32_t size, std::size_t page_size = 512,
                       Version v = testing::version()) {
    std::string run = number_bytes(first);
    if (v == Version::v10) run += number_bytes(kWrittenBy) + number_bytes(run_pages(size, page_size, v));
    return {std::move(key), std::move(run), format::kBigData, size};
  }
  static std::string sub_page(const std::vector<std::string>& values, Version v = testing::version()) {
    std::vector<LeafEntry> entries;
    std::size_t size = format::page_header(v);
    for (const std::string& value : values) {
      entries.push_back({value, "", 0});
      size += 2 + format::kNodeHeader + value.size() + (value.size() & 1);  // both formats
    }
    std::string s(size, '\0');
    leaf_at(v, reinterpret_cast<std::byte*>(s.data()), size, 0, format::kLeaf | format::kSubPage, entries);
    return s;
  }
  static std::string sub_page2(std::size_t item_size, const std::vector<std::string>& items,
                               Version v = testing::version()) {
    std::string s(format::page_header(v) + items.size() * item_size, '\0');
    leaf2_at(v, reinterpret_cast<std::byte*>(s.data()), s.size(), 0, format::kLeaf | format::kSubPage,
             item_size, items);
    return s;
  }
  static format::DbRecord record(unsigned flags, unsigned depth, std::uint64_t root, std::uint64_t entries,
                                 std::uint32_t pad = 0) {
    format::DbRecord r{};
    r.pad = pad;
    r.flags = static_cast<std::uint16_t>(flags);
    r.depth = static_cast<std::uint16_t>(depth);
    r.leaf_pages = root == format::raw(format::kNoPage) ? 0 : 1;
    r.entries = entries;
    r.root = format::Pgno{root};
    return r;
  }
  /// The key under which a named database is in the main one.
  static std::string name_key(std::string name, Version v = testing::version()) {
    name.resize(format::name_key_bytes(v, name.size()));
    return name;
  }
  static std::string as_data(const format::DbRecord& r) {
    return {reinterpret_cast<const char*>(&r), sizeof r};
  }

  /// Writes the meta of transaction `txnid`, and of the one before it with the same content.
  void metas(const format::DbRecord& main, std::uint64_t txnid) {
    for (const std::uint64_t id : {txnid == 0 ? 0 : txnid - 1, txnid}) meta(main, id);
    if (txnid == 0) meta(main, 0, 1);
  }
  void meta(const format::DbRecord& main, std::uint64_t txnid) { meta(main, txnid, txnid & 1); }

 private:
  // Fills a page from both ends.
  class Writer {
   public:
    Writer(Version version, std::byte* page, std::size_t size, std::uint64_t pgno, unsigned flags)
        : version_(version), page_(page), upper_(size) {
      put(page, pgno);
      if (version == Version::v10) put(page + format::kAtTxnid, kWrittenBy);
      put(page + format::at_flags(version), static_cast<std::uint16_t>(flags));
      bounds();
    }
    std::byte* node(const std::string& key, std::size_t data_bytes) {
      const std::size_t bytes =
          format::kNodeHeader + format::data_after_key(version_, key.size()) + data_bytes;
      upper_ -= bytes + (bytes & 1);
      put(page_ + lower_, static_cast<std::uint16_t>(upper_ - format::slot_base(version_)));
      lower_ += 2;
      if (lower_ > upper_) std::abort();  // the page is full
      bounds();
      std::byte* const n = page_ + upper_;
      put(n + 6, static_cast<std::uint16_t>(key.size()));
      std::memcpy(n + format::kNodeHeader, key.data(), key.size());
      return n;
    }

   private:
    void bounds() {
      const std::size_t base = format::slot_base(version_);
      put(page_ + format::at_lower(version_), static_cast<std::uint16_t>(lower_ - base));
      put(page_ + format::at_upper(version_), static_cast<std::uint16_t>(upper_ - base));
    }
    const Version version_;
    std::byte* page_;
    std::size_t lower_ = format::page_header(version_), upper_;
  };

  static void leaf_at(Version v, std::byte* at, std::size_t size, std::uint64_t p, unsigned flags,
                      const std::vector<LeafEntry>& entries) {
    Writer w(v, at, size, p, flags);
    for (const LeafEntry& e : entries) {
      std::byte* const n = w.node(e.key, e.data.size());
      put(n, e.data_size == ~std::uint32_t{0} ? static_cast<std::uint32_t>(e.data.size()) : e.data_size);
      put(n + 4, static_cast<std::uint16_t>(e.flags));
      std::memcpy(n + format::kNodeHeader + format::data_after_key(v, e.key.size()), e.data.data(),
                  e.data.size());
    }
  }
  static void leaf2_at(Version v, std::byte* at, std::size_t size, std::uint64_t p, unsigned flags,
                       std::size_t item_size, const std::vector<std::string>& items) {
    const std::size_t base = format::slot_base(v), header = format::page_header(v);
    put(at, p);
    if (v == Version::v10) put(at + format::kAtTxnid, kWrittenBy);
    put(at + format::at_pad(v), static_cast<std::uint16_t>(item_size));
    put(at + format::at_flags(v), static_cast<std::uint16_t>(flags | format::kLeaf2));
    put(at + format::at_lower(v), static_cast<std::uint16_t>(header - base + 2 * items.size()));
    put(at + format::at_upper(v), static_cast<std::uint16_t>(size - base));
    for (std::size_t i = 0; i < items.size(); ++i)
      std::memcpy(at + header + i * item_size, items[i].data(), item_size);
  }
  std::uint64_t add(std::uint64_t n) {
    const std::uint64_t p = pages();
    bytes_.resize(bytes_.size() + n * page_size_);
    return p;
  }
  void meta(const format::DbRecord& main, std::uint64_t txnid, std::uint64_t which) {
    std::byte* const at = page(which);
    put(at, which);
    put(at + format::at_flags(version_), static_cast<std::uint16_t>(format::kMeta));
    format::MetaRecord m{};
    m.magic = format::kMagic;
    m.version = format::meta_version(version_);
    m.mapsize = bytes_.size();
    m.dbs[0] =
        record(kIntegerKey, 0, format::raw(format::kNoPage), 0, static_cast<std::uint32_t>(page_size_));
    m.dbs[1] = main;
    m.last_pg = pages() - 1;
    m.txnid = txnid;
    put(at + format::page_header(version_), m);
  }
  static constexpr unsigned kIntegerKey = 0x08;
  static constexpr std::uint64_t kWrittenBy = 1;  ///< transaction, in 1.0
  static std::uint64_t run_pages(std::uint64_t bytes, std::size_t page_size, Version v) {
    return (format::page_header(v) - 1 + bytes) / page_size + 1;
  }

  std::size_t page_size_;
  format::Version version_;
  std::vector<std::byte> bytes_;
};

}  // namespace lmdbio::testing
