// Damage to LMDB files: their fields found by parsing, changed by plan or at random.
//
// Nothing here trusts the file: any bytes can be parsed and mutated again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lmdbio/format/layout_09.h"
#include "tests/support/rng.h"

namespace lmdbio::test {

using FileBytes = std::vector<std::uint8_t>;

/// What a reader takes a field for; decides which values are tried.
enum class FieldKind : std::uint8_t {
  kMagic,
  kVersion,
  kAddress,
  kMapSize,
  kPageSize,
  kLastPage,
  kTxnid,  // meta pages
  kRecordPad,
  kRecordFlags,
  kRecordDepth,
  kRecordCount,
  kRecordRoot,  // database records
  kPageNumber,
  kPagePad,
  kPageFlags,
  kLower,
  kUpper,
  kOverflowPages,  // page headers
  kSlot,
  kNodeLo,
  kNodeHi,
  kNodeFlags,
  kKeySize,
  kChild,
  kOverflowPage,
};
const char* name_of(FieldKind kind) noexcept;

/// A little-endian number in a file.  kChild is the 6 bytes of a branch node's page number.
struct Field {
  std::uint32_t at;
  std::uint32_t page;  ///< the page that it lies on
  std::uint8_t bytes;
  FieldKind kind;
  bool in_sub_page;
};

/// The page size that the file's metas name, or the one at which a second meta is found, or 4096.
std::size_t page_size_of(std::span<const std::uint8_t> file) noexcept;

/// Every field of every page that looks like a page of a kind; in the order of the file.
std::vector<Field> fields_of(std::span<const std::uint8_t> file);

std::uint64_t read_field(std::span<const std::uint8_t> file, const Field& f) noexcept;
void write_field(std::span<std::uint8_t> file, const Field& f, std::uint64_t value) noexcept;

/// Values to try in `f`, the present one left out; always the same for the same file.
std::vector<std::uint64_t> values_for(std::span<const std::uint8_t> file, const Field& f);

/// Changes `count` fields.  With luck the same field of both metas; else the newer meta's count as often as
/// the fields of all other pages, since most of what is on disk is reached through it.
void mutate_fields(FileBytes& file, Rng& rng, unsigned count);

/// Cycles, chains, pages moved, doubled and dropped, records exchanged.
void mutate_structure(FileBytes& file, Rng& rng);

/// 1 to 8 bytes anywhere.
void mutate_bytes(FileBytes& file, Rng& rng);

/// Any of these, several times.  At most `max_bytes` remain.
void mutate_file(FileBytes& file, Rng& rng, std::size_t max_bytes);

/// "page 3, node-flags at 1722: 0 -> 15"
std::string describe(std::span<const std::uint8_t> file, const Field& f, std::uint64_t value);

}  // namespace lmdbio::test
