// Decides how a file is read, from facts about the file and the kind of access.  Pure functions.
//
// | access   | path        | when                                                                       |
// |----------|-------------|----------------------------------------------------------------------------|
// | walk     | direct      | LMDBIO_NODE=chunks, if there are direct reads and private memory           |
// |          | page faults | LMDBIO_IO=mmap; or local, fits, and the kernel reads 2 MiB or more ahead   |
// |          | page cache  | LMDBIO_IO=buffered; no private memory; no O_DIRECT; fits                   |
// |          | direct      | LMDBIO_IO=direct; does not fit; cannot be mapped; the cache on local disk  |
// |          |             | has a part of the file, and the page cache does not have it                |
// | stride   | page cache  | LMDBIO_IO not set, mapped, private memory allowed, residency is known, and |
// |          |             | other processes of the node use little of what this walk leaves out; and   |
// |          |             | not what the cache on local disk has                                       |
// |          | none        | otherwise: the walk reads all values                                       |
// | lookup   | page faults | LMDBIO_IO=mmap; a small file                                               |
// |          | direct      | cannot be mapped                                                           |
// |          | page cache  | otherwise                                                                  |
// | load     | direct      | walks are direct and all chunks have room; and LMDBIO_IO=direct, or does   |
// |          |             | not fit, or the cache on local disk has a part of the file                 |
// |          | page cache  | fits                                                                       |
// |          | none        | otherwise                                                                  |
// | prefetch | page faults | LMDBIO_IO=mmap                                                             |
// |          | page cache  | LMDBIO_IO=buffered; no private memory; no O_DIRECT; fits and is not local  |
// |          | direct      | LMDBIO_IO=direct; does not fit; opens drop its page cache                  |
// |          | direct once | fits and is local                                                          |
// | reader,  | page cache  | LMDBIO_IO=buffered or mmap; no O_DIRECT; fits                              |
// | index    | direct      | LMDBIO_IO=direct; does not fit                                             |
//
// A file that fits into free memory goes through the page cache, where other processes, later epochs and
// later runs find it.  On a local file system whose kernel reads far ahead, page faults alone do this at the
// lowest cost (docs/decisions/0007).  An explicit LMDBIO_IO takes precedence.
//
// If the file system is not local, or LMDBIO_NODE=chunks, walks share the chunks that they read directly with
// other processes of the node, in chunk files (node/chunk_file.h).
#pragma once

#include <cstdint>

#include "lmdbio/base/config.h"

