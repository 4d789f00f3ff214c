#include "lmdbio/cache/verify.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/cache/piece.h"
#include "lmdbio/cache/table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lmdbio::cache {

namespace {

UniqueFd open_in(const Directory& directory, const std::string& file) noexcept {
  return UniqueFd(::openat(directory.fd(), file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
}

bool is_good(const OpenFile& data, std::uint64_t start, const TableEntry& entry, Piece& piece) noexcept {
  XXH3_state_t state;
  if (entry.bytes == 0 || entry.bytes > stored_bound(kChunkBytes) || ::XXH3_64bits_reset(&state) != XXH_OK)
    return false;
  for (std::uint64_t at = 0; at < entry.bytes; at += Piece::kBytes) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(Piece::kBytes, entry.bytes - at));
    if (!piece.read(data, start + at, n).ok()) return false;
    (void)::XXH3_64bits_update(&state, piece.bytes().data(), n);
  }
  return ::XXH3_64bits_digest(&state) == entry.checksum;
}

/// Returns the map of this boot, or nothing if there is none.
UniqueFd open_map(const Directory& directory, const std::string& name, std::uint64_t table_number,
                  std::uint64_t chunks) {
  UniqueFd map = open_in(directory, map_name(name));
  MapHeader header;
  if (map && ::pread(map.get(), &header, sizeof header, 0) == sizeof header &&
      std::memcmp(header.magic, MapHeader::kMagic, sizeof header.magic) == 0 &&
      header.table_number == table_number && header.chunks == chunks)
    return map;
  return {};
}

/// Makes the chunk missing.  The bits go before the state: a chunk that is missing and has all its bits would
/// get a new checksum of its damaged bytes.
void forget(int table, int map, std::uint64_t chunks, std::uint64_t chunk) noexcept {
  (void)write_entry(table, chunk, {});
  if (map < 0) return;
  constexpr unsigned char kNone[kUnitsPerChunk / 8] = {};
  constexpr auto kMissing = static_cast<unsigned char>(ChunkState::missing);
  (void)!::pwrite(map, kNone, sizeof kNone, static_cast<off_t>(units_at(chunks, chunk)));
  (void)!::pwrite(map, &kMissing, 1, static_cast<off_t>(sizeof(MapHeader) + chunk));
}

bool was_removed(int table) noexcept {
  struct stat st;
  return ::fstat(table, &st) == 0 && st.st_nlink == 0;
}

struct Watch {
  bool (*progress)(void*, std::uint64_t, std::uint64_t) noexcept;
  void* context;
  std::uint64_t total = 0;
};

void verify_image(const Directory& directory, const ImageFacts& image, const Watch& watch, Verified& all) {
  const UniqueFd table = open_in(directory, image.name + kTableEnding);
  if (!table) return;  // it is being made
  DamagedImage damage{image.name, image.path, false, {}};
  TableHeader header;
  const std::string path = directory.path() + "/" + image.name + kDataEnding;
  const Result<std::shared_ptr<const OpenFile>> data = OpenFile::open(path.c_str());
  std::vector<TableEntry> entries;
  bool table_is_good = read_header(table.get(), header) && data &&
                       header.data_number == file_number(data.value()->base().fd());
  if (table_is_good) {
    entries.resize(chunks_of(header.used_bytes));
    table_is_good = read_entries(table.get(), entries);
  }
  if (!table_is_good) {
    if (was_removed(table.get())) return;
    directory.remove(image.name);
    damage.removed = true;
    all.damaged.push_back(std::move(damage));
    return;
  }
  const UniqueFd map = open_map(directory, image.name, file_number(table.get()), entries.size());
  Piece piece;
  for (std::uint64_t c = 0; c < entries.size() && !all.stopped; ++c) {
    if (entries[c].bytes == 0 && entries[c].checksum == 0) continue;
    const bool good = is_good(*data.value(), c * pitch_of(recipe_of(header)), entries[c], piece);
    ++all.chunks;
    all.bytes += entries[c].bytes;
    if (!good && !was_removed(table.get())) {
      forget(table.get(), map.get(), entries.size(), c);
      damage.chunks.push_back(c);
    }
    all.stopped = !watch.progress(watch.context, all.bytes, watch.total);
  }
  ++all.images;
  if (!damage.chunks.empty()) all.damaged.push_back(std::move(damage));
}

}  // namespace

Verified verify(const Directory& directory, bool (*progress)(void*, std::uint64_t, std::uint64_t) noexcept,
                void* context) {
  Verified all;
  const std::vector<ImageFacts> images = directory.list(true);
  Watch watch{progress, context};
  for (const ImageFacts& image : images) watch.total += image.chunks_there * kChunkBytes;
  for (const ImageFacts& image : images)
    if (!all.stopped) verify_image(directory, image, watch, all);
  return all;
}

}  // namespace lmdbio::cache
