// Interface to the database files of a node, for its server.  The file system and models of it implement it.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/result.h"
#include "lmdbio/node/service.h"

namespace lmdbio::serve {

/// A range of a database file and its bytes.  A reader of the bytes shares the ownership.
class Block {
 public:
  virtual ~Block() = default;
  virtual bool is_done() const noexcept = 0;
  /// Returns the outcome of the read.  EAGAIN: read it again, from somewhere else.  Requires is_done().
  virtual Status status() const noexcept = 0;
  /// Returns the bytes from offset() on.  Requires is_done() and is_plain().
  virtual Bytes bytes() const noexcept = 0;
  /// Returns false if the bytes are compressed.  Requires is_done().
  virtual bool is_plain() const noexcept { return true; }
  /// Returns a range of the block in compressed form (cache/packed_range.h).  Empty: the block is plain, or
  /// the plain bytes are fewer.  Requires is_done().  May throw bad_alloc.
  virtual std::vector<std::byte> packed(std::uint64_t /*offset*/, std::size_t /*bytes*/) const { return {}; }
  /// Returns whether the bytes come from local disk, not from the file system.
  virtual bool is_cached() const noexcept { return false; }
  std::uint64_t offset() const noexcept { return offset_; }

 protected:
  explicit Block(std::uint64_t offset) noexcept : offset_(offset) {}

 private:
  const std::uint64_t offset_;
};

/// A database file.  One thread.  No function waits.
class HomeFile {
 public:
  virtual ~HomeFile() = default;
  /// Returns whether the file could be opened, or nullopt as long as it is being opened.  Errors: ESTALE if
  /// its contents are not those that were asked for; as open(2).
  virtual std::optional<Status> opened() noexcept = 0;
  /// Returns the length of the file when it was opened, in bytes.  The functions from here on require that
  /// the file is open.
  virtual std::uint64_t size() const noexcept = 0;
  /// Starts to read `bytes` bytes from `offset` on, which lie in one chunk.  The file must outlive the read.
  /// Errors: ENOMEM.
  virtual Result<std::shared_ptr<Block>> read(std::uint64_t offset, std::size_t bytes) noexcept = 0;
  /// Starts to decompress bytes of a block of this file that is not plain.  Errors: as read().
  virtual Result<std::shared_ptr<Block>> unpack(const std::shared_ptr<Block>& /*block*/,
                                                std::uint64_t /*offset*/, std::size_t /*bytes*/) noexcept {
    return Status::from_errno(ENOTSUP);
  }
  /// Stores a block on local disk once it has been read, if there is a cache.  `is_kept`: the caller keeps it
  /// in memory; others are not stored if many of them wait.
  virtual void store(const std::shared_ptr<Block>& /*block*/, bool /*is_kept*/) noexcept {}
  /// Returns whether store() may store something.
  virtual bool stores() const noexcept { return false; }
  /// Returns whether something is left to store.  The destructor does not wait for that.
  virtual bool is_storing() const noexcept { return false; }
  /// Starts to compare the contents of the file with those that it was opened with.  Returns false if it did
  /// not: the last check is under way, or there is no thread.
  virtual bool start_check() noexcept = 0;
  /// Returns false if a check has found other contents.  A check that cannot read the file finds nothing.
  virtual bool is_current() noexcept = 0;
  /// Returns whether an open, a check or a read is under way.  Else the destructor does not wait.
  virtual bool is_busy() const noexcept = 0;
  /// Advances the reads.  Returns whether a request has ended; a read may consist of several.
  virtual bool poll() noexcept = 0;
};

/// The files of a node.  One thread.
class HomeFiles {
 public:
  virtual ~HomeFiles() = default;
  /// Starts to open a file.  Never waits.  May throw bad_alloc.
  virtual std::unique_ptr<HomeFile> open(const std::string& path, const node::ServedState& state) = 0;
};

/// Returns the files of the file system.  If LMDBIO_CACHE_DIR is set, the images of `nodes` nodes together
/// keep them on local disk (lmdbio/cache).  May throw bad_alloc.
std::unique_ptr<HomeFiles> file_system(unsigned nodes);

}  // namespace lmdbio::serve
