// LMDB 0.9's file format: version 1, 64-bit, little endian.  docs/format.md describes it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lmdbio::format {

/// The number of a page.  The byte offset of a page in the file is its number times the page size.
enum class Pgno : std::uint64_t {};
constexpr std::uint64_t raw(Pgno p) noexcept { return static_cast<std::uint64_t>(p); }
/// Pages 0 and 1 are meta pages, which belong to no tree.
inline constexpr std::uint64_t kMetaPages = 2;
/// The root of a tree without pages.
inline constexpr Pgno kNoPage{~std::uint64_t{0}};

// Page header: pgno u64@0, pad u16@8, flags u16@10, lower u16@12 and upper u16@14, or pages u32@12.
inline constexpr std::size_t kPageHeader = 16;
inline constexpr std::size_t kAtPad = 8, kAtFlags = 10, kAtLower = 12, kAtUpper = 14, kAtPages = 12;

inline constexpr unsigned kBranch = 0x01, kLeaf = 0x02, kOverflow = 0x04, kMeta = 0x08, kLeaf2 = 0x20,
                          kSubPage = 0x40;

// Node header: lo u16@0, hi u16@2, flags u16@4, key size u16@6; key; data.
inline constexpr std::size_t kNodeHeader = 8;
inline constexpr unsigned kBigData = 0x01, kSubData = 0x02, kDupData = 0x04;

inline constexpr std::size_t kMinPageSize = 512, kMaxPageSize = 32768;
inline constexpr std::uint32_t kMagic = 0xBEEFC0DE, kVersion = 1;
/// The maximum depth of a tree (CURSOR_STACK of LMDB).
inline constexpr unsigned kMaxDepth = 32;

/// The record of a database, in a meta page or in a kSubData node.  Copy the record from a node before use,
/// since it is aligned to 2 bytes only.
struct DbRecord {
  std::uint32_t pad;  ///< size of a DUPFIXED item; for the free database of a meta page, the page size
  std::uint16_t flags;
  std::uint16_t depth;
  std::uint64_t branch_pages, leaf_pages, overflow_pages, entries;
  Pgno root;
};
static_assert(sizeof(DbRecord) == 48);

/// The contents of pages 0 and 1 after the page header.
struct MetaRecord {
  std::uint32_t magic, version;
  std::uint64_t address, mapsize;
  DbRecord dbs[2];  ///< free database, main database
  std::uint64_t last_pg;
  std::uint64_t txnid;  ///< the writer stores it last
};
static_assert(sizeof(MetaRecord) == 136);
inline constexpr std::size_t kMetaBytes = kPageHeader + sizeof(MetaRecord);

/// Returns the number of pages of an overflow run that holds `bytes`.  Only its first page has a header.
constexpr std::uint64_t overflow_pages(std::uint64_t bytes, unsigned page_shift) noexcept {
  return ((kPageHeader - 1 + bytes) >> page_shift) + 1;
}

}  // namespace lmdbio::format
