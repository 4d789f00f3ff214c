#include "lmdbio/files/tar.h"

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

/// Writes `digits` octal digits, without snprintf, which took half the time of a header.
void put_octal(char* to, std::size_t digits, std::uint64_t n) noexcept {
  for (; digits > 0; n /= 8) to[--digits] = static_cast<char>('0' + n % 8);
}

/// Writes a number that a zero ends.
template <std::size_t N>
void put_octal(char (&field)[N], std::uint64_t n) noexcept {
  put_octal(field, N - 1, n);
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
  put_octal(b.checksum, 6, sum);  // six digits, a zero, a space
  b.checksum[6] = '\0';
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
