#include "bench/scale/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "bench/common.h"
#include "bench/keys.h"
#include "bench/stock_lmdb.h"

namespace lmdbio::bench {

namespace {

namespace fs = std::filesystem;

std::string keys_file(const std::string& sums) { return sums + ".keys"; }

class Progress {
 public:
  Progress(const char* what, std::uint64_t all) : what_(what), all_(all) {}
  ~Progress() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }
  void at(std::uint64_t done) {
    if (!terminal_ || clock_ns() < next_) return;
    next_ = clock_ns() + 200'000'000;
    shown_ = true;
    std::fprintf(stderr, "\r%s: %3.0f %%\033[K", what_,
                 100.0 * static_cast<double>(done) / static_cast<double>(all_));
  }

 private:
  const char* const what_;
  const std::uint64_t all_;
  const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  bool shown_ = false;
  std::uint64_t next_ = 0;
};

/// Values have random pieces of this size.
constexpr std::size_t kPiece = std::size_t{4} << 20;

/// Returns random words, which cannot be compressed.
std::vector<std::uint64_t> random_words(std::size_t bytes) {
  std::vector<std::uint64_t> words(bytes / sizeof(std::uint64_t));
  std::mt19937_64 random{2};
  for (std::uint64_t& w : words) w = random();
  return words;
}

template <class T>
void write(std::ofstream& out, const T& v) {
  out.write(reinterpret_cast<const char*>(&v), sizeof v);
}

std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) die("%s: cannot be read", path.c_str());
  std::string bytes(static_cast<std::size_t>(in.tellg()), '\0');
  in.seekg(0);
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!in) die("%s: cannot be read", path.c_str());
  return bytes;
}

}  // namespace

void make_database(const std::string& directory, Content content, std::uint64_t bytes,
                   std::uint64_t multiple) {
  const std::string unfinished = directory + ".unfinished";
  std::error_code error;
  fs::remove_all(unfinished, error);
  fs::create_directories(unfinished, error);
  if (error) die("%s: %s", unfinished.c_str(), error.message().c_str());
  const StockLmdb lmdb;
  MDB_env* env = nullptr;
  lmdb.check(lmdb.env_create(&env), "mdb_env_create");
  lmdb.check(lmdb.env_set_mapsize(env, map_bytes(content, bytes, multiple)), "mdb_env_set_mapsize");
  lmdb.check(lmdb.env_open(env, unfinished.c_str(), MDB_NOSYNC, 0644), unfinished.c_str());
  const std::vector<std::uint64_t> words = random_words(2 * kPiece);
  const auto* const random = reinterpret_cast<const char*>(words.data());
  std::vector<char> value(Sizes::largest(content));
  Progress progress("writing the database", bytes);
  Sizes sizes(content);
  MDB_txn* txn = nullptr;
  MDB_dbi dbi = 0;
  const auto commit = [&] {
    if (const int rc = lmdb.txn_commit(txn); rc != 0) die("%s: %s", unfinished.c_str(), lmdb.error_text(rc));
    txn = nullptr;
  };
  for (Written written(bytes, multiple); !written.enough();) {
    const std::uint64_t i = written.records();
    if (txn == nullptr) {
      lmdb.check(lmdb.txn_begin(env, nullptr, 0, &txn), "mdb_txn_begin");
      lmdb.check(lmdb.dbi_open(txn, nullptr, 0, &dbi), "mdb_dbi_open");
    }
    const std::size_t size = sizes.next();
    for (std::size_t at = 0; at < size; at += kPiece)
      std::memcpy(value.data() + at, random + mix(i + at) % kPiece, std::min(kPiece, size - at));
    std::memcpy(value.data(), &i, sizeof i);
    char key[kKeyRoom];
    MDB_val k{make_key(KeyKind::kImage, i, false, key), key}, v{size, value.data()};
    lmdb.check(lmdb.put(txn, dbi, &k, &v, 0), "mdb_put");
    written.add(size);
    if (written.records() % kRecordsOfCommit == 0) commit();
    progress.at(written.bytes());
  }
  if (txn != nullptr) commit();
  lmdb.check(lmdb.env_sync(env, 1), "mdb_env_sync");
  lmdb.env_close(env);
  fs::rename(unfinished, directory, error);
  if (error) die("%s: %s", directory.c_str(), error.message().c_str());
}

void make_sums(const std::string& database, const std::string& file) {
  StockReader reader(database);
  const std::string unfinished = file + ".unfinished";
  {
    std::ofstream sums(unfinished, std::ios::binary), keys(keys_file(file), std::ios::binary);
    Progress progress("making checksums", reader.records());
    for (std::uint64_t i = 0; i < reader.records(); ++i) {
      MDB_val key{};
      const MDB_val value = reader.first_or_next(i == 0, &key);
      write(sums, sum_of(i, value.mv_data, value.mv_size));
      write(keys, static_cast<std::uint16_t>(key.mv_size));
      keys.write(static_cast<const char*>(key.mv_data), static_cast<std::streamsize>(key.mv_size));
      progress.at(i);
    }
    if (!sums.flush() || !keys.flush()) die("%s: cannot be written", file.c_str());
  }
  std::error_code error;
  fs::rename(unfinished, file, error);
  if (error) die("%s: %s", file.c_str(), error.message().c_str());
}

bool have_sums(const std::string& database, const std::string& file) {
  std::error_code error;
  const auto made = fs::last_write_time(file, error);
  if (error) return false;
  const auto data = fs::last_write_time(database + "/data.mdb", error);
  return !error && made >= data;
}

std::vector<std::uint64_t> read_sums(const std::string& file) {
  const std::string bytes = read_all(file);
  std::vector<std::uint64_t> sums(bytes.size() / sizeof(std::uint64_t));
  std::memcpy(sums.data(), bytes.data(), sums.size() * sizeof(std::uint64_t));
  return sums;
}

Keys::Keys(const std::string& file) : bytes_(read_all(keys_file(file))) {
  for (std::uint64_t at = 0; at + sizeof(std::uint16_t) <= bytes_.size();) {
    begins_.push_back(at);
    std::uint16_t size = 0;
    std::memcpy(&size, bytes_.data() + at, sizeof size);
    at += sizeof size + size;
    if (at > bytes_.size()) die("%s: damaged", keys_file(file).c_str());
  }
}

std::string_view Keys::operator[](std::size_t i) const noexcept {
  std::uint16_t size = 0;
  std::memcpy(&size, bytes_.data() + begins_[i], sizeof size);
  return {bytes_.data() + begins_[i] + sizeof size, size};
}

}  // namespace lmdbio::bench
