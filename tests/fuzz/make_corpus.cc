// Writes the corpus: small databases of every kind as stock writes them, and single pages of them.
//
// make_corpus DIR
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "lmdbio/cache/codec.h"
#include "tests/fuzz/corpus.h"
#include "tests/fuzz/image_files.h"
#include "tests/support/chunk_data.h"
#include "tests/support/dbgen.h"

namespace {

using namespace lmdbio::test;
using K = DbKind;

/// Small chunks of each codec and filter.
void save_chunks(const std::filesystem::path& out) {
  namespace cache = lmdbio::cache;
  using Kind = cache::Filter::Kind;
  std::filesystem::create_directories(out);
  const std::vector<std::byte> plain = chunk_data(ChunkData::counts, 700, 1);
  cache::Scratch scratch;
  const std::pair<const char*, cache::Recipe> recipes[] = {
      {"raw", {}},
      {"lz4", {cache::Codec::lz4, {}}},
      {"lz4_shuffle", {cache::Codec::lz4, {Kind::shuffle, 2}}},
      {"zstd1", {cache::Codec::zstd1, {}}},
      {"zstd1_delta", {cache::Codec::zstd1, {Kind::delta, 40}}},
      {"zstd3_shuffle", {cache::Codec::zstd3, {Kind::shuffle, 8}}}};
  for (const auto& [name, recipe] : recipes) {
    std::vector<std::byte> stored(cache::stored_bound(plain.size()));
    stored.resize(cache::compress_chunk(plain, recipe, 0, stored, scratch).value());
    save(out / name, '\x03' + std::string(reinterpret_cast<const char*>(stored.data()), stored.size()));
  }
}

/// The intact files of images, with the bits of fuzz_image.
void save_images(const std::filesystem::path& out) {
  std::filesystem::create_directories(out);
  const auto save_as = [&](const std::string& name, char mode, const ImageBytes& bytes) {
    save(out / name, mode + std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  };
  constexpr char kTable = 0, kMap = 1, kData = 2, kPacked = 4, kForged = 8, kHasMap = 16, kAdds = 32;
  for (const char packed : {char{0}, kPacked}) {
    const std::string name = packed != 0 ? "packed_" : "raw_";
    const lmdbio::cache::Recipe recipe = image_recipe(packed != 0);
    const ImageBytes data = image_data(recipe, 0);
    const ImageBytes table = image_table(recipe, image_entry(data), 0), map = image_map({});
    save_as(name + "table", static_cast<char>(packed | kTable | kForged | kAdds), table);
    save_as(name + "table_and_map", static_cast<char>(packed | kTable | kForged | kHasMap), table);
    save_as(name + "map", static_cast<char>(packed | kMap | kForged | kAdds), map);
    save_as(name + "other_map", static_cast<char>(packed | kMap | kAdds), map);
    save_as(name + "data", static_cast<char>(packed | kData | kAdds), data);
    if (packed == 0) continue;
    save_as(name + "data_forged", static_cast<char>(packed | kData | kForged | kAdds), data);
    save_as(name + "data_and_map", static_cast<char>(packed | kData | kForged | kHasMap), data);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::filesystem::path out = argv[1];
  std::filesystem::create_directories(out / "file");
  std::filesystem::create_directories(out / "page");
  save_chunks(out / "chunk");
  save_images(out / "image");
  const LmdbApi lmdb = load_lmdb("liblmdb.so.0");
  constexpr unsigned kDup = MDB_DUPSORT;
  const std::vector<std::pair<const char*, std::vector<DbSpec>>> files = {
      {"plain", {spec(K::kPlain, 0, 60, 1, 24, 0, 40)}},
      {"deep", {spec(K::kDeep, 0, 60, 60, 78, 0, 8)}},
      {"overflow", {spec(K::kOverflow, 0, 10, 1, 20, 100, 1500)}},
      {"dupsort", {spec(K::kDupsort, kDup, 10, 1, 12, 1, 30, 40)}},
      {"dupfixed", {spec(K::kDupfixed, kDup | MDB_DUPFIXED, 8, 1, 12, 8, 8, 150)}},
      {"integerdup", {spec(K::kIntegerDup, kDup | MDB_DUPFIXED | MDB_INTEGERDUP, 8, 4, 4, 4, 4, 200)}},
      {"integerkey", {spec(K::kIntegerKey, MDB_INTEGERKEY, 60, 8, 8, 0, 30)}},
      {"reverse", {spec(K::kReverseKey, MDB_REVERSEKEY | kDup | MDB_REVERSEDUP, 12, 1, 12, 1, 20, 20)}},
      {"named",
       {spec(K::kDirectory, 0, 4, 1, 12, 0, 20), spec(K::kNamed, 0, 20, 1, 12, 0, 40, 1, "a"),
        spec(K::kDupfixed, kDup | MDB_DUPFIXED, 6, 1, 12, 4, 4, 150, "b")}},
      {"never_written", {}},
  };
  for (const auto& [name, dbs] : files) {
    EnvSpec e;
    e.name = name;
    e.seed = 1;
    e.page_size = 512;
    e.map_bytes = 1 << 20;
    e.dbs = dbs;
    char dir[] = "/tmp/lmdbio_corpus_XXXXXX";
    if (mkdtemp(dir) == nullptr) return 1;
    generate(lmdb, e, dir);
    std::ifstream in(std::string(dir) + "/data.mdb", std::ios::binary);
    const std::string file{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    std::filesystem::remove_all(dir);
    std::string program;
    Rng rng(7);
    for (int i = 0; i < 120; ++i) program += static_cast<char>(rng.below(256));
    save(out / "file" / name, file + program);
    std::printf("%s: %zu bytes\n", name, file.size());
    // Its first tree pages, with a key to look for.
    unsigned saved = 0;
    for (std::size_t p = 2; p < file.size() / 512 && saved < 3; ++p) {
      const std::string page = file.substr(p * 512, 512);
      const unsigned flags = static_cast<unsigned char>(page[10]);
      if ((flags & 3) == 0) continue;
      save(out / "page" / (std::string(name) + "_" + std::to_string(p)),
           std::string("\x09key00-abcd\x00\x04\x00", 13) + page);
      ++saved;
    }
  }
  return 0;
}
