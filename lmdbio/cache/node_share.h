// A file's place in the node table: joined when it is first asked for, and anew in a forked child.
#pragma once

#include <cstdint>
#include <memory>

#include "lmdbio/io/file.h"
#include "lmdbio/node/table.h"

namespace lmdbio::cache {

/// Any thread.
class NodeShare {
 public:
  /// `window_bytes`: what the file may grow to.
  NodeShare(const FileIdentity& file, std::size_t chunk_bytes, std::uint64_t window_bytes,
            bool wanted) noexcept
      : identity_{file.dev, file.ino, chunk_bytes}, window_bytes_(window_bytes), wanted_(wanted) {}
  ~NodeShare();
  NodeShare(const NodeShare&) = delete;
  NodeShare& operator=(const NodeShare&) = delete;

  /// Null: nothing is shared.
  std::shared_ptr<node::Table> table() noexcept;

 private:
  const node::TableIdentity identity_;
  const std::uint64_t window_bytes_;
  const bool wanted_;
  std::shared_ptr<node::Table> table_;  // under the registry of tables
  unsigned tried_in_ = ~0u;             // likewise; PrivateTable::generation()
};

}  // namespace lmdbio::cache
