// A file's membership in the node table.  It joins at the first use, and again in a forked child.
#pragma once

#include <cstdint>
#include <memory>

#include "lmdbio/io/file.h"
#include "lmdbio/node/table.h"

namespace lmdbio::window {

/// Joins the node table of one file when it is needed.  Any thread.
class NodeShare {
 public:
  /// `window_bytes`: the size up to which the file may grow.  `wanted`: false disables sharing.
  NodeShare(const FileIdentity& file, std::size_t chunk_bytes, std::uint64_t window_bytes,
            bool wanted) noexcept
      : identity_{file.dev, file.ino, chunk_bytes}, window_bytes_(window_bytes), wanted_(wanted) {}
  ~NodeShare();
  NodeShare(const NodeShare&) = delete;
  NodeShare& operator=(const NodeShare&) = delete;

  /// Returns the file's table, or nullptr if nothing is shared.  The first failure to join is logged.
  std::shared_ptr<node::Table> table() noexcept;

 private:
  const node::TableIdentity identity_;
  const std::uint64_t window_bytes_;
  const bool wanted_;
  std::shared_ptr<node::Table> table_;  // under the lock of the registry of tables
  unsigned tried_in_ = ~0u;             // PrivateTable::generation() of the last try to join; same lock
};

}  // namespace lmdbio::window
