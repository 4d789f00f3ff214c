// The files and directories that the kernel knows, in about 40 bytes and the name for each.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace lmdbio::fuse {

/// Memory for short strings.  Not thread-safe.  Functions may throw bad_alloc.
class NameStore {
 public:
  /// Stores a string of at most 255 bytes, and returns its number, less than 2^31.
  std::uint32_t add(std::string_view name);
  std::string_view get(std::uint32_t number) const noexcept;
  void remove(std::uint32_t number) noexcept;

 private:
  static constexpr std::size_t kUnit = 8, kChunk = std::size_t{1} << 20;
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::size_t units_of(std::size_t name_bytes) noexcept {
    return (name_bytes + kUnit) / kUnit;
  }
  unsigned char* at(std::uint32_t number) const noexcept {
    return chunks_[number / (kChunk / kUnit)].get() + number % (kChunk / kUnit) * kUnit;
  }

  std::vector<std::unique_ptr<unsigned char[]>> chunks_;
  std::size_t used_ = kChunk;  ///< bytes of the last chunk
  std::vector<std::uint32_t> free_ = std::vector<std::uint32_t>(units_of(255) + 1, kNone);  ///< by units
};

/// Numbers of files and directories, as the kernel uses them.  The kernel counts its uses of a number, and
/// tells when it forgets them.  Any thread; the lock is a leaf.  Functions may throw bad_alloc.
class NodeTable {
 public:
  static constexpr std::uint64_t kRoot = 1;

  struct Entry {
    std::string path;  ///< without a slash at its start; "": the root
    bool is_directory = true;
    std::uint32_t size = 0;  ///< of a file, in bytes
  };

  NodeTable();
  /// Returns the number of a child, and counts one use of it.  `size`: as in Entry.
  std::uint64_t use(std::uint64_t parent, std::string_view name, bool is_directory, std::uint32_t size);
  /// Ends `uses` of a number.
  void forget(std::uint64_t number, std::uint64_t uses) noexcept;
  Entry get(std::uint64_t number) const;
  std::uint64_t parent(std::uint64_t number) const noexcept;
  /// Returns how many files and directories are known, the root included.
  std::size_t count() const noexcept;

 private:
  struct Node {
    std::uint32_t parent;  ///< index of the directory
    std::uint32_t name;    ///< number in names_ x 2, plus 1 for a directory
    std::uint32_t uses;    ///< by the kernel, and by children
    std::uint32_t size;
    std::uint32_t next;  ///< in its list: of nodes with this hash, or of free nodes

    bool is_directory() const noexcept { return name % 2 != 0; }
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;
  std::string_view name_of(const Node& n) const noexcept { return names_.get(n.name / 2); }
  std::size_t bucket(std::uint32_t parent, std::string_view name) const noexcept;
  void grow();

  mutable std::mutex mutex_;  ///< guards all members
  NameStore names_;
  std::deque<Node> nodes_;  ///< number - 1
  std::vector<std::uint32_t> buckets_;
  std::uint32_t free_ = kNone;
  std::size_t count_ = 1;
};

}  // namespace lmdbio::fuse
