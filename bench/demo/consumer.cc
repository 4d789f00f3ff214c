// An ordinary program that reads training records from an LMDB as Caffe's data layer does.  It opens the
// environment read-only, and uses one transaction for the whole run.  A cursor goes from the first record to
// the last, and starts again.  The program is linked with -llmdb and does not know LMDBIO.
//
//   demo_consumer DATABASE [EPOCHS [RANK RANKS]]      prints one line of JSON
//
// With RANK and RANKS it uses each RANKS-th record, as Caffe does in each process of a parallel training.
#include <lmdb.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

namespace {

void check(int rc, const char* what) {
  if (rc == MDB_SUCCESS) return;
  std::fprintf(stderr, "%s: %s\n", what, mdb_strerror(rc));
  std::exit(1);
}

double now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// The picture inside a serialised Caffe Datum.
struct Picture {
  const unsigned char* data = nullptr;
  std::size_t size = 0;
  std::uint64_t label = 0;
};

/// Reads a protobuf varint at `at`, and moves `at` after it.  Returns false at the end of the message.
bool varint(const unsigned char*& at, const unsigned char* end, std::uint64_t& value) {
  value = 0;
  for (unsigned shift = 0; at < end && shift < 64; shift += 7) {
    const unsigned char byte = *at++;
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

Picture parse(const MDB_val& record) {
  constexpr std::uint64_t kData = 4 << 3 | 2, kLabel = 5 << 3;
  Picture picture;
  const auto* at = static_cast<const unsigned char*>(record.mv_data);
  const unsigned char* const end = at + record.mv_size;
  std::uint64_t tag = 0, value = 0;
  while (varint(at, end, tag) && varint(at, end, value)) {
    if (tag == kLabel) picture.label = value;
    if (tag != kData) continue;
    if (value > static_cast<std::uint64_t>(end - at)) break;
    picture.data = at;
    picture.size = value;
    at += value;
  }
  if (picture.data == nullptr) {
    std::fputs("a record is no Datum\n", stderr);
    std::exit(1);
  }
  return picture;
}

/// Reads every byte, as a copy into a batch would.
std::uint64_t sum(const unsigned char* p, std::size_t size) {
  std::uint64_t total = size;
  for (; size >= 8; p += 8, size -= 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    total ^= word;
  }
  for (; size > 0; ++p, --size) total ^= *p;
  return total;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s DATABASE [EPOCHS [RANK RANKS]]\n", argv[0]);
    return 2;
  }
  const int epochs = argc > 2 ? std::atoi(argv[2]) : 3;
  const int rank = argc > 4 ? std::atoi(argv[3]) : 0, ranks = argc > 4 ? std::atoi(argv[4]) : 1;

  MDB_env* env = nullptr;
  MDB_txn* txn = nullptr;
  MDB_dbi dbi = 0;
  MDB_cursor* cursor = nullptr;
  const double start = now();
  check(mdb_env_create(&env), "mdb_env_create");
  check(mdb_env_open(env, argv[1], MDB_RDONLY | MDB_NOTLS, 0664), argv[1]);
  check(mdb_txn_begin(env, nullptr, MDB_RDONLY, &txn), "mdb_txn_begin");
  check(mdb_dbi_open(txn, nullptr, 0, &dbi), "mdb_dbi_open");
  check(mdb_cursor_open(txn, dbi, &cursor), "mdb_cursor_open");

  std::vector<double> seconds;
  std::uint64_t checksum = 0, records = 0, bytes = 0;
  MDB_val key{}, value{};
  int rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const double began = now();
    for (int turn = 0; rc == MDB_SUCCESS; turn = (turn + 1) % ranks) {
      if (turn != rank) {
        rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
        continue;
      }
      const Picture picture = parse(value);
      checksum = checksum * 31 + sum(picture.data, picture.size) + picture.label;
      bytes += value.mv_size;
      ++records;
      rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    if (rc == MDB_NOTFOUND) rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    check(rc, "mdb_cursor_get");
    seconds.push_back(now() - began);
  }

  mdb_cursor_close(cursor);
  mdb_txn_abort(txn);
  mdb_dbi_close(env, dbi);
  mdb_env_close(env);
  const double total = now() - start;

  std::printf(
      "{\"records\": %llu, \"bytes\": %llu, \"checksum\": \"%016llx\", \"total\": %.6f, \"epochs\": [",
      static_cast<unsigned long long>(records), static_cast<unsigned long long>(bytes),
      static_cast<unsigned long long>(checksum), total);
  for (std::size_t i = 0; i < seconds.size(); ++i) std::printf("%s%.6f", i == 0 ? "" : ", ", seconds[i]);
  std::puts("]}");
}
