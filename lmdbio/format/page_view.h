// Views of tree pages and sub-pages that check data when it is used.
//
// A view checks the header of the page once, when it is made, and each slot when it is used.  Checking all
// slots at once (some 200 loads) would cost more than a lookup.
#pragma once

#include "lmdbio/base/bytes.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::format {

/// A node whose header, key and in-page data are inside its page.  It is valid as long as the page's bytes.
struct Node {
  const std::byte* at = nullptr;
  Version version = Version::v09;

  unsigned flags() const noexcept { return load<std::uint16_t>(at + 4); }
  unsigned key_size() const noexcept { return load<std::uint16_t>(at + 6); }
  const std::byte* key() const noexcept { return at + kNodeHeader; }
  /// In a leaf: returns the size of the value in bytes.  With kBigData, the value is in overflow pages.
  std::uint32_t data_size() const noexcept { return load<std::uint32_t>(at); }
  const std::byte* data() const noexcept { return at + kNodeHeader + data_after_key(version, key_size()); }
  /// In a branch page: returns the number of the page below.
  Pgno child() const noexcept {
    return Pgno{load<std::uint32_t>(at) | (std::uint64_t{load<std::uint16_t>(at + 4)} << 32)};
  }
  /// In a leaf, with kBigData: returns the number of the first page of the overflow run.
  Pgno overflow() const noexcept { return load<Pgno>(data()); }
};

/// The header of a page as it is in the file, unchecked.  Offsets count from the start of the page.
struct PageHeader {
  const std::byte* page;
  Version version;

  unsigned flags() const noexcept { return load<std::uint16_t>(page + at_flags(version)); }
  /// The item size of a kLeaf2 page, in bytes.
  unsigned pad() const noexcept { return load<std::uint16_t>(page + at_pad(version)); }
  std::size_t lower() const noexcept {
    return slot_base(version) + load<std::uint16_t>(page + at_lower(version));
  }
  std::size_t upper() const noexcept {
    return slot_base(version) + load<std::uint16_t>(page + at_upper(version));
  }
  /// The pages of an overflow run.
  std::uint64_t pages() const noexcept { return load<std::uint32_t>(page + at_pages(version)); }
  const std::byte* slots() const noexcept { return page + page_header(version); }
  /// The offset of the node of slot `i`.
  std::size_t slot(unsigned i) const noexcept {
    return slot_base(version) + load<std::uint16_t>(slots() + 2 * std::size_t{i});
  }
};

/// A page of a tree, or a sub-page inside a node.  Non-owning, trivially copyable.
class PageView {
 public:
  PageView() noexcept {}  // NOLINT: not initialized before open()
  /// Returns a view without a page: bytes() is null.
  static PageView none() noexcept {
    PageView v;
    v.page_ = nullptr;
    v.size_ = 0;
    v.count_ = v.flags_ = 0;
    return v;
  }

  /// Opens a page of a file of `version`.  `page` has `size` bytes.  Returns false if the page is corrupted,
  /// for example if its number is not `expect`.  Every page, also with kLeaf2, must have one of the flags
  /// kBranch and kLeaf.
  static bool open(Version version, const std::byte* page, std::size_t size, Pgno expect,
                   PageView& out) noexcept {
    if (load<Pgno>(page) != expect) [[unlikely]]
      return false;
    return out.adopt(version, page, size);
  }
  /// Opens a sub-page, which is `size` bytes of a node's data.  Ignores its page number.  Returns false if
  /// the sub-page is corrupted.
  static bool open_sub(const Node& node, PageView& out) noexcept {
    return open_sub(node.version, node.data(), node.data_size(), out);
  }
  static bool open_sub(Version version, const std::byte* page, std::size_t size, PageView& out) noexcept {
    if (size < page_header(version)) [[unlikely]]
      return false;
    return out.adopt(version, page, size) && (out.flags_ & kLeaf) != 0;
  }

  bool is_branch() const noexcept { return (flags_ & kBranch) != 0; }
  bool is_leaf() const noexcept { return (flags_ & kLeaf) != 0; }
  bool is_leaf2() const noexcept { return (flags_ & kLeaf2) != 0; }
  unsigned count() const noexcept { return count_; }
  const std::byte* bytes() const noexcept { return page_; }
  std::size_t size() const noexcept { return size_; }
  Version version() const noexcept { return Version{static_cast<std::uint8_t>(flags_ >> kVersionShift)}; }
  /// Returns the bytes behind the header: the slots, or the items of a kLeaf2 page.
  const std::byte* slots() const noexcept { return page_ + page_header(version()); }
  /// Returns the item size in the header of a kLeaf2 page, in bytes.
  unsigned item_size() const noexcept { return load<std::uint16_t>(page_ + at_pad(version())); }

