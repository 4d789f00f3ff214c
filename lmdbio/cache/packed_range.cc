#include "lmdbio/cache/packed_range.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <tuple>

namespace lmdbio::cache {

namespace {

struct Head {
  std::uint64_t tag;
  std::uint32_t at, bytes;
};
static_assert(sizeof(Head) + kHeaderBytes == PackedRange::kHeadBytes);

}  // namespace

std::vector<std::byte> PackedRange::start(std::uint64_t tag, Bytes stored, std::size_t at,
                                          std::size_t bytes) {
  const Head head{tag, static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(bytes)};
  const Bytes first = std::as_bytes(std::span(&head, 1)), header = stored.first(kHeaderBytes);
  std::vector<std::byte> out(first.begin(), first.end());
  out.insert(out.end(), header.begin(), header.end());
  return out;
}

std::pair<std::size_t, std::size_t> PackedRange::frames_of(const ChunkHeader& header, std::size_t at,
                                                           std::size_t bytes) noexcept {
  const std::size_t from = std::min(at, header.plain_bytes());
  const std::size_t to = std::min(at + bytes, header.plain_bytes());
  const std::size_t first = from / kFrameBytes;
  return {first, from < to ? (to - 1) / kFrameBytes + 1 - first : 0};
}

Result<PackedRange> PackedRange::parse(Bytes packed) noexcept {
  const Status damaged = Status::from_errno(EBADMSG);
  if (packed.size() < kHeadBytes) return damaged;
  Head head;
  std::memcpy(&head, packed.data(), sizeof head);
  if (head.at > kMostChunkBytes || head.bytes > kMostChunkBytes) return damaged;
  const Result<ChunkHeader> header = ChunkHeader::parse(packed.subspan(sizeof head), head.tag);
  if (!header) return header.error();
  PackedRange range(header.value());
  range.packed_ = packed;
  range.at_ = head.at;
  range.bytes_ = head.bytes;
  std::tie(range.first_, range.count_) = frames_of(range.header_, range.at_, range.bytes_);
  const ChunkHeader& h = range.header_;
  if (packed.size() - kHeadBytes != h.offset(range.first_ + range.count_) - h.offset(range.first_))
    return damaged;
  return range;
}

// Returns frames that the range has, as they are stored.
Bytes PackedRange::stored(std::size_t first, std::size_t count) const noexcept {
  return packed_.subspan(kHeadBytes + header_.offset(first) - header_.offset(first_),
                         header_.offset(first + count) - header_.offset(first));
}

std::size_t PackedRange::size_of(std::size_t at, std::size_t bytes) const noexcept {
  const auto [first, count] = frames_of(header_, at, bytes);
  return kHeadBytes + header_.offset(first + count) - header_.offset(first);
}

std::vector<std::byte> PackedRange::part(std::size_t at, std::size_t bytes) const {
  Head head;
  std::memcpy(&head, packed_.data(), sizeof head);
  std::vector<std::byte> out = start(head.tag, packed_.subspan(sizeof head), at, bytes);
  const auto [first, count] = frames_of(header_, at, bytes);
  const Bytes frames = stored(first, count);
  out.insert(out.end(), frames.begin(), frames.end());
  return out;
}

bool PackedRange::verify() const noexcept {
  for (std::size_t i = first_; i < first_ + count_; ++i)
    if (!header_.is_frame(i, stored(i, 1))) return false;
  return true;
}

Status PackedRange::unpack(std::size_t at, MutableBytes to, Scratch& scratch) const noexcept {
  const auto [first, count] = frames_of(header_, at, to.size());
  std::unique_ptr<std::byte[]> plain;
  std::size_t done = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    const std::size_t from = i == first ? at - i * kFrameBytes : 0;
    const std::size_t n = std::min(header_.frame_bytes(i) - from, to.size() - done);
    MutableBytes into = to.subspan(done, n);
    if (n != header_.frame_bytes(i)) {
      if (plain == nullptr) plain.reset(new (std::nothrow) std::byte[kFrameBytes]);
      if (plain == nullptr) return Status::from_errno(ENOMEM);
      into = {plain.get(), header_.frame_bytes(i)};
    }
    if (const Status st = header_.decompress(i, 1, stored(i, 1), into, scratch); !st.ok()) return st;
    if (n != header_.frame_bytes(i)) std::memcpy(to.data() + done, into.data() + from, n);
    done += n;
  }
  std::fill(to.begin() + static_cast<std::ptrdiff_t>(done), to.end(), std::byte{});
  return {};
}

}  // namespace lmdbio::cache
