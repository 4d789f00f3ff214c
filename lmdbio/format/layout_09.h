// Offsets in files of LMDB 0.9, for code that knows only those.
#pragma once

#include "lmdbio/format/layout.h"

namespace lmdbio::format {

inline constexpr std::size_t kPageHeader = page_header(Version::v09), kAtPad = at_pad(Version::v09),
                             kAtFlags = at_flags(Version::v09), kAtLower = at_lower(Version::v09),
                             kAtUpper = at_upper(Version::v09), kAtPages = at_pages(Version::v09),
                             kMaxPageSize = max_page_size(Version::v09);
inline constexpr std::uint32_t kVersion = meta_version(Version::v09);

}  // namespace lmdbio::format
