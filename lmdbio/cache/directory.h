// The directory of the cache on local disk: its images, their sizes, and which of them is removed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lmdbio/base/result.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/cache/image_format.h"

namespace lmdbio::cache {

/// The name of an image: 32 hexadecimal digits, from content_state() of the database.
std::string image_name(const std::array<std::uint64_t, 2>& state);

/// The files of an image have its name and one of these endings.
inline constexpr const char kDataEnding[] = ".data", kTableEnding[] = ".table", kMapEnding[] = ".map",
                            kPartEnding[] = ".part";

/// Returns the name of the map of an image, which also has the number of the boot: NAME.BOOT.map.
std::string map_name(const std::string& image);

/// Marks the image of an open map as in use, until the descriptor and its duplicates are closed.
void mark_in_use(int map) noexcept;
/// Returns whether another open description of the map is marked.
bool is_in_use(int map) noexcept;

/// Facts about an image, for commands and for removal.
struct ImageFacts {
  std::string name;
  std::string path;              ///< of the database, as it was when the image was made; empty: not known
  std::uint64_t used_bytes = 0;  ///< of the database
  std::uint64_t snapshot = 0;
  std::uint64_t chunks = 0, chunks_there = 0;
  std::uint64_t disk_bytes = 0;  ///< that the files take
  std::int64_t used_s = 0;       ///< time of the last open, in seconds since 1970
  bool in_use = false;           ///< some process has it open
};

/// The disk space of the cache, in bytes.  All zeros: not known.
struct Space {
  std::uint64_t used = 0;        ///< by images
  std::uint64_t limit = 0;       ///< for all images
  std::uint64_t free = 0;        ///< on the file system, for this user
  std::uint64_t stays_free = 0;  ///< of `free`, not for images
};

/// The directory "lmdbio-UID" in the directory that the user has named.  It belongs to the user, has mode
/// 0700, and is no link.  Only files with names of images are ever removed from it.  One thread at a time;
/// the descriptor is in the table of the thread that opened it.
class Directory {
 public:
  /// Opens the directory.  `make`: makes it if `parent` exists.  Errors: EPERM if it belongs to another user
  /// or other users may use it, ENOTDIR or ELOOP if it is not a directory, others as open(2) and mkdir(2).
  static Result<Directory> open(const std::string& parent, bool make) noexcept;
  /// Returns the path that open() opens.  May throw bad_alloc.
  static std::string path_in(const std::string& parent);
  int fd() const noexcept { return fd_.get(); }
  const std::string& path() const noexcept { return path_; }

  /// Lists the images, sorted by the time of their last open, the oldest first.  Without `tables`, only the
  /// names, sizes, times and uses are set.  May throw bad_alloc.
  std::vector<ImageFacts> list(bool tables) const;
  /// Removes the files of an image.  Processes that have it open can go on using it.
  void remove(const std::string& name) const noexcept;
  /// Returns the space that these images, from list(), take and may take.  `limit`: LMDBIO_CACHE_SIZE, or 0.
  Space space(const std::vector<ImageFacts>& images, std::uint64_t limit) const noexcept;
  /// Returns how many bytes the image `own` may have in all, and removes images that nobody has open if it
  /// may not have `wanted`.  `limit`: LMDBIO_CACHE_SIZE, or 0.  May throw bad_alloc.
  std::uint64_t room_for(const std::string& own, std::uint64_t wanted, std::uint64_t limit) const;

 private:
  Directory(UniqueFd fd, std::string path) noexcept : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
};

}  // namespace lmdbio::cache
