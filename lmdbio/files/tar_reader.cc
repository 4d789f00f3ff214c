#include "lmdbio/files/tar_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "lmdbio/files/database.h"
#include "lmdbio/files/tar.h"

namespace lmdbio::files {

namespace {

/// The largest header that holds a name, in bytes.
constexpr std::uint64_t kMostHeader = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostSize = std::uint64_t{1} << 62;

/// Reads headers, many with one request if the files are small.
class Headers {
 public:
  Headers(int fd, const std::string& path) : fd_(fd), path_(path) {}

  /// Returns `size` bytes at `offset`, until the next call.
  std::string_view at(std::uint64_t offset, std::size_t size) {
    if (offset < begin_ || offset + size > begin_ + buffer_.size()) {
      begin_ = offset;
      buffer_.resize(std::max(size, kAhead));
      const std::int64_t n = read_at(fd_, offset, buffer_.data(), buffer_.size());
      if (n < 0) throw Error(path_ + ": cannot be read: " + error_text(static_cast<int>(-n)));
      buffer_.resize(static_cast<std::size_t>(n));
      if (buffer_.size() < size) fail(offset, "the archive is truncated");
    }
    return std::string_view(buffer_).substr(static_cast<std::size_t>(offset - begin_), size);
  }
  [[noreturn]] void fail(std::uint64_t offset, const char* why) const {
    throw Error(path_ + ": at byte " + std::to_string(offset) + ": " + why);
  }

 private:
  static constexpr std::size_t kAhead = std::size_t{16} << 10;
  const int fd_;
  const std::string& path_;
  std::uint64_t begin_ = 0;
  std::string buffer_;
};

std::string_view text(std::string_view field) { return field.substr(0, field.find('\0')); }

std::optional<std::uint64_t> number(std::string_view field) {
  std::uint64_t n = 0;
  if ((static_cast<unsigned char>(field[0]) & 0x80) != 0) {  // GNU: binary, big endian
    for (std::size_t i = 0; i < field.size(); ++i) {
      const unsigned byte = static_cast<unsigned char>(field[i]) & (i == 0 ? 0x7fu : 0xffu);
      if (n >> 54 != 0) return std::nullopt;
      n = n << 8 | byte;
    }
    return n;
  }
  std::size_t i = std::min(field.find_first_not_of(' '), field.size());
  for (; i < field.size() && field[i] >= '0' && field[i] <= '7'; ++i)
    n = n << 3 | static_cast<unsigned>(field[i] - '0');
  for (; i < field.size(); ++i)
    if (field[i] != ' ' && field[i] != '\0') return std::nullopt;
  return n;
}

bool checksum_is_right(std::string_view block) {
  const auto stored = number(block.substr(148, 8));
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < block.size(); ++i)
    sum += i >= 148 && i < 156 ? unsigned{' '} : static_cast<unsigned char>(block[i]);
  return stored && *stored == sum;
}

/// What pax and GNU headers say about the next entry.
struct Extended {
  std::optional<std::string> name;
  std::optional<std::uint64_t> size;
  bool sparse = false, name_of_sparse = false;
  bool any = false;
};

bool read_pax(std::string_view records, Extended& out) {
  while (!records.empty()) {
    const std::size_t space = records.find(' ');
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(space, 8); ++i) {
      if (i == records.size() || records[i] < '0' || records[i] > '9') return false;
      length = 10 * length + static_cast<unsigned>(records[i] - '0');
    }
    if (space == std::string_view::npos || length < space + 3 || length > records.size()) return false;
    const std::string_view record = records.substr(space + 1, length - space - 2);
    if (records[length - 1] != '\n') return false;
    records.remove_prefix(length);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path" && !out.name_of_sparse) out.name = value;
    if (key == "GNU.sparse.name") {  // the path is a made-up name then
      out.name = value;
      out.name_of_sparse = true;
    }
    if (key.starts_with("GNU.sparse.")) out.sparse = true;
    if (key != "size") continue;
    std::uint64_t n = 0;
    for (const char c : value) {
      if (c < '0' || c > '9' || n > kMostSize / 10) return false;
      n = 10 * n + static_cast<unsigned>(c - '0');
    }
    out.size = n;
  }
  return true;
}

