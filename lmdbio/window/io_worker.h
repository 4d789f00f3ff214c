// The thread that reads ahead: it runs the read queues of all files.
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
#include "lmdbio/gather/queues.h"
#include "lmdbio/io/page_filler.h"
#include "lmdbio/io/private_table.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/window/prefetcher.h"
#include "lmdbio/window/touched.h"

namespace lmdbio::window {

/// Reads the chunks and extents of all plans.  The Prefetcher starts and stops it.  It is a thread of the
/// private table (io/private_table.h).
class IoWorker {
 public:
  explicit IoWorker(Prefetcher& owner) noexcept : owner_(owner) {}
  /// Starts the thread.  Returns false if there is no memory or no thread.
  bool start() noexcept;
  /// Makes the thread look for work.  Any thread may call it.
  void wake() noexcept;
  /// Makes the thread end once its reads have ended.  With the Prefetcher's lock held.
  void stop() noexcept {
    stopping_ = true;
    wake();
  }
  void join() noexcept;
  /// Makes the thread check values for late use (LateUse).  With the Prefetcher's lock held.
  void watch_late_use() noexcept {
    watches_late_use_.store(true, std::memory_order_relaxed);
    wake();
  }

 private:
  /// Upper limit on the chunks and extents in flight, for all files together.
  static constexpr std::size_t kMostFills = 128;
  /// Size of a request that fills the page cache, in bytes.
  static constexpr std::size_t kFillRequest = PageFiller::kPiece;

  /// The queues of one backing of a file.
  struct Lane {
    explicit Lane(std::shared_ptr<WindowFile> f);
    const std::shared_ptr<WindowFile> file;
    const Backing& backing;
    gather::Queues queues;
  };
  /// A read in progress.
  struct Fill {
    ReadJob job;
    Staging staging;                      ///< empty: the read goes into the page cache
    std::optional<node::ChunkName> name;  ///< see ChunkSource::filled()
    ReadGroup group;
    bool busy = false;
  };

  static void* run(void* self) noexcept;
  void loop() noexcept;
  bool take_jobs(std::uint32_t seen);
  void take(ReadJob&& job);
  bool is_resident(const WindowFile& file, const ExtentJob& job) const noexcept;
  void leave(const ReadJob& job, Outcome outcome) noexcept;
  void publish(const ReadJob& job, Staging memory) noexcept;
  void begin(ReadJob&& job, Staging memory = {}) noexcept;
  bool pump() noexcept;
  void drop_pages() noexcept;
  void finished(std::size_t fill) noexcept;
  void extent_ended(const Fill& f, const ExtentJob& job) noexcept;
  void chunk_ended(Fill& f, const ChunkJob& job) noexcept;
  void look_for_late_use() noexcept;
  void look_for_late_use(WindowFile& file, bool faulted) noexcept;
  void look_at_shared_memory() noexcept;
  void sleep(std::uint32_t seen) noexcept;
  static void ring(void* self) noexcept;
  bool idle() const noexcept { return in_flight_ == 0; }
  Lane& lane(const std::shared_ptr<WindowFile>& file);
  static ReadQueue& queue_for(Lane& lane, const ReadJob& job);
  void drop_lanes() noexcept;

  Prefetcher& owner_;
  std::shared_ptr<PrivateTable> table_;
  pthread_t thread_{};
  EventCount work_;                   ///< there is work, or the thread is to stop
  std::atomic<bool> polling_{false};  ///< the thread waits in poll(2), from which a futex cannot wake it
  UniqueFd bell_;                     ///< an eventfd of the private table that ends the poll(2)
  PrivateTable::Job ringing_{&ring, this};
  std::atomic<bool> stopping_{false};  // set under the Prefetcher's lock
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Fill> fills_;
  std::size_t in_flight_ = 0;    ///< number of busy fills
  std::uint32_t asked_for_ = 0;  ///< count of work_ when jobs were last requested
  bool may_have_jobs_ = true;    ///< there may be new jobs that work_ does not count
  std::atomic<bool> watches_late_use_{false};
  std::optional<TouchedPages> touched_;
  std::int64_t late_looked_ns_ = 0;    ///< time of the last check for late use
  long major_faults_ = 0;              ///< major page faults of the process at that time
  bool keeps_shared_ = false;          ///< some resident chunks may use memory of chunk files
  std::int64_t shared_looked_ns_ = 0;  ///< time of the last look_at_shared_memory()
  Mapping scratch_;                    ///< receives the bytes of reads into the page cache; never read
};

}  // namespace lmdbio::window
