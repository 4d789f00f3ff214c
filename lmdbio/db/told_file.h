// A file's part in reading what transactions are told of (told.h): descriptors, slabs, and where values go.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "lmdbio/base/config.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/cache/file_cache.h"
#include "lmdbio/cache/value_arena.h"
#include "lmdbio/io/file.h"
#include "lmdbio/io/residency.h"

namespace lmdbio::db {

struct ToldFacts {
  IoMode setting = IoMode::automatic;
  bool direct = false;      ///< O_DIRECT works
  std::uint64_t limit = 0;  ///< bytes of private memory that may be used
  std::uint64_t file_bytes = 0;
  std::uint64_t available = 0;  ///< memory that the page cache could grow by
  bool local = true;            ///< the file system keeps its data on this machine
  bool shared = false;          ///< there is no descriptor without read-ahead: opens drop the page cache
};
enum class ToldWay : unsigned char {
  nothing,     ///< page faults do it all
  page_cache,  ///< exact reads into the page cache
  arena,       ///< reads past the page cache into the transaction's memory
  arena_once,  ///< likewise the first time, then into the page cache: the file fits there
};
/// Direct reads are the fastest, but what they read is private to a transaction: a program that comes again
/// to a file that fits the page cache is to find it there, as with stock.  On this machine's disks the second
/// time may bring it there; from afar it is read once.
constexpr ToldWay choose_told_way(const ToldFacts& f) noexcept {
  if (f.setting == IoMode::mmap) return ToldWay::nothing;
  if (f.setting == IoMode::buffered || !f.direct || f.limit == 0) return ToldWay::page_cache;
  if (f.setting == IoMode::direct) return ToldWay::arena;
  if (f.shared || !fits_comfortably(f.file_bytes, f.available)) return ToldWay::arena;
  return f.local ? ToldWay::arena_once : ToldWay::page_cache;
}

/// An environment's, shared with its transactions.  Any thread.
class ToldFile {
 public:
  /// Null: the file cannot be opened anew, or no memory, or the configuration is against it.
  static std::shared_ptr<ToldFile> open(const Origin& origin) noexcept;

  ToldWay way() const noexcept { return way_; }
  const File& buffered() const noexcept { return buffered_; }  ///< of its own: without read-ahead
  const File* direct() const noexcept { return direct_ ? &*direct_ : nullptr; }
  const Residency& residency() const noexcept { return residency_; }
  cache::SlabPool& slabs() noexcept { return slabs_; }
  cache::Prefetcher& prefetcher() noexcept { return prefetcher_; }
  /// A value at `offset` is about to be read: it goes into an arena, and is known the next time.
  bool to_arena(std::uint64_t offset) noexcept;

 private:
  ToldFile(cache::Prefetcher& prefetcher, File buffered, std::optional<File> direct, int programs_fd,
           ToldWay way, std::uint64_t bytes);

  static constexpr unsigned kPieceShift = 12;  ///< of the file that a bit stands for

  cache::Prefetcher& prefetcher_;
  const File buffered_;
  const std::optional<File> direct_;
  const Residency residency_;
  const ToldWay way_;
  std::size_t pieces_ = 0;
  std::unique_ptr<std::atomic<std::uint64_t>[]> read_;  ///< bits of pieces that were read before
  cache::SlabPool slabs_;
};

}  // namespace lmdbio::db
