#include "lmdbio/cache/image.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "lmdbio/base/align.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/cache/filler.h"
#include "lmdbio/cache/table.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/format/meta_view.h"
#include "lmdbio/io/content_state.h"
#include "lmdbio/io/private_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lmdbio::cache {

namespace {

/// Buffer for checksums, in bytes.
constexpr std::size_t kScratch = std::size_t{64} << 10;
/// A chunk that lacks at most this many units is completed by reading the rest from the database.
constexpr unsigned kFewUnits = kUnitsPerChunk / 32;
/// How long the last user of an image waits for what it has offered, in ns.
constexpr std::int64_t kFlushNs = 200'000'000;
/// A piece of this size has no data, but asks to complete a chunk.
constexpr std::size_t kNothing = 1;
/// Bytes written between two checks of the room.
constexpr auto kLookEvery = static_cast<std::int64_t>(16 * kChunkBytes);

/// The images of this process.  Leaked on purpose: no static destructor.
constinit SignalSafeMutex images_mutex;
constinit std::vector<std::weak_ptr<Image>>* all_images = nullptr;

constexpr auto kMissing = static_cast<unsigned char>(ChunkState::missing);
constexpr auto kThere = static_cast<unsigned char>(ChunkState::there);
constexpr auto kUnverified = static_cast<unsigned char>(ChunkState::unverified);

void log_once(const char* path, const char* why) noexcept {
  static constinit std::atomic<bool> told{false};
  if (!told.exchange(true)) log_line(LogLevel::warn, "%s: no cache on local disk: %s", path, why);
}

const char* text_of(Status st) noexcept {
  const char* const text = st.raw() > 0 ? ::strerrordesc_np(st.raw()) : nullptr;
  return text != nullptr ? text : "unknown error";
}

Status last_error() noexcept { return Status::from_errno(errno != 0 ? errno : EIO); }

bool read_all(int fd, std::uint64_t offset, MutableBytes to) noexcept {
  while (!to.empty()) {
    const ssize_t n = ::pread(fd, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to = to.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return true;
}

bool write_all(int fd, std::uint64_t offset, Bytes from) noexcept {
  while (!from.empty()) {
    const ssize_t n = ::pwrite(fd, from.data(), from.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    from = from.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return true;
}

/// Returns the checksum of a part of a file, or false if it cannot be read.
bool checksum_of(int fd, std::uint64_t offset, std::uint64_t bytes, std::uint64_t& out) noexcept {
  const std::unique_ptr<std::byte[]> scratch(new (std::nothrow) std::byte[kScratch]);
  XXH3_state_t state;
  if (scratch == nullptr || ::XXH3_64bits_reset(&state) != XXH_OK) return false;
  for (std::uint64_t at = 0; at < bytes; at += kScratch) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(kScratch, bytes - at));
    if (!read_all(fd, offset + at, {scratch.get(), n})) return false;
    (void)::XXH3_64bits_update(&state, scratch.get(), n);
  }
  out = ::XXH3_64bits_digest(&state);
  return true;
}

/// Sets the page size and the length of the snapshot.  Returns false if it is not the newest one.
bool read_metas(DatabaseState& state) noexcept {
  bool newest = false;
  (void)state.file->base().with_fd([&](int fd) noexcept {
    std::byte bytes[format::kMetaBytes];
    for (std::uint64_t page = 0; page < format::kMetaPages; ++page) {
      if (!read_all(fd, page * state.page_bytes, bytes)) return;
      const Result<format::MetaRecord> meta = format::parse_meta(bytes);
      if (!meta) return;
      if (page == 0) state.page_bytes = format::page_size(meta.value());
      if (meta.value().txnid > state.snapshot) return;
      if (meta.value().txnid != state.snapshot) continue;
      newest = meta.value().last_pg < chunks_of(~std::uint64_t{0} - kChunkBytes);
      state.used_bytes = (meta.value().last_pg + 1) * state.page_bytes;
    }
    // LMDB does not write the last pages if it has freed them in the same transaction.
    struct stat st;
    newest = newest && ::fstat(fd, &st) == 0;
    if (newest) state.used_bytes = std::min(state.used_bytes, static_cast<std::uint64_t>(st.st_size));
    newest = newest && state.used_bytes != 0;
  });
  return newest;
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

void lock_images() noexcept { images_mutex.lock(); }
void unlock_images() noexcept { images_mutex.unlock(); }

/// What one process has of an image.  A forked child opens the files again.
struct Image::InProcess {
  const unsigned generation = PrivateTable::generation();
  Image* const image;
  std::optional<Directory> directory;  ///< as all descriptors: in the private table
  UniqueFd data, table, map;
  std::atomic<Filler*> filler{nullptr};     ///< owned
  std::atomic<std::int64_t> until_look{0};  ///< bytes to write until look_at_room()

  explicit InProcess(Image& i) noexcept : image(&i) {}
  Status open(bool make) noexcept;
};

Status Image::InProcess::open(bool make) noexcept {
  Result<Directory> opened = Directory::open(config().cache_dir, make);
  if (!opened) return opened.error();
  directory.emplace(std::move(opened).value());
  const int at = directory->fd();
  try {
    const std::string& name = image->name_;
    data = open_in(at, name + kDataEnding, O_RDWR | (make ? O_CREAT : 0));
    if (!data) return last_error();
    struct stat st;
    if (::fstat(data.get(), &st) != 0) return last_error();
    const auto bytes = static_cast<off_t>(image->chunks_ * kChunkBytes);
    if (st.st_size != bytes && ::ftruncate(data.get(), bytes) != 0) return last_error();
    if (!make) {  // a forked child
      if (st.st_ino != image->identity_.ino || st.st_dev != image->identity_.dev)
        return Status::from_errno(ESTALE);
      table = open_in(at, name + kTableEnding, O_RDWR);
      map = open_in(at, map_name(name), O_RDWR);
      if (map) mark_in_use(map.get());
      return table ? Status() : last_error();
    }
    image->identity_ = {static_cast<std::uint64_t>(st.st_dev), st.st_ino, static_cast<std::uint64_t>(bytes),
                        0};
    image->path_ = directory->path() + "/" + name + kDataEnding;
    TableHeader header{};
    for (int tries = 0; tries < 2; ++tries) {
      table = open_in(at, name + kTableEnding, O_RDWR);
      if (table && read_header(table.get(), header) && header.image_inode == st.st_ino &&
          header.used_bytes == image->state_.used_bytes)
        break;
      if (table) (void)::unlinkat(at, (name + kTableEnding).c_str(), 0);
      const std::string fresh = name + "." + std::to_string(::getpid()) + ".new";
      table = open_in(at, fresh, O_RDWR | O_CREAT | O_TRUNC);
      header = {};
      header.image_inode = st.st_ino;
      header.used_bytes = image->state_.used_bytes;
      header.snapshot = image->state_.snapshot;
      header.page_bytes = static_cast<std::uint32_t>(image->state_.page_bytes);
      (void)std::snprintf(header.path, sizeof header.path, "%s", image->state_.path.c_str());
      if (!table || !write_header(table.get(), header)) return last_error();
      give_name(at, fresh, name + kTableEnding);
    }
    if (header.image_inode != st.st_ino) return Status::from_errno(EAGAIN);
    return image->make_map_here(*this, map_name(name));
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

// Maps the map of this boot.  The first process of a boot makes it from the table.
Status Image::make_map_here(InProcess& p, const std::string& name) noexcept {
  const int at = p.directory->fd();
  const std::size_t bytes = units_at(chunks_, chunks_);
  for (int tries = 0; tries < 2; ++tries) {
    p.map = open_in(at, name, O_RDWR);
    if (!p.map) {
      const std::string fresh = name_ + ".map" + std::to_string(::getpid()) + ".new";
      const UniqueFd fd = open_in(at, fresh, O_RDWR | O_CREAT | O_TRUNC);
      // Without the blocks on disk, an access to the mapping could raise SIGBUS.
      if (!fd) return last_error();
      if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); error != 0) {
        (void)::unlinkat(at, fresh.c_str(), 0);
        return Status::from_errno(error);
      }
      MapHeader header{};
      std::memcpy(header.magic, MapHeader::kMagic, sizeof header.magic);
      header.image_inode = identity_.ino;
      header.chunks = chunks_;
      std::vector<TableEntry> entries(chunks_);
      std::vector<std::byte> states(chunks_);
      if (!read_entries(p.table.get(), entries)) return last_error();
      for (std::uint64_t c = 0; c < chunks_; ++c)
        if (entries[c].bytes == bytes_in(c)) states[c] = static_cast<std::byte>(ChunkState::unverified);
      if (!write_all(fd.get(), sizeof header, states) ||
          !write_all(fd.get(), 0, std::as_bytes(std::span(&header, 1)))) {
        (void)::unlinkat(at, fresh.c_str(), 0);
        return last_error();
      }
      give_name(at, fresh, name);
      p.map = open_in(at, name, O_RDWR);
      if (!p.map) return last_error();
    }
    mark_in_use(p.map.get());
    struct stat st;
    MapHeader header;
    if (::fstat(p.map.get(), &st) == 0 && static_cast<std::size_t>(st.st_size) >= bytes &&
        read_all(p.map.get(), 0, std::as_writable_bytes(std::span(&header, 1))) &&
        std::memcmp(header.magic, MapHeader::kMagic, sizeof header.magic) == 0 &&
        header.image_inode == identity_.ino && header.chunks == chunks_) {
      void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p.map.get(), 0);
      if (mapped == MAP_FAILED) return last_error();
      map_ = Mapping(mapped, bytes);
      (void)::futimens(p.map.get(), nullptr);  // the time of the last open
      return {};
    }
    (void)::unlinkat(at, name.c_str(), 0);  // it belongs to an image that was removed
  }
  return Status::from_errno(EAGAIN);
}

std::shared_ptr<Image> Image::get(const std::shared_ptr<const OpenFile>& file, const char* path,
                                  std::uint64_t snapshot) noexcept {
  if (config().cache_dir.empty() || snapshot == 0) return nullptr;
  Result<std::shared_ptr<Image>> image = open(file, path, snapshot);
  if (image) return std::move(image).value();
  const int error = image.error().raw();
  if (error != EXDEV && error != ESTALE && error != ENOMEM) log_once(path, text_of(image.error()));
  return nullptr;
}

Result<std::shared_ptr<Image>> Image::open(const std::shared_ptr<const OpenFile>& file, const char* path,
                                           std::uint64_t snapshot) noexcept {
  try {
    DatabaseState state{file, path, snapshot};
    const std::optional<std::string> name = name_of(state);
    if (!name) return Status::from_errno(ESTALE);
    if (std::shared_ptr<Image> there = find_or_add(*name, nullptr); there != nullptr) return there;
    const std::shared_ptr<Image> made(new Image(state, *name));
    made->chunks_ = chunks_of(state.used_bytes);
    Status st = Status::from_errno(EBADF);
    (void)PrivateTable::run([&]() noexcept { st = made->open_here(); });
    if (!st.ok()) return st;
    return find_or_add(*name, made);
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

std::optional<std::string> Image::name_of(DatabaseState& state) {
  if (!read_metas(state)) return {};
  const auto key = content_state(state.file->base(), format::kMetaPages * state.page_bytes, state.snapshot);
  if (!key) return {};
  return image_name(*key);
}

// Returns the process's image of that name.  If there is none, adds `made`, which may be null.
std::shared_ptr<Image> Image::find_or_add(const std::string& name, const std::shared_ptr<Image>& made) {
  const std::lock_guard lock(images_mutex);
  if (all_images == nullptr) all_images = new std::vector<std::weak_ptr<Image>>;
  std::erase_if(*all_images, [](const std::weak_ptr<Image>& i) { return i.expired(); });
  for (const std::weak_ptr<Image>& i : *all_images)
    if (std::shared_ptr<Image> there = i.lock(); there != nullptr && there->name_ == name) return there;
  if (made != nullptr) all_images->push_back(made);
  return made;
}

Status Image::open_here() noexcept {
  std::unique_ptr<InProcess> p(new (std::nothrow) InProcess(*this));
  if (p == nullptr) return Status::from_errno(ENOMEM);
  if (const Status st = p->open(true); !st.ok()) return st;
  if (identity_.dev == state_.file->identity().dev) return Status::from_errno(EXDEV);
  look_at_room(*p);
  // A process that was killed may have written chunks without completing them.
  for (std::uint64_t c = 0; c < chunks_; ++c)
    if (is_nearly_complete(c))
      if (Filler* const f = filler(*p); f != nullptr)
        if (std::unique_ptr<std::byte[]> memory = f->take(kNothing); memory != nullptr)
          f->add(c * kChunkBytes, std::move(memory), kNothing);
  in_process_.store(p.release());
  return {};
}

void Image::flush_all(std::int64_t ns) noexcept {
  std::vector<std::shared_ptr<Image>> images;
  try {
    const std::lock_guard lock(images_mutex);
    if (all_images == nullptr) return;
    for (const std::weak_ptr<Image>& i : *all_images)
      if (std::shared_ptr<Image> there = i.lock(); there != nullptr) images.push_back(std::move(there));
  } catch (...) {
  }
  for (const std::shared_ptr<Image>& i : images) i->flush(ns);
}

Image::~Image() {
  InProcess* const p = in_process_.load();
  if (p == nullptr || p->generation != PrivateTable::generation()) return;  // the parent's
  flush(kFlushNs);
  delete p->filler.load();
  (void)PrivateTable::run([p]() noexcept { delete p; });
}

// Returns what this process has of the image, or nullptr if a forked child cannot open the files.  Call it in
// a thread of the private table.
Image::InProcess* Image::here() noexcept {
  InProcess* p = in_process_.load(std::memory_order_acquire);
  if (p->generation == PrivateTable::generation()) return p;
  std::unique_ptr<InProcess> made(new (std::nothrow) InProcess(*this));
  if (made == nullptr || !made->open(false).ok()) return nullptr;
  if (in_process_.compare_exchange_strong(p, made.get())) return made.release();
  return p;
}

std::atomic<unsigned char>& Image::state_of(std::uint64_t chunk) const noexcept {
  return *reinterpret_cast<std::atomic<unsigned char>*>(map_.data() + sizeof(MapHeader) + chunk);
}

std::atomic<std::uint64_t>* Image::units_of(std::uint64_t chunk) const noexcept {
  return reinterpret_cast<std::atomic<std::uint64_t>*>(map_.data() + units_at(chunks_, chunk));
}

std::uint64_t Image::bytes_in(std::uint64_t chunk) const noexcept {
  return std::min(kChunkBytes, state_.used_bytes - chunk * kChunkBytes);
}

unsigned Image::missing_units(std::uint64_t chunk) const noexcept {
  unsigned there = 0;
  for (unsigned w = 0; w < kUnitsPerChunk / 64; ++w)
    there += static_cast<unsigned>(std::popcount(units_of(chunk)[w].load(std::memory_order_acquire)));
  const auto all = static_cast<unsigned>((bytes_in(chunk) + kUnitBytes - 1) / kUnitBytes);
  return all - std::min(all, there);
}

bool Image::is_nearly_complete(std::uint64_t chunk) const noexcept {
  return state_of(chunk).load() == kMissing && missing_units(chunk) <= kFewUnits;
}

bool Image::is_there(InProcess& p, std::uint64_t chunk) noexcept {
  if (chunk >= chunks_) return false;
  const unsigned char state = state_of(chunk).load(std::memory_order_acquire);
  return state == kThere || (state == kUnverified && verify(p, chunk));
}

bool Image::verify(InProcess& p, std::uint64_t chunk) noexcept {
  TableEntry entry;
  std::uint64_t checksum = 0;
  const bool good = read_entry(p.table.get(), chunk, entry) && entry.bytes == bytes_in(chunk) &&
                    checksum_of(p.data.get(), chunk * kChunkBytes, entry.bytes, checksum) &&
                    checksum == entry.checksum;
  unsigned char expected = kUnverified;
  const unsigned char now = good ? kThere : kMissing;
  if (!state_of(chunk).compare_exchange_strong(expected, now)) return expected == kThere;
  if (good) return true;
  ++counts_.damaged;
  (void)write_entry(p.table.get(), chunk, {});
  static constinit std::atomic<bool> told{false};
  if (!told.exchange(true))
    log_line(LogLevel::warn,
             "%s: a part of the cache on local disk is damaged; it is read again from the file",
             state_.path.c_str());
  return false;
}

double Image::share() const noexcept {
  std::uint64_t there = 0;
  for (std::uint64_t c = 0; c < chunks_; ++c)
    if (state_of(c).load(std::memory_order_relaxed) != kMissing) ++there;
  return static_cast<double>(there) / static_cast<double>(chunks_);
}

std::shared_ptr<const OpenFile> Image::whole_file() noexcept {
  for (std::uint64_t c = 0; c < chunks_; ++c)
    if (state_of(c).load(std::memory_order_acquire) != kThere) return nullptr;
  Result<std::shared_ptr<const OpenFile>> file =
      OpenFile::get({-1, path_.c_str(), identity_}, OpenFile::With::direct);
  return file ? std::move(file).value() : nullptr;
}

bool Image::read(std::uint64_t offset, MutableBytes to) noexcept {
  if (to.empty() || offset + to.size() > chunks_ * kChunkBytes) return false;
  bool good = false;
  (void)PrivateTable::run([&]() noexcept {
    InProcess* const p = here();
    if (p == nullptr) return;
    for (std::uint64_t c = offset / kChunkBytes; c <= (offset + to.size() - 1) / kChunkBytes; ++c)
      if (!is_there(*p, c)) return;
    good = read_all(p->data.get(), offset, to);
  });
  if (good) counts_.read += to.size();
  return good;
}

bool Image::lacks(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  const std::uint64_t end = std::min(
      {offset + bytes, state_.used_bytes, chunks_wanted_.load(std::memory_order_relaxed) * kChunkBytes});
  for (std::uint64_t at = offset; at < end;) {
    const std::uint64_t c = at / kChunkBytes, next = std::min(end, (c + 1) * kChunkBytes);
    if (state_of(c).load(std::memory_order_relaxed) == kMissing) {
      const auto first = static_cast<unsigned>((at - c * kChunkBytes) / kUnitBytes);
      const auto last = static_cast<unsigned>((next - 1 - c * kChunkBytes) / kUnitBytes);
      for (unsigned u = first; u <= last; ++u)
        if ((units_of(c)[u / 64].load(std::memory_order_relaxed) >> (u % 64) & 1) == 0) return true;
    }
    at = next;
  }
  return false;
}

bool Image::wants(std::uint64_t offset, std::uint64_t bytes) noexcept {
  return stopped() == nullptr && lacks(offset, bytes);
}

Filler* Image::filler(InProcess& p) noexcept {
  if (Filler* const there = p.filler.load(std::memory_order_acquire); there != nullptr) return there;
  std::unique_ptr<Filler> made = Filler::start(
      [](void* context, std::uint64_t offset, Bytes bytes) noexcept {
        auto* const self = static_cast<InProcess*>(context);
        self->image->write(*self, offset, bytes);
      },
      &p);
  Filler* none = nullptr;
  if (made == nullptr) return nullptr;
  if (p.filler.compare_exchange_strong(none, made.get())) return made.release();
  return none;
}

void Image::offer(std::uint64_t offset, Bytes bytes) noexcept {
  if (!wants(offset, bytes.size())) return;
  (void)PrivateTable::run([&]() noexcept {
    InProcess* const p = here();
    Filler* const f = p != nullptr ? filler(*p) : nullptr;
    std::unique_ptr<std::byte[]> memory = f != nullptr ? f->take(bytes.size()) : nullptr;
    if (memory == nullptr) {
      counts_.skipped += bytes.size();
      return;
    }
    std::memcpy(memory.get(), bytes.data(), bytes.size());
    f->add(offset, std::move(memory), bytes.size());
  });
}

bool Image::add(std::uint64_t offset, Bytes bytes) noexcept {
  (void)PrivateTable::run([&]() noexcept {
    if (InProcess* const p = here(); p != nullptr) write(*p, offset, bytes);
  });
  return stopped() == nullptr;
}

void Image::finish(std::uint64_t chunk) noexcept {
  (void)PrivateTable::run([&]() noexcept {
    if (InProcess* const p = here(); p != nullptr) complete(*p, chunk);
  });
}

bool Image::has(std::uint64_t chunk) noexcept {
  bool there = false;
  (void)PrivateTable::run([&]() noexcept {
    InProcess* const p = here();
    there = p != nullptr && is_there(*p, chunk);
  });
  return there;
}

void Image::offer_cached(std::uint64_t offset, std::uint64_t bytes) noexcept {
  if (!wants(offset, bytes)) return;
  (void)PrivateTable::run([&]() noexcept {
    InProcess* const p = here();
    Filler* const f = p != nullptr ? filler(*p) : nullptr;
    std::unique_ptr<std::byte[]> memory = f != nullptr ? f->take(bytes) : nullptr;
    if (memory == nullptr) {
      counts_.skipped += bytes;
    } else if (read_all(state_.file->buffered().fd(), offset, {memory.get(), bytes})) {
      f->add(offset, std::move(memory), bytes);
    } else {
      f->give_back(bytes);
    }
  });
}

void Image::flush(std::int64_t ns) noexcept {
  const InProcess* const p = in_process_.load();
  if (p == nullptr || p->generation != PrivateTable::generation()) return;
  if (Filler* const f = p->filler.load(); f != nullptr) f->flush(ns);
}

void Image::stop_filling(const char* why) noexcept {
  const char* none = nullptr;
  if (stopped_.compare_exchange_strong(none, why))
    log_line(LogLevel::info, "%s: the cache on local disk takes no more: %s", state_.path.c_str(), why);
}

// Returns whether the database is still in the state that the image has.
bool Image::is_current() const noexcept {
  try {
    const auto key =
        content_state(state_.file->base(), format::kMetaPages * state_.page_bytes, state_.snapshot);
    return key && image_name(*key) == name_;
  } catch (...) {
    return false;
  }
}

void Image::look_at_room(InProcess& p) noexcept {
  if (p.until_look > 0) return;
  p.until_look = kLookEvery;
  std::uint64_t room = 0;
  try {
    room = p.directory->room_for(name_, chunks_ * kChunkBytes, config().cache_bytes);
  } catch (...) {
  }
  chunks_wanted_.store(std::min(chunks_, room / kChunkBytes), std::memory_order_relaxed);
  struct stat st;
  if (::fstat(p.data.get(), &st) == 0 && st.st_nlink == 0) stop_filling("it was removed");
}

void Image::write(InProcess& p, std::uint64_t offset, Bytes bytes) noexcept {
  if (bytes.size() == kNothing) return complete(p, offset / kChunkBytes);
  look_at_room(p);
  p.until_look -= static_cast<std::int64_t>(bytes.size());
  if (!wants(offset, bytes.size())) return;
  // Only whole units count, but the last unit of the database may be cut.
  const std::uint64_t end = offset + bytes.size();
  const std::uint64_t most = chunks_wanted_.load(std::memory_order_relaxed) * kChunkBytes;
  const std::uint64_t from = align_up(offset, kUnitBytes);
  const std::uint64_t to =
      std::min(end >= state_.used_bytes ? state_.used_bytes : align_down(end, kUnitBytes), most);
  if (from >= to) return;
  if (!write_all(p.data.get(), from, bytes.subspan(from - offset, to - from)))
    return stop_filling(text_of(last_error()));
  for (std::uint64_t at = from; at < to;) {
    const std::uint64_t c = at / kChunkBytes, next = std::min(to, (c + 1) * kChunkBytes);
    const auto first = static_cast<unsigned>((at - c * kChunkBytes) / kUnitBytes);
    const auto last = static_cast<unsigned>((next - 1 - c * kChunkBytes) / kUnitBytes);
    for (unsigned u = first; u <= last; ++u)
      units_of(c)[u / 64].fetch_or(std::uint64_t{1} << (u % 64), std::memory_order_release);
    complete(p, c);
    at = next;
  }
}

// Makes the chunk usable if (almost) all of it was written.
void Image::complete(InProcess& p, std::uint64_t chunk) noexcept {
  if (!is_nearly_complete(chunk)) return;
  const unsigned missing = missing_units(chunk);
  const std::uint64_t bytes = bytes_in(chunk), start = chunk * kChunkBytes;
  std::byte unit[kUnitBytes];
  for (std::uint64_t at = 0; missing != 0 && at < bytes; at += kUnitBytes) {
    const auto u = static_cast<unsigned>(at / kUnitBytes);
    if ((units_of(chunk)[u / 64].load(std::memory_order_relaxed) >> (u % 64) & 1) != 0) continue;
    const auto n = static_cast<std::size_t>(std::min(kUnitBytes, bytes - at));
    if (!read_all(state_.file->buffered().fd(), start + at, {unit, n})) return;
    if (!write_all(p.data.get(), start + at, {unit, n})) return stop_filling(text_of(last_error()));
    units_of(chunk)[u / 64].fetch_or(std::uint64_t{1} << (u % 64), std::memory_order_relaxed);
  }
  TableEntry entry{};
  entry.bytes = static_cast<std::uint32_t>(bytes);
  if (!checksum_of(p.data.get(), start, bytes, entry.checksum)) return;
  if (!is_current()) return stop_filling("the database has changed");
  if (!write_entry(p.table.get(), chunk, entry)) return stop_filling(text_of(last_error()));
  state_of(chunk).store(kThere, std::memory_order_release);
  ++counts_.filled;
}

}  // namespace lmdbio::cache
