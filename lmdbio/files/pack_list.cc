#include "lmdbio/files/pack_list.h"

#include <dirent.h>
#include <fcntl.h>
#include <lmdbio/lmdbio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <iterator>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "lmdbio/base/mix.h"
#include "lmdbio/files/database.h"
#include "lmdbio/files/loader.h"
#include "lmdbio/files/names.h"
#include "lmdbio/files/tar_reader.h"

namespace lmdbio::files {

namespace {

/// The largest value of LMDB, in bytes.
constexpr std::uint64_t kMostValue = UINT32_MAX;

[[noreturn]] void fail(const std::string& path, int error) { throw Error(path + ": " + error_text(error)); }

/// Returns a number with leading zeros, so that numbers below `count` have the order of their texts.
std::string padded(std::uint64_t n, std::uint64_t count, std::size_t least) {
  const std::size_t digits = std::max(least, std::to_string(count == 0 ? 0 : count - 1).size());
  const std::string text = std::to_string(n);
  return std::string(digits - std::min(digits, text.size()), '0') + text;
}

/// What a file or directory is, whatever its path.
struct Identity {
  dev_t device;
  ino_t inode;
  friend bool operator==(const Identity&, const Identity&) = default;
};

struct CloseDirectory {
  void operator()(DIR* d) const noexcept { (void)::closedir(d); }
};

/// Calls body(i) for each i < n, by several threads.  body() must not throw.  May throw bad_alloc.
template <class Body>
void by_threads(std::size_t n, const Body& body) {
  std::atomic<std::size_t> next = 0;
  const auto run = [&] {
    for (std::size_t i; (i = next.fetch_add(1)) < n;) body(i);
  };
  std::vector<std::jthread> threads;
  try {
    while (threads.size() + 1 < std::min<std::size_t>(n, Loader::kThreads)) threads.emplace_back(run);
  } catch (const std::system_error&) {  // with fewer threads
  }
  run();
}

/// Lists a directory tree: the directories of one depth at a time, by several threads, because each entry is
/// a request on network storage.
class TreeLister {
 public:
  TreeLister(const std::string& top, int fd, std::span<const std::string> own,
             std::vector<std::string>& left_out)
      : top_(top), fd_(fd), left_out_(left_out) {
    struct stat st {};
    for (const std::string& path : own)
      if (::stat(path.c_str(), &st) == 0) own_.push_back({st.st_dev, st.st_ino});
  }

  /// Calls `found` with the name and the size of each file.
  template <class Found>
  void list(const Found& found) {
    for (std::vector<Directory> level(1), below; !level.empty(); level = std::exchange(below, {})) {
      by_threads(level.size(), [&](std::size_t i) {
        try {
          read(level[i]);
        } catch (...) {
          level[i].failure = std::current_exception();
        }
      });
      for (Directory& d : level) {
        if (d.failure != nullptr) std::rethrow_exception(d.failure);
        for (File& f : d.files) found(std::move(f.name), f.size);
        std::move(d.left_out.begin(), d.left_out.end(), std::back_inserter(left_out_));
        std::move(d.directories.begin(), d.directories.end(), std::back_inserter(below));
        d = {};
      }
    }
  }

 private:
  struct File {
    std::string name;
    std::uint64_t size;
  };
  struct Directory {
    std::string name;
    std::vector<Identity> above;  ///< the directories from the top to this one
    std::vector<File> files;
    std::vector<Directory> directories;
    std::vector<std::string> left_out;
    std::exception_ptr failure;
  };

