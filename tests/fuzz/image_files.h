// A database for fuzz_image, and the intact files of its image.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "lmdbio/cache/codec.h"
#include "lmdbio/cache/image_format.h"
#include "lmdbio/cache/table.h"
#include "lmdbio/format/layout_09.h"
#include "tests/support/chunk_data.h"
#include "tests/support/file_image.h"

namespace lmdbio::test {

using ImageBytes = std::vector<std::byte>;

inline constexpr std::size_t kImagePage = 4096, kImageDatabaseBytes = 25 * kImagePage;  // two frames
inline constexpr std::uint64_t kImageSnapshot = 7;

inline ImageBytes image_database() {
  testing::FileImage file(kImagePage);
  const ImageBytes value =
      chunk_data(ChunkData::words, kImageDatabaseBytes - 2 * kImagePage - format::kPageHeader, 1);
  (void)file.overflow({reinterpret_cast<const char*>(value.data()), value.size()});
  file.metas(testing::FileImage::record(0, 1, 2, 1), kImageSnapshot);
  return {file.bytes().begin(), file.bytes().end()};
}

inline cache::Recipe image_recipe(bool packed) {
  return packed && cache::built_in(cache::Codec::zstd1) ? cache::Recipe{cache::Codec::zstd1, {}}
                                                        : cache::Recipe{};
}

inline ImageBytes image_data(cache::Recipe recipe, std::uint64_t tag) {
  ImageBytes plain = image_database();
  if (recipe.codec == cache::Codec::raw) return plain;
  ImageBytes stored(cache::stored_bound(plain.size()));
  cache::Scratch scratch;
  stored.resize(cache::compress_chunk(plain, recipe, tag, stored, scratch).value());
  return stored;
}

template <class T>
void append(ImageBytes& to, const T& value) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof value);
}

template <class T>
void replace(ImageBytes& in, std::size_t at, const T& value) {
  if (at + sizeof value <= in.size()) std::memcpy(in.data() + at, &value, sizeof value);
}

inline cache::TableEntry image_entry(const ImageBytes& data) {
  return {XXH3_64bits(data.data(), data.size()), static_cast<std::uint32_t>(data.size()), 0};
}

/// Makes a table belong to the data file with this number.
inline void forge_table(ImageBytes& table, std::uint64_t data_number) {
  if (table.size() < sizeof(cache::TableHeader)) return;
  replace(table, offsetof(cache::TableHeader, data_number), data_number);
  replace(table, offsetof(cache::TableHeader, checksum),
          std::uint64_t{XXH3_64bits(table.data(), offsetof(cache::TableHeader, checksum))});
}

inline ImageBytes image_table(cache::Recipe recipe, const cache::TableEntry& entry,
                              std::uint64_t data_number) {
  cache::TableHeader header{};
  std::memcpy(header.magic, cache::TableHeader::kMagic, sizeof header.magic);
  header.used_bytes = kImageDatabaseBytes;
  header.snapshot = kImageSnapshot;
  header.page_bytes = kImagePage;
  header.codec = static_cast<std::uint8_t>(recipe.codec);
  ImageBytes table;
  append(table, header);
  append(table, entry);
  forge_table(table, data_number);
  return table;
}

inline ImageBytes image_map(const cache::MapHeader& numbers) {
  ImageBytes map;
  append(map, numbers);
  map.push_back(static_cast<std::byte>(cache::kThere));
  map.resize(cache::units_at(1, 1));
  return map;
}

}  // namespace lmdbio::test
