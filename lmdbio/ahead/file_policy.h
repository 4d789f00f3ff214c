// Decides whether to load a file as a whole, from the walks and lookups of all environments on it.
#pragma once

#include <cstdint>

#include "lmdbio/format/page_view.h"
#include "lmdbio/window/window_file.h"

namespace lmdbio::ahead {

/// Records that a lookup under `snapshot` found data missing at byte `at` of `used_bytes`.  `far`: `at` is
/// far from the previous lookup.  Begins a background load of the whole file if lookups go all over the file
/// and it fits.  Returns the number of far misses under this snapshot so far; 0 if the miss was not far, or
/// the file is being loaded.  Any thread.
std::uint64_t lookup_missed(window::WindowFile& file, std::uint64_t snapshot, std::uint64_t at,
                            std::uint64_t used_bytes, bool far) noexcept;
/// Records that a walk passes by the values of `leaf`.  If the program reads them later, outside of calls,
/// the file is worth loading as a whole (window/late_use.h).  Any thread.
void pass_by(window::WindowFile& file, const format::PageView& leaf, const window::WindowView& view) noexcept;

}  // namespace lmdbio::ahead