  /// Finds the node of slot `i`, which is less than count(), on a page without kLeaf2.  Returns false if the
  /// page is corrupted.
  bool node(unsigned i, Node& out) const noexcept {
    if (is_10()) [[unlikely]]
      return node<Version::v10>(i, out);
    return node<Version::v09>(i, out);
  }
  /// Does the same on a page of version kVersion.
  template <Version kVersion>
  bool node(unsigned i, Node& out) const noexcept {
    out.version = kVersion;
    return node_at<kVersion>(i, out.at);
  }
  /// The same, and sets `at` to the first byte of the node.
  bool node_at(unsigned i, const std::byte*& at) const noexcept {
    if (is_10()) [[unlikely]]
      return node_at<Version::v10>(i, at);
    return node_at<Version::v09>(i, at);
  }
  template <Version kVersion>
  bool node_at(unsigned i, const std::byte*& at) const noexcept {
    const std::size_t off = offset<kVersion>(i);
    if (off < page_header(kVersion) + 2 * count_ || off + kNodeHeader > size_) [[unlikely]]
      return false;
    at = page_ + off;
    const Node node{at, kVersion};
    std::size_t end = off + kNodeHeader + node.key_size();
    if (is_leaf()) {
      end = off + kNodeHeader + data_after_key(kVersion, node.key_size());
      end += (node.flags() & kBigData) != 0 ? run_record(kVersion) : node.data_size();
    }
    return end <= size_;
  }
  /// Does the same for a leaf.  Loads the node's header at once, and also returns its fields.
  bool leaf_node(unsigned i, Node& out, unsigned& flags, std::size_t& key_size,
                 std::size_t& data_size) const noexcept {
    if (is_10()) [[unlikely]]
      return leaf_node<Version::v10>(i, out, flags, key_size, data_size);
    return leaf_node<Version::v09>(i, out, flags, key_size, data_size);
  }
  /// Does the same on a page of version kVersion, in hot paths.
  template <Version kVersion>
  bool leaf_node(unsigned i, Node& out, unsigned& flags, std::size_t& key_size,
                 std::size_t& data_size) const noexcept {
    const std::size_t off = offset<kVersion>(i);
    if (off < page_header(kVersion) + 2 * count_ || off + kNodeHeader > size_) [[unlikely]]
      return false;
    out = {page_ + off, kVersion};
    const auto header = load<std::uint64_t>(out.at);
    data_size = static_cast<std::uint32_t>(header);
    flags = static_cast<std::uint16_t>(header >> 32);
    key_size = static_cast<std::uint16_t>(header >> 48);
    return off + kNodeHeader + data_after_key(kVersion, key_size) +
               ((flags & kBigData) != 0 ? run_record(kVersion) : data_size) <=
           size_;
  }
  /// Returns item `i`, which is less than count(), of a kLeaf2 page with items of `item_bytes` bytes.
  /// Returns nullptr if the page is corrupted.
  const std::byte* item(unsigned i, std::size_t item_bytes) const noexcept {
    if (page_header(version()) + (i + std::size_t{1}) * item_bytes > size_) [[unlikely]]
      return nullptr;
    return slots() + i * item_bytes;
  }

 private:
  bool is_10() const noexcept { return flags_ >= raw(Version::v10) << kVersionShift; }
  template <Version kVersion>
  std::size_t offset(unsigned i) const noexcept {
    return slot_base(kVersion) + load<std::uint16_t>(page_ + page_header(kVersion) + 2 * i);
  }
  bool adopt(Version version, const std::byte* page, std::size_t size) noexcept {
    page_ = page;
    size_ = static_cast<std::uint32_t>(size);
    // All flags of interest are in the low byte.
    flags_ = static_cast<std::uint16_t>(load<std::uint8_t>(page + at_flags(version)) | raw(version)
                                                                                           << kVersionShift);
    const std::size_t base = slot_base(version), header = page_header(version);
    const std::size_t lower = base + load<std::uint16_t>(page + at_lower(version)),
                      upper = base + load<std::uint16_t>(page + at_upper(version));
    count_ = static_cast<std::uint16_t>((lower - header) / 2);
    if (lower < header) [[unlikely]]
      return false;
    // On a kLeaf2 page, the items follow the header, there is no slot table, and `lower` only counts the
    // items.  On a valid sub-page of 1-byte items, `lower` and `upper` are beyond its end.  item() checks the
    // bounds.
    if ((flags_ & kLeaf2) != 0) return (flags_ & (kLeaf | kBranch)) == kLeaf;
    if (lower > upper || upper > size) [[unlikely]]
      return false;
    return ((flags_ & kBranch) != 0) != ((flags_ & kLeaf) != 0);
  }

  // The members are not initialized, since a cursor has many views and uses few of them.
  const std::byte* page_;
  std::uint32_t size_;
  std::uint16_t count_;
  static constexpr unsigned kVersionShift = 8;
  std::uint16_t flags_;  ///< and the version
};

}  // namespace lmdbio::format