namespace lmdbio {

/// The kind of access.
enum class Access : unsigned char {
  walk,      ///< a cursor goes from record to record
  stride,    ///< a walk that first finds out which values the program uses
  lookup,    ///< single keys
  load,      ///< the whole file, in the background, since lookups are scattered all over it
  prefetch,  ///< the keys of lmdbio_prefetch()
  reader,    ///< records by ordinal
  index,     ///< all leaf pages, once, for the record index
};

enum class ReadPath : unsigned char {
  none,         ///< this access reads nothing
  page_faults,  ///< page faults of the mapping do all reads
  page_cache,   ///< reads into the page cache, ahead of the program
  direct,       ///< reads past the page cache, into private memory
  direct_once,  ///< direct the first time; a second read of the same data uses the page cache
};

/// Returns the value of the statistics' field "read_path".
constexpr const char* name_of(ReadPath path) noexcept {
  switch (path) {
    case ReadPath::none:
      return "none";
    case ReadPath::page_faults:
      return "mmap";
    case ReadPath::page_cache:
      return "buffered";
    case ReadPath::direct:
    case ReadPath::direct_once:
      return "direct";
  }
  return "";
}

/// Data is taken from the page cache if at least this share of its pages is resident.
inline constexpr double kMostlyResident = 0.9;
/// Walks of several processes read all bytes if together they use at least this share of the bytes.
inline constexpr double kUsedTogether = 0.5;
/// If the kernel's read-ahead is at least this large, in bytes, page faults on a local file system are as
/// good as reads by LMDBIO.
inline constexpr std::uint64_t kEnoughReadahead = std::uint64_t{2} << 20;
/// Lookups in files smaller than this, in bytes, use page faults.
inline constexpr std::uint64_t kWorthReadingAhead = std::uint64_t{1} << 20;

/// Returns how many of the `available` bytes of memory one file may use in the page cache.  The rest is for
/// everything else on the machine.
constexpr std::uint64_t room_in_page_cache(std::uint64_t available) noexcept { return available / 4 * 3; }
/// Returns true if a file of `file_bytes` fits into the page cache, which can grow by `available` bytes.
constexpr bool fits_page_cache(std::uint64_t file_bytes, std::uint64_t available) noexcept {
  return file_bytes <= room_in_page_cache(available);
}
/// The same for a file that was found to fit earlier.  The limit is higher, since free memory fluctuates.
constexpr bool still_fits_page_cache(std::uint64_t file_bytes, std::uint64_t available) noexcept {
  return file_bytes <= available / 8 * 7;
}
/// Returns true if the page cache evicts so much prefetched data that prefetching into it is useless, since
/// the data is read twice.  Both arguments count bytes that were evicted before a walk reached them: `lately`
/// counts those among the last 64 MiB that walks reached, `in_all` counts all.  A single loss is tolerated,
/// since another process may drop the page cache of the file once in a while (OpenFile::opens_drop_cache).
constexpr bool page_cache_loses(std::uint64_t lately, std::uint64_t in_all) noexcept {
  return lately >= std::uint64_t{16} << 20 && in_all >= std::uint64_t{32} << 20;
}

/// True if walks take resident data from the page cache.  This is decided before anything else is known about
/// the file.
constexpr bool walks_use_resident(IoMode setting, bool can_map) noexcept {
  return setting == IoMode::automatic && can_map;
}

/// Facts about a file and about the memory for it.  Facts that an access does not need may be left out.
struct ReadFacts {
  IoMode setting = IoMode::automatic;   ///< LMDBIO_IO
  NodeMode node = NodeMode::automatic;  ///< LMDBIO_NODE
  bool local = true;                    ///< the file system keeps its data on this machine
  bool direct_works = false;            ///< O_DIRECT reads work
  bool can_map = true;
  bool opens_drop_cache = false;       ///< each open of the file drops its page cache
  std::uint64_t kernel_readahead = 0;  ///< of page faults, in bytes
  std::uint64_t memory_limit = 0;      ///< of private memory, in bytes
  std::uint64_t file_bytes = 0;
  std::uint64_t available = 0;             ///< memory that the page cache could grow by, in bytes
  ReadPath walks = ReadPath::page_faults;  ///< how walks read the file now (load)
  /// The cache on local disk has a part of the file (load), and the page cache does not have it (walk,
  /// stride).
  bool in_cache = false;
  bool room_for_all = false;       ///< private memory and VMAs suffice for all of its chunks (load)
  bool residency_is_known = true;  ///< a system call tells what is in the page cache (stride)
  /// Shares of the bytes nearby that are used, 0 to 1 (stride).  `used`: by this walk, as far as is known.
  /// `used_by_others`: by walks of other processes of the node.
  double used = 0, used_by_others = 0;
};

struct ReadDecision {
  ReadPath path = ReadPath::page_faults;
  /// Data that is in the page cache is taken from there, whatever the path is.
  bool uses_resident = true;
  /// A walk through the page cache evicts the data behind it, since the file does not fit.
  bool drops_behind = false;
  const char* reason = "";  ///< for the log and the statistics; a string literal
  friend constexpr bool operator==(const ReadDecision& a, ReadPath b) noexcept { return a.path == b; }
};

/// Returns true if a rank of an MPI job takes records from the page cache of its node if they are there.
/// Other ranks do not send these records to it.
constexpr bool ranks_use_resident(IoMode setting, const ReadDecision& reader) noexcept {
  return setting == IoMode::automatic && reader.uses_resident;
}

namespace detail {

constexpr ReadDecision walk_path(const ReadFacts& f) noexcept {
  const bool automatic = f.setting == IoMode::automatic, fits = fits_page_cache(f.file_bytes, f.available);
  const bool resident = walks_use_resident(f.setting, f.can_map), behind = automatic && !fits;
  if (!f.can_map) return {ReadPath::direct, false, false, "the file cannot be mapped"};
  switch (f.setting) {
    case IoMode::mmap:
      return {ReadPath::page_faults, resident, false, "LMDBIO_IO=mmap"};
    case IoMode::buffered:
      return {ReadPath::page_cache, resident, false, "LMDBIO_IO=buffered"};
    case IoMode::direct:
      if (f.memory_limit != 0) return {ReadPath::direct, resident, false, "LMDBIO_IO=direct"};
      return {ReadPath::page_cache, resident, false, "LMDBIO_IO=direct, but LMDBIO_MEMORY=0"};
    case IoMode::automatic:
      break;
  }
  if (f.memory_limit == 0) return {ReadPath::page_cache, resident, behind, "LMDBIO_MEMORY=0"};
  if (!f.direct_works) return {ReadPath::page_cache, resident, behind, "direct I/O is not available"};
  if (f.node == NodeMode::chunks) return {ReadPath::direct, resident, false, "LMDBIO_NODE=chunks"};
  if (f.in_cache) return {ReadPath::direct, resident, false, "the cache has a part of the file"};
  if (!fits) return {ReadPath::direct, resident, false, "does not fit into free memory"};
  if (f.local && f.kernel_readahead >= kEnoughReadahead)
    return {ReadPath::page_faults, resident, false, "local file system, the kernel's read-ahead suffices"};
  return {ReadPath::page_cache, resident, false, "fits into the page cache"};
}

// The page tables show which values a program uses, so the values have to come through the mapping.
constexpr ReadDecision stride_path(const ReadFacts& f) noexcept {
  if (f.used_by_others > 0 && f.used + f.used_by_others >= kUsedTogether)
    return {ReadPath::none, false, false, "other processes use the values that this walk skips"};
  if (f.setting != IoMode::automatic) return {ReadPath::none, false, false, "LMDBIO_IO"};
  if (!f.can_map) return {ReadPath::none, false, false, "the file cannot be mapped"};
  if (f.in_cache) return {ReadPath::none, false, false, "the cache has a part of the file"};
  if (f.memory_limit == 0) return {ReadPath::none, false, false, "LMDBIO_MEMORY=0"};
  if (!f.residency_is_known) return {ReadPath::none, false, false, "residency in the page cache is unknown"};
  return {ReadPath::page_cache, true, false, "the page tables show which values are used"};
}

constexpr ReadDecision lookup_path(const ReadFacts& f) noexcept {
  if (!f.can_map) return {ReadPath::direct, false, false, "the file cannot be mapped"};
  if (f.setting == IoMode::mmap) return {ReadPath::page_faults, true, false, "LMDBIO_IO=mmap"};
  if (f.setting == IoMode::automatic && f.file_bytes < kWorthReadingAhead)
    return {ReadPath::page_faults, true, false, "small file"};
  return {ReadPath::page_cache, true, false, "missing pages are read"};
}

// The page cache is shared by all processes, outlives snapshots, and needs no private memory.  If a request
// takes 1 ms, and lookups are running, loading 1 GiB into the page cache takes 0.5 s.  Loading it into chunks
// takes 0.9 s if the host has to allocate the memory first.
constexpr ReadDecision load_path(const ReadFacts& f) noexcept {
  const bool chunks = f.walks == ReadPath::direct && f.room_for_all;
  if (chunks && f.setting == IoMode::direct) return {ReadPath::direct, false, false, "LMDBIO_IO=direct"};
  if (chunks && f.in_cache) return {ReadPath::direct, false, false, "the cache has a part of the file"};
  if (fits_page_cache(f.file_bytes, f.available))
    return {ReadPath::page_cache, true, false, "fits into the page cache"};
  if (chunks) return {ReadPath::direct, false, false, "fits into private memory"};
  return {ReadPath::none, false, false, "fits into neither the page cache nor private memory"};
}

// Direct reads are the fastest, but their data is private to a transaction.  If a file fits, a program that
// reads it again must find it in the page cache, as with stock LMDB.  On local disks, a second read may bring
// the data there.  From a remote file system, the data is read only once.
constexpr ReadDecision prefetch_path(const ReadFacts& f) noexcept {
  if (f.setting == IoMode::mmap) return {ReadPath::page_faults, true, false, "LMDBIO_IO=mmap"};
  if (f.setting == IoMode::buffered) return {ReadPath::page_cache, true, false, "LMDBIO_IO=buffered"};
  if (!f.direct_works) return {ReadPath::page_cache, true, false, "direct I/O is not available"};
  if (f.memory_limit == 0) return {ReadPath::page_cache, true, false, "LMDBIO_MEMORY=0"};
  if (f.setting == IoMode::direct) return {ReadPath::direct, true, false, "LMDBIO_IO=direct"};
  if (f.opens_drop_cache) return {ReadPath::direct, true, false, "opening the file drops its page cache"};
  if (!fits_page_cache(f.file_bytes, f.available))
    return {ReadPath::direct, true, false, "does not fit into free memory"};
  if (f.local) return {ReadPath::direct_once, true, false, "fits into the page cache, local file system"};
  return {ReadPath::page_cache, true, false, "fits into the page cache"};
}

constexpr ReadDecision reader_path(const ReadFacts& f) noexcept {
  if (!f.direct_works) return {ReadPath::page_cache, true, false, "direct I/O is not available"};
  if (f.setting == IoMode::direct) return {ReadPath::direct, false, false, "LMDBIO_IO=direct"};
  if (f.setting != IoMode::automatic) return {ReadPath::page_cache, true, false, "LMDBIO_IO"};
  if (fits_page_cache(f.file_bytes, f.available))
    return {ReadPath::page_cache, true, false, "fits into the page cache"};
  return {ReadPath::direct, true, false, "does not fit into free memory"};
}

}  // namespace detail

/// Returns how `access` reads the file.  The rules are in the table above.  The most important rules are
/// tested first.
constexpr ReadDecision choose_read_path(Access access, const ReadFacts& facts) noexcept {
  switch (access) {
    case Access::walk:
      return detail::walk_path(facts);
    case Access::stride:
      return detail::stride_path(facts);
    case Access::lookup:
      return detail::lookup_path(facts);
    case Access::load:
      return detail::load_path(facts);
    case Access::prefetch:
      return detail::prefetch_path(facts);
    case Access::reader:
    case Access::index:
      return detail::reader_path(facts);
  }
  return {};
}

/// Returns true if all processes of the node share the chunks that walks read directly.  A local file system
/// does not need this, since it delivers the chunks to each process at memory speed.
constexpr bool shares_chunk_files(const ReadFacts& f) noexcept {
  if (!f.can_map || !f.direct_works || f.memory_limit == 0) return false;
  return f.node == NodeMode::chunks || (f.node == NodeMode::automatic && !f.local);
}

/// True if opening the file with O_DIRECT could help walks and prefetches.  Readers do not count, since they
/// have memory of their own.
constexpr bool may_read_directly(IoMode setting, std::uint64_t memory_limit) noexcept {
  return memory_limit != 0 && (setting == IoMode::automatic || setting == IoMode::direct);
}

}  // namespace lmdbio
