#include "lmdbio/files/partial.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "lmdbio/base/boot_id.h"
#include "lmdbio/files/database.h"
#include "lmdbio/files/output.h"

namespace lmdbio::files {

namespace {

namespace fs = std::filesystem;

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::string read_state(int fd) {
  char text[256];
  const ssize_t n = ::read(fd, text, sizeof text);
  return {text, n < 0 ? 0 : static_cast<std::size_t>(n)};
}

/// Returns a line that a directory keeps when it is renamed.
std::string identity(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) throw Error(path + ": " + error_text(errno));
  return std::to_string(st.st_dev) + " " + std::to_string(st.st_ino) + "\n";
}

void sync_directory(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) throw Error(path + ": " + error_text(errno));
}

[[noreturn]] void fail_existing(const std::string& path) {
  std::string text = path + ": exists already";
  if (fs::exists(path + "/data.mdb") && !fs::exists(path + "/data.mdb.lmdbio-index"))
    text += "; if only its record index is missing, \"lmdbio index " + path + "\" writes it";
  throw Error(text);
}

}  // namespace

std::array<std::string, 3> Partial::paths(const std::string& path) {
  const std::string name = without_slash(path);
  return {name, name + ".partial", name + ".partial.state"};
}

Partial::Partial(const std::string& path, std::uint64_t fingerprint)
    : path_(paths(path)[0]), directory_(paths(path)[1]), state_path_(paths(path)[2]) {
  const auto fail = [this](int error) { throw Error(state_path_ + ": " + error_text(error)); };
  const auto exists = [](const std::string& p) { return fs::exists(fs::symlink_status(p)); };
  const bool had_state = exists(state_path_);
  if (!had_state && exists(path_)) fail_existing(path_);
  if (!had_state && exists(directory_) && !fs::is_empty(directory_))
    throw Error(directory_ + ": exists, and is not of lmdbio pack");
  state_.reset(::open(state_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!state_) fail(errno);
  if (::flock(state_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) throw Error(directory_ + ": another process is packing there");
    fail(errno);
  }
  const std::string mine = std::to_string(fingerprint) + "\n", boot(BootId().text());
  const std::string before = read_state(state_.get());
  if (exists(path_)) {
    // The directory was synced before it was renamed, so the boot id does not matter.
    published_ = before.starts_with(mine) && before.ends_with("\n" + identity(path_));
    if (!published_) fail_existing(path_);
    return;
  }
  const bool made = fs::create_directory(directory_);
  if (before == mine + boot + identity(directory_)) return;
  if (!made && !before.empty() && !before.starts_with(mine))
    throw Error(directory_ +
                ": is left from packing other files, or with other options; remove it to start again");
  if (!made && before.empty() && !fs::is_empty(directory_))
    throw Error(directory_ + ": exists, and is not of lmdbio pack");
  for (const auto& entry : fs::directory_iterator(directory_)) fs::remove_all(entry.path());
  if (::ftruncate(state_.get(), 0) != 0 || ::lseek(state_.get(), 0, SEEK_SET) != 0) fail(errno);
  if (const int e = write_all(state_.get(), mine + boot + identity(directory_)); e != 0) fail(e);
}

void Partial::publish() {
  if (published_) return;
  sync_directory(directory_);
  fs::rename(directory_, path_);
  published_ = true;
  const std::string parent = fs::path(path_).parent_path().string();
  sync_directory(parent.empty() ? "." : parent);
}

void Partial::forget() { fs::remove(state_path_); }

}  // namespace lmdbio::files
