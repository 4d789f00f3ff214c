// What is wrong with a page, in words: for messages, after a check has failed.
#pragma once

#include <span>

#include "lmdbio/base/bytes.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::format {

/// Writes into `out` the first rule that the tree page `page` (all its bytes) breaks, naming the field, as
/// "slot 3 points to offset 5000, outside the nodes".  False: the page alone is well formed; `out` is then
/// empty.
bool explain_page(Bytes page, Pgno expect, std::span<char> out) noexcept;

/// The same for a meta page: its first kMetaBytes, or what there is of them.
bool explain_meta(Bytes page, std::span<char> out) noexcept;

}  // namespace lmdbio::format
