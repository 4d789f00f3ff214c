// A database as a read-only file system, over libfuse's low-level interface.
#pragma once

#include <fuse_lowlevel.h>
#include <sys/stat.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lmdbio/files/value_part.h"
#include "lmdbio/fuse/naming.h"
#include "lmdbio/fuse/node_table.h"
#include "lmdbio/fuse/snapshot.h"

namespace lmdbio::fuse {

/// Answers the kernel's requests.  Directories are prefixes of keys: each is found by one search.  Nothing
/// changes while it is mounted, so the kernel may keep everything.  Files are not opened: the kernel reads by
/// number.  libfuse's threads call it.
class FileSystem {
 public:
  struct Options {
    std::string suffix;
    Names names = Names::text;
    files::ValuePart part = files::ValuePart::raw;
  };

  /// Both outlive this object.  Throws files::Error if the database cannot be shown with these names.
  FileSystem(Snapshot& snapshot, const Options& options);
  ~FileSystem();
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;

  /// The operations for fuse_session_new(), whose user data is the FileSystem.
  static const fuse_lowlevel_ops& operations() noexcept;

  void lookup(fuse_req_t request, fuse_ino_t parent, const char* name);
  void get_attributes(fuse_req_t request, fuse_ino_t number);
  void read(fuse_req_t request, fuse_ino_t number, std::size_t size, off_t offset);
  void open_directory(fuse_req_t request, fuse_ino_t number, fuse_file_info* info);
  void read_directory(fuse_req_t request, std::size_t size, off_t offset, fuse_file_info* info, bool plus);
  void close_directory(const fuse_file_info* info) noexcept;
  void status(fuse_req_t request);
  void forget(std::uint64_t number, std::uint64_t uses) noexcept { nodes_.forget(number, uses); }

 private:
  struct Found {
    int error = 0;  ///< 0, ENOENT or EIO
    bool is_directory = false;
    std::uint32_t size = 0;
  };
  struct Directory;
  struct EntryBuffer {
    std::vector<char> bytes;
    std::size_t used = 0;
  };

  Found find(View& view, const std::string& path);
  bool is_directory(View& view, const std::string& path, int& error);
  int size_of(View& view, std::string_view key, std::string_view value, std::uint32_t& size);
  int fill(fuse_req_t request, Directory& d, off_t offset, bool plus, EntryBuffer& out);
  int next_entry(View& view, Directory& d, std::string& name, Found& found);
  struct stat attributes(std::string_view path, bool is_directory, std::uint32_t size) const noexcept;
  bool is_record(std::string_view key, std::string_view value);

  Snapshot& snapshot_;
  const Options options_;
  const Naming naming_;
  std::string like_;  ///< a key of the database
  NodeTable nodes_;
  std::mutex directories_mutex_;  // a leaf lock; guards the member below
  std::unordered_map<const Directory*, std::unique_ptr<Directory>> directories_;  ///< those that are open
};

}  // namespace lmdbio::fuse
