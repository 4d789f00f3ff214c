#include "lmdbio/node/chunk_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/base/file_size_signal.h"
#include "lmdbio/node/life.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

namespace lmdbio::node {

namespace {

/// One in this many files that a process makes is verified when it is linked.
constexpr unsigned kVerifyEvery = 16;

struct Text {
  char text[80];
  const char* c_str() const noexcept { return text; }
};

Text directory_name() noexcept {
  Text t;
  (void)std::snprintf(t.text, sizeof t.text, "/dev/shm/lmdbio-%u", static_cast<unsigned>(::geteuid()));
  return t;
}
Text text_of(const ChunkName& n) noexcept {
  Text t;
  (void)std::snprintf(t.text, sizeof t.text, "%016" PRIx64 "-%016" PRIx64 "%016" PRIx64 "-%08" PRIx32, n.life,
                      n.state[0], n.state[1], n.chunk);
  return t;
}
// Parses a result of text_of().  Returns nullopt for the name of any other file.
std::optional<ChunkName> parse(const char* text) noexcept {
  ChunkName n;
  if (std::sscanf(text, "%16" SCNx64 "-%16" SCNx64 "%16" SCNx64 "-%8" SCNx32, &n.life, &n.state[0],
                  &n.state[1], &n.chunk) != 4)
    return {};
  if (std::strcmp(text_of(n).c_str(), text) == 0) return n;
  return {};
}

// Opens this user's directory, which no other user may open.  Verifies it, since /dev/shm is open to
// everyone, and another user may have put something else there.
Result<UniqueFd> open_directory(bool make) noexcept {
  const Text name = directory_name();
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  UniqueFd fd(::open(name.c_str(), kFlags));
  if (!fd && errno == ENOENT && make && (::mkdir(name.c_str(), 0700) == 0 || errno == EEXIST))
    fd.reset(::open(name.c_str(), kFlags));
  if (!fd) return Status::from_errno(errno == ELOOP || errno == ENOTDIR ? EPERM : errno);
  struct stat st;
  struct statfs fs;
  if (::fstat(fd.get(), &st) != 0 || ::fstatfs(fd.get(), &fs) != 0) return Status::from_errno(errno);
  if (st.st_uid != ::geteuid() || (st.st_mode & 07777) != 0700) return Status::from_errno(EPERM);
  if (fs.f_type != TMPFS_MAGIC) return Status::from_errno(EMEDIUMTYPE);
  return fd;
}

// Removes the directory if it is empty.  A process that needs it makes it anew.
void remove_directory() noexcept { (void)::rmdir(directory_name().c_str()); }

// The room in /dev/shm.  Programs get a signal if /dev/shm is full.
struct Room {
  std::uint64_t total = 0, used = 0;  ///< in bytes, of all users; total 0: no limit
  bool is_small() const noexcept { return total != 0 && total < kLeastSharedMemory; }
  bool has(std::uint64_t more) const noexcept {
    return total == 0 || (!is_small() && used + more <= total / 4);
  }
};
Room room_of(const struct statfs& fs) noexcept {
  const auto block = static_cast<std::uint64_t>(fs.f_bsize);
  return {fs.f_blocks * block, (fs.f_blocks - std::min(fs.f_bfree, fs.f_blocks)) * block};
}
bool has_room(int directory, std::uint64_t more) noexcept {
  struct statfs fs;
  return ::fstatfs(directory, &fs) == 0 && room_of(fs).has(more);
}

// Allocates all memory of the file.  If too little memory is left, this returns an error, whereas a later
// access would raise a signal.
Status allocate(int fd, const Mapping& memory) noexcept {
  const std::size_t bytes = memory.size();
  bool huge = true;
  // Write one byte to each huge page, since MADV_COLLAPSE needs a range that is not empty.  write(2) clears
  // the whole huge page at once.  It also returns an error where a store through the mapping would raise a
  // signal.  fallocate(2) is not suitable: the kernel clears its memory only at a page fault.  On a tmpfs
  // with huge=always or within_size, MADV_COLLAPSE maps this memory without clearing it.  A later page fault
  // in any mapping then clears it, even if it contains data by then (Linux 6.18).
  for (std::size_t at = 0; at < bytes && huge; at += kHugePage)
    huge = ::pwrite(fd, "", 1, static_cast<off_t>(at)) == 1;
  huge = huge && ::madvise(memory.data(), bytes, MADV_COLLAPSE) == 0;
  struct stat st;
  if (huge && ::fstat(fd, &st) == 0 && static_cast<std::uint64_t>(st.st_blocks) * 512 >= bytes) return {};
  return ::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0 ? Status() : Status::from_errno(errno);
}

// Returns the checksum of a chunk file, in the form of a modification time.  It covers 64 bytes of each 4
// KiB, at a position that differs from page to page.  It detects pages with other bytes, at 1/64 of the cost
// of reading all.
timespec checksum(const std::byte* data, std::size_t bytes) noexcept {
  constexpr std::size_t kPage = 4096, kPiece = 64;
  std::array<std::byte, kPage> pieces;
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < bytes;) {
    for (std::size_t to = 0; to < pieces.size(); to += kPiece, at += kPage)
      std::memcpy(&pieces[to], data + at + to, kPiece);
    sum = XXH3_64bits_withSeed(pieces.data(), pieces.size(), sum);
  }
  return {static_cast<time_t>(sum >> 32), static_cast<long>(sum & 0x1fff'ffff)};
}
static_assert(kHugePage % (64 * 4096) == 0, "checksum() takes 64 pages at a time");

// Maps the file at a multiple of 2 MiB.  The mapping is not inherited by forks and not dumped.
Result<Mapping> map(int fd, std::size_t bytes, int protection) noexcept {
  Result<Mapping> range = Mapping::reserve(bytes, kHugePage);
  if (!range) return range;
  std::byte* const at = range.value().data();
  if (::mmap(at, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
    return Status::from_errno(errno);
  (void)::madvise(at, bytes, MADV_DONTDUMP);
  if (::madvise(at, bytes, MADV_DONTFORK) != 0) return Status::from_errno(errno);
  return range;
}

struct Closes {
  void operator()(DIR* d) const noexcept { (void)::closedir(d); }
};

// Calls visit(descriptor of the directory, name) for each chunk file.
template <class Visit>
void visit_all(Visit&& visit) {
  // Opens no descriptor if there is no directory, which is the usual case.
  if (::access(directory_name().c_str(), F_OK) != 0) return;
  Result<UniqueFd> directory = open_directory(false);
  if (!directory) return;
  const int fd = directory.value().release();
  const std::unique_ptr<DIR, Closes> list(::fdopendir(fd));
  if (list == nullptr) {
    UniqueFd(fd).reset();
    return;
  }
  while (const dirent* const entry = ::readdir(list.get()))
    if (const auto name = parse(entry->d_name); name) visit(fd, *name);
}

}  // namespace

Result<UnnamedChunk> make_chunk_file(std::size_t bytes) noexcept {
  const Result<UniqueFd> directory = open_directory(true);
  if (!directory) return directory.error();
  const int in = directory.value().get();
  if (!has_room(in, bytes)) return Status::from_errno(ENOSPC);
  const NoFileSizeSignal limited;
  UnnamedChunk made;
  made.fd.reset(::openat(in, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!made.fd || ::ftruncate(made.fd.get(), static_cast<off_t>(bytes)) != 0)
    return Status::from_errno(errno);
  Result<Mapping> memory = map(made.fd.get(), bytes, PROT_READ | PROT_WRITE);
  if (!memory) return memory.error();
  made.memory = std::move(memory).value();
  if (const Status st = allocate(made.fd.get(), made.memory); !st.ok()) return st;
  if (!has_room(in, 0)) return Status::from_errno(ENOSPC);  // other processes made files at the same time
  return made;
}

ChunkRoom chunk_room() noexcept {
  struct statfs fs;
  if (::statfs(directory_name().c_str(), &fs) != 0) return {};
  const Room room = room_of(fs);
  if (room.total == 0) return {~std::uint64_t{}, false};
  const std::uint64_t ahead = room.is_small() ? 0 : room.total / 16 * 3;
  return {ahead - std::min(room.used, ahead), room.used > room.total / 2};
}

Status link_chunk_file(const UniqueFd& fd, const ChunkName& name, Bytes memory) noexcept {
  const Result<UniqueFd> directory = open_directory(true);
  if (!directory) return directory.error();
  const timespec times[2] = {{0, UTIME_OMIT}, checksum(memory.data(), memory.size())};
  if (::fchmod(fd.get(), 0400) != 0 || ::futimens(fd.get(), times) != 0) return Status::from_errno(errno);
  // Not /proc/self: this thread may have a descriptor table of its own.
  char from[64];
  (void)std::snprintf(from, sizeof from, "/proc/thread-self/fd/%d", fd.get());
  if (::linkat(AT_FDCWD, from, directory.value().get(), text_of(name).c_str(), AT_SYMLINK_FOLLOW) != 0)
    return Status::from_errno(errno);
  // Check the first file, and some of the later files, as another process will see them.
  static constinit std::atomic<unsigned> linked{0};
  if (linked.fetch_add(1, std::memory_order_relaxed) % kVerifyEvery != 0) return {};
  const Result<Mapping> seen = open_chunk_file(name, memory.size());
  if (seen || seen.error().raw() != EBADMSG) return {};
  (void)unlink_chunk_file(name);
  return seen.error();
}

Result<Mapping> open_chunk_file(const ChunkName& name, std::size_t bytes) noexcept {
  const Result<UniqueFd> directory = open_directory(false);
  if (!directory) return directory.error();
  const UniqueFd fd(::openat(directory.value().get(), text_of(name).c_str(),
                             O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return Status::from_errno(errno);
  struct stat st;
  if (::fstat(fd.get(), &st) != 0) return Status::from_errno(errno);
  if (!S_ISREG(st.st_mode) || st.st_uid != ::geteuid() || static_cast<std::uint64_t>(st.st_size) != bytes ||
      static_cast<std::uint64_t>(st.st_blocks) * 512 < bytes)
    return Status::from_errno(ENOENT);
  Result<Mapping> mapped = map(fd.get(), bytes, PROT_READ);
  if (!mapped) return mapped;
  const timespec sum = checksum(mapped.value().data(), bytes);
  if (sum.tv_sec != st.st_mtim.tv_sec || sum.tv_nsec != st.st_mtim.tv_nsec)
    return Status::from_errno(EBADMSG);
  return mapped;
}

Status unlink_chunk_file(const ChunkName& name) noexcept {
  char path[sizeof(Text) * 2];
  (void)std::snprintf(path, sizeof path, "%s/%s", directory_name().c_str(), text_of(name).c_str());
  return ::unlink(path) == 0 ? Status() : Status::from_errno(errno);
}

std::vector<ListedChunk> list_chunk_files() {
  std::vector<ListedChunk> found;
  visit_all([&](int directory, const ChunkName& name) {
    struct stat st;
    if (::fstatat(directory, text_of(name).c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return;
    found.push_back({name, static_cast<std::uint64_t>(st.st_blocks) * 512, !lives(name.life)});
  });
  return found;
}

std::size_t remove_dead_chunk_files() noexcept {
  std::size_t removed = 0;
  std::uint64_t living = 0;  // most files belong to few processes
  visit_all([&](int directory, const ChunkName& name) noexcept {
    if (name.life == living) return;
    if (lives(name.life))
      living = name.life;
    else if (::unlinkat(directory, text_of(name).c_str(), 0) == 0)
      ++removed;
  });
  remove_directory();
  return removed;
}

void remove_chunk_files_of(std::uint64_t life) noexcept {
  visit_all([&](int directory, const ChunkName& name) noexcept {
    if (name.life == life) (void)::unlinkat(directory, text_of(name).c_str(), 0);
  });
  remove_directory();
}

}  // namespace lmdbio::node
