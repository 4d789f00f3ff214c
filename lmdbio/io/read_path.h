// How a file is read: the one place that decides, from facts and from the kind of access.  Pure functions.
//
// | access   | path        | when                                                                       |
// |----------|-------------|----------------------------------------------------------------------------|
// | walk     | direct      | LMDBIO_NODE=chunks, if there are direct reads and private memory           |
// |          | page faults | LMDBIO_IO=mmap; or local, fits, and the kernel reads 2 MiB or more ahead   |
// |          | page cache  | LMDBIO_IO=buffered; no private memory; no O_DIRECT; fits                   |
// |          | direct      | LMDBIO_IO=direct; does not fit; cannot be mapped                           |
// | stride   | page cache  | LMDBIO_IO not set, mapped, private memory allowed, residency is told, and  |
// |          |             | other processes of the node leave out most of what this walk leaves out    |
// |          | none        | otherwise: the walk reads all values                                       |
// | lookup   | page faults | LMDBIO_IO=mmap; a small file                                               |
// |          | direct      | cannot be mapped                                                           |
// |          | page cache  | otherwise                                                                  |
// | load     | direct      | LMDBIO_IO=direct or does not fit; and walks are direct, all chunks have    |
// |          |             | room                                                                       |
// |          | page cache  | fits                                                                       |
// |          | none        | otherwise                                                                  |
// | prefetch | page faults | LMDBIO_IO=mmap                                                             |
// |          | page cache  | LMDBIO_IO=buffered; no private memory; no O_DIRECT; fits and is not local  |
// |          | direct      | LMDBIO_IO=direct; does not fit; opens drop its page cache                  |
// |          | direct once | fits and is local                                                          |
// | reader,  | page cache  | LMDBIO_IO=buffered or mmap; no O_DIRECT; fits                              |
// | index    | direct      | LMDBIO_IO=direct; does not fit                                             |
//
// What fits the memory that is free goes through the page cache, since other processes, later epochs and
// later runs find it there; by page faults alone on a local file system whose kernel reads far ahead, which
// costs least (docs/decisions/0007).  An explicit LMDBIO_IO wins.
//
// Chunks that walks read directly are left to other processes of the node in chunk files (node/chunk_file.h)
// if the file system is not local, or LMDBIO_NODE=chunks.
#pragma once

#include <cstdint>

#include "lmdbio/base/config.h"

