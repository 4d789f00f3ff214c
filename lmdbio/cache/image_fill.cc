// Fills an image.  The filler's thread calls these functions, unless stated otherwise.
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "lmdbio/base/align.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/log.h"
#include "lmdbio/cache/file_bytes.h"
#include "lmdbio/cache/image_process.h"
#include "lmdbio/cache/recipe_choice.h"
#include "lmdbio/cache/table.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/io/content_state.h"

namespace lmdbio::cache {

namespace {

/// A chunk that lacks at most this many units is completed by reading the rest from the database.
constexpr unsigned kFewUnits = kUnitsPerChunk / 32;
/// The share of a chunk that has to be in the page cache before the chunk is added from there.
constexpr double kNearlyAll = 1 - static_cast<double>(kFewUnits) / kUnitsPerChunk;
/// Bytes written between two checks of the room.
constexpr auto kLookEvery = static_cast<std::int64_t>(16 * kChunkBytes);
/// Interval in ns at which the filler looks for data that is in the page cache and not in the image.
constexpr std::int64_t kResidentEvery = 1'000'000'000;
/// Size of its reads, in bytes.
constexpr std::size_t kResidentPiece = std::size_t{256} << 10;
constexpr std::int64_t kLongWait = 3'600'000'000'000;
/// Chunks after which the size of a compressed chunk is known.
constexpr std::uint64_t kEnoughChunks = 4;
/// The rate of reads from a local disk that the choice of a recipe assumes, in bytes per second.
constexpr double kImageRate = 1.5e9;
/// How long a process waits for another one that chooses, in ns.
constexpr std::int64_t kLongestChoice = 1'000'000'000;

std::uint64_t processor_ns() noexcept {
  timespec t{};
  (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}

const char* error_text() noexcept {
  const char* const text = ::strerrordesc_np(errno);
  return text != nullptr ? text : "unknown error";
}

}  // namespace

// Any thread.
Filler* Image::filler(InProcess& p) noexcept {
  const std::lock_guard lock(p.mutex);
  if (p.filler == nullptr)
    p.filler = Filler::start(
        [](void* context, std::uint64_t offset, Bytes bytes) noexcept {
          auto* const self = static_cast<InProcess*>(context);
          self->image->write(*self, offset, bytes, self->filler_now());
        },
        [](void* context, std::uint64_t offset, std::size_t bytes) noexcept {
          auto* const self = static_cast<InProcess*>(context);
          self->image->copy_cached(*self, offset, bytes);
        },
        [](void* context) noexcept {
          auto* const self = static_cast<InProcess*>(context);
          return self->image->fill_resident(*self);
        },
        [](void* context) noexcept {
          auto* const self = static_cast<InProcess*>(context);
          return self->image->complete_next(*self);
        },
        &p, weak_from_this());
  return p.filler.get();
}

// Any thread.
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

// As is_current(), but looks no more once the database was seen in another state.
bool Image::is_still_current() noexcept {
  if (is_outdated_) return false;
  if (is_current()) return true;
  is_outdated_ = true;
  stop_filling("the database has changed");
  return false;
}

void Image::look_at_room(InProcess& p) noexcept {
  if (p.until_look > 0) return;
  std::uint64_t room = 0, used = 0;
  struct stat st;
  if (::fstat(p.data.get(), &st) == 0) {
    used = static_cast<std::uint64_t>(st.st_blocks) * 512;
    if (st.st_nlink == 0) stop_filling("it was removed");
  }
  try {
    room = p.directory->room_for(name_, (chunks_ + nodes_ - 1) / nodes_ * kChunkBytes, config().cache_bytes);
  } catch (...) {
  }
  p.has_room_for_plain = room >= chunks_ * kChunkBytes;
  // A compressed image has room for more chunks than it has bytes, according to the chunks so far.
  const std::uint64_t there = chunks_there();
  double chunk = static_cast<double>(kChunkBytes);
  if (recipe_.codec != Codec::raw && there >= kEnoughChunks)
    chunk = std::min(chunk, static_cast<double>(used) / static_cast<double>(there));
  const auto most = static_cast<std::uint64_t>(static_cast<double>(room) / chunk * nodes_);
  chunks_wanted_.store(std::min(chunks_, most), std::memory_order_relaxed);
  // Early enough that a compressed image goes on when it has as many chunks as raw ones would have room.
  p.until_look = std::min(kLookEvery, static_cast<std::int64_t>(most / nodes_ / 4 * kChunkBytes));
}

// Waits while another process of the node chooses.  Returns whether the table is there now.  If not, the
// calling process has to choose: no other process does, or it takes too long.
bool Image::InProcess::table_of_other() noexcept {
  const std::int64_t end = now_ns() + kLongestChoice;
  for (;;) {
    const bool locked = try_lock_choice();
    if (open_table(nullptr).ok()) return true;
    if (locked || now_ns() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Chooses how the image is compressed, from a sample of the database, and makes its table.  One process of
// the node does this for all: the trials take 0.3 s of processor time.
void Image::choose(InProcess& p) noexcept {
  if (p.table_of_other()) return p.unlock_choice();
  Recipe recipe;
  try {
    std::vector<std::byte> bytes(kSamplePlaces * kFrameBytes);
    std::vector<Bytes> sample;
    const File* const exact = state_.file->exact();  // no read-ahead, which would double what is read
    const int fd = exact != nullptr ? exact->fd() : state_.file->buffered().fd();
    const auto piece_bytes = [&](std::uint64_t at) noexcept {
      return static_cast<std::size_t>(std::min<std::uint64_t>(kFrameBytes, state_.used_bytes - at));
    };
    // All pieces are read at the same time: each read waits behind the reads of the program.
    for (unsigned i = 0; i < kSamplePlaces; ++i) {
      const std::uint64_t at = sample_offset(i, state_.used_bytes);
      (void)::posix_fadvise(fd, static_cast<off_t>(at), static_cast<off_t>(piece_bytes(at)),
                            POSIX_FADV_WILLNEED);
    }
    for (unsigned i = 0; i < kSamplePlaces; ++i) {
      const std::uint64_t at = sample_offset(i, state_.used_bytes);
      const MutableBytes piece{bytes.data() + i * kFrameBytes, piece_bytes(at)};
      if (read_all(fd, at, piece)) sample.push_back(piece);
    }
    Scratch scratch;
    const Result<Trials> trials = try_recipes(sample, processor_ns, scratch);
    if (trials) {
      const double seconds = static_cast<double>(now_ns() - first_read_ns_) * 1e-9;
      Conditions c{};
      c.image_rate = kImageRate;
      c.original_rate = std::max(1e6, static_cast<double>(file_read_) / std::max(seconds, 1e-3));
      c.idle_cores = InProcess::most_decoders();
      c.read_bytes =
          static_cast<double>(file_read_) / static_cast<double>(std::max<std::uint64_t>(reads_, 1));
      c.budget = static_cast<double>(std::max<std::uint64_t>(chunks_wanted_ * kChunkBytes, 1));
      c.size = static_cast<double>(state_.used_bytes);
      const bool smallest = config().cache_codec == CacheCodec::smallest;
      recipe = trials.value()
                   .all[choose_recipe(trials.value().span(), c, smallest ? Goal::smallest : Goal::fastest)]
                   .recipe;
    }
  } catch (...) {  // out of memory: raw
  }
  if (const Status st = p.open_table(&recipe); !st.ok()) {
    errno = st.raw() > 0 ? st.raw() : EIO;
    stop_filling(error_text());
  }
  p.unlock_choice();
}

// Any thread.  Makes the table of the image if there is none.
bool Image::is_ready(InProcess& p) noexcept {
  const std::lock_guard lock(p.choosing);
  look_at_room(p);
  if (!ready_.load(std::memory_order_acquire)) choose(p);
  return ready_.load(std::memory_order_acquire);
}

// Any thread.  `filler`: of the calling thread; if the disk has room for all plain bytes, it compresses
// complete chunks later.  nullptr: they are compressed at once.
void Image::write(InProcess& p, std::uint64_t offset, Bytes bytes, Filler* filler) noexcept {
  if (!is_ready(p)) return;
  p.until_look -= static_cast<std::int64_t>(bytes.size());
  if (!wants(offset, bytes.size())) return;
  // Only whole units count, but the last unit of the database may be cut.
  const std::uint64_t end = offset + bytes.size();
  const std::uint64_t most = chunks_wanted_.load(std::memory_order_relaxed) * kChunkBytes;
  const std::uint64_t from = align_up(offset, kUnitBytes);
  const std::uint64_t to =
      std::min(end >= state_.used_bytes ? state_.used_bytes : align_down(end, kUnitBytes), most);
  if (from >= to) return;
  if (!write_all(p.plain_file(), from, bytes.subspan(from - offset, to - from)))
    return stop_filling(error_text());
  const bool later = filler != nullptr && recipe_.codec != Codec::raw && p.has_room_for_plain;
  for (std::uint64_t at = from; at < to;) {
    const std::uint64_t c = at / kChunkBytes, next = std::min(to, (c + 1) * kChunkBytes);
    mark_units(at, next);
    if (!later)
      complete(p, c, nullptr);
    else if (is_nearly_complete(c))
      filler->ask();
    at = next;
  }
}

void Image::clear_units(std::uint64_t chunk) noexcept {
  for (unsigned w = 0; w < kUnitsPerChunk / 64; ++w) units_of(chunk)[w].store(0, std::memory_order_release);
}

// Sets the bits of the units with the bytes from `from` to `to`, which lie in one chunk.
void Image::mark_units(std::uint64_t from, std::uint64_t to) noexcept {
  const std::uint64_t c = from / kChunkBytes;
  const auto first = static_cast<unsigned>((from - c * kChunkBytes) / kUnitBytes);
  const auto last = static_cast<unsigned>((to - 1 - c * kChunkBytes) / kUnitBytes);
  for (unsigned u = first; u <= last; ++u)
    units_of(c)[u / 64].fetch_or(std::uint64_t{1} << (u % 64), std::memory_order_release);
}

bool Image::is_nearly_complete(std::uint64_t chunk) const noexcept {
  return state_of(chunk).load() == kMissing && missing_units(chunk) <= kFewUnits;
}

// Gives the chunk its final form if (almost) all of it was written.  One process does this for a chunk at a
// time: after it, the plain bytes of a compressed chunk are gone.
void Image::complete(InProcess& p, std::uint64_t chunk, Filler* filler) noexcept {
  unsigned char state = kMissing;
  if (!is_nearly_complete(chunk) || !state_of(chunk).compare_exchange_strong(state, kCompleting)) return;
  TableEntry entry{};
  const bool done = complete_units(p, chunk, filler) && store(p, chunk, entry, filler) &&
                    write_entry(p.table.get(), chunk, entry);
  if (done && recipe_.codec != Codec::raw) {
    clear_units(chunk);  // read_plain() sees this after it has read the hole
    p.remove_plain(chunk);
  }
  const unsigned char now = done ? kThere : p.has_entry(chunk) ? kUnverified : kMissing;
  state_of(chunk).store(now, std::memory_order_release);
  if (!done) return;
  ++counts_.filled;
  p.until_look -= static_cast<std::int64_t>(bytes_in(chunk));
}

// Completes one chunk.  Returns false if there is none, or if it could not be completed now.
bool Image::complete_next(InProcess& p) noexcept {
  if (is_outdated_ || !is_ready(p)) return false;
  for (std::uint64_t looked = 0; looked < chunks_; ++looked) {
    const std::uint64_t c = p.next_complete++ % chunks_;
    if (!is_nearly_complete(c)) continue;
    complete(p, c, p.filler_now());
    return state_of(c).load() != kMissing;  // else it was interrupted, or failed
  }
  return false;
}

// Reads the units that are missing from the database.
bool Image::complete_units(InProcess& p, std::uint64_t chunk, Filler* filler) noexcept {
  const std::uint64_t bytes = bytes_in(chunk), start = chunk * kChunkBytes;
  std::byte unit[kUnitBytes];
  for (std::uint64_t at = 0; missing_units(chunk) != 0 && at < bytes; at += kUnitBytes) {
    const auto u = static_cast<unsigned>(at / kUnitBytes);
    if ((units_of(chunk)[u / 64].load(std::memory_order_relaxed) >> (u % 64) & 1) != 0) continue;
    if (filler != nullptr && filler->interrupted()) return false;
    const auto n = static_cast<std::size_t>(std::min(kUnitBytes, bytes - at));
    if (!read_all(state_.file->buffered().fd(), start + at, {unit, n})) return false;
    if (!write_all(p.plain_file(), start + at, {unit, n})) {
      stop_filling(error_text());
      return false;
    }
    mark_units(start + at, start + at + n);
  }
  return true;
}

// Stores the chunk in its final form, and sets the entry.  Fails if the database has changed.
bool Image::store(InProcess& p, std::uint64_t chunk, TableEntry& entry, Filler* filler) noexcept {
  if (recipe_.codec == Codec::raw) {
    entry.bytes = static_cast<std::uint32_t>(bytes_in(chunk));
    if (!checksum_of(p.data.get(), chunk * kChunkBytes, entry.bytes, entry.checksum)) return false;
  } else if (!compress(p, chunk, entry, filler)) {
    return false;
  }
  return is_still_current();
}

// Compresses a chunk whose plain bytes are all in the file of parts.  One frame is in memory at a time.
// Between frames, the filler writes what was offered meanwhile.
bool Image::compress(InProcess& p, std::uint64_t chunk, TableEntry& entry, Filler* filler) noexcept {
  const auto plain_bytes = static_cast<std::size_t>(bytes_in(chunk));
  const std::uint64_t start = chunk * pitch();
  const std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[2 * kFrameBytes]);
  if (memory == nullptr) return false;
  const MutableBytes stored{memory.get() + kFrameBytes, kFrameBytes};
  const auto write_here = [&](std::size_t at, Bytes bytes) noexcept {
    const bool written = write_all(p.data.get(), start + at, bytes);
    if (!written) stop_filling(error_text());
    return written;
  };
  Scratch scratch;
  ChunkPacker packer(recipe_);
  std::size_t end = kHeaderBytes;
  for (std::size_t at = 0; at < plain_bytes; at += kFrameBytes) {
    const MutableBytes plain{memory.get(), std::min(kFrameBytes, plain_bytes - at)};
    if (filler != nullptr && filler->interrupted()) return false;
    if (!read_all(p.part.get(), chunk * kChunkBytes + at, plain)) return false;
    if (p.has_entry(chunk)) return false;  // another process has stored it, and then made the hole
    const Result<std::size_t> n = packer.add(plain, stored, scratch);
    if (!n || !write_here(end, stored.first(n.value()))) return false;
    end += n.value();
  }
  if (!write_here(0, packer.header(tag_of(chunk)))) return false;
  entry.bytes = static_cast<std::uint32_t>(end);
  return checksum_of(p.data.get(), start, end, entry.checksum);
}

// Adds bytes that were in the page cache when they were offered.
void Image::copy_cached(InProcess& p, std::uint64_t offset, std::uint64_t bytes) noexcept {
  // For a small piece, the question would cost as much as the copy.
  if (bytes >= kResidentPiece / 2 &&
      state_.file->residency(-1, Residency::Sampling::no).share(offset, bytes).value_or(1) != 1.0)
    counts_.skipped += bytes;
  else
    copy(p, offset, bytes);
}

// Reads bytes through the page cache and adds them.
void Image::copy(InProcess& p, std::uint64_t offset, std::uint64_t bytes) noexcept {
  const auto most = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, kResidentPiece));
  const std::unique_ptr<std::byte[]> piece(new (std::nothrow) std::byte[most]);
  if (piece == nullptr) return;
  for (std::uint64_t at = 0; at < bytes; at += most) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(most, bytes - at));
    if (!wants(offset + at, n)) continue;
    if (!read_all(state_.file->buffered().fd(), offset + at, {piece.get(), n})) return;
    write(p, offset + at, {piece.get(), n}, p.filler_now());
  }
}

