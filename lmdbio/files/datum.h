// Parses Caffe's protobuf message Datum.  Source of the format: src/caffe/proto/caffe.proto of BVLC Caffe and
// protobuf's encoding (https://protobuf.dev/programming-guides/encoding).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lmdbio::files {

/// The fields of a Datum.  Spans point into the parsed bytes.
struct Datum {
  std::int32_t channels = 0, height = 0, width = 0;
  std::int32_t label = 0;
  bool encoded = false;             ///< `data` is a file such as JPEG
  bool has_data = false;            ///< the field `data` exists; it may be empty
  std::span<const std::byte> data;  ///< pixels, or the encoded file
  /// Pieces of float_data, in their sequence: 32-bit numbers, little-endian.  One piece if the field is
  /// packed.
  std::vector<std::span<const std::byte>> floats;

  std::size_t float_bytes() const noexcept;
  /// The number of elements that channels, height and width stand for; 0 if one of them is not positive, or
  /// if the product is not less than 2^40.
  std::uint64_t elements() const noexcept;
};

/// Parses a message.  Unknown fields are skipped.  Returns false if `bytes` are not a Datum.  May throw
/// bad_alloc.
bool parse_datum(std::span<const std::byte> bytes, Datum& out);

}  // namespace lmdbio::files