std::string name_of(std::string_view block) {
  const std::string_view name = text(block.substr(0, 100)), prefix = text(block.substr(345, 155));
  // GNU's own format has other fields in place of the prefix.
  if (block.substr(257, 6) != std::string_view("ustar\0", 6) || prefix.empty()) return std::string(name);
  return std::string(prefix).append("/").append(name);
}

std::string without_start(std::string name) {
  std::string_view rest = name;
  for (;;) {
    if (rest.starts_with("./"))
      rest.remove_prefix(2);
    else if (rest.starts_with('/'))
      rest.remove_prefix(1);
    else
      return std::string(rest);
  }
}

}  // namespace

std::int64_t read_at(int fd, std::uint64_t offset, char* out, std::size_t size) noexcept {
  std::size_t have = 0;
  while (have < size) {
    const ssize_t n = ::pread(fd, out + have, size - have, static_cast<off_t>(offset + have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -errno;
    if (n == 0) break;
    have += static_cast<std::size_t>(n);
  }
  return static_cast<std::int64_t>(have);
}

void read_tar(int fd, const std::string& path, const std::function<void(TarEntry)>& found) {
  Headers headers(fd, path);
  Extended extended;
  struct stat st {};
  if (::fstat(fd, &st) != 0) throw Error(path + ": cannot be read: " + error_text(errno));
  for (std::uint64_t at = 0;;) {
    if (at != 0 && at == static_cast<std::uint64_t>(st.st_size) && !extended.any) return;
    const std::string_view block = headers.at(at, kTarBlock);
    if (block.find_first_not_of('\0') == std::string_view::npos) return;
    if (at == 0 && (block.starts_with("\x1f\x8b") || block.starts_with("BZh") ||
                    block.starts_with("\xfd"
                                      "7zXZ") ||
                    block.starts_with("\x28\xb5\x2f\xfd")))
      throw Error(path + ": compressed; decompress it first");
    if (!checksum_is_right(block)) headers.fail(at, at == 0 ? "not a tar archive" : "a damaged header");
    const auto size = number(block.substr(124, 12));
    if (!size) headers.fail(at, "a damaged header");
    const char type = block[156];
    TarEntry entry{name_of(block), type == '\0' || type == '7' ? '0' : type, at + kTarBlock, *size};
    std::uint64_t bytes = *size, contents_at = entry.offset;
    bool map_goes_on = type == 'S' && block[482] != 0;
    if (type == 'x' || type == 'g' || type == 'L' || type == 'K') {
      if (bytes > kMostHeader) headers.fail(at, "a header that is too long");
      const std::string_view contents = headers.at(entry.offset, static_cast<std::size_t>(bytes));
      if (type == 'x' && !read_pax(contents, extended)) headers.fail(at, "a damaged pax header");
      if (type == 'L') extended.name = std::string(text(contents));
      extended.any = type != 'g';
    } else {
      if (extended.name) entry.name = *extended.name;
      if (extended.size) entry.size = bytes = *extended.size;
      if (extended.sparse) entry.type = 'S';
      while (map_goes_on) {  // blocks of GNU's old format, between header and contents
        map_goes_on = headers.at(contents_at, kTarBlock)[504] != 0;
        contents_at += kTarBlock;
      }
      extended = {};
      if (entry.is_file() && entry.name.ends_with('/')) entry.type = '5';  // before POSIX
      if (!entry.is_file()) entry.size = 0;
      if (type >= '1' && type <= '6') bytes = type == '5' ? bytes : 0;
      entry.name = without_start(std::move(entry.name));
      found(std::move(entry));
    }
    if (bytes > kMostSize) headers.fail(at, "a damaged header");
    at = contents_at + bytes + tar_padding(bytes);
  }
}

}  // namespace lmdbio::files
