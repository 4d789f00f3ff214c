// LMDB's file formats, 64-bit, little endian: version 1 (LMDB 0.9) and version 3 (LMDB 1.0).  docs/format.md
// describes them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lmdbio::format {

/// A version of the format.  The value is the number of bytes by which its page header is longer than that of
/// 0.9: LMDB 1.0 has the writer's transaction id after the page number.
enum class Version : std::uint8_t { v09 = 0, v10 = 8 };
constexpr std::size_t raw(Version v) noexcept { return static_cast<std::size_t>(v); }

/// What the pages of a file are like.
struct PageFormat {
  constexpr PageFormat(std::size_t bytes, Version v = Version::v09) noexcept  // NOLINT: a size means 0.9
      : size(bytes), version(v) {}
  friend bool operator==(const PageFormat&, const PageFormat&) = default;
  std::size_t size;  ///< bytes, a power of two
  Version version;
};

/// The number of a page.  The byte offset of a page in the file is its number times the page size.
enum class Pgno : std::uint64_t {};
constexpr std::uint64_t raw(Pgno p) noexcept { return static_cast<std::uint64_t>(p); }
/// Pages 0 and 1 are meta pages, which belong to no tree.
inline constexpr std::uint64_t kMetaPages = 2;
/// The root of a tree without pages.
inline constexpr Pgno kNoPage{~std::uint64_t{0}};

// Page header of 0.9: pgno u64@0, pad u16@8, flags u16@10, lower u16@12 and upper u16@14, or pages u32@12.
// Page header of 1.0: pgno u64@0, txnid u64@8, then as in 0.9.
constexpr std::size_t page_header(Version v) noexcept { return 16 + raw(v); }
inline constexpr std::size_t kAtTxnid = 8;  ///< in 1.0 only
constexpr std::size_t at_pad(Version v) noexcept { return 8 + raw(v); }
constexpr std::size_t at_flags(Version v) noexcept { return 10 + raw(v); }
constexpr std::size_t at_lower(Version v) noexcept { return 12 + raw(v); }
constexpr std::size_t at_upper(Version v) noexcept { return 14 + raw(v); }
constexpr std::size_t at_pages(Version v) noexcept { return 12 + raw(v); }
/// Returns the offset in the page from which slots, lower and upper count: 0, in 1.0 the end of the header.
constexpr std::size_t slot_base(Version v) noexcept { return 3 * raw(v); }

inline constexpr unsigned kBranch = 0x01, kLeaf = 0x02, kOverflow = 0x04, kMeta = 0x08, kLeaf2 = 0x20,
                          kSubPage = 0x40;

// Node header: lo u16@0, hi u16@2, flags u16@4, key size u16@6; key; data.  In 1.0, data begin at an even
// offset from the key.
inline constexpr std::size_t kNodeHeader = 8;
constexpr std::size_t data_after_key(Version v, std::size_t key_bytes) noexcept {
  return key_bytes + (key_bytes & raw(v) >> 3);
}
/// Returns the size of the data of a kBigData node.  0.9: the number of the first page of the run.  1.0: the
/// number, the transaction id, and the number of pages, 8 bytes each.
constexpr std::size_t run_record(Version v) noexcept { return sizeof(std::uint64_t) + 2 * raw(v); }
inline constexpr unsigned kBigData = 0x01, kSubData = 0x02, kDupData = 0x04;

inline constexpr std::size_t kMinPageSize = 512;
/// Returns the largest page size in bytes.
constexpr std::size_t max_page_size(Version v) noexcept { return v == Version::v09 ? 32768 : 65536; }
inline constexpr std::uint32_t kMagic = 0xBEEFC0DE;
/// Returns the version number in a meta page.
constexpr std::uint32_t meta_version(Version v) noexcept { return v == Version::v09 ? 1 : 3; }
/// The maximum depth of a tree (CURSOR_STACK of LMDB).
inline constexpr unsigned kMaxDepth = 32;

/// The zero bytes at the end of the key under which a named database is in the main database: 1.0 stores the
/// name with its zero byte.
constexpr std::size_t name_end(Version v) noexcept { return v == Version::v10 ? 1 : 0; }
/// Returns the size of that key, for a name of `name_bytes` bytes.
constexpr std::size_t name_key_bytes(Version v, std::size_t name_bytes) noexcept {
  return name_bytes + name_end(v);
}
/// Returns the size of the name of a database whose key has `key_bytes` bytes.
constexpr std::size_t name_bytes(Version v, std::size_t key_bytes) noexcept {
  return key_bytes - (key_bytes != 0 ? name_end(v) : 0);
}

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
/// Returns the offset behind the meta record in a page.
constexpr std::size_t meta_bytes(Version v) noexcept { return page_header(v) + sizeof(MetaRecord); }
/// Bytes to read of a meta page before its version is known.
inline constexpr std::size_t kMetaBytes = meta_bytes(Version::v10);

/// Returns the number of pages of an overflow run that holds `bytes`.  Only its first page has a header.
constexpr std::uint64_t overflow_pages(Version v, std::uint64_t bytes, unsigned page_shift) noexcept {
  return ((page_header(v) - 1 + bytes) >> page_shift) + 1;
}

}  // namespace lmdbio::format
