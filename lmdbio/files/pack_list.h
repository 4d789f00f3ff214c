// The files that are packed into a database: their keys, and where their contents are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lmdbio/base/unique_fd.h"

namespace lmdbio::files {

/// A file in a directory or in a tar archive.
struct PackItem {
  std::string key;
  std::string name;           ///< in a directory: the path of the file below it.  In an archive: empty
  std::uint64_t size = 0;     ///< bytes
  std::uint64_t offset = 0;   ///< of the contents in an archive
  std::uint32_t archive = 0;  ///< index of the archive
  /// The number of the file's folder, the first part of its name, in the sorted sequence of folders.
  std::uint32_t label = kNoLabel;

  static constexpr std::uint32_t kNoLabel = UINT32_MAX;  ///< it is in no folder
};

/// What is done with the keys of a list.
struct PackOrder {
  bool shuffled = false;
  std::uint64_t seed = 0;  ///< of the shuffled order
  bool labels_in_keys = false;
};

/// Lists files and reads them.  Its functions throw Error (database.h) and bad_alloc.
class PackList {
 public:
  /// Lists a directory with all that is below it, or one or more tar archives.  Follows symbolic links.
  /// Passes over `own`, paths of what is being packed, which may be in the directory, and may not exist.
  PackList(const std::vector<std::string>& sources, std::span<const std::string> own);
  PackList(const PackList&) = delete;
  PackList& operator=(const PackList&) = delete;

  const std::vector<PackItem>& items() const noexcept { return items_; }
  /// Returns one line for each entry that is not a regular file, and so is not in the list.
  const std::vector<std::string>& left_out() const noexcept { return left_out_; }
  /// Sorts the list by keys, which are then distinct and have at most `most_key_bytes`.  Sets the labels.
  /// With labels in keys, a key begins with its label and "_".  A shuffled list has the order of
  /// lmdbio_shuffle of the sorted list, and each key begins with its place and "_".  Call it once.
  void sort(const PackOrder& order, std::size_t most_key_bytes);
  /// Throws Error if an item has no label.
  void need_labels() const;
  /// Returns a number that changes if the keys, sizes or sources change.  Different paths of one source have
  /// the same number.
  std::uint64_t fingerprint() const;
  /// Sets `out` to the contents of an item.  Any thread.
  void read(const PackItem& item, std::string& out) const;

 private:
  void list_directory(const std::string& path, std::span<const std::string> own);
  void list_archive(const std::string& path);
  void add(PackItem item, std::string_view name);
  std::string shown(const PackItem& item) const;

  std::vector<std::string> paths_;
  std::vector<UniqueFd> archives_;
  UniqueFd directory_;
  std::vector<PackItem> items_;
  std::vector<std::string> left_out_;
};

}  // namespace lmdbio::files
