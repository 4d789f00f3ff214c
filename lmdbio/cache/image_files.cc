// Opens and makes the files of an image.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "lmdbio/base/config.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/cache/file_bytes.h"
#include "lmdbio/cache/image_process.h"
#include "lmdbio/cache/table.h"

namespace lmdbio::cache {

namespace {

constexpr unsigned kMostDecoders = 4;

Status last_error() noexcept { return Status::from_errno(errno != 0 ? errno : EIO); }

/// Returns a name for a file that is being made.  No other process has it, not even in another PID namespace.
std::string fresh_name(const std::string& image) {
  static constinit std::atomic<unsigned> made{0};
  return image + "." + std::to_string(::getpid()) + "." + std::to_string(now_ns()) + "." +
         std::to_string(made++) + ".new";
}

/// Gives the new file `from` the name `to`, if no file has that name.
void give_name(int directory, const std::string& from, const std::string& to) noexcept {
  (void)::linkat(directory, from.c_str(), directory, to.c_str(), 0);
  (void)::unlinkat(directory, from.c_str(), 0);
}

UniqueFd open_in(int directory, const std::string& file, int flags) noexcept {
  return UniqueFd(::openat(directory, file.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600));
}

}  // namespace

Status Image::InProcess::open(bool make) noexcept {
  Result<Directory> opened = Directory::open(config().cache_dir, make);
  if (!opened) return opened.error();
  directory.emplace(std::move(opened).value());
  struct stat st;
  if (::fstat(directory->fd(), &st) != 0) return last_error();
  if (st.st_dev == image->state_.file->identity().dev) return Status::from_errno(EXDEV);
  try {
    const std::string file = image->name_ + kDataEnding;
    data = open_in(directory->fd(), file, O_RDWR | (make ? O_CREAT : 0));
    if (!data || ::fstat(data.get(), &st) != 0) return last_error();
    numbers.data_number = file_number(data.get());
    numbers.chunks = image->chunks_;
    std::memcpy(numbers.magic, MapHeader::kMagic, sizeof numbers.magic);
    if (make) {
      image->identity_ = {static_cast<std::uint64_t>(st.st_dev), st.st_ino, 0, 0};
      image->path_ = directory->path() + "/" + file;
    } else if (st.st_dev != image->identity_.dev ||
               numbers.data_number != image->in_process_.load()->numbers.data_number) {
      return Status::from_errno(ESTALE);
    }
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
  const Status opened_table = open_table(make ? image->wanted_recipe() : nullptr);
  return opened_table.raw() == ENOENT ? Status() : opened_table;  // the filler makes the table
}

Status Image::InProcess::open_table(const Recipe* recipe) noexcept {
  try {
    const int at = directory->fd();
    const std::string name = image->name_ + kTableEnding;
    TableHeader header{};
    bool good = false;
    for (int tries = 0; tries < 2 && !good; ++tries) {
      table = open_in(at, name, O_RDWR);
      good = table && read_header(table.get(), header) && header.data_number == numbers.data_number &&
             header.used_bytes == image->state_.used_bytes && recipe_of(header).valid() &&
             built_in(recipe_of(header).codec) && has_size(recipe_of(header), false);
      if (good) break;
      if (recipe == nullptr) return Status::from_errno(ENOENT);
      if (table) (void)::unlinkat(at, name.c_str(), 0);
      const std::string fresh = fresh_name(image->name_);
      const UniqueFd made = open_in(at, fresh, O_RDWR | O_CREAT | O_EXCL);
      header = {};
      header.data_number = numbers.data_number;
      header.used_bytes = image->state_.used_bytes;
      header.snapshot = image->state_.snapshot;
      header.page_bytes = static_cast<std::uint32_t>(image->state_.page_bytes);
      header.codec = static_cast<std::uint8_t>(recipe->codec);
      header.filter = static_cast<std::uint8_t>(recipe->filter.kind);
      header.filter_width = recipe->filter.width;
      (void)std::snprintf(header.path, sizeof header.path, "%s", image->state_.path.c_str());
      if (!made || !write_header(made.get(), header) || !has_size(*recipe, true)) {
        const Status failed = last_error();
        (void)::unlinkat(at, fresh.c_str(), 0);
        return failed;
      }
      give_name(at, fresh, name);
    }
    if (!good) return Status::from_errno(EAGAIN);
    numbers.table_number = file_number(table.get());
    if (recipe_of(header).codec != Codec::raw) {
      part = open_in(at, image->name_ + kPartEnding, O_RDWR | O_CREAT);
      if (!part) return last_error();
      numbers.part_number = file_number(part.get());
    }
    const std::string map_file = map_name(image->name_);
    if (!image->ready_.load()) {
      image->recipe_ = recipe_of(header);
      return open_map(map_file);
    }
    // In a forked child, the image may have been made anew.
    if (std::memcmp(&numbers, &image->in_process_.load()->numbers, sizeof numbers) != 0)
      return Status::from_errno(ESTALE);
    map = open_in(at, map_file, O_RDWR);  // a forked child has inherited the mapping
    if (map) mark_in_use(map.get());
    return {};
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

void Image::InProcess::remove_plain(std::uint64_t chunk) const noexcept {
  if (part)  // nobody maps this file
    (void)::fallocate(part.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      static_cast<off_t>(chunk * kChunkBytes), static_cast<off_t>(kChunkBytes));
}

bool Image::InProcess::try_lock_choice() const noexcept {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  return ::fcntl(data.get(), F_OFD_SETLK, &lock) == 0 || (errno != EAGAIN && errno != EACCES);
}

void Image::InProcess::unlock_choice() const noexcept {
  struct flock lock = {};
  lock.l_type = F_UNLCK;
  (void)::fcntl(data.get(), F_OFD_SETLK, &lock);
}

bool Image::InProcess::has_entry(std::uint64_t chunk) const noexcept {
  TableEntry entry;
  return read_entry(table.get(), chunk, entry) && image->may_be(chunk, entry);
}

// Returns whether the data file has the size for this recipe.  `make`: makes it so long.  A file with a table
// that is shorter was damaged: what it lacks would be read as zeros.
bool Image::InProcess::has_size(Recipe recipe, bool make) const noexcept {
  const auto bytes = static_cast<off_t>(image->chunks_ * pitch_of(recipe));
  struct stat st;
  if (::fstat(data.get(), &st) != 0) return false;
  return st.st_size >= bytes || (make && ::ftruncate(data.get(), bytes) == 0);
}

// Maps the map of this boot.  The first process of a boot makes it from the table.
Status Image::InProcess::open_map(const std::string& name) noexcept {
  const int at = directory->fd();
  const std::uint64_t chunks = image->chunks_;
  const std::size_t bytes = units_at(chunks, chunks);
  for (int tries = 0; tries < 2; ++tries) {
    map = open_in(at, name, O_RDWR);
    if (!map) {
      const std::string fresh = fresh_name(image->name_);
      const UniqueFd fd = open_in(at, fresh, O_RDWR | O_CREAT | O_EXCL);
      if (!fd) return last_error();
      std::vector<TableEntry> entries(chunks);
      std::vector<std::byte> states(chunks);
      // Without its blocks on disk, an access to the mapping could raise SIGBUS.
      int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
      if (error == 0 && !read_entries(table.get(), entries)) error = EIO;
      for (std::uint64_t c = 0; c < chunks; ++c)
        if (image->may_be(c, entries[c])) states[c] = static_cast<std::byte>(ChunkState::unverified);
      if (error == 0 && !(write_all(fd.get(), sizeof numbers, states) &&
                          write_all(fd.get(), 0, std::as_bytes(std::span(&numbers, 1)))))
        error = errno != 0 ? errno : EIO;
      if (error != 0) {
        (void)::unlinkat(at, fresh.c_str(), 0);
        return Status::from_errno(error);
      }
      give_name(at, fresh, name);
      map = open_in(at, name, O_RDWR);
      if (!map) return last_error();
    }
    mark_in_use(map.get());
    const bool alone = !is_in_use(map.get());
    struct stat st;
    MapHeader header;
    if (::fstat(map.get(), &st) == 0 && static_cast<std::size_t>(st.st_size) >= bytes &&
        read_all(map.get(), 0, std::as_writable_bytes(std::span(&header, 1))) &&
        std::memcmp(&header, &numbers, sizeof header) == 0) {
      void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, map.get(), 0);
      if (mapped == MAP_FAILED) return last_error();
      image->map_ = Mapping(mapped, bytes);
      (void)::futimens(map.get(), nullptr);                  // the time of the last open
      for (std::uint64_t c = 0; alone && c < chunks; ++c) {  // processes were killed
        unsigned char state = kCompleting;
        (void)image->state_of(c).compare_exchange_strong(state, has_entry(c) ? kUnverified : kMissing);
      }
      image->ready_.store(true, std::memory_order_release);
      return {};
    }
    (void)::unlinkat(at, name.c_str(), 0);  // it belongs to files that were removed
  }
  return Status::from_errno(EAGAIN);
}

unsigned Image::InProcess::most_decoders() noexcept {
  static const unsigned most = [] {
    cpu_set_t cpus;
    const int n = ::sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 2;
    return std::clamp(static_cast<unsigned>(n), 1u, kMostDecoders);
  }();
  return most;
}

std::unique_ptr<Image::InProcess::Decoder> Image::InProcess::take_decoder() noexcept {
  {
    std::unique_lock lock(mutex);
    free_.wait(lock, [this]() noexcept { return in_use_ < most_decoders(); });
    ++in_use_;
    if (!decoders_.empty()) {
      std::unique_ptr<Decoder> taken = std::move(decoders_.back());
      decoders_.pop_back();
      return taken;
    }
  }
  std::unique_ptr<Decoder> made(new (std::nothrow) Decoder);
  if (made != nullptr) {
    made->stored.reset(new (std::nothrow) std::byte[kFrameBytes]);
    made->plain.reset(new (std::nothrow) std::byte[kFrameBytes]);
  }
  if (made != nullptr && made->stored != nullptr && made->plain != nullptr) return made;
  give_back(nullptr);
  return nullptr;
}

void Image::InProcess::give_back(std::unique_ptr<Decoder> decoder) noexcept {
  {
    const std::lock_guard lock(mutex);
    --in_use_;
    try {
      if (decoder != nullptr) decoders_.push_back(std::move(decoder));
    } catch (...) {  // the next thread makes one
    }
  }
  free_.notify_one();
}

}  // namespace lmdbio::cache
