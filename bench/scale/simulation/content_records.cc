#include "bench/scale/simulation/content_records.h"

#include <algorithm>
#include <cstring>

#include "bench/keys.h"

namespace lmdbio::bench {

ContentRecords::ContentRecords(Content content, std::uint64_t bytes, std::uint64_t multiple) {
  Sizes sizes(content);
  for (Written written(bytes, multiple); !written.enough(); count_ = written.records()) {
    const std::size_t size = sizes.next();
    written.add(size);
    size_ = static_cast<std::uint32_t>(size);
    if (sizes_differ(content)) sizes_.push_back(size_);
  }
}

std::size_t ContentRecords::key(std::uint64_t ordinal, char* to) const {
  return make_key(KeyKind::kImage, ordinal, false, to);
}

void ContentRecords::value(std::uint64_t ordinal, std::byte* to) const {
  std::memset(to, 0, value_bytes(ordinal));
  std::memcpy(to, &ordinal, std::min<std::size_t>(sizeof ordinal, value_bytes(ordinal)));
}

}  // namespace lmdbio::bench
