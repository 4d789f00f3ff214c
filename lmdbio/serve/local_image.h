// The image of a database file on the local disk of a node (lmdbio/cache), as the server of the node uses it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_set>

#include "lmdbio/cache/image.h"
#include "lmdbio/serve/home_files.h"
#include "lmdbio/serve/worker.h"

namespace lmdbio::serve {

/// Reads and fills an image.  One thread; it has threads of its own, and no function waits.  All functions
/// may throw bad_alloc, and std::system_error if there is no thread.
class LocalImage {
 public:
  explicit LocalImage(std::shared_ptr<cache::Image> image);
  /// Waits for one chunk that is being read or stored, and drops the others.
  ~LocalImage();
  LocalImage(const LocalImage&) = delete;
  LocalImage& operator=(const LocalImage&) = delete;

  /// As HomeFile::read(), for bytes of one chunk.  Returns nullptr if the image does not have the chunk.  The
  /// status of the block is EAGAIN if it turns out that it cannot be read; the image is not asked for the
  /// chunk again.
  std::shared_ptr<Block> read(std::uint64_t offset, std::size_t bytes);
  /// As HomeFile::unpack().
  std::shared_ptr<Block> unpack(const std::shared_ptr<Block>& block, std::uint64_t offset, std::size_t bytes);
  /// As HomeFile::store().
  void store(const std::shared_ptr<Block>& block, bool is_kept);
  /// Returns whether the image takes something.
  bool stores() const noexcept { return image_->stopped() == nullptr; }
  bool is_storing() const { return !to_store_.empty() || !writer_.is_idle(); }
  /// Returns whether a read is under way.
  bool is_busy() const noexcept { return !reading_.empty(); }
  /// Advances everything.  Returns whether a read has ended.
  bool poll();

 private:
  class ImageBlock;
  struct ToStore {
    std::shared_ptr<Block> block;
    bool is_kept;
  };
  std::shared_ptr<Block> start(const std::shared_ptr<ImageBlock>& block, std::function<void()> job);

  const std::shared_ptr<cache::Image> image_;
  std::list<std::shared_ptr<ImageBlock>> reading_;
  std::unordered_set<std::uint64_t> failed_;  ///< chunks that could not be read
  std::list<ToStore> to_store_;               ///< blocks that are being read from the file system
  std::atomic<std::uint64_t> extra_{0};       ///< bytes that wait for writer_, and that nobody else keeps
  Worker reader_, writer_;
};

}  // namespace lmdbio::serve
