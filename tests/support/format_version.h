// The format of the files that the tests write page by page.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string_view>

#include "lmdbio/format/layout.h"

namespace lmdbio::testing {

/// Returns LMDB 0.9's format, or that of 1.0 if the environment has TEST_FORMAT=1.0.  ctest runs such tests
/// with each of them.
inline format::Version version() {
  static const char* const set = std::getenv("TEST_FORMAT");
  static const bool v10 = set != nullptr && std::string_view(set) == "1.0";
  return v10 ? format::Version::v10 : format::Version::v09;
}
inline bool is_10() { return version() == format::Version::v10; }
/// Pages of `size` bytes in this format.
inline format::PageFormat pages_of(std::size_t size) { return {size, version()}; }

// Offsets in a page of this format.
inline const std::size_t kPageHeader = format::page_header(version()), kAtPad = format::at_pad(version()),
                         kAtFlags = format::at_flags(version()), kAtLower = format::at_lower(version()),
                         kAtUpper = format::at_upper(version()), kAtPages = format::at_pages(version()),
                         kSlotBase = format::slot_base(version());

}  // namespace lmdbio::testing
