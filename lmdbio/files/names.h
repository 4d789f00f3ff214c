// The names of files that stand for keys, and the keys that stand for names of files.
//
// A key is a name already if it can be a relative path: its slashes separate directories.  Other keys are
// quoted, so that each key has exactly one name, from which the key follows:
//
//   %00  a byte 0
//   %2F  a slash that would make an empty part: at the start or the end of the key, or after another slash
//   %2E  each dot of a part that is "." or ".."
//   %25  a percent sign before 00, 25, 2E, 2F or +, which would otherwise be read as quoted
//   %+/  nothing: it divides a part of more than 255 bytes, which file systems do not allow
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lmdbio::files {

/// The largest size of a part of a path, in bytes (NAME_MAX).
inline constexpr std::size_t kMostPartBytes = 255;
/// The largest size of a suffix, in bytes.
inline constexpr std::size_t kMostSuffixBytes = 128;

/// Returns the name of a key, a relative path, with `suffix` at its end.  `key` has at least one byte.
/// `suffix`: at most kMostSuffixBytes, without slash and byte 0.  May throw bad_alloc.
std::string name_of(std::string_view key, std::string_view suffix = {});

/// Returns the key of a name without its suffix.  Each key is key_of(name_of(key)).  Returns the name of a
/// directory, with a slash at its end, as the prefix that all keys in the directory have.  Any bytes are a
/// valid input; a percent sign that begins no quotation stands for itself.  May throw bad_alloc.
std::string key_of(std::string_view name);

/// Returns the key under which a file is stored: key_of(`name`) if that key has this name, else the name
/// itself.  So the names of ordinary files are kept as they are.  May throw bad_alloc.
std::string key_for_file(std::string_view name);

}  // namespace lmdbio::files
