// A record index that a thread builds.  Opening a reader does not wait for the build.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "lmdbio/records/build_index.h"
#include "lmdbio/records/record_locations.h"
#include "lmdbio/records/source.h"

namespace lmdbio::records {

/// Builds a record index in a thread.  The destructor ends the thread.  The source's snapshot must be held
/// until then.  If a build fails for lack of memory, the next await() repeats it.
class PendingLocations final : public RecordLocations {
 public:
  /// Starts the thread.  Returns nullptr if the system provides no thread or descriptor.  `tolerant`, `part`
  /// and `parts`: as in IndexRequest.  With several parts, use only done() and made().  May throw bad_alloc.
  static std::unique_ptr<PendingLocations> start(const Source& source,
                                                 std::shared_ptr<Memory> memory = nullptr,
                                                 bool tolerant = true, std::uint64_t part = 0,
                                                 std::uint64_t parts = 1);
  ~PendingLocations() override;
  PendingLocations(const PendingLocations&) = delete;
  PendingLocations& operator=(const PendingLocations&) = delete;

  /// Returns true if the build has ended.
  bool done() const noexcept;
  /// Returns the index.  Requires done().  If the build has failed, returns nullptr and sets `st` and `why`.
  /// May throw bad_alloc.
  const RecordIndex* made(Status& st, std::string& why) const;

  std::uint64_t records() const noexcept override { return request_.record.entries; }
  Status await(const std::atomic<bool>& cancelled, std::string& why) const override;
  void locations(std::uint64_t first, std::span<RecordLocation> out) const noexcept override {
    index_.load(std::memory_order_acquire)->locations(first, out);
  }
  UnknownOrdinals unknown(std::uint64_t ordinal) const noexcept override {
    return index_.load(std::memory_order_acquire)->unknown(ordinal);
  }
  Status ordinal_of(std::uint64_t leaf, unsigned slot, const format::PageView& page,
                    std::uint64_t& out) const override {
    return index_.load(std::memory_order_acquire)->ordinal_of(leaf, slot, page, out);
  }

 private:
  PendingLocations(const Source& source, std::shared_ptr<Memory> memory);
  static void* run(void* self) noexcept;
  static bool go_on(void* self, std::uint64_t done, std::uint64_t total) noexcept;
  void make() noexcept;
  void make_again() const noexcept;

  const std::shared_ptr<const OpenFile> file_;
  const std::string name_;
  IndexRequest request_;
  const pid_t pid_;
  mutable pthread_t thread_{};
  std::atomic<bool> ending_{false};
  std::unique_ptr<IndexLocations> made_;
  std::atomic<const IndexLocations*> index_{nullptr};  ///< null until made_ exists
  mutable std::mutex mutex_;                           ///< guards the members below
  mutable std::condition_variable changed_;
  mutable bool ended_ = false;  ///< the build has ended
  mutable Status status_;
  std::string why_;
};

}  // namespace lmdbio::records