// Adds the next chunk that lacks a few units, or that the page cache has and the image does not.  Such a
// chunk was in the page cache before, was read in another way, or was offered while the filler was behind.
// Returns after how many ns to call again.
std::int64_t Image::fill_resident(InProcess& p) noexcept {
  if (stopped() != nullptr || nodes_ > 1) return kLongWait;
  if (!ready_.load(std::memory_order_acquire)) return kResidentEvery;
  const Residency residency = state_.file->residency(-1, Residency::Sampling::no);
  const std::uint64_t most = chunks_wanted_.load(std::memory_order_relaxed);
  for (std::uint64_t looked = 0; looked < most; ++looked) {
    const std::uint64_t c = p.next_resident++ % most, start = c * kChunkBytes, bytes = bytes_in(c);
    const unsigned missing = missing_units(c);
    if (state_of(c).load() != kMissing || missing == 0) continue;
    if (missing <= kFewUnits && complete_units(p, c, nullptr)) {
      p.filler_now()->ask();
      return 0;
    }
    if (residency.share(start, bytes).value_or(0) < kNearlyAll) continue;
    copy(p, start, bytes);
    return missing_units(c) < missing ? 0 : kResidentEvery;
  }
  return kResidentEvery;
}

}  // namespace lmdbio::cache
