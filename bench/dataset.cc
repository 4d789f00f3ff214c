#include "bench/dataset.h"

#include <fcntl.h>
#include <lmdb.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

namespace lmdbio::bench {
namespace {

namespace fs = std::filesystem;

std::string size_name(std::uint64_t bytes) {
  return bytes % 1024 == 0 ? std::to_string(bytes / 1024) + "KiB" : std::to_string(bytes) + "B";
}

void write_database(const std::string& path, const Dataset& set) {
  MDB_env* env = nullptr;
  must(mdb_env_create(&env), "mdb_env_create");
  // Leave room for half-empty pages (random keys) and for pages that commits free.
  const std::uint64_t room = set.records * (set.value_bytes + 4096) * 2 + (64u << 20);
  must(mdb_env_set_mapsize(env, room), "mdb_env_set_mapsize");
  must(mdb_env_open(env, path.c_str(), MDB_NOSYNC, 0644), "mdb_env_open");
  const bool progress = isatty(STDERR_FILENO) != 0;
  std::vector<char> value(set.value_bytes);
  std::uint64_t random = 1;
  constexpr std::uint64_t kBatch = 1000;  // puts per commit, as in image converters
  for (std::uint64_t i = 0; i < set.records;) {
    MDB_txn* txn = nullptr;
    MDB_dbi dbi = 0;
    must(mdb_txn_begin(env, nullptr, 0, &txn), "mdb_txn_begin");
    must(mdb_dbi_open(txn, nullptr, 0, &dbi), "mdb_dbi_open");
    for (const std::uint64_t end = std::min(i + kBatch, set.records); i < end; ++i) {
      char key[kKeyRoom];
      MDB_val k{make_key(set.keys, i, false, key), key}, v{value.size(), value.data()};
      for (std::size_t at = 0; at + 8 <= value.size(); at += 8) {
        random = random * 6364136223846793005u + 1;
        std::memcpy(&value[at], &random, 8);
      }
      must(mdb_put(txn, dbi, &k, &v, 0), "mdb_put");
    }
    must(mdb_txn_commit(txn), "mdb_txn_commit");
    if (progress && i % (100 * kBatch) == 0)
      std::fprintf(stderr, "\rwriting %s: %3.0f %%\033[K", set.name.c_str(),
                   100.0 * static_cast<double>(i) / static_cast<double>(set.records));
  }
  if (progress) std::fputs("\r\033[K", stderr);
  must(mdb_env_sync(env, 1), "mdb_env_sync");
  mdb_env_close(env);
}

}  // namespace

std::uint64_t records_for(std::uint64_t file_bytes, std::uint64_t value_bytes) {
  constexpr std::uint64_t kPage = 4096, kPageHeader = 16, kNodeAndSlot = 10, kKey = 22;
  const std::uint64_t node = kNodeAndSlot + kKey + value_bytes;
  if (node * 2 <= kPage - kPageHeader) return file_bytes / (kPage / ((kPage - kPageHeader) / node));
  const std::uint64_t overflow = (value_bytes + kPageHeader + kPage - 1) / kPage * kPage;
  return file_bytes / (overflow + kNodeAndSlot + kKey + 8);
}

Dataset make_dataset(const std::string& dir, KeyKind keys, std::uint64_t value_bytes, std::uint64_t records) {
  Dataset set;
  set.keys = keys;
  set.value_bytes = value_bytes;
  set.records = records;
  set.name = size_name(value_bytes) + "-" + key_kind_name(keys) + "-" + std::to_string(records);
  set.path = (fs::path(dir) / set.name).string();
  const std::string data = set.path + "/data.mdb";
  std::error_code error;
  if (!fs::exists(data, error)) {
    const std::string unfinished = set.path + ".unfinished";
    fs::remove_all(unfinished, error);
    fs::create_directories(unfinished, error);
    if (error) die("cannot create %s: %s", unfinished.c_str(), error.message().c_str());
    const fs::space_info space = fs::space(unfinished, error);
    const std::uint64_t needed = records * (value_bytes + (value_bytes > 2000 ? 4096 : 64)) + (16u << 20);
    if (!error && space.available < needed)
      die("%s: %ju MiB needed for %s, %ju MiB free", dir.c_str(), static_cast<std::uintmax_t>(needed >> 20),
          set.name.c_str(), static_cast<std::uintmax_t>(space.available >> 20));
    write_database(unfinished, set);
    fs::rename(unfinished, set.path, error);
    if (error) die("cannot rename %s: %s", unfinished.c_str(), error.message().c_str());
  }
  set.file_bytes = fs::file_size(data, error);
  if (error) die("%s: %s", data.c_str(), error.message().c_str());
  return set;
}

double make_resident(const Dataset& set) {
  const std::string data = set.path + "/data.mdb";
  const int fd = open(data.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) die_errno(data.c_str());
  std::vector<char> buffer(4u << 20);
  for (ssize_t n = 1; n > 0;) {
    n = read(fd, buffer.data(), buffer.size());
    if (n < 0) die_errno(data.c_str());
  }
  void* map = mmap(nullptr, set.file_bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) die_errno("mmap");
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> state((set.file_bytes + page - 1) / page);
  if (mincore(map, set.file_bytes, state.data()) != 0) die_errno("mincore");
  std::size_t there = 0;
  for (const unsigned char s : state) there += s & 1u;
  munmap(map, set.file_bytes);
  close(fd);
  return static_cast<double>(there) / static_cast<double>(state.size());
}

}  // namespace lmdbio::bench
