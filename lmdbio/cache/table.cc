#include "lmdbio/cache/table.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "lmdbio/base/align.h"
#include "lmdbio/cache/file_bytes.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lmdbio::cache {

namespace {

std::uint64_t checksum_of(const TableHeader& header) noexcept {
  return ::XXH3_64bits(&header, offsetof(TableHeader, checksum));
}

off_t place_of(std::uint64_t chunk) noexcept {
  return static_cast<off_t>(kTableHeaderBytes + chunk * sizeof(TableEntry));
}

}  // namespace

Recipe recipe_of(const TableHeader& header) noexcept {
  return {static_cast<Codec>(header.codec), {static_cast<Filter::Kind>(header.filter), header.filter_width}};
}

bool read_header(int table, TableHeader& header) noexcept {
  return ::pread(table, &header, sizeof header, 0) == sizeof header &&
         std::memcmp(header.magic, TableHeader::kMagic, sizeof header.magic) == 0 &&
         header.checksum == checksum_of(header) && std::memchr(header.path, 0, sizeof header.path) != nullptr;
}

bool write_header(int table, TableHeader& header) noexcept {
  std::memcpy(header.magic, TableHeader::kMagic, sizeof header.magic);
  header.checksum = checksum_of(header);
  return ::pwrite(table, &header, sizeof header, 0) == sizeof header;
}

bool read_entries(int table, std::span<TableEntry> entries) noexcept {
  const std::span<std::byte> all = std::as_writable_bytes(entries);
  std::size_t done = 0;
  while (done < all.size()) {
    const ssize_t n =
        ::pread(table, all.data() + done, all.size() - done, static_cast<off_t>(kTableHeaderBytes + done));
    if (n < 0) return false;
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  std::memset(all.data() + done, 0, all.size() - done);
  return true;
}

bool read_entry(int table, std::uint64_t chunk, TableEntry& entry) noexcept {
  return ::pread(table, &entry, sizeof entry, place_of(chunk)) == sizeof entry;
}

bool write_entry(int table, std::uint64_t chunk, const TableEntry& entry) noexcept {
  return ::pwrite(table, &entry, sizeof entry, place_of(chunk)) == sizeof entry;
}

std::uint64_t file_number(int fd) noexcept {
  struct statx st {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &st) != 0) return 0;
  const std::uint64_t facts[] = {st.stx_ino, static_cast<std::uint64_t>(st.stx_btime.tv_sec),
                                 st.stx_btime.tv_nsec};
  return ::XXH3_64bits(facts, sizeof facts);
}

bool checksum_of(int fd, std::uint64_t offset, std::uint64_t bytes, std::uint64_t& out) noexcept {
  constexpr std::size_t kScratch = std::size_t{64} << 10;
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

}  // namespace lmdbio::cache
