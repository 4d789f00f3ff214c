#include "lmdbio/cache/image.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "lmdbio/base/config.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/log.h"
#include "lmdbio/cache/file_bytes.h"
#include "lmdbio/cache/image_process.h"
#include "lmdbio/cache/table.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/format/meta_view.h"
#include "lmdbio/io/content_state.h"

namespace lmdbio::cache {

namespace {

constexpr std::int64_t kFlushNs = 200'000'000;

/// The images of this process.  Leaked on purpose: no static destructor.
constinit SignalSafeMutex images_mutex;
/// Held while a forked child opens the files of an image.
constinit SignalSafeMutex reopening;
constinit std::vector<std::weak_ptr<Image>>* all_images = nullptr;

void log_once(const char* path, Status why) noexcept {
  static constinit std::atomic<bool> told{false};
  const char* const text = why.raw() > 0 ? ::strerrordesc_np(why.raw()) : nullptr;
  if (!told.exchange(true))
    log_line(LogLevel::warn, "%s: no cache on local disk: %s", path,
             text != nullptr ? text : "unknown error");
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
      if (meta.value().txnid > state.snapshot) {
        newest = false;
        return;
      }
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

}  // namespace

void lock_images() noexcept {
  images_mutex.lock();
  reopening.lock();
}
void unlock_images() noexcept {
  reopening.unlock();
  images_mutex.unlock();
}

std::shared_ptr<Image> Image::get(const std::shared_ptr<const OpenFile>& file, const char* path,
                                  std::uint64_t snapshot, unsigned nodes) noexcept {
  if (config().cache_dir.empty() || snapshot == 0) return nullptr;
  Result<std::shared_ptr<Image>> image = open(file, path, snapshot, nodes);
  if (image) return std::move(image).value();
  const int error = image.error().raw();
  if (error != EXDEV && error != ESTALE && error != ENOMEM) log_once(path, image.error());
  return nullptr;
}

Result<std::shared_ptr<Image>> Image::open(const std::shared_ptr<const OpenFile>& file, const char* path,
                                           std::uint64_t snapshot, unsigned nodes) noexcept {
  try {
    DatabaseState state{file, path, snapshot};
    const std::optional<std::string> name = name_of(state);
    if (!name) return Status::from_errno(ESTALE);
    if (std::shared_ptr<Image> there = find_or_add(*name, nullptr); there != nullptr) return there;
    const std::shared_ptr<Image> made(new Image(state, *name, nodes));
    made->chunks_ = chunks_of(state.used_bytes);
    made->proven_ = std::make_unique<std::atomic<bool>[]>(made->chunks_);
    Status st = Status::from_errno(EBADF);
    (void)PrivateTable::run([&]() noexcept { st = made->open_here(); });
    if (!st.ok()) return st;
    return find_or_add(*name, made);
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

std::optional<std::array<std::uint64_t, 2>> contents_of(DatabaseState& state) {
  if (!read_metas(state)) return {};
  return content_state(state.file->base(), format::kMetaPages * state.page_bytes, state.snapshot);
}

std::optional<std::string> Image::name_of(DatabaseState& state) {
  const auto contents = contents_of(state);
  if (!contents) return {};
  return image_name(*contents);
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
  // Earlier processes may have written chunks without completing them.
  for (std::uint64_t c = 0; ready_.load() && c < chunks_; ++c)
    if (is_nearly_complete(c))
      if (Filler* const f = filler(*p); f != nullptr) {
        f->ask();
        break;
      }
  in_process_.store(p.release());
  return {};
}

// Returns the recipe that the setting prescribes, or nullptr if it is chosen later.
const Recipe* Image::wanted_recipe() const noexcept {
  static constexpr Recipe kRaw{}, kLz4{Codec::lz4, {}}, kZstd1{Codec::zstd1, {}}, kZstd3{Codec::zstd3, {}};
  switch (config().cache_codec) {
    case CacheCodec::automatic:
    case CacheCodec::smallest:
      return nullptr;
    case CacheCodec::raw:
      break;
    case CacheCodec::lz4:
      return built_in(Codec::lz4) ? &kLz4 : &kRaw;
    case CacheCodec::zstd1:
      return built_in(Codec::zstd1) ? &kZstd1 : &kRaw;
    case CacheCodec::zstd3:
      return built_in(Codec::zstd3) ? &kZstd3 : &kRaw;
  }
  return &kRaw;
}

void Image::flush_all() noexcept {
  std::vector<std::shared_ptr<Image>> images;
  try {
    const std::lock_guard lock(images_mutex);
    if (all_images == nullptr) return;
    for (const std::weak_ptr<Image>& i : *all_images)
      if (std::shared_ptr<Image> there = i.lock(); there != nullptr) images.push_back(std::move(there));
  } catch (...) {
  }
  const std::int64_t end_ns = now_ns() + kFlushNs;
  for (const std::shared_ptr<Image>& i : images) i->flush_until(end_ns, Afterwards::ends);
}

Image::~Image() {
  InProcess* const p = in_process_.load();
  if (p == nullptr || p->generation != PrivateTable::generation()) return;  // the parent's
  if (p->filler != nullptr) p->filler->end();
  (void)PrivateTable::run([p]() noexcept { delete p; });
}

// Returns what this process has of the image, or nullptr if a forked child cannot open the files.  Call it in
// a thread of the private table.
Image::InProcess* Image::here() noexcept {
  const auto is_ours = [](const InProcess* p) { return p->generation == PrivateTable::generation(); };
  if (InProcess* const p = in_process_.load(std::memory_order_acquire); is_ours(p)) return p;
  const std::lock_guard lock(reopening);
  if (InProcess* const p = in_process_.load(); is_ours(p)) return p;  // another thread was faster
  std::unique_ptr<InProcess> made(new (std::nothrow) InProcess(*this));
  if (made == nullptr || !made->open(false).ok()) return nullptr;
  in_process_.store(made.get(), std::memory_order_release);
  return made.release();
}

std::uint64_t Image::pitch() const noexcept { return pitch_of(recipe_); }

std::atomic<unsigned char>& Image::state_of(std::uint64_t chunk) const noexcept {
  return *reinterpret_cast<std::atomic<unsigned char>*>(map_.data() + sizeof(MapHeader) + chunk);
}

std::atomic<std::uint64_t>* Image::units_of(std::uint64_t chunk) const noexcept {
  return reinterpret_cast<std::atomic<std::uint64_t>*>(map_.data() + units_at(chunks_, chunk));
}

std::uint64_t Image::bytes_in(std::uint64_t chunk) const noexcept {
  return std::min(kChunkBytes, state_.used_bytes - chunk * kChunkBytes);
}

bool Image::has_all_units(std::uint64_t chunk) const noexcept { return missing_units(chunk) == 0; }

unsigned Image::missing_units(std::uint64_t chunk) const noexcept {
  unsigned there = 0;
  for (unsigned w = 0; w < kUnitsPerChunk / 64; ++w)
    there += static_cast<unsigned>(std::popcount(units_of(chunk)[w].load(std::memory_order_acquire)));
  const auto all = static_cast<unsigned>((bytes_in(chunk) + kUnitBytes - 1) / kUnitBytes);
  return all - std::min(all, there);
}

bool Image::may_be(std::uint64_t chunk, const TableEntry& entry) const noexcept {
  const std::uint64_t plain = bytes_in(chunk);
  return recipe_.codec == Codec::raw ? entry.bytes == plain
                                     : entry.bytes != 0 && entry.bytes <= stored_bound(plain);
}

bool Image::lacks(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  const std::uint64_t end = std::min(
      {offset + bytes, state_.used_bytes, chunks_wanted_.load(std::memory_order_relaxed) * kChunkBytes});
  if (!ready_.load(std::memory_order_acquire)) return offset < end;
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

void Image::note_read(std::uint64_t bytes) noexcept {
  std::int64_t none = 0;
  ++reads_;
  if (file_read_.fetch_add(bytes, std::memory_order_relaxed) == 0)
    (void)first_read_ns_.compare_exchange_strong(none, now_ns());
}

void Image::offer(std::uint64_t offset, Bytes bytes) noexcept {
  if (!wants(offset, bytes.size())) return;
  (void)PrivateTable::run([&]() noexcept {
    InProcess* const p = here();
    Filler* const f = p != nullptr ? filler(*p) : nullptr;
    if (p != nullptr) ++p->offers;
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
    if (InProcess* const p = here(); p != nullptr) write(*p, offset, bytes, nullptr);
  });
  return stopped() == nullptr;
}

void Image::finish(std::uint64_t chunk) noexcept {
  (void)PrivateTable::run([&]() noexcept {
    if (InProcess* const p = here(); p != nullptr && is_ready(*p)) complete(*p, chunk, nullptr);
  });
}

void Image::offer_cached(std::uint64_t offset, std::uint64_t bytes) noexcept {
  if (offset >= state_.used_bytes) return;
  bytes = std::min(bytes, state_.used_bytes - offset);
  if (!wants(offset, bytes)) return;
  (void)PrivateTable::run([&]() noexcept {
    InProcess* const p = here();
    Filler* const f = p != nullptr ? filler(*p) : nullptr;
    if (p != nullptr) ++p->offers;
    if (f == nullptr || !f->add_cached(offset, bytes)) counts_.skipped += bytes;
  });
}

void Image::flush() noexcept {
  if (ready_.load(std::memory_order_acquire)) return flush_until(now_ns() + kFlushNs, Afterwards::goes_on);
  InProcess* const p = in_process_.load();
  if (p == nullptr || p->generation != PrivateTable::generation()) return;
  if (Filler* const f = p->filler_now(); f != nullptr) f->keep(shared_from_this());
}

void Image::flush_until(std::int64_t end_ns, Afterwards afterwards) noexcept {
  InProcess* const p = in_process_.load();
  if (p == nullptr || p->generation != PrivateTable::generation()) return;
  Filler* const f = p->filler_now();
  if (f == nullptr) return;
  const std::uint64_t offers = p->offers;
  if (p->flushed_offers.exchange(offers) != offers) {  // else an earlier call has waited for them
    // What was skipped may be in the page cache, and chunks may lack a few units.
    const bool lacks_some = counts_.skipped != 0 || recipe().codec != Codec::raw;
    f->flush_until(end_ns, lacks_some ? Filler::Idleness::awaited : Filler::Idleness::unimportant);
  }
  if (afterwards == Afterwards::ends) f->stop_work(end_ns);
}

}  // namespace lmdbio::cache
