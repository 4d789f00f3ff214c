#include "lmdbio/files/value_part.h"

#include <cstddef>

#include "lmdbio/files/datum.h"

namespace lmdbio::files {

std::optional<std::string_view> contents_of(std::string_view value, ValuePart part) {
  if (part == ValuePart::raw) return value;
  Datum datum;
  const auto* const bytes = reinterpret_cast<const std::byte*>(value.data());
  if (!parse_datum({bytes, value.size()}, datum) || !datum.has_data) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(datum.data.data()), datum.data.size());
}

}  // namespace lmdbio::files
