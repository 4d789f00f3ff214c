// The part of a value that is shown as the contents of a file.
#pragma once

#include <optional>
#include <string_view>

namespace lmdbio::files {

enum class ValuePart : unsigned char {
  raw,    ///< all of it
  datum,  ///< the pixels or the encoded image of Caffe's Datum
};

/// Returns the contents of the file for a value, a part of its bytes.  Returns nothing if the value is not a
/// Datum, or a Datum without data.  May throw bad_alloc.
std::optional<std::string_view> contents_of(std::string_view value, ValuePart part);

}  // namespace lmdbio::files
