// The state of a file that prefetches of transactions (txn_prefetch.h) share: descriptors, slabs, read paths.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "lmdbio/io/open_file.h"
#include "lmdbio/io/read_path.h"
#include "lmdbio/io/residency.h"
#include "lmdbio/window/value_arena.h"
#include "lmdbio/window/window_file.h"

namespace lmdbio::tree {

/// The file state that an environment shares with its transactions for prefetches.  Any thread.
class PrefetchFile {
 public:
  /// Opens the file for prefetches.  Returns nullptr if the file cannot be opened again, there is no memory,
  /// or the configuration forbids prefetches.
  static std::shared_ptr<PrefetchFile> open(const Origin& origin, std::uint64_t used_bytes) noexcept;

  ReadPath path() const noexcept { return path_; }
  const std::shared_ptr<const OpenFile>& file() const noexcept { return file_; }
  bool reads_directly() const noexcept { return reads_directly_; }
  const Residency& residency() const noexcept { return residency_; }
  window::SlabPool& slabs() noexcept { return slabs_; }
  window::Prefetcher& prefetcher() noexcept { return prefetcher_; }
  /// Returns whether the value at `offset`, which is about to be read, goes into an arena.  Records the read,
  /// because a second read of the value may go to the page cache.
  bool to_arena(std::uint64_t offset) noexcept;

 private:
  PrefetchFile(window::Prefetcher& prefetcher, std::shared_ptr<const OpenFile> file, bool reads_directly,
               int programs_fd, ReadPath path, std::uint64_t bytes);

  static constexpr unsigned kPieceShift = 12;  ///< log2 of the bytes of the file for which one bit stands

  window::Prefetcher& prefetcher_;
  const std::shared_ptr<const OpenFile> file_;
  const bool reads_directly_;  ///< some reads bypass the page cache
  const Residency residency_;
  const ReadPath path_;
  std::size_t pieces_ = 0;
  std::unique_ptr<std::atomic<std::uint64_t>[]> read_;  ///< one bit per piece; set: read before
  window::SlabPool slabs_;
};

}  // namespace lmdbio::tree
