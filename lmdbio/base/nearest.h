// Finds the name that a user most likely meant by a mistyped one.
#pragma once

#include <cstddef>
#include <string_view>

namespace lmdbio {

/// Returns how many insertions, deletions, replacements and exchanges of neighbours turn `a` into `b`
/// (Damerau's distance, without edits inside an exchange).  The distance of names longer than 40 characters
/// is infinite.
constexpr std::size_t edit_distance(std::string_view a, std::string_view b) noexcept {
  constexpr std::size_t kMost = 40;
  if (a.size() > kMost || b.size() > kMost) return ~std::size_t{0};
  std::size_t rows[3][kMost + 1]{};
  std::size_t *before = rows[0], *above = rows[1], *row = rows[2];
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      std::size_t least = replaced < above[j] + 1 ? replaced : above[j] + 1;
      if (row[j - 1] + 1 < least) least = row[j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < least)
        least = before[j - 2] + 1;
      row[j] = least;
    }
    std::size_t* const oldest = before;
    before = above;
    above = row;
    row = oldest;
  }
  return above[b.size()];
}

/// Calls next() for one name after the other, until next() returns an empty name.  Returns the name with the
/// smallest distance to `given`.  Returns an empty name if all distances are larger than a third of the
/// length of `given`.
template <class Next>
constexpr std::string_view nearest_name(std::string_view given, Next&& next) {
  std::string_view best;
  std::size_t least = given.size() / 3 + 1;
  for (std::string_view name = next(); !name.empty(); name = next())
    if (const std::size_t d = edit_distance(given, name); d < least) {
      least = d;
      best = name;
    }
  return best;
}

}  // namespace lmdbio
