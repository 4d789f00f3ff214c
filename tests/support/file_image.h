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
  explicit FileImage(std::size_t page_size) : page_size_(page_size), bytes_(2 * page_size) {}

  std::size_t page_size() const { return page_size_; }
  std::uint64_t pages() const { return bytes_.size() / page_size_; }
  std::byte* page(std::uint64_t p) { return bytes_.data() + p * page_size_; }
  Bytes bytes() const { return bytes_; }

  std::uint64_t leaf(const std::vector<LeafEntry>& entries) {
    const std::uint64_t p = add(1);
    leaf_at(page(p), page_size_, p, format::kLeaf, entries);
    return p;
  }
  std::uint64_t branch(const std::vector<BranchEntry>& entries) {
    const std::uint64_t p = add(1);
    std::byte* const at = page(p);
    Writer w(at, page_size_, p, format::kBranch);
    for (const BranchEntry& e : entries) {
      std::byte* const n = w.node(e.key, 0);
      put(n, static_cast<std::uint32_t>(e.child));
      put(n + 4, static_cast<std::uint16_t>(e.child >> 32));
    }
    return p;
  }
  std::uint64_t leaf2(std::size_t item_size, const std::vector<std::string>& items) {
    const std::uint64_t p = add(1);
    leaf2_at(page(p), page_size_, p, format::kLeaf, item_size, items);
    return p;
  }
  /// An overflow run.
  std::uint64_t overflow(const std::string& value) {
    const std::uint64_t n = (format::kPageHeader - 1 + value.size()) / page_size_ + 1;
    const std::uint64_t p = add(n);
    put(page(p), p);
    put(page(p) + format::kAtFlags, static_cast<std::uint16_t>(format::kOverflow));
    put(page(p) + format::kAtPages, static_cast<std::uint32_t>(n));
    std::memcpy(page(p) + format::kPageHeader, value.data(), value.size());
    return p;
  }
  /// A value of one node: `first` of the run, `size` of the value.
  static LeafEntry big(std::string key, std::uint64_t first, std::uint32_t size) {
    return {std::move(key), number_bytes(first), format::kBigData, size};
  }
  static std::string sub_page(const std::vector<std::string>& values) {
    std::vector<LeafEntry> entries;
    std::size_t size = format::kPageHeader;
    for (const std::string& v : values) {
      entries.push_back({v, "", 0});
      size += 2 + format::kNodeHeader + v.size() + (v.size() & 1);
    }
    std::string s(size, '\0');
    leaf_at(reinterpret_cast<std::byte*>(s.data()), size, 0, format::kLeaf | format::kSubPage, entries);
    return s;
  }
  static std::string sub_page2(std::size_t item_size, const std::vector<std::string>& items) {
    std::string s(format::kPageHeader + items.size() * item_size, '\0');
    leaf2_at(reinterpret_cast<std::byte*>(s.data()), s.size(), 0, format::kLeaf | format::kSubPage, item_size,
             items);
    return s;
  }
  static format::DbRecord record(unsigned flags, unsigned depth, std::uint64_t root, std::uint64_t entries,
                                 std::uint32_t pad = 0) {
    format::DbRecord r{};
    r.pad = pad;
    r.flags = static_cast<std::uint16_t>(flags);
    r.depth = static_cast<std::uint16_t>(depth);
    r.leaf_pages = 1;
    r.entries = entries;
    r.root = format::Pgno{root};
    return r;
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
    Writer(std::byte* page, std::size_t size, std::uint64_t pgno, unsigned flags)
        : page_(page), upper_(size) {
      put(page, pgno);
      put(page + format::kAtFlags, static_cast<std::uint16_t>(flags));
      bounds();
    }
    std::byte* node(const std::string& key, std::size_t data_bytes) {
      const std::size_t bytes = format::kNodeHeader + key.size() + data_bytes;
      upper_ -= bytes + (bytes & 1);
      put(page_ + lower_, static_cast<std::uint16_t>(upper_));
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
      put(page_ + format::kAtLower, static_cast<std::uint16_t>(lower_));
      put(page_ + format::kAtUpper, static_cast<std::uint16_t>(upper_));
    }
    std::byte* page_;
    std::size_t lower_ = format::kPageHeader, upper_;
  };

  static void leaf_at(std::byte* at, std::size_t size, std::uint64_t p, unsigned flags,
                      const std::vector<LeafEntry>& entries) {
    Writer w(at, size, p, flags);
    for (const LeafEntry& e : entries) {
      std::byte* const n = w.node(e.key, e.data.size());
      put(n, e.data_size == ~std::uint32_t{0} ? static_cast<std::uint32_t>(e.data.size()) : e.data_size);
      put(n + 4, static_cast<std::uint16_t>(e.flags));
      std::memcpy(n + format::kNodeHeader + e.key.size(), e.data.data(), e.data.size());
    }
  }
  static void leaf2_at(std::byte* at, std::size_t size, std::uint64_t p, unsigned flags,
                       std::size_t item_size, const std::vector<std::string>& items) {
    put(at, p);
    put(at + format::kAtPad, static_cast<std::uint16_t>(item_size));
    put(at + format::kAtFlags, static_cast<std::uint16_t>(flags | format::kLeaf2));
    put(at + format::kAtLower, static_cast<std::uint16_t>(format::kPageHeader + 2 * items.size()));
    put(at + format::kAtUpper, static_cast<std::uint16_t>(size));
    for (std::size_t i = 0; i < items.size(); ++i)
      std::memcpy(at + format::kPageHeader + i * item_size, items[i].data(), item_size);
  }
  std::uint64_t add(std::uint64_t n) {
    const std::uint64_t p = pages();
    bytes_.resize(bytes_.size() + n * page_size_);
    return p;
  }
  void meta(const format::DbRecord& main, std::uint64_t txnid, std::uint64_t which) {
    std::byte* const at = page(which);
    put(at, which);
    put(at + format::kAtFlags, static_cast<std::uint16_t>(format::kMeta));
    format::MetaRecord m{};
    m.magic = format::kMagic;
    m.version = format::kVersion;
    m.mapsize = bytes_.size();
    m.dbs[0] =
        record(kIntegerKey, 0, format::raw(format::kNoPage), 0, static_cast<std::uint32_t>(page_size_));
    m.dbs[1] = main;
    m.last_pg = pages() - 1;
    m.txnid = txnid;
    put(at + format::kPageHeader, m);
  }
  static constexpr unsigned kIntegerKey = 0x08;

  std::size_t page_size_;
  std::vector<std::byte> bytes_;
};

}  // namespace lmdbio::testing
