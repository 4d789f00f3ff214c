// The layouts of assembled batches: where the bytes of each record go.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lmdbio::python {

/// Places the records of a batch in one buffer.  Immutable; any thread.
class Layout {
 public:
  virtual ~Layout() = default;
  /// Returns the size of the buffer for a batch, in bytes.
  virtual std::size_t bytes(const lmdbio_batch& batch) const noexcept = 0;
  /// Prepares the buffer `out` before any record is copied.
  virtual void begin(const lmdbio_batch& batch, std::byte* out) const noexcept = 0;
  /// Copies records first, ..., end - 1 of `batch` to their places in `out`, after begin().  Returns an empty
  /// text, or the reason why a record does not fit this layout.  Different threads may copy different
  /// records.  May throw bad_alloc.
  virtual std::string copy(const lmdbio_batch& batch, std::size_t first, std::size_t end,
                           std::byte* out) const = 0;
};

/// A part of each value that becomes an element of an array.
struct Column {
  std::size_t offset = 0;  ///< in the value, in bytes
  std::size_t bytes = 0;   ///< of each value
  std::size_t array = 0;   ///< offset of the array in the buffer, in bytes
  std::size_t number = 1;  ///< the bytes of each group of this size are reversed
};

/// All values have `value_bytes` bytes.  Each column becomes an array of its own.  `buffer_bytes`: the size
/// of the buffer.
std::unique_ptr<Layout> columns_layout(std::vector<Column> columns, std::size_t value_bytes,
                                       std::size_t buffer_bytes);
/// All values are Datum messages of one shape.  The buffer has two arrays: the data, as 8-bit or (`floats`)
/// 32-bit numbers, and at offset `labels` the labels, as 64-bit numbers.
std::unique_ptr<Layout> datum_layout(std::int32_t channels, std::int32_t height, std::int32_t width,
                                     bool floats, std::size_t labels, std::size_t buffer_bytes);
/// Values of any sizes.  The buffer has the offsets of the values as count + 1 64-bit numbers, the first of
/// which is 0, and then the values one after another.
std::unique_ptr<Layout> flat_layout();

}  // namespace lmdbio::python
