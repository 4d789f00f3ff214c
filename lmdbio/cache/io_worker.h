// The thread that reads ahead: pumps the queues of all files.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lmdbio/base/futex.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/cache/engine_factory.h"
#include "lmdbio/cache/prefetcher.h"
#include "lmdbio/cache/touched.h"
#include "lmdbio/io/page_filler.h"
#include "lmdbio/io/private_table.h"
#include "lmdbio/io/read_queue.h"

namespace lmdbio::cache {

/// Started and stopped by the Prefetcher.  A thread of the private table (io/private_table.h).
class IoWorker {
 public:
  explicit IoWorker(Prefetcher& owner) noexcept : owner_(owner) {}
  /// False: no memory or no thread.
  bool start() noexcept;
  /// Any thread.
  void wake() noexcept;
  /// With the Prefetcher's lock held: it ends when its reads have.
  void stop() noexcept {
    stopping_ = true;
    wake();
  }
  void join() noexcept;
  /// With the Prefetcher's lock held: there are values whose late use is to be looked for.
  void watch_late_use() noexcept {
    watches_late_use_.store(true, std::memory_order_relaxed);
    wake();
  }

 private:
  /// Of a request that fills the page cache, bytes.
  static constexpr std::size_t kFillRequest = PageFiller::kPiece;

  enum class LaneKind : unsigned char {
    direct,
    buffered,
    exact,     ///< buffered, and the kernel reads no more than what is asked for
    populate,  ///< chunks into the page cache, see PageFiller
  };
  /// One of the ways to read one file.
  struct Lane {
    std::shared_ptr<FileCache> file;
    LaneKind kind;
    std::unique_ptr<ReadQueue> queue;
    IoEngine::Counters counted;  ///< of the queue's, those that are in the file's statistics
  };
  /// What is being read.
  struct Fill {
    ReadJob job;
    Staging staging;                      ///< empty: into the page cache
    std::optional<node::ChunkName> name;  ///< see ChunkSource::filled()
    ReadGroup group;
    bool busy = false;
  };

  static void* run(void* self) noexcept;
  void loop() noexcept;
  bool take_jobs(std::uint32_t seen);
  void take(ReadJob&& job);
  bool is_resident(const FileCache& file, const ExtentJob& job) const noexcept;
  void leave(const ReadJob& job, Outcome outcome) noexcept;
  void publish(const ReadJob& job, Staging memory) noexcept;
  void begin(ReadJob&& job, Staging memory = {}) noexcept;
  bool pump() noexcept;
  void drop_pages() noexcept;
  void finished(std::size_t fill) noexcept;
  void extent_ended(const Fill& f, const ExtentJob& job) noexcept;
  void chunk_ended(Fill& f, const ChunkJob& job) noexcept;
  void look_for_late_use() noexcept;
  void look_for_late_use(FileCache& file, bool faulted) noexcept;
  void look_at_shared_memory() noexcept;
  void sleep(std::uint32_t seen) noexcept;
  static void ring(void* self) noexcept;
  bool idle() const noexcept { return in_flight_ == 0; }
  LaneKind lane_kind(const FileCache& file, const ReadJob& job) const noexcept;
  Lane* lane(const std::shared_ptr<FileCache>& file, LaneKind kind);
  void drop_lanes() noexcept;
  void count(const FileCache& file) noexcept;

  Prefetcher& owner_;
  std::shared_ptr<PrivateTable> table_;
  pthread_t thread_{};
  EventCount work_;                   ///< there is work, or it is to stop
  std::atomic<bool> polling_{false};  ///< it waits in poll(2), which a futex does not end
  UniqueFd bell_;                     ///< ends it: an eventfd of the private table
  PrivateTable::Job ringing_{&ring, this};
  std::atomic<bool> stopping_{false};         // set under the Prefetcher's lock
  std::vector<std::unique_ptr<Lane>> lanes_;  // the list is changed under the Prefetcher's lock
  std::vector<Fill> fills_;
  std::size_t in_flight_ = 0;    ///< fills
  std::uint32_t asked_for_ = 0;  ///< count of work_ when no job was left
  bool may_have_jobs_ = true;    ///< something has changed since that work_ does not count
  std::atomic<bool> watches_late_use_{false};
  std::optional<TouchedPages> touched_;
  std::int64_t late_looked_ns_ = 0;    ///< when late use was looked for last
  long major_faults_ = 0;              ///< of the process, then
  bool keeps_shared_ = false;          ///< chunks may be resident whose memory is a chunk file's
  std::int64_t shared_looked_ns_ = 0;  ///< when it was last looked whether they may be
  Mapping scratch_;  ///< where reads into the page cache leave their bytes: nobody looks at them
};

}  // namespace lmdbio::cache
