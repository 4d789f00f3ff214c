// A file with a window and a cache of chunks, and walks over it.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "lmdbio/io/open_file.h"
#include "lmdbio/node/table.h"
#include "lmdbio/window/prefetcher.h"
#include "tests/support/format_version.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

namespace lmdbio::testing {

constexpr std::size_t kAheadPage = 4096;
/// As long as LMDBIO_MEMORY is little.
constexpr std::size_t kAheadChunk = std::size_t{2} << 20;

class AheadFile {
 public:
  explicit AheadFile(std::size_t bytes, bool anonymous = false,
                     std::uint64_t map_bytes = std::uint64_t{64} << 20)
      : contents_(pattern(bytes)), temp_(contents_) {
    if (anonymous) {
      window_ =
          std::make_shared<window::Window>(window::Window::reserve(map_bytes, pages_of(kAheadPage)).value());
    } else {
      window_ = window::Window::shared(temp_.fd(), identity_of(temp_.fd()).value(), map_bytes,
                                       pages_of(kAheadPage), false, map_bytes)
                    .value();
    }
    open();
  }
  ~AheadFile() { close(); }

  void open(std::uint64_t snapshot = 1) {
    const Origin origin{temp_.fd(), temp_.path(), identity_of(temp_.fd()).value()};
    auto made = prefetcher().open(window_, origin, "file", contents_.size(), snapshot);
    ASSERT_TRUE(made);
    cache_ = std::move(made).value();
  }
  void close() {
    if (cache_ != nullptr) prefetcher().close(cache_);
    cache_.reset();
  }

  static window::Prefetcher& prefetcher() { return *window::Prefetcher::get(); }
  const std::shared_ptr<window::WindowFile>& window_file() const { return cache_; }
  const std::shared_ptr<window::Window>& window() const { return window_; }
  int fd() const { return temp_.fd(); }
  std::size_t bytes() const { return contents_.size(); }
  std::uint32_t chunks() const {
    return static_cast<std::uint32_t>((contents_.size() + kAheadChunk - 1) / kAheadChunk);
  }
  window::FileStats stats() const {
    const std::lock_guard lock(prefetcher());  // what ends together is counted together
    return cache_->stats;
  }

  /// What is at a chunk's addresses is what the file was made of, or was given by change().
  bool right(std::uint32_t chunk) const {
    const std::size_t at = chunk * kAheadChunk, n = std::min(kAheadChunk, contents_.size() - at);
    return std::memcmp(window_->base() + at, contents_.data() + at, n) == 0;
  }
  bool all_right() const {
    for (std::uint32_t c = 0; c < chunks(); ++c)
      if (!right(c)) return false;
    return true;
  }
  /// Other bytes all over the file.
  void change(std::byte by) {
    for (std::byte& b : contents_) b ^= by;
    ASSERT_EQ(::pwrite(temp_.fd(), contents_.data(), contents_.size(), 0),
              static_cast<ssize_t>(contents_.size()));
  }
  Status advance(std::uint64_t snapshot) {
    return prefetcher().advance(*window_, snapshot, contents_.size(), contents_.size());
  }

 private:
  std::vector<std::byte> contents_;
  TempFile temp_;
  std::shared_ptr<window::Window> window_;
  std::shared_ptr<window::WindowFile> cache_;
};

/// A child as the fork handlers leave it; `body` gives its exit code.
template <class Body>
pid_t fork_a_child(Body&& body) {
  window::Prefetcher& prefetcher = AheadFile::prefetcher();
  prefetcher.lock();
  window::lock_shared_windows();
  OpenFile::lock_registry();
  node::Table::lock_registry();
  const pid_t child = ::fork();
  if (child == 0) node::Table::forget_all();
  node::Table::unlock_registry();
  OpenFile::unlock_registry();
  window::unlock_shared_windows();
  if (child == 0) {
    prefetcher.after_fork_in_child();
    ::_exit(body());
  }
  prefetcher.unlock();
  return child;
}

inline void expect_success(pid_t child) {
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

/// One walk over an AheadFile.
class AheadWalk {
 public:
  explicit AheadWalk(const AheadFile& file) : file_(file), walk_(file.window_file()) {
    AheadFile::prefetcher().add(walk_);
  }
  ~AheadWalk() { AheadFile::prefetcher().remove(walk_); }

  /// To `chunk`, with wishes for `ahead` more in a direction.
  Status go(std::uint32_t chunk, bool forward = true, std::size_t ahead = 2) {
    const std::vector<window::ChunkIndex> w = wishes(chunk, forward, ahead);
    return AheadFile::prefetcher().wait(AheadFile::prefetcher().submit(
        walk_, {w, {}, {window::ChunkIndex{chunk}, window::ChunkIndex{chunk}}, {}}));
  }
  /// Wishes, without waiting for any.
  Status wish(std::uint32_t chunk, std::size_t ahead) {
    const std::vector<window::ChunkIndex> w = wishes(chunk, true, ahead);
    return AheadFile::prefetcher().wait(AheadFile::prefetcher().submit(walk_, {w, {}, {}, {}}));
  }
  window::Walk& walk() { return walk_; }

 private:
  std::vector<window::ChunkIndex> wishes(std::uint32_t chunk, bool forward, std::size_t ahead) const {
    std::vector<window::ChunkIndex> w;
    for (std::uint32_t c = chunk; c < file_.chunks() && w.size() <= ahead; forward ? ++c : --c)
      w.push_back(window::ChunkIndex{c});
    return w;
  }
  const AheadFile& file_;
  window::Walk walk_;
};

}  // namespace lmdbio::testing