  void read(Directory& d) const {
    const std::string path = top_ + "/" + d.name;
    const int opened =
        ::openat(fd_, d.name.empty() ? "." : d.name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0) fail(path, errno);
    const std::unique_ptr<DIR, CloseDirectory> dir(::fdopendir(opened));
    if (dir == nullptr) fail(path, errno);
    struct stat st {};
    if (::fstat(opened, &st) != 0) fail(path, errno);
    const Identity self{st.st_dev, st.st_ino};
    if (std::find(d.above.begin(), d.above.end(), self) != d.above.end())
      throw Error(path + ": a symbolic link to a directory above it");
    d.above.push_back(self);
    for (;;) {
      errno = 0;
      const dirent* const e = ::readdir(dir.get());
      if (e == nullptr && errno != 0) fail(path, errno);
      if (e == nullptr) return;
      const std::string_view part = e->d_name;
      if (part == "." || part == "..") continue;
      std::string child = d.name.empty() ? std::string(part) : d.name + "/" + std::string(part);
      if (::fstatat(opened, e->d_name, &st, 0) != 0) {
        const int error = errno;
        if (::fstatat(opened, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISLNK(st.st_mode) ||
            (error != ENOENT && error != ELOOP))
          fail(top_ + "/" + child, error);
        d.left_out.push_back(top_ + "/" + child + ": a symbolic link to nothing");
        continue;
      }
      if (std::find(own_.begin(), own_.end(), Identity{st.st_dev, st.st_ino}) != own_.end()) continue;
      if (S_ISDIR(st.st_mode))
        d.directories.push_back({std::move(child), d.above, {}, {}, {}, {}});
      else if (S_ISREG(st.st_mode))
        d.files.push_back({std::move(child), static_cast<std::uint64_t>(st.st_size)});
      else
        d.left_out.push_back(top_ + "/" + child + ": not a regular file");
    }
  }

  const std::string& top_;
  const int fd_;
  std::vector<std::string>& left_out_;
  std::vector<Identity> own_;
};

}  // namespace

PackList::PackList(const std::vector<std::string>& sources, std::span<const std::string> own) {
  struct stat st {};
  for (const std::string& path : sources) {
    if (::stat(path.c_str(), &st) != 0) fail(path, errno);
    if (S_ISDIR(st.st_mode) && sources.size() > 1) throw Error(path + ": a directory is packed alone");
    if (S_ISDIR(st.st_mode))
      list_directory(path, own);
    else if (S_ISREG(st.st_mode))
      list_archive(path);
    else
      throw Error(path + ": neither a directory nor a file");
  }
}

void PackList::add(PackItem item, std::string_view name) {
  item.key = key_for_file(name);
  if (item.key.empty()) throw Error(shown(item) + ": an entry without a name");
  if (item.size > kMostValue) throw Error(shown(item) + ": larger than a value of LMDB can be (4 GiB)");
  items_.push_back(std::move(item));
}

void PackList::list_directory(const std::string& path, std::span<const std::string> own) {
  paths_.push_back(path);
  directory_.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory_) fail(path, errno);
  TreeLister(path, directory_.get(), own, left_out_).list([this](std::string name, std::uint64_t size) {
    PackItem item;
    item.name = name;
    item.size = size;
    add(std::move(item), name);
  });
}

void PackList::list_archive(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) fail(path, errno);
  paths_.push_back(path);
  const auto archive = static_cast<std::uint32_t>(archives_.size());
  archives_.push_back(std::move(fd));
  read_tar(archives_.back().get(), path, [&](TarEntry e) {
    if (e.is_directory()) return;
    if (!e.is_file()) {
      left_out_.push_back(
          path + ": " + e.name +
          (e.is_sparse() ? ": a sparse file, which is not supported" : ": not a regular file"));
      return;
    }
    PackItem item;
    item.archive = archive;
    item.offset = e.offset;
    item.size = e.size;
    add(std::move(item), e.name);
  });
}

std::string PackList::shown(const PackItem& item) const {
  return paths_[directory_ ? 0 : item.archive] + (directory_ ? "/" + item.name : ": " + item.key);
}

