// Reads an image: which chunks it has, and their bytes.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "lmdbio/base/futex.h"
#include "lmdbio/base/log.h"
#include "lmdbio/cache/file_bytes.h"
#include "lmdbio/cache/image_process.h"
#include "lmdbio/cache/packed_range.h"
#include "lmdbio/cache/table.h"

namespace lmdbio::cache {

namespace {

/// share_not_in_memory() examines up to twice as many chunks.
constexpr std::uint64_t kMostExamined = 32;

constexpr bool is_stored(unsigned char state) noexcept { return state == kThere || state == kUnverified; }

}  // namespace

bool Image::is_there(InProcess& p, std::uint64_t chunk) noexcept {
  if (!ready_.load(std::memory_order_acquire) || chunk >= chunks_) return false;
  const unsigned char state = state_of(chunk).load(std::memory_order_acquire);
  // A thread that has just stored the chunk removes its plain bytes before it changes the state.  A damaged
  // chunk has this state, too: only checksums of frames, which are verified at each read, tell them apart.
  const bool is_completed = state == kCompleting && recipe_.codec != Codec::raw && p.has_entry(chunk);
  return state == kThere || is_completed || (state == kUnverified && verify(p, chunk));
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

Result<std::vector<std::byte>> Image::read_packed(std::uint64_t chunk, std::size_t at,
                                                  std::size_t bytes) noexcept {
  std::vector<std::byte> packed;
  Status st = Status::from_errno(ENODATA);
  (void)PrivateTable::run([&]() noexcept {
    InProcess* const p = here();
    if (p == nullptr || recipe().codec == Codec::raw || !is_there(*p, chunk)) return;
    try {
      st = read_packed(*p, chunk, at, bytes, packed);
    } catch (...) {
      st = Status::from_errno(ENOMEM);
    }
    if (st.raw() == EBADMSG) is_damaged(*p, chunk);
  });
  if (!st.ok()) return st;
  counts_.read += bytes;
  return packed;
}

// May throw bad_alloc.
Status Image::read_packed(InProcess& p, std::uint64_t chunk, std::size_t at, std::size_t bytes,
                          std::vector<std::byte>& packed) {
  const auto failed = [] { return Status::from_errno(errno != 0 ? errno : EIO); };
  std::byte head[kHeaderBytes];
  if (!read_all(p.data.get(), chunk * pitch(), head)) return failed();
  const Result<ChunkHeader> header = ChunkHeader::parse(head, tag_of(chunk));
  if (!header) return header.error();
  const ChunkHeader& h = header.value();
  if (h.plain_bytes() != bytes_in(chunk)) return Status::from_errno(EBADMSG);
  packed = PackedRange::start(tag_of(chunk), head, at, bytes);
  const auto [first, count] = PackedRange::frames_of(h, at, bytes);
  packed.resize(PackedRange::kHeadBytes + h.offset(first + count) - h.offset(first));
  if (!read_all(p.data.get(), chunk * pitch() + h.offset(first),
                MutableBytes(packed).subspan(PackedRange::kHeadBytes)))
    return failed();
  const Result<PackedRange> range = PackedRange::parse(packed);
  if (!range) return range.error();
  return range.value().verify() ? Status() : Status::from_errno(EBADMSG);
}

bool Image::may_have(std::uint64_t chunk) const noexcept {
  return ready_.load(std::memory_order_acquire) && chunk < chunks_ &&
         (is_stored(state_of(chunk).load(std::memory_order_acquire)) || has_all_units(chunk));
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

}  // namespace lmdbio::cache
