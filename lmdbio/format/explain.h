// Describes what is wrong with a page, for messages after a failed check.
#pragma once

#include <span>

#include "lmdbio/base/bytes.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::format {

/// Checks a tree page of a file of `version`, whose number must be `expect`.  Writes the first rule that the
/// page breaks to `out`, with the name of the field, for example "slot 3 points to offset 5000, outside the
/// nodes".  `page` has all bytes of the page.  Returns false, with an empty `out`, if the page alone is well
/// formed.
bool explain_page(Version version, Bytes page, Pgno expect, std::span<char> out) noexcept;

/// Does the same for a meta page.  `page` has its first kMetaBytes bytes, or fewer if the file is shorter.
bool explain_meta(Bytes page, std::span<char> out) noexcept;

}  // namespace lmdbio::format
