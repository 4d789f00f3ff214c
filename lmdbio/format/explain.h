// Describes what is wrong with a page, for messages after a failed check.
#pragma once

#include <span>

#include "lmdbio/base/bytes.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::format {

/// Writes the first rule that the tree page `page` (all its bytes) breaks into `out`, with the name of the
/// field, for example "slot 3 points to offset 5000, outside the nodes".  False: the page alone is well
/// formed; `out` is then empty.
bool explain_page(Bytes page, Pgno expect, std::span<char> out) noexcept;

/// The same for a meta page: its first kMetaBytes, or fewer if there are fewer.
bool explain_meta(Bytes page, std::span<char> out) noexcept;

}  // namespace lmdbio::format
