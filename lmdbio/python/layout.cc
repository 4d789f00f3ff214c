#include "lmdbio/python/layout.h"

#include <algorithm>
#include <cstring>

#include "lmdbio/files/datum.h"

namespace lmdbio::python {

using files::Datum;
using files::parse_datum;

namespace {

std::span<const std::byte> value_of(const lmdbio_record& r) noexcept {
  return {static_cast<const std::byte*>(r.value.mv_data), r.value.mv_size};
}

/// Returns "record 7 (key b'..')" for messages.
std::string name_of(const lmdbio_record& r) {
  static constexpr std::size_t kMost = 64;
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text = "record " + std::to_string(r.ordinal) + " (key b'";
  const auto* const key = static_cast<const unsigned char*>(r.key.mv_data);
  for (std::size_t i = 0; i < std::min(r.key.mv_size, kMost); ++i) {
    if (key[i] >= ' ' && key[i] < 0x7f && key[i] != '\'' && key[i] != '\\')
      text += static_cast<char>(key[i]);
    else
      text += {'\\', 'x', kHex[key[i] >> 4], kHex[key[i] & 15]};
  }
  return text + (r.key.mv_size > kMost ? "...')" : "')");
}

class Columns final : public Layout {
 public:
  Columns(std::vector<Column> columns, std::size_t value_bytes, std::size_t buffer_bytes)
      : columns_(std::move(columns)), value_bytes_(value_bytes), buffer_bytes_(buffer_bytes) {}

  std::size_t bytes(const lmdbio_batch&) const noexcept override { return buffer_bytes_; }
  void begin(const lmdbio_batch&, std::byte*) const noexcept override {}

  std::string copy(const lmdbio_batch& batch, std::size_t first, std::size_t end,
                   std::byte* out) const override {
    for (std::size_t i = first; i < end; ++i) {
      const std::span<const std::byte> value = value_of(batch.records[i]);
      if (value.size() != value_bytes_)
        return name_of(batch.records[i]) + " has " + std::to_string(value.size()) +
               " bytes, but `fields` has " + std::to_string(value_bytes_);
      for (const Column& c : columns_) {
        std::byte* const to = out + c.array + i * c.bytes;
        std::memcpy(to, value.data() + c.offset, c.bytes);
        if (c.number > 1)
          for (std::size_t at = 0; at < c.bytes; at += c.number) std::reverse(to + at, to + at + c.number);
      }
    }
    return {};
  }

 private:
  const std::vector<Column> columns_;
  const std::size_t value_bytes_, buffer_bytes_;
};

class DatumArrays final : public Layout {
 public:
  DatumArrays(std::int32_t channels, std::int32_t height, std::int32_t width, bool floats, std::size_t labels,
              std::size_t buffer_bytes)
      : channels_(channels),
        height_(height),
        width_(width),
        floats_(floats),
        labels_(labels),
        buffer_bytes_(buffer_bytes) {
    Datum shape;
    shape.channels = channels, shape.height = height, shape.width = width;
    data_bytes_ = shape.elements() * (floats ? sizeof(float) : 1);
  }

  std::size_t bytes(const lmdbio_batch&) const noexcept override { return buffer_bytes_; }
  void begin(const lmdbio_batch&, std::byte*) const noexcept override {}

  std::string copy(const lmdbio_batch& batch, std::size_t first, std::size_t end,
                   std::byte* out) const override {
    Datum d;
    for (std::size_t i = first; i < end; ++i) {
      const lmdbio_record& r = batch.records[i];
      if (!parse_datum(value_of(r), d)) return name_of(r) + " is not a Datum";
      if (d.encoded) return name_of(r) + " has an encoded image; it needs `decode`";
      if (d.channels != channels_ || d.height != height_ || d.width != width_)
        return name_of(r) + " has the shape " + shape(d.channels, d.height, d.width) +
               ", but the first record has " + shape(channels_, height_, width_);
      const std::size_t have = floats_ ? d.float_bytes() : d.data.size();
      if (have != data_bytes_)
        return name_of(r) + " has " + std::to_string(have) + " bytes of " +
               (floats_ ? "float_data" : "data") + ", but its shape " + shape(d.channels, d.height, d.width) +
               " has " + std::to_string(data_bytes_);
      std::byte* to = out + i * data_bytes_;
      if (!floats_) d.floats.assign(1, d.data);
      for (const std::span<const std::byte> piece : d.floats) {
        std::memcpy(to, piece.data(), piece.size());
        to += piece.size();
      }
      const std::int64_t label = d.label;
      std::memcpy(out + labels_ + i * sizeof label, &label, sizeof label);
    }
    return {};
  }

 private:
  static std::string shape(std::int32_t c, std::int32_t h, std::int32_t w) {
    return "(" + std::to_string(c) + ", " + std::to_string(h) + ", " + std::to_string(w) + ")";
  }

  const std::int32_t channels_, height_, width_;
  const bool floats_;
  const std::size_t labels_, buffer_bytes_;
  std::size_t data_bytes_;
};

class Flat final : public Layout {
 public:
  std::size_t bytes(const lmdbio_batch& batch) const noexcept override {
    std::size_t sum = offsets_bytes(batch);
    for (std::size_t i = 0; i < batch.count; ++i) sum += batch.records[i].value.mv_size;
    return sum;
  }
  void begin(const lmdbio_batch& batch, std::byte* out) const noexcept override {
    auto* const offsets = reinterpret_cast<std::int64_t*>(out);
    offsets[0] = 0;
    for (std::size_t i = 0; i < batch.count; ++i)
      offsets[i + 1] = offsets[i] + static_cast<std::int64_t>(batch.records[i].value.mv_size);
  }
  std::string copy(const lmdbio_batch& batch, std::size_t first, std::size_t end,
                   std::byte* out) const override {
    const auto* const offsets = reinterpret_cast<const std::int64_t*>(out);
    for (std::size_t i = first; i < end; ++i) {
      const std::span<const std::byte> value = value_of(batch.records[i]);
      if (!value.empty()) std::memcpy(out + offsets_bytes(batch) + offsets[i], value.data(), value.size());
    }
    return {};
  }

 private:
  static std::size_t offsets_bytes(const lmdbio_batch& batch) noexcept {
    return (batch.count + 1) * sizeof(std::int64_t);
  }
};

}  // namespace

std::unique_ptr<Layout> columns_layout(std::vector<Column> columns, std::size_t value_bytes,
                                       std::size_t buffer_bytes) {
  return std::make_unique<Columns>(std::move(columns), value_bytes, buffer_bytes);
}
std::unique_ptr<Layout> datum_layout(std::int32_t channels, std::int32_t height, std::int32_t width,
                                     bool floats, std::size_t labels, std::size_t buffer_bytes) {
  return std::make_unique<DatumArrays>(channels, height, width, floats, labels, buffer_bytes);
}
std::unique_ptr<Layout> flat_layout() { return std::make_unique<Flat>(); }

}  // namespace lmdbio::python
