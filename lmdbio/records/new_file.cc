#include "lmdbio/records/new_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string_view>

#include "lmdbio/base/futex.h"
#include "lmdbio/base/mix.h"

namespace lmdbio::records {
namespace {

/// A temporary name consists of the name of the file, a period, and this many letters or digits.
constexpr std::size_t kRandom = 6;
/// Maximum number of temporary names to try.
constexpr std::uint64_t kTries = 100;
/// A temporary file that is older than this, in seconds, was left by a killed process.  Other temporary files
/// exist only for a short time.
constexpr ::time_t kAbandoned = 3600;

struct CloseDirectory {
  void operator()(DIR* d) const noexcept { (void)::closedir(d); }
};

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

NewFile::~NewFile() {
  if (named()) (void)::unlink(name_.c_str());
}

Status NewFile::make_unnamed() {
  fd_.reset(::open(directory_of(path_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, S_IRUSR | S_IWUSR));
  return fd_ ? Status() : Status::from_errno(errno);
}

Status NewFile::make_named() {
  std::string name = path_ + "." + std::string(kRandom, 'X');
  fd_.reset(::mkostemp(name.data(), O_CLOEXEC));
  if (!fd_) return Status::from_errno(errno);
  name_ = std::move(name);
  return {};
}

void NewFile::remove_abandoned() const {
  struct stat made;
  if (::fstat(fd(), &made) != 0) return;
  const std::string name = path_.substr(path_.rfind('/') + 1) + ".";
  const std::unique_ptr<DIR, CloseDirectory> directory(::opendir(directory_of(path_).c_str()));
  if (directory == nullptr) return;
  const int in = ::dirfd(directory.get());
  while (const dirent* const entry = ::readdir(directory.get())) {
    const std::string_view found = entry->d_name;
    if (found.size() != name.size() + kRandom || found.substr(0, name.size()) != name) continue;
    if (!std::all_of(found.begin() + static_cast<std::ptrdiff_t>(name.size()), found.end(),
                     [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }))
      continue;
    struct stat st;
    // Both times come from the file system's clock, which may be that of another machine.
    if (::fstatat(in, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
        st.st_mtime + kAbandoned < made.st_mtime)
      (void)::unlinkat(in, entry->d_name, 0);
  }
}

// Gives the file the name `name`.
bool NewFile::link(const std::string& name) const noexcept {
  char proc[32];
  (void)std::snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd());
  return ::linkat(AT_FDCWD, proc, AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

Status NewFile::replace() {
  bool linked = !named() && link(path_);
  for (std::uint64_t n = 0; !linked && !named(); ++n) {
    if (errno != EEXIST || n == kTries) return Status::from_errno(errno);
    char random[kRandom + 1];
    const std::uint64_t seed = static_cast<std::uint64_t>(now_ns()) + n;
    (void)std::snprintf(random, sizeof random, "%06x", static_cast<unsigned>(mix(seed) & 0xffffff));
    std::string name = path_ + "." + random;
    if (link(name)) name_ = std::move(name);
  }
  if (!linked) {
    if (::rename(name_.c_str(), path_.c_str()) != 0) return Status::from_errno(errno);
    name_.clear();
  }
  // Ignore errors of fsync(2): the kernel writes the directory entry later.
  const UniqueFd directory(::open(directory_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory) (void)::fsync(directory.get());
  return {};
}

}  // namespace lmdbio::records
