#include "lmdbio/files/tree_writer.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "lmdbio/files/output.h"

namespace lmdbio::files {

namespace {

bool is_full(int error) noexcept {
  return error == ENOSPC || error == EDQUOT || error == EIO || error == EROFS || error == ENOMEM ||
         error == EMFILE || error == ENFILE;
}

TreeWriter::Outcome failed(int error, std::string_view path) {
  const char* const text = error == EEXIST    ? "exists already"
                           : error == ENOTDIR ? "a file, or a symbolic link, where a directory is needed"
                           : error == EFAULT  ? "the value cannot be read"
                                              : ::strerrordesc_np(error);
  return {error, is_full(error),
          std::string(path).append(": ").append(text != nullptr ? text : "unknown error")};
}

}  // namespace

TreeWriter::TreeWriter(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0777) != 0 && errno != EEXIST)
    throw std::system_error(errno, std::generic_category(), directory);
  root_.reset(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root_) throw std::system_error(errno, std::generic_category(), directory);
}

int TreeWriter::enter(std::string_view part) noexcept {
  try {
    std::string name(part);
    if (::mkdirat(top(), name.c_str(), 0777) != 0 && errno != EEXIST) return errno;
    UniqueFd fd(::openat(top(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd) return errno == ELOOP ? ENOTDIR : errno;
    open_.emplace_back(std::move(name), std::move(fd));
    return 0;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

TreeWriter::Outcome TreeWriter::put(std::string_view name, std::string_view contents) {
  std::size_t depth = 0, at = 0;
  for (std::size_t slash; (slash = name.find('/', at)) != std::string_view::npos; at = slash + 1, ++depth) {
    const std::string_view part = name.substr(at, slash - at);
    if (depth < open_.size() && open_[depth].first == part) continue;
    open_.resize(std::min(depth, open_.size()));
    if (const int e = enter(part); e != 0) return failed(e, name.substr(0, slash));
  }
  open_.resize(depth);
  const std::string file(name.substr(at));
  const int fd = ::openat(top(), file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) return failed(errno, name);
  // By a stream, because fclose() returns errors that network file systems report only when a file is closed.
  std::FILE* const stream = ::fdopen(fd, "w");
  int error = stream == nullptr ? errno : write_all(fd, contents);
  if (stream == nullptr)
    (void)UniqueFd(fd);
  else if (std::fclose(stream) != 0 && error == 0)
    error = errno;
  if (error == 0) return {};
  (void)::unlinkat(top(), file.c_str(), 0);
  return failed(error, name);
}

}  // namespace lmdbio::files
