// The files of an image of any bytes: no crash, and the bytes of the database or none.
#define XXH_INLINE_ALL
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/cache/codec.h"
#include "lmdbio/cache/directory.h"
#include "lmdbio/cache/image.h"
#include "lmdbio/cache/table.h"
#include "lmdbio/io/open_file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/image_files.h"

namespace {

using namespace lmdbio;
using namespace lmdbio::cache;
using namespace lmdbio::test;
using Data = ImageBytes;

constexpr std::size_t kAtSizes = 24, kAtChecksums = kAtSizes + 4 * kMostFrames;

/// A database, and the directory of a cache on another file system.
class Place {
 public:
  static Place& get() {
    static Place place;
    return place;
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  bool usable() const noexcept { return !name_.empty(); }
  const Data& database() const noexcept { return bytes_; }
  std::shared_ptr<Image> image() const { return Image::get(file_, path_.c_str(), kImageSnapshot); }

  /// Writes the file anew, and returns its descriptor.
  UniqueFd write(const std::string& ending, const Data& bytes, std::uint64_t size = 0) const {
    UniqueFd fd(::open(path_of(ending).c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    FUZZ_REQUIRE(fd &&
                 ::pwrite(fd.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    if (size > bytes.size()) FUZZ_REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(size)) == 0);
    return fd;
  }
  void remove(const std::string& ending) const { (void)::unlink(path_of(ending).c_str()); }
  std::string map_ending() const { return map_name(name_).substr(name_.size()); }

 private:
  Place() {
    cache_ = "/dev/shm/lmdbio_fuzz_cache_XXXXXX";
    path_ = (std::filesystem::temp_directory_path() / "lmdbio_fuzz_db_XXXXXX").string();
    fd_.reset(::mkstemp(path_.data()));
    if (::mkdtemp(cache_.data()) == nullptr || !fd_) return;
    ::setenv("LMDBIO_CACHE_DIR", cache_.c_str(), 1);
    ::setenv("LMDBIO_CACHE_CODEC", "raw", 1);
    ::setenv("LMDBIO_LOG", "error", 0);
    bytes_ = image_database();
    FUZZ_REQUIRE(::write(fd_.get(), bytes_.data(), bytes_.size()) == static_cast<ssize_t>(bytes_.size()));
    auto opened = OpenFile::get({fd_.get(), path_.c_str(), identity_of(fd_.get()).value()},
                                OpenFile::With::buffered_alone);
    FUZZ_REQUIRE(opened);
    file_ = std::move(opened).value();
    const auto made = image();
    if (made == nullptr) {
      std::fprintf(stderr, "no cache here: /dev/shm and the directory for temporary files are one\n");
      return;
    }
    directory_ = Directory::path_in(cache_);
    name_ = made->name();
  }
  ~Place() {
    std::error_code ignored;
    std::filesystem::remove_all(cache_, ignored);
    (void)::unlink(path_.c_str());
  }
  std::string path_of(const std::string& ending) const { return directory_ + "/" + name_ + ending; }

  std::string cache_, path_, directory_, name_;
  UniqueFd fd_;
  Data bytes_;
  std::shared_ptr<const OpenFile> file_;
};

std::uint64_t tag_of(int data) {
  struct stat st;
  FUZZ_REQUIRE(::fstat(data, &st) == 0);
  return st.st_ino << 32;
}

/// Corrects the checksums of a stored chunk, so that the decompressors see the damage.
void forge_chunk(Data& stored, std::uint64_t tag) {
  if (stored.size() < kHeaderBytes) return;
  std::size_t at = kHeaderBytes;
  for (std::size_t i = 0; i < kMostFrames; ++i) {
    const std::size_t bytes = load<std::uint32_t>(stored, kAtSizes + 4 * i);
    if (bytes > stored.size() - at) break;
    replace(stored, kAtChecksums + 8 * i, std::uint64_t{XXH3_64bits(stored.data() + at, bytes)});
    at += bytes;
  }
  replace(stored, 0, std::uint64_t{XXH3_64bits_withSeed(stored.data() + 8, kHeaderBytes - 8, tag)});
}

/// Reads all of the database, and parts of it.  Returns whether some bytes are wrong.
bool has_wrong_bytes(Image& image, const Data& want) {
  Data got(want.size());
  bool wrong = false;
  const std::size_t most = want.size();
  const std::pair<std::size_t, std::size_t> parts[] = {
      {0, most}, {1, 4096}, {kFrameBytes - 1, 2}, {most - 5, 5}, {kFrameBytes, most - kFrameBytes}};
  for (const auto& [at, n] : parts)
    if (image.read(at, MutableBytes(got).first(n)))
      wrong = wrong || std::memcmp(got.data(), want.data() + at, n) != 0;
  return wrong;
}

}  // namespace

// A byte, then the contents of one file; the other files are intact.
//   bits 0, 1: 0 the table, 1 the map, 2 or 3 the data
//   bit 2: the image is compressed
//   bit 3: correct the numbers of files and the checksums in what the input replaces, so that it is used
//   bit 4: there is a map of this boot
//   bit 5: all chunks are added afterwards
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Place& place = Place::get();
  if (!place.usable()) std::exit(77);
  if (size < 1 || size > 110'000) return 0;
  const unsigned mode = data[0], which = mode & 3;
  const bool packed = (mode & 4) != 0 && built_in(Codec::zstd1), forged = (mode & 8) != 0;
  const bool has_map = (mode & 16) != 0 || which == 1;
  const Bytes rest = std::as_bytes(std::span(data + 1, size - 1));
  const Data input(rest.begin(), rest.end());
  const Recipe recipe = image_recipe(packed);

  UniqueFd data_file = place.write(kDataEnding, {});
  const std::uint64_t tag = tag_of(data_file.get()), data_number = file_number(data_file.get());
  static Data healthy[2];  // the inode stays the same
  if (healthy[packed].empty()) healthy[packed] = image_data(recipe, tag);
  Data stored = healthy[packed];
  TableEntry entry = image_entry(stored);
  if (which >= 2) {
    stored = input;
    if (forged) {
      if (packed) forge_chunk(stored, tag);
      entry = image_entry(stored);
    }
  }
  data_file = place.write(kDataEnding, stored, pitch_of(recipe));

  Data table = image_table(recipe, entry, data_number);
  if (which == 0) {
    table = input;
    if (forged) forge_table(table, data_number);
  }
  place.remove(kTableEnding);
  const UniqueFd table_file = place.write(kTableEnding, table);
  UniqueFd part_file;
  if (packed) part_file = place.write(kPartEnding, {});

  if (has_map) {
    MapHeader numbers{};
    std::memcpy(numbers.magic, MapHeader::kMagic, sizeof numbers.magic);
    numbers.data_number = data_number;
    numbers.table_number = file_number(table_file.get());
    numbers.part_number = packed ? file_number(part_file.get()) : 0;
    numbers.chunks = 1;
    Data map = image_map(numbers);
    if (which == 1) {
      map = input;
      if (forged) replace(map, 0, numbers);
    }
    (void)place.write(place.map_ending(), map);
  } else {
    place.remove(place.map_ending());
  }

  // What the processes of a boot have told each other, and forged checksums, are believed.
  const bool is_believed = (which == 1 && forged) || (which >= 2 && (forged || (has_map && !packed)));
  std::weak_ptr<Image> gone;
  {
    const std::shared_ptr<Image> image = place.image();
    if (image == nullptr) return 0;
    gone = image;
    FUZZ_REQUIRE(!has_wrong_bytes(*image, place.database()) || is_believed);
    (void)image->whole_file();
    if ((mode & 32) != 0) {
      (void)image->add(0, place.database());
      FUZZ_REQUIRE(!has_wrong_bytes(*image, place.database()) || is_believed);
    }
  }
  while (!gone.expired()) std::this_thread::yield();  // its thread may still use it
  return 0;
}
