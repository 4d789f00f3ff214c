// A file's part in what transactions prefetch (txn_prefetch.h): descriptors, slabs, and where values go.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "lmdbio/cache/file_cache.h"
#include "lmdbio/cache/value_arena.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/io/read_path.h"
#include "lmdbio/io/residency.h"

namespace lmdbio::db {

/// An environment's, shared with its transactions.  Any thread.
class PrefetchFile {
 public:
  /// Null: the file cannot be opened anew, or no memory, or the configuration is against it.
  static std::shared_ptr<PrefetchFile> open(const Origin& origin, std::uint64_t used_bytes) noexcept;

  ReadPath path() const noexcept { return path_; }
  const File& buffered() const noexcept {
    return buffered_;
  }  ///< without read-ahead, but for file systems
     ///< whose opens drop the page cache
  const File* direct() const noexcept { return direct_; }
  const Residency& residency() const noexcept { return residency_; }
  cache::SlabPool& slabs() noexcept { return slabs_; }
  cache::Prefetcher& prefetcher() noexcept { return prefetcher_; }
  /// A value at `offset` is about to be read: it goes into an arena, and is known the next time.
  bool to_arena(std::uint64_t offset) noexcept;

 private:
  PrefetchFile(cache::Prefetcher& prefetcher, std::shared_ptr<const OpenFile> file, const File& buffered,
               const File* direct, int programs_fd, ReadPath path, std::uint64_t bytes);

  static constexpr unsigned kPieceShift = 12;  ///< of the file that a bit stands for

  cache::Prefetcher& prefetcher_;
  const std::shared_ptr<const OpenFile> file_;
  const File& buffered_;      ///< file_'s
  const File* const direct_;  ///< likewise; null: nothing is read past the page cache
  const Residency residency_;
  const ReadPath path_;
  std::size_t pieces_ = 0;
  std::unique_ptr<std::atomic<std::uint64_t>[]> read_;  ///< bits of pieces that were read before
  cache::SlabPool slabs_;
};

}  // namespace lmdbio::db
