#include "lmdbio/cache/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "lmdbio/base/boot_id.h"
#include "lmdbio/cache/table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lmdbio::cache {

namespace {

constexpr std::size_t kNameLength = 32;
/// The smaller of these stays free on the file system: a part of it, and a number of bytes.
constexpr std::uint64_t kFreePart = 10, kFreeBytes = std::uint64_t{5} << 30;
constexpr std::uint64_t kBlock = 512;  ///< unit of st_blocks, in bytes

struct CloseDirectory {
  void operator()(DIR* d) const noexcept { (void)::closedir(d); }
};

bool is_name(std::string_view text) noexcept {
  return text.size() == kNameLength && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_ending(std::string_view text) noexcept {
  return text == kDataEnding || text == kTableEnding || text == kPartEnding || text.ends_with(kMapEnding) ||
         text.ends_with(".new");
}

/// Calls f(name of the image, name of the file) for each file of an image.
template <class F>
void for_each_file(int directory, F&& f) {
  const int own = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (own < 0) return;
  const std::unique_ptr<DIR, CloseDirectory> d(::fdopendir(own));
  if (d == nullptr) {
    UniqueFd(own).reset();
    return;
  }
  while (const dirent* const e = ::readdir(d.get())) {
    const std::string_view file = e->d_name;
    const std::string_view name = file.substr(0, kNameLength);
    if (is_name(name) && is_ending(file.substr(kNameLength))) f(name, e->d_name);
  }
}

// A lock of the open file description, which tells that an image is in use.  Unlike flock(2), it can be
// looked at without being taken.
struct flock use_lock(short type) noexcept {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

bool in_use(int directory, const char* map) noexcept {
  const UniqueFd fd(::openat(directory, map, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  return fd && is_in_use(fd.get());
}

void read_table(int directory, ImageFacts& f) {
  const UniqueFd table(
      ::openat(directory, (f.name + kTableEnding).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  TableHeader header;
  if (!table || !read_header(table.get(), header)) return;
  f.path = header.path;
  f.used_bytes = header.used_bytes;
  f.snapshot = header.snapshot;
  f.chunks = chunks_of(header.used_bytes);
  std::vector<TableEntry> entries(f.chunks);
  if (read_entries(table.get(), entries))
    f.chunks_there = static_cast<std::uint64_t>(
        std::count_if(entries.begin(), entries.end(), [](const TableEntry& e) { return e.bytes != 0; }));
}

// Returns a number that identifies this start of the machine.
std::uint64_t boot_number() noexcept {
  const BootId id;
  return ::XXH3_64bits(id.text().data(), id.text().size());
}

}  // namespace

std::string image_name(const std::array<std::uint64_t, 2>& state) {
  char text[kNameLength + 1];
  (void)std::snprintf(text, sizeof text, "%016lx%016lx", static_cast<unsigned long>(state[1]),
                      static_cast<unsigned long>(state[0]));
  return text;
}

std::string map_name(const std::string& image) {
  char boot[20];
  (void)std::snprintf(boot, sizeof boot, ".%016lx", static_cast<unsigned long>(boot_number()));
  return image + boot + kMapEnding;
}

bool is_in_use(int map) noexcept {
  struct flock lock = use_lock(F_WRLCK);
  return ::fcntl(map, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void mark_in_use(int map) noexcept {
  const struct flock lock = use_lock(F_RDLCK);
  (void)::fcntl(map, F_OFD_SETLK, &lock);
}

std::string Directory::path_in(const std::string& parent) {
  return parent + "/lmdbio-" + std::to_string(::geteuid());
}

Result<Directory> Directory::open(const std::string& parent, bool make) noexcept {
  try {
    std::string path = path_in(parent);
    if (make && ::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return Status::from_errno(errno);
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd) return Status::from_errno(errno);
    struct stat st;
    if (::fstat(fd.get(), &st) != 0) return Status::from_errno(errno);
    if (st.st_uid != ::geteuid() || (st.st_mode & 077) != 0) return Status::from_errno(EPERM);
    return Directory(std::move(fd), std::move(path));
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

std::vector<ImageFacts> Directory::list(bool tables) const {
  std::vector<ImageFacts> all;
  for_each_file(fd(), [&](std::string_view name, const char* file) {
    auto at = std::find_if(all.begin(), all.end(), [&](const ImageFacts& f) { return f.name == name; });
    if (at == all.end()) {
      all.emplace_back().name = name;
      at = all.end() - 1;
    }
    struct stat st;
    if (::fstatat(fd(), file, &st, AT_SYMLINK_NOFOLLOW) != 0) return;
    at->disk_bytes += static_cast<std::uint64_t>(st.st_blocks) * kBlock;
    at->used_s = std::max<std::int64_t>(at->used_s, st.st_mtim.tv_sec);
    if (std::string_view(file).ends_with(kMapEnding)) at->in_use = at->in_use || in_use(fd(), file);
  });
  if (tables)
    for (ImageFacts& f : all) read_table(fd(), f);
  std::sort(all.begin(), all.end(),
            [](const ImageFacts& a, const ImageFacts& b) { return a.used_s < b.used_s; });
  return all;
}

// The map goes first, so that an open never finds a map that describes another image.  The data goes last: a
// table without data is damaged, unless it was removed.
void Directory::remove(const std::string& name) const noexcept {
  try {
    std::vector<std::string> files;
    for_each_file(fd(), [&](std::string_view of, const char* file) {
      if (of == name) files.emplace_back(file);
    });
    const auto rank = [](const std::string& file) {
      return file.ends_with(kMapEnding) ? 0 : file.ends_with(kDataEnding) ? 2 : 1;
    };
    std::sort(files.begin(), files.end(),
              [&](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
    for (const std::string& file : files) (void)::unlinkat(fd(), file.c_str(), 0);
  } catch (...) {  // out of memory: the next one removes it
  }
}

Space Directory::space(const std::vector<ImageFacts>& images, std::uint64_t limit) const noexcept {
  Space s;
  struct statvfs fs;
  if (::fstatvfs(fd(), &fs) != 0) return s;
  for (const ImageFacts& f : images) s.used += f.disk_bytes;
  s.free = fs.f_bavail * fs.f_frsize;
  s.stays_free = std::min(fs.f_blocks * fs.f_frsize / kFreePart, kFreeBytes);
  s.limit = limit != 0 ? limit : (s.free + s.used) / 2;
  return s;
}

std::uint64_t Directory::room_for(const std::string& own, std::uint64_t wanted, std::uint64_t limit) const {
  const std::vector<ImageFacts> all = list(false);
  Space s = space(all, limit);
  std::uint64_t used_by_own = 0;
  for (const ImageFacts& f : all)
    if (f.name == own) used_by_own = f.disk_bytes;
  const auto room = [&]() {
    const std::uint64_t on_disk = s.free > s.stays_free ? s.free - s.stays_free : 0;
    const std::uint64_t by_limit = s.limit > s.used ? s.limit - s.used : 0;
    return used_by_own + std::min(on_disk, by_limit);
  };
  for (const ImageFacts& f : all) {
    if (room() >= wanted) break;
    if (f.name == own || f.in_use) continue;
    remove(f.name);
    s.free += f.disk_bytes;
    s.used -= f.disk_bytes;
  }
  return room();
}

}  // namespace lmdbio::cache