void PackList::sort(const PackOrder& order, std::size_t most_key_bytes) {
  std::sort(items_.begin(), items_.end(), [](const PackItem& a, const PackItem& b) { return a.key < b.key; });
  const auto same = std::adjacent_find(items_.begin(), items_.end(),
                                       [](const PackItem& a, const PackItem& b) { return a.key == b.key; });
  if (same != items_.end()) throw Error(shown(same[0]) + " and " + shown(same[1]) + ": two files of one key");
  // The items of a folder are not always neighbours: "a-b" is between "a" and "a/x".
  std::vector<std::string_view> folders;
  const auto folder_of = [](const PackItem& i) { return std::string_view(i.key).substr(0, i.key.find('/')); };
  for (const PackItem& i : items_)
    if (i.key.find('/') != std::string::npos && (folders.empty() || folders.back() != folder_of(i)))
      folders.push_back(folder_of(i));
  std::sort(folders.begin(), folders.end());
  folders.erase(std::unique(folders.begin(), folders.end()), folders.end());
  for (PackItem& i : items_)
    if (i.key.find('/') != std::string::npos)
      i.label = static_cast<std::uint32_t>(std::lower_bound(folders.begin(), folders.end(), folder_of(i)) -
                                           folders.begin());
  const std::size_t classes = folders.size();
  folders.clear();  // they point into keys
  if (order.labels_in_keys) {
    need_labels();
    for (PackItem& i : items_) i.key = padded(i.label, classes, 1) + "_" + i.key;
    std::sort(items_.begin(), items_.end(),
              [](const PackItem& a, const PackItem& b) { return a.key < b.key; });
  }
  if (order.shuffled) {
    std::vector<PackItem> shuffled(items_.size());
    for (std::uint64_t i = 0; i < items_.size(); ++i) {
      shuffled[i] = std::move(items_[lmdbio_shuffle(order.seed, 0, items_.size(), i)]);
      shuffled[i].key = padded(i, items_.size(), 8) + "_" + shuffled[i].key;
    }
    items_ = std::move(shuffled);
  }
  for (const PackItem& i : items_)
    if (i.key.size() > most_key_bytes)
      throw Error(shown(i) + ": its key has " + std::to_string(i.key.size()) + " bytes; LMDB allows " +
                  std::to_string(most_key_bytes));
}

void PackList::need_labels() const {
  for (const PackItem& i : items_)
    if (i.label == PackItem::kNoLabel) throw Error(shown(i) + ": in no folder, so it has no label");
}

std::uint64_t PackList::fingerprint() const {
  std::uint64_t sum = items_.size();
  const auto add = [&sum](std::uint64_t n) { sum = mix(sum ^ n); };
  const auto add_text = [&add](std::string_view text) {
    add(text.size());
    for (std::size_t i = 0; i < text.size(); i += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      ::memcpy(&word, text.data() + i, std::min(sizeof word, text.size() - i));
      add(word);
    }
  };
  for (const std::string& p : paths_) add_text(std::filesystem::canonical(p).native());
  for (const PackItem& i : items_) {
    add_text(i.key);
    add(i.size);
    add(i.offset);
    add(i.archive);
  }
  return sum;
}

void PackList::read(const PackItem& item, std::string& out) const {
  UniqueFd opened;
  std::uint64_t size = item.size;
  int fd = directory_ ? -1 : archives_[item.archive].get();
  if (directory_) {
    opened.reset(::openat(directory_.get(), item.name.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat st {};
    if (!opened || ::fstat(opened.get(), &st) != 0) fail(shown(item), errno);
    fd = opened.get();
    size = static_cast<std::uint64_t>(st.st_size);
    if (size > kMostValue) throw Error(shown(item) + ": larger than a value of LMDB can be (4 GiB)");
  }
  out.resize(static_cast<std::size_t>(size));
  const std::int64_t n = read_at(fd, item.offset, out.data(), out.size());
  if (n < 0) fail(shown(item), static_cast<int>(-n));
  if (static_cast<std::uint64_t>(n) != size) throw Error(shown(item) + ": became shorter while it was read");
}

}  // namespace lmdbio::files
