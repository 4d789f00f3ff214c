#include "lmdbio/cache/table.h"

#include <unistd.h>

#include <cstddef>
#include <cstring>

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

}  // namespace lmdbio::cache
