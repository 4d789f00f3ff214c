#include "lmdbio/files/partial.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "lmdbio/files/database.h"
#include "lmdbio/files/output.h"

namespace lmdbio::files {

namespace {

namespace fs = std::filesystem;

/// Name of a file in the directory, which has the fingerprint and the boot id.
constexpr const char* kState = "lmdbio-pack";

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::string boot_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  in >> id;
  return id;
}

std::string read_state(int fd) {
  char text[256];
  const ssize_t n = ::read(fd, text, sizeof text);
  return {text, n < 0 ? 0 : static_cast<std::size_t>(n)};
}

void sync_directory(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) throw Error(path + ": " + ::strerrordesc_np(errno));
}

}  // namespace

Partial::Partial(const std::string& path, std::uint64_t fingerprint)
    : path_(without_slash(path)), directory_(path_ + ".partial"), state_path_(directory_ + "/" + kState) {
  const auto fail = [this](int error) { throw Error(state_path_ + ": " + ::strerrordesc_np(error)); };
  if (fs::exists(fs::symlink_status(path_))) throw Error(path_ + ": exists already");
  const bool made = fs::create_directory(directory_);
  if (!made && !fs::exists(state_path_) && !fs::is_empty(directory_))
    throw Error(directory_ + ": exists, and is not of lmdbio pack");
  state_.reset(::open(state_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!state_) fail(errno);
  if (::flock(state_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) throw Error(directory_ + ": another process is packing there");
    fail(errno);
  }
  const std::string mine = std::to_string(fingerprint) + "\n", boot = boot_id() + "\n";
  const std::string before = read_state(state_.get());
  if (before == mine + boot) return;
  if (!before.empty() && !before.starts_with(mine))
    throw Error(directory_ +
                ": is left from packing other files, or with other options; remove it to start again");
  for (const auto& entry : fs::directory_iterator(directory_))
    if (entry.path().filename() != kState) fs::remove_all(entry.path());
  if (::ftruncate(state_.get(), 0) != 0 || ::lseek(state_.get(), 0, SEEK_SET) != 0) fail(errno);
  if (const int e = write_all(state_.get(), mine + boot); e != 0) fail(e);
}

void Partial::complete() {
  fs::remove(state_path_);
  sync_directory(directory_);
  fs::rename(directory_, path_);
  const std::string parent = fs::path(path_).parent_path().string();
  sync_directory(parent.empty() ? "." : parent);
}

}  // namespace lmdbio::files
