#include "lmdbio/files/datum.h"

namespace lmdbio::files {

namespace {

enum WireType : unsigned { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
enum Field : std::uint64_t { kChannels = 1, kHeight, kWidth, kData, kLabel, kFloats, kEncoded };

/// Reads the parts of a message.  Each function returns false at the end or at malformed bytes.
class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) noexcept : rest_(bytes) {}
  bool at_end() const noexcept { return rest_.empty(); }

  bool varint(std::uint64_t& out) noexcept {
    out = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto b = static_cast<std::uint64_t>(rest_[0]);
      rest_ = rest_.subspan(1);
      out |= (b & 0x7f) << shift;
      if (b < 0x80) return true;
    }
    return false;
  }
  bool take(std::uint64_t n, std::span<const std::byte>& out) noexcept {
    if (n > rest_.size()) return false;
    out = rest_.first(n);
    rest_ = rest_.subspan(n);
    return true;
  }
  bool skip(unsigned type) noexcept {
    std::uint64_t n = 0;
    std::span<const std::byte> skipped;
    switch (type) {
      case kVarint:
        return varint(n);
      case kFixed64:
        return take(8, skipped);
      case kBytes:
        return varint(n) && take(n, skipped);
      case kFixed32:
        return take(4, skipped);
      default:
        return false;  // groups, which Datum has never had
    }
  }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace

std::size_t Datum::float_bytes() const noexcept {
  std::size_t sum = 0;
  for (const auto piece : floats) sum += piece.size();
  return sum;
}

std::uint64_t Datum::elements() const noexcept {
  if (channels <= 0 || height <= 0 || width <= 0) return 0;
  __extension__ using Wide = unsigned __int128;
  const Wide n = Wide{static_cast<std::uint32_t>(channels)} * static_cast<std::uint32_t>(height) *
                 static_cast<std::uint32_t>(width);
  return n < Wide{1} << 40 ? static_cast<std::uint64_t>(n) : 0;
}

bool parse_datum(std::span<const std::byte> bytes, Datum& out) {
  out.channels = out.height = out.width = out.label = 0;
  out.encoded = out.has_data = false;
  out.data = {};
  out.floats.clear();
  Input in(bytes);
  while (!in.at_end()) {
    std::uint64_t tag = 0, n = 0;
    if (!in.varint(tag)) return false;
    const std::uint64_t field = tag >> 3;
    const unsigned type = tag & 7;
    std::int32_t* const number = field == kChannels ? &out.channels
                                 : field == kHeight ? &out.height
                                 : field == kWidth  ? &out.width
                                 : field == kLabel  ? &out.label
                                                    : nullptr;
    if (number != nullptr && type == kVarint) {
      if (!in.varint(n)) return false;
      *number = static_cast<std::int32_t>(n);  // a negative number has its sign extended to 64 bits
    } else if (field == kEncoded && type == kVarint) {
      if (!in.varint(n)) return false;
      out.encoded = n != 0;
    } else if (field == kData && type == kBytes) {
      if (!in.varint(n) || !in.take(n, out.data)) return false;
      out.has_data = true;
    } else if (field == kFloats && (type == kBytes || type == kFixed32)) {
      std::span<const std::byte> piece;
      n = sizeof(float);
      if ((type == kBytes && !in.varint(n)) || n % sizeof(float) != 0 || !in.take(n, piece)) return false;
      if (!out.floats.empty() && out.floats.back().data() + out.floats.back().size() == piece.data())
        out.floats.back() = {out.floats.back().data(), out.floats.back().size() + piece.size()};
      else
        out.floats.push_back(piece);
    } else if (!in.skip(type)) {
      return false;
    }
  }
  return true;
}

}  // namespace lmdbio::files
