// The state that all streams and calls of a reader share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "lmdbio/base/mapping.h"
#include "lmdbio/base/zeroed_array.h"
#include "lmdbio/gather/queues.h"
#include "lmdbio/io/extents.h"
#include "lmdbio/io/read_path.h"
#include "lmdbio/io/residency.h"
#include "lmdbio/node/counter_board.h"
#include "lmdbio/records/buffer_pool.h"
#include "lmdbio/records/counters.h"
#include "lmdbio/records/leaf_cache.h"
#include "lmdbio/records/source.h"

namespace lmdbio::records {

/// The shared state of a reader.
struct Shared {
  /// `process`: the process's memory; if it is null, the reader makes a Memory of its own.
  Shared(Source from, std::uint64_t memory, ReadDecision how, std::shared_ptr<Memory> process = nullptr);

  std::uint64_t offset(std::uint64_t page) const noexcept { return page << page_shift; }
  /// Returns the number of the file that has this page; 0 if there is only one.
  std::size_t file_of(std::uint64_t page) const noexcept {
    return source.joined == nullptr ? 0 : source.joined->files.at(offset(page));
  }
  /// Returns true if the `n` pages from `first` on can belong to a tree of the snapshot.  `file`: the file of
  /// page `first`, here and below.
  bool inside(std::uint64_t first, std::uint64_t n, std::size_t file) const noexcept {
    const std::uint64_t pages =
        source.joined == nullptr ? source.pages : source.joined->files.part(file).bytes >> page_shift;
    first = page_in_file(first, file);
    return first >= format::kMetaPages && first < pages && n <= pages - first;
  }
  /// Returns the number of a page in its file.  Other functions number pages in the joined file.
  std::uint64_t page_in_file(std::uint64_t page, std::size_t file) const noexcept {
    return source.joined == nullptr ? page : page - (source.joined->files.first(file) >> page_shift);
  }

  /// Returns the mapping of the snapshot's pages.  The first call makes it.  Returns nullptr if the file
  /// cannot be mapped.  Read only resident pages from the mapping.  Call reaches() before each read, since
  /// access beyond the end of the file raises SIGBUS.
  const std::byte* mapped() noexcept;
  /// Returns true if the extent's file is mapped, and is long enough for the extent.  mapped() must not be
  /// nullptr.  `now`: as in FileSet::recent_length().
  bool reaches(std::size_t file, const Extent& extent, std::int64_t now) noexcept;
  /// Returns true if nothing was committed to a file of several databases since the reader was opened.  Call
  /// it after reading from the file.  One database has a snapshot, which does not change.
  bool unchanged(std::size_t file) noexcept;
  /// Does the same for a file that is mapped and was read from the mapping.  A sequentially consistent fence
  /// must separate these reads from this call.
  bool mapping_unchanged(std::size_t file) const noexcept;
  /// Returns the resident share of an extent, as Residency::share().
  std::optional<double> resident(const Extent& extent) const noexcept {
    return source.joined == nullptr ? residency.share(extent.offset, extent.bytes)
                                    : source.joined->files.resident(extent.offset, extent.bytes);
  }
  /// Returns whether the process keeps the extent in its memory.
  bool keeps(const Extent& extent) const noexcept {
    return source.kept != nullptr && source.kept->has(extent);
  }
  /// Maps the resident pages of the region around a small `extent` with one system call, to avoid many page
  /// faults, if a few small extents of this region were used before.  Call it before reading a mostly
  /// resident extent from the mapping.  Does not read from storage.  Any thread; mapped() must not be
  /// nullptr.
  void fault_in(std::size_t file, const Extent& extent) noexcept;

  /// Returns the file's length as this machine knows it, without a request to the server of a network file
  /// system.  Returns 0 if the length is unknown.
  std::uint64_t file_bytes() const noexcept;

  Source source;
  const unsigned page_shift;
  const ReadDecision read;
  const Residency residency;
  const std::shared_ptr<BufferPool> pool;
  /// True if the tree has so few leaf pages that the leaf cache keeps all of them, also pages with values.
  const bool keeps_all_leaves;
  LeafCache leaves;
  node::Cell<Counters> shown;
  Counters& counters = *shown;
  std::atomic<unsigned> streams{0};  ///< open streams
  /// Fetches since the last one that was not in the page cache.
  std::atomic<unsigned> cached_in_a_row{0};
  /// Bytes of the limit that streams without read-ahead have reserved for their next batches.
  std::atomic<std::uint64_t> reserved{0};
  Memory& memory() const noexcept { return *pool->memory(); }
  /// Returns the bytes that each stream may use after `n` more streams are opened.  The reader's memory and
  /// the process's memory limit this number.
  std::uint64_t share_of_one(unsigned n) const noexcept;

 private:
  bool map(std::size_t file) noexcept;

  const FileIdentity id_;
  std::once_flag map_once_;
  Mapping map_;
  /// For each region of map_, 2 bits: how often fault_in() was called for it, at most kMapped, with which it
  /// is mapped.  If null, fault_in() does nothing.
  ZeroedArray<std::uint64_t> faulted_in_;
};

/// The queues of one stream, or of one call.  Makes each queue when it is needed.  One thread at a time.
class Queues : public gather::Queues {
 public:
  explicit Queues(Shared& shared) noexcept;
  ~Queues() { count(); }

  /// Returns the queue for direct reads if `direct` is true and the file allows direct reads.  Otherwise,
  /// returns the queue for reads through the page cache.  Errors: EIO if a forked child cannot open the file
  /// again; otherwise as gather::make_queue().
  Result<ReadQueue*> get(bool direct) noexcept;
  /// Adds the reads since the last call of this function to the reader's counters.
  void count() noexcept;

 private:
  Shared& shared_;
};

}  // namespace lmdbio::records
