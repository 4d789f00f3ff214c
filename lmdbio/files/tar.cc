#include "lmdbio/files/tar.h"

#include <cstdio>
#include <cstring>

namespace lmdbio::files {

namespace {

/// The header block of ustar.
struct Block {
  char name[100];
  char mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8];
  char type;
  char link[100];
  char magic[6], version[2];
  char user[32], group[32], device_major[8], device_minor[8];
  char prefix[155];
  char unused[12];
};
static_assert(sizeof(Block) == kTarBlock);

template <std::size_t N>
void put(char (&field)[N], std::string_view text) noexcept {
  (void)text.copy(field, N);
}

template <std::size_t N>
void put_octal(char (&field)[N], std::uint64_t n) noexcept {
  char digits[32];
  (void)std::snprintf(digits, sizeof digits, "%0*llo", static_cast<int>(N - 1),
                      static_cast<unsigned long long>(n));
  std::memcpy(field, digits, N);
}

std::string block(std::string_view name, std::string_view prefix, char type, std::uint64_t size,
                  std::uint64_t mtime) {
  Block b{};
  put(b.name, name);
  put_octal(b.mode, 0644);
  put_octal(b.uid, 0);
  put_octal(b.gid, 0);
  put_octal(b.size, size);
  put_octal(b.mtime, mtime);
  b.type = type;
  put(b.magic, "ustar");
  put(b.version, "00");
  put(b.prefix, prefix);
  std::memset(b.checksum, ' ', sizeof b.checksum);
  unsigned sum = 0;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&b);
  for (std::size_t i = 0; i < sizeof b; ++i) sum += bytes[i];
  (void)std::snprintf(b.checksum, sizeof b.checksum, "%06o", sum);
  return {reinterpret_cast<const char*>(&b), sizeof b};
}

/// Returns a record of a pax header.  The length that it begins with counts its own digits.
std::string pax_record(std::string_view key, std::string_view value) {
  const std::size_t rest = key.size() + value.size() + 3;
  std::size_t length = rest + 1;
  while (rest + std::to_string(length).size() != length) ++length;
  return std::to_string(length).append(" ").append(key).append("=").append(value).append("\n");
}

}  // namespace

std::string tar_header(std::string_view name, std::uint64_t size, std::uint64_t mtime) {
  constexpr std::size_t kName = sizeof Block{}.name, kPrefix = sizeof Block{}.prefix;
  if (name.size() <= kName) return block(name, {}, '0', size, mtime);
  // The last slash that leaves enough for the prefix also leaves the shortest name.
  const std::size_t slash = name.rfind('/', kPrefix);
  if (slash != std::string_view::npos && name.size() - slash - 1 <= kName)
    return block(name.substr(slash + 1), name.substr(0, slash), '0', size, mtime);
  const std::string records = pax_record("path", name);
  std::string out = block("PaxHeader", {}, 'x', records.size(), mtime) + records;
  out.append(tar_padding(records.size()), '\0');
  return out + block(name.substr(0, kName), {}, '0', size, mtime);
}

}  // namespace lmdbio::files
