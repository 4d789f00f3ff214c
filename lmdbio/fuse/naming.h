// The paths of files in a mount, and their keys.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lmdbio::fuse {

enum class Names : unsigned char {
  text,    ///< files/names.h: slashes separate directories
  hex,     ///< the bytes of the key as hexadecimal digits, all in one directory
  number,  ///< integer keys of 4 or 8 bytes as decimal numbers, all in one directory
};

/// Converts keys to paths and back.  Pure; any thread.  Functions may throw bad_alloc.
class Naming {
 public:
  /// `integers`: the keys of the database are integers, which all have one size.
  Naming(Names names, std::string suffix, bool integers)
      : names_(names), integers_(integers), suffix_(std::move(suffix)) {}

  bool has_directories() const noexcept { return names_ == Names::text; }
  /// Returns the path of a key's file.  Returns nothing if a number is wanted and the key is none, or if the
  /// digits do not fit into a name of 255 bytes.
  std::optional<std::string> path_of(std::string_view key) const;
  /// Returns the key of the file with this path, or nothing if no key has it.  `like`: any key of the
  /// database, which gives the size of integer keys.
  std::optional<std::string> key_of(std::string_view path, std::string_view like) const;

 private:
  std::optional<std::string> decoded(std::string_view name, std::string_view like) const;

  Names names_;
  bool integers_;
  std::string suffix_;
};

}  // namespace lmdbio::fuse