namespace lmdbio {

/// Who reads.
enum class Access : unsigned char {
  walk,      ///< a cursor goes from record to record
  stride,    ///< a walk of which it is found out which values the program uses
  lookup,    ///< single keys
  load,      ///< the whole file, in the background, since lookups go all over it
  prefetch,  ///< the keys of lmdbio_prefetch
  reader,    ///< records by ordinal
  index,     ///< all leaf pages, once, for the record index
};

enum class ReadPath : unsigned char {
  none,         ///< this access reads nothing
  page_faults,  ///< the mapping's page faults do it all
  page_cache,   ///< reads into the page cache, ahead of the program
  direct,       ///< reads past the page cache, into private memory
  direct_once,  ///< likewise the first time; what is read a second time goes into the page cache
};

/// The value of the statistics' field "read_path".
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

/// Pages of which so large a share is in the page cache are taken from there.
inline constexpr double kMostlyResident = 0.9;
/// Walks of several processes that together use so large a share of what they come to have all of it read.
inline constexpr double kUsedTogether = 0.5;
/// The kernel's read-ahead of page faults, bytes, that is as good as reads of our own on a local file system.
inline constexpr std::uint64_t kEnoughReadahead = std::uint64_t{2} << 20;
/// Files below this size, bytes, are left to page faults.
inline constexpr std::uint64_t kWorthReadingAhead = std::uint64_t{1} << 20;

/// A file of `file_bytes` belongs in the page cache where `available` bytes could be taken: the rest of the
/// machine has room beside it.
constexpr std::uint64_t room_in_page_cache(std::uint64_t available) noexcept { return available / 4 * 3; }
constexpr bool fits_page_cache(std::uint64_t file_bytes, std::uint64_t available) noexcept {
  return file_bytes <= room_in_page_cache(available);
}
/// The same for a file that was found to fit, later: what is free goes up and down a little.
constexpr bool still_fits_page_cache(std::uint64_t file_bytes, std::uint64_t available) noexcept {
  return file_bytes <= available / 8 * 7;
}
/// Bytes that were brought into the page cache and were gone again before a walk came to them: of the last 64
/// MiB that walks came to, and in all.  Who goes on so reads the file twice; but once in a while another
/// process may drop it (OpenedAnew::drops_cache).
constexpr bool page_cache_loses(std::uint64_t lately, std::uint64_t in_all) noexcept {
  return lately >= std::uint64_t{16} << 20 && in_all >= std::uint64_t{32} << 20;
}

/// Walks take what is in the page cache from there; looked at before anything else is known of a file.
constexpr bool walks_use_resident(IoMode setting, bool can_map) noexcept {
  return setting == IoMode::automatic && can_map;
}

/// What is known of a file and of the memory there is for it.  What an access does not ask for may be left
/// out.
struct ReadFacts {
  IoMode setting = IoMode::automatic;   ///< LMDBIO_IO
  NodeMode node = NodeMode::automatic;  ///< LMDBIO_NODE
  bool local = true;                    ///< the file system keeps its data on this machine
  bool direct_works = false;            ///< O_DIRECT
  bool can_map = true;
  bool opens_drop_cache = false;       ///< each open of the file drops its page cache
  std::uint64_t kernel_readahead = 0;  ///< of page faults, bytes
  std::uint64_t memory_limit = 0;      ///< of private memory, bytes
  std::uint64_t file_bytes = 0;
  std::uint64_t available = 0;             ///< memory that the page cache could grow by, bytes
  ReadPath walks = ReadPath::page_faults;  ///< how walks read the file now (load)
  bool room_for_all = false;               ///< private memory and VMAs for all of its chunks (load)
  bool residency_is_known = true;          ///< something tells what is in the page cache (stride)
  /// Shares of the bytes around: what this walk uses, as far as that is known; what walks of other processes
  /// of the node use (stride)
  double used = 0, used_by_others = 0;
};

struct ReadDecision {
  ReadPath path = ReadPath::page_faults;
  /// What is in the page cache is taken from there, whatever the path.
  bool uses_resident = true;
  /// A walk that goes through the page cache takes out what it has left: the file does not fit.
  bool drops_behind = false;
  const char* reason = "";  ///< for the log and the statistics; a literal
  friend constexpr bool operator==(const ReadDecision& a, ReadPath b) noexcept { return a.path == b; }
};

/// A rank of an MPI job that finds its records in the page cache of its node takes them from there; no other
/// rank sends it any.
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
  if (!fits) return {ReadPath::direct, resident, false, "does not fit into free memory"};
  if (f.local && f.kernel_readahead >= kEnoughReadahead)
    return {ReadPath::page_faults, resident, false, "local file system, the kernel's read-ahead suffices"};
  return {ReadPath::page_cache, resident, false, "fits into the page cache"};
}

// Which values a program uses is seen from its page tables, so they have to come by the mapping.
constexpr ReadDecision stride_path(const ReadFacts& f) noexcept {
  if (f.used_by_others > 0 && f.used + f.used_by_others >= kUsedTogether)
    return {ReadPath::none, false, false, "other processes use the values that this walk skips"};
  if (f.setting != IoMode::automatic) return {ReadPath::none, false, false, "LMDBIO_IO"};
  if (!f.can_map) return {ReadPath::none, false, false, "the file cannot be mapped"};
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

// The page cache is shared by all processes, outlives snapshots, and costs no memory of its own to be made (1
// GiB at 1 ms a request, beside lookups: 0.5 s; by chunks 0.9 s where the host has to find the memory first).
constexpr ReadDecision load_path(const ReadFacts& f) noexcept {
  const bool chunks = f.walks == ReadPath::direct && f.room_for_all;
  if (chunks && f.setting == IoMode::direct) return {ReadPath::direct, false, false, "LMDBIO_IO=direct"};
  if (fits_page_cache(f.file_bytes, f.available))
    return {ReadPath::page_cache, true, false, "fits into the page cache"};
  if (chunks) return {ReadPath::direct, false, false, "fits into private memory"};
  return {ReadPath::none, false, false, "fits into neither the page cache nor private memory"};
}

// Direct reads are the fastest, but what they read is private to a transaction: a program that comes again to
// a file that fits is to find it in the page cache, as with stock.  On this machine's disks the second time
// may bring it there; from afar it is read once.
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

/// The reasons in the order of their weight; the table is at the top.
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

/// Whether chunks that walks read directly are for all processes of the node.  A local file system gives them
/// to each at the speed of memory.
constexpr bool shares_chunk_files(const ReadFacts& f) noexcept {
  if (!f.can_map || !f.direct_works || f.memory_limit == 0) return false;
  return f.node == NodeMode::chunks || (f.node == NodeMode::automatic && !f.local);
}

/// Whether opening the file with O_DIRECT could be of use to walks and prefetches.  A reader has memory of
/// its own.
constexpr bool may_read_directly(IoMode setting, std::uint64_t memory_limit) noexcept {
  return memory_limit != 0 && (setting == IoMode::automatic || setting == IoMode::direct);
}

}  // namespace lmdbio
