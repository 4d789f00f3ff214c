#include "lmdbio/fuse/naming.h"

#include <charconv>
#include <cstdint>
#include <cstring>
#include <limits>

#include "lmdbio/files/names.h"

namespace lmdbio::fuse {

namespace {

std::string hex_of(std::string_view key) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

std::optional<std::string> bytes_of_hex(std::string_view digits) {
  std::string out;
  for (; digits.size() >= 2; digits.remove_prefix(2)) {
    unsigned char byte = 0;
    const auto end = std::from_chars(digits.data(), digits.data() + 2, byte, 16);
    if (end.ptr != digits.data() + 2) return std::nullopt;
    out += static_cast<char>(byte);
  }
  return digits.empty() ? std::optional(out) : std::nullopt;
}

template <class Integer>
std::string bytes_of_number(Integer n) {
  return {reinterpret_cast<const char*>(&n), sizeof n};
}

std::optional<std::uint64_t> number_of(std::string_view key) {
  if (key.size() == sizeof(std::uint32_t)) {
    std::uint32_t n = 0;
    std::memcpy(&n, key.data(), sizeof n);
    return n;
  }
  std::uint64_t n = 0;
  if (key.size() != sizeof n) return std::nullopt;
  std::memcpy(&n, key.data(), sizeof n);
  return n;
}

}  // namespace

std::optional<std::string> Naming::path_of(std::string_view key) const {
  if (names_ == Names::text) return files::name_of(key, suffix_);
  std::string name;
  if (names_ == Names::hex) {
    name = hex_of(key);
  } else if (const auto n = number_of(key); n) {
    name = std::to_string(*n);
  } else {
    return std::nullopt;
  }
  name += suffix_;
  return name.size() <= files::kMostPartBytes ? std::optional(std::move(name)) : std::nullopt;
}

std::optional<std::string> Naming::decoded(std::string_view name, std::string_view like) const {
  if (names_ == Names::text) return files::key_of(name);
  if (names_ == Names::hex) return bytes_of_hex(name);
  std::uint64_t n = 0;
  const auto end = std::from_chars(name.data(), name.data() + name.size(), n);
  if (end.ec != std::errc() || end.ptr != name.data() + name.size()) return std::nullopt;
  if (like.size() == sizeof n) return bytes_of_number(n);
  if (n > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  return bytes_of_number(static_cast<std::uint32_t>(n));
}

std::optional<std::string> Naming::key_of(std::string_view path, std::string_view like) const {
  if (!path.ends_with(suffix_)) return std::nullopt;
  const std::optional<std::string> key = decoded(path.substr(0, path.size() - suffix_.size()), like);
  // Only one name of a key is valid.
  if (!key || key->empty() || path_of(*key) != path) return std::nullopt;
  // LMDB reads as many bytes of an integer key as the keys of the database have.
  if (integers_ && key->size() != like.size()) return std::nullopt;
  return key;
}

}  // namespace lmdbio::fuse
