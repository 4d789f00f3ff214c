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
/// share_not_in_memory() examines up to twice as many chunks.
constexpr std::uint64_t kMostExamined = 32;

constexpr bool is_stored(unsigned char state) noexcept { return state == kThere || state == kUnverified; }

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
                                  std::uint64_t snapshot) noexcept {
  if (config().cache_dir.empty() || snapshot == 0) return nullptr;
  Result<std::shared_ptr<Image>> image = open(file, path, snapshot);
  if (image) return std::move(image).value();
  const int error = image.error().raw();
  if (error != EXDEV && error != ESTALE && error != ENOMEM) log_once(path, image.error());
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
    made->proven_ = std::make_unique<std::atomic<bool>[]>(made->chunks_);
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

bool Image::is_there(InProcess& p, std::uint64_t chunk) noexcept {
  if (!ready_.load(std::memory_order_acquire) || chunk >= chunks_) return false;
  const unsigned char state = state_of(chunk).load(std::memory_order_acquire);
  return state == kThere || (state == kUnverified && verify(p, chunk));
}

// Returns whether plain_file() has the bytes of the chunk, which is not stored yet.  Units may have been
// written while the database changed: the first call for a chunk looks at the database after them.
bool Image::has_plain(InProcess& p, std::uint64_t chunk) noexcept {
  if (is_proven_plain(chunk)) return true;
  if (!ready_.load(std::memory_order_acquire) || chunk >= chunks_ ||
      is_stored(state_of(chunk).load(std::memory_order_acquire)) || !has_all_units(chunk) ||
      p.has_entry(chunk) || !is_still_current())
    return false;
  proven_[chunk] = true;
  return is_proven_plain(chunk);
}

bool Image::is_proven_plain(std::uint64_t chunk) noexcept {
  if (!ready_.load(std::memory_order_acquire) || chunk >= chunks_ || !proven_[chunk]) return false;
  if (is_stored(state_of(chunk).load(std::memory_order_acquire))) {
    proven_[chunk] = false;
    return false;
  }
  return has_all_units(chunk);
}

bool Image::verify(InProcess& p, std::uint64_t chunk) noexcept {
  TableEntry entry;
  std::uint64_t checksum = 0;
  const bool good = read_entry(p.table.get(), chunk, entry) && may_be(chunk, entry) &&
                    checksum_of(p.data.get(), chunk * pitch(), entry.bytes, checksum) &&
                    checksum == entry.checksum;
  if (!good) {
    is_damaged(p, chunk);
    return false;
  }
  unsigned char expected = kUnverified;
  if (!state_of(chunk).compare_exchange_strong(expected, kThere)) return expected == kThere;
  p.remove_plain(chunk);  // a process may have been killed before it did
  return true;
}

// Forgets the chunk, so that it is read from the database again.
void Image::is_damaged(InProcess& p, std::uint64_t chunk) noexcept {
  unsigned char state = state_of(chunk).load();
  if (!is_stored(state) || !state_of(chunk).compare_exchange_strong(state, kCompleting)) return;
  clear_units(chunk);
  proven_[chunk] = false;
  ++counts_.damaged;
  (void)write_entry(p.table.get(), chunk, {});
  state_of(chunk).store(kMissing, std::memory_order_release);
  static constinit std::atomic<bool> told{false};
  if (!told.exchange(true))
    log_line(LogLevel::warn,
             "%s: a part of the cache on local disk is damaged; it is read again from the database",
             state_.path.c_str());
}

std::uint64_t Image::chunks_there() const noexcept {
  std::uint64_t there = 0;
  for (std::uint64_t c = 0; ready_.load(std::memory_order_acquire) && c < chunks_; ++c)
    if (is_stored(state_of(c).load(std::memory_order_relaxed))) ++there;
  return there;
}

double Image::share_not_in_memory() const noexcept {
  const auto usable = [this](std::uint64_t c) {
    return is_stored(state_of(c).load(std::memory_order_relaxed)) || has_all_units(c);
  };
  std::uint64_t there = 0;
  for (std::uint64_t c = 0; ready_.load(std::memory_order_acquire) && c < chunks_; ++c)
    if (usable(c)) ++there;
  const std::uint64_t step = std::max<std::uint64_t>(there / kMostExamined, 1);
  const Residency residency = state_.file->residency(-1, Residency::Sampling::no);
  std::uint64_t seen = 0, examined = 0, lacking = 0;
  for (std::uint64_t c = 0; c < chunks_ && seen < there; ++c) {
    if (!usable(c) || seen++ % step != 0) continue;
    ++examined;
    if (residency.share(c * kChunkBytes, bytes_in(c)).value_or(0) < 0.5) ++lacking;
  }
  if (examined == 0) return 0;
  return static_cast<double>(there) / static_cast<double>(chunks_) * static_cast<double>(lacking) /
         static_cast<double>(examined);
}

std::shared_ptr<const OpenFile> Image::whole_file() noexcept {
  if (!ready_.load(std::memory_order_acquire) || recipe_.codec != Codec::raw) return nullptr;
  for (std::uint64_t c = 0; c < chunks_; ++c)
    if (state_of(c).load(std::memory_order_acquire) != kThere) return nullptr;
  Result<std::shared_ptr<const OpenFile>> file =
      OpenFile::get({-1, path_.c_str(), identity_}, OpenFile::With::direct);
  return file ? std::move(file).value() : nullptr;
}

bool Image::read(std::uint64_t offset, MutableBytes to) noexcept {
  if (to.empty() || offset + to.size() > bytes()) return false;
  bool good = false;
  (void)PrivateTable::run([&]() noexcept {
    InProcess* const p = here();
    if (p == nullptr) return;
    const std::uint64_t last = (offset + to.size() - 1) / kChunkBytes;
    for (std::uint64_t c = offset / kChunkBytes; c <= last; ++c)
      if (!has_plain(*p, c) && !is_there(*p, c)) return;
    good = true;
    for (std::size_t done = 0; good && done < to.size();) {
      const std::uint64_t c = (offset + done) / kChunkBytes;
      const auto at = static_cast<std::size_t>(offset + done - c * kChunkBytes);
      const std::size_t n = std::min(to.size() - done, static_cast<std::size_t>(kChunkBytes) - at);
      good = read_chunk(*p, c, at, to.subspan(done, n));
      done += n;
    }
  });
  if (good) counts_.read += to.size();
  return good;
}

// Reads the bytes of a chunk from `at` on, which may reach beyond the bytes that the snapshot has.
template <class Decoder>
Status Image::read_frames(InProcess& p, std::uint64_t chunk, Bytes head, std::size_t at, MutableBytes to,
                          Decoder& decoder) noexcept {
  const Result<ChunkHeader> header = ChunkHeader::parse(head, tag_of(chunk));
  if (!header) return header.error();
  const ChunkHeader& h = header.value();
  if (h.plain_bytes() != bytes_in(chunk)) return Status::from_errno(EBADMSG);
  while (!to.empty() && at < h.plain_bytes()) {
    const std::size_t frame = at / kFrameBytes, from = at % kFrameBytes;
    const std::size_t plain = h.frame_bytes(frame), n = std::min(to.size(), plain - from);
    const MutableBytes stored{decoder.stored.get(), h.stored_frame_bytes(frame)};
    if (!read_all(p.data.get(), chunk * pitch() + h.offset(frame), stored)) return Status::from_errno(EIO);
    const bool whole = n == plain;
    const MutableBytes into = whole ? to.first(plain) : MutableBytes{decoder.plain.get(), plain};
    if (const Status st = h.decompress(frame, 1, stored, into, decoder.scratch); !st.ok()) return st;
    if (!whole) std::memcpy(to.data(), into.data() + from, n);
    at += n;
    to = to.subspan(n);
  }
  std::fill(to.begin(), to.end(), std::byte{});  // behind the snapshot
  return {};
}

// Reads the bytes of a chunk from `at` on, which may reach beyond the bytes that the snapshot has.
bool Image::read_chunk(InProcess& p, std::uint64_t chunk, std::size_t at, MutableBytes to) noexcept {
  if (has_plain(p, chunk) && read_plain(p, chunk, at, to)) return true;
  if (!is_there(p, chunk)) return false;
  return recipe_.codec == Codec::raw ? read_all(p.data.get(), chunk * kChunkBytes + at, to)
                                     : read_compressed(p, chunk, at, to);
}

bool Image::read_plain(InProcess& p, std::uint64_t chunk, std::size_t at, MutableBytes to) noexcept {
  const auto bytes = static_cast<std::size_t>(bytes_in(chunk));
  const std::size_t n = std::min(to.size(), bytes - std::min(at, bytes));
  if (!read_all(p.plain_file(), chunk * kChunkBytes + at, to.first(n))) return false;
  std::fill(to.begin() + static_cast<std::ptrdiff_t>(n), to.end(), std::byte{});  // behind the snapshot
  return has_plain(p, chunk);  // else another thread has compressed it, and made a hole
}

bool Image::read_compressed(InProcess& p, std::uint64_t chunk, std::size_t at, MutableBytes to) noexcept {
  std::unique_ptr<InProcess::Decoder> decoder = p.take_decoder();
  if (decoder == nullptr) return false;
  const std::int64_t begun = now_ns();
  std::byte head[kHeaderBytes];
  const Status st = read_all(p.data.get(), chunk * pitch(), head)
                        ? read_frames(p, chunk, head, at, to, *decoder)
                        : Status::from_errno(EIO);
  if (st.raw() == EBADMSG) is_damaged(p, chunk);
  counts_.unpack_ns += static_cast<std::uint64_t>(now_ns() - begun);
  p.give_back(std::move(decoder));
  return st.ok();
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
    if (InProcess* const p = here(); p != nullptr) write(*p, chunk * kChunkBytes, {}, nullptr);
  });
}

bool Image::has(std::uint64_t chunk) noexcept {
  if (is_proven_plain(chunk) || has_stored(chunk)) return true;
  if (!ready_.load(std::memory_order_acquire) || chunk >= chunks_ || !has_all_units(chunk)) return false;
  bool plain = false;
  (void)PrivateTable::run([&]() noexcept {
    InProcess* const p = here();
    plain = p != nullptr && has_plain(*p, chunk);
  });
  return plain || has_stored(chunk);
}

bool Image::has_stored(std::uint64_t chunk) noexcept {
  if (!ready_.load(std::memory_order_acquire) || chunk >= chunks_) return false;
  const unsigned char state = state_of(chunk).load(std::memory_order_acquire);
  if (state != kUnverified) return state == kThere;
  bool there = false;
  (void)PrivateTable::run([&]() noexcept {
    InProcess* const p = here();
    there = p != nullptr && is_there(*p, chunk);
  });
  return there;
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

void Image::flush() noexcept { flush_until(now_ns() + kFlushNs, Afterwards::goes_on); }

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
