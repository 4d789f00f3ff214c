#include "lmdbio/records/index_path.h"

#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cerrno>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace lmdbio::records {
namespace {

constexpr const char* kSuffix = ".lmdbio-index";
/// Longer names are cut.  A hash keeps the names of databases distinct.
constexpr std::size_t kMostName = 120, kMostFileName = 60;

// Encodes the name of a database, which may contain any bytes, for a file name.
std::string encoded(std::string_view name) {
  constexpr const char* kHex = "0123456789ABCDEF";
  std::string out;
  for (const char c : name) {
    const auto u = static_cast<unsigned char>(c);
    if ((u >= 'a' && u <= 'z') || (u >= 'A' && u <= 'Z') || (u >= '0' && u <= '9') || u == '-' || u == '_') {
      out += c;
    } else {
      out += '%';
      out += kHex[u >> 4];
      out += kHex[u & 15];
    }
  }
  if (out.size() <= kMostName) return out;
  char hash[24];
  (void)std::snprintf(hash, sizeof hash, "~%016" PRIx64,
                      std::uint64_t{XXH3_64bits(name.data(), name.size())});
  out.resize(kMostName - 20);
  return out + hash;
}

}  // namespace

Result<std::string> index_path(const std::string& data_path, std::string_view database, std::uint64_t inode,
                               const std::string& directory) noexcept {
  try {
    std::string name = database.empty() ? kSuffix : "." + encoded(database) + kSuffix;
    if (directory.empty()) return data_path + name;
    struct Free {
      void operator()(char* p) const noexcept { std::free(p); }
    };
    const std::unique_ptr<char, Free> real(::realpath(data_path.c_str(), nullptr));
    if (real == nullptr) return Status::from_errno(errno);
    const std::string_view path = real.get();
    char which[64];
    (void)std::snprintf(which, sizeof which, "-%" PRIx64 "-%016" PRIx64, inode,
                        std::uint64_t{XXH3_64bits(path.data(), path.size())});
    return directory + "/" + std::string(path.substr(path.rfind('/') + 1, kMostFileName)) + which + name;
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

}  // namespace lmdbio::records
