// An unmodified program that reads as Intel-Caffe does: each data layer opens the database anew, in a reader
// thread of its own, and fills a bounded queue of values.  A layer that ends interrupts its reader in the
// queue.
//
//   caffe_layers make DIR RECORDS SIZE     values of 1 to SIZE bytes, which depend on their keys
//   caffe_layers shuffled DIR VALUES       one shuffled layer alone: the checksum of so many values
//   caffe_layers run DIR SEED [serial]     prints, for each layer, a checksum of the values it took
//
// serial: layers open and close the database one after the other.  Stock LMDB needs it: of two threads that
// open a database at the same time, the one that locks the lock file last resets the transaction ID that the
// other one is about to read, which then reads the older meta page.
//
// Built with USE_LMDBIO, `run` reads by Caffe's backend LMDBIO instead of LMDB.
//
// The seed decides the rank and number of ranks, who shuffles, how many values each layer takes and in which
// steps, how often the test layer is made anew, and where all ends.
#include <lmdb.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "caffe/data_reader.hpp"
#include "caffe/database.hpp"
#include "caffe/lmdb_cursor.hpp"
#include "tests/support/rng.h"

namespace {

using lmdbio::test::Rng;
using namespace lmdbio::testing;

void make(const char* dir, std::uint64_t records, std::uint64_t size) {
  MDB_env* env = nullptr;
  MDB_txn* txn = nullptr;
  MDB_dbi dbi = 0;
  LmdbCursor::check(mdb_env_create(&env));
  LmdbCursor::check(mdb_env_set_mapsize(env, std::size_t{1} << 30));
  LmdbCursor::check(mdb_env_open(env, dir, MDB_NOSYNC, 0644));
  LmdbCursor::check(mdb_txn_begin(env, nullptr, 0, &txn));
  LmdbCursor::check(mdb_dbi_open(txn, nullptr, 0, &dbi));
  for (std::uint64_t i = 0; i < records; ++i) {
    Rng rng(i);
    char name[16];
    (void)std::snprintf(name, sizeof name, "%08u", static_cast<unsigned>(i));
    std::string value(1 + rng.below(size), '\0');
    for (std::size_t at = 0; at < value.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t bytes = rng.next();
      std::memcpy(value.data() + at, &bytes, std::min(sizeof bytes, value.size() - at));
    }
    MDB_val key{8, name}, data{value.size(), value.data()};
    LmdbCursor::check(mdb_put(txn, dbi, &key, &data, MDB_APPEND));
  }
  LmdbCursor::check(mdb_txn_commit(txn));
  mdb_env_close(env);
}

/// Of values, between the reader thread and the layer.
class Queue {
 public:
  explicit Queue(std::size_t most) : most_(most) {}

  /// False: the layer has interrupted the reader.
  bool push(std::string value) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return interrupted_ || values_.size() < most_; });
    if (interrupted_) return false;
    values_.push_back(std::move(value));
    changed_.notify_all();
    return true;
  }
  std::string pop() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !error_.empty() || !values_.empty(); });
    if (values_.empty()) throw caffe::Fatal(error_);
    std::string value = std::move(values_.front());
    values_.pop_front();
    changed_.notify_all();
    return value;
  }
  void interrupt() {
    const std::lock_guard<std::mutex> lock(mutex_);
    interrupted_ = true;
    changed_.notify_all();
  }
  void fail(const char* error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    error_ = error;
    changed_.notify_all();
  }

 private:
  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> values_;
  std::string error_;
  bool interrupted_ = false;
};

struct Ranks {
  std::uint64_t rank = 0, ranks = 1;
};

std::mutex opening;
bool is_serial = false;

std::unique_lock<std::mutex> turn_to_open() {
  return is_serial ? std::unique_lock<std::mutex>(opening) : std::unique_lock<std::mutex>();
}

class Layer {
 public:
  Layer(std::string path, Ranks of, bool shuffled, unsigned seed, std::size_t prefetch)
      : queue_(prefetch), thread_([this, path, of, shuffled, seed] { read(path, of, shuffled, seed); }) {}
  ~Layer() {
    queue_.interrupt();
    thread_.join();
  }
  void take(std::uint64_t values) {
    for (std::uint64_t i = 0; i < values; ++i) {
      const std::string value = queue_.pop();
      for (const char c : value) sum_ = (sum_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
      sum_ = sum_ * 31 + value.size();
      ++taken_;
    }
  }
  void print(const char* name) const {
    std::printf("%s: %llu values, %016llx\n", name, static_cast<unsigned long long>(taken_),
                static_cast<unsigned long long>(sum_));
  }

 private:
  void read(const std::string& path, Ranks of, bool shuffled, unsigned seed) {
    try {
      std::unique_lock<std::mutex> turn = turn_to_open();
      std::optional<CaffeDatabase> db(path);
      if (turn) turn.unlock();
      const std::unique_ptr<CaffeReader> reader =
          caffe_reader(db->cursor(), of.rank, of.ranks, shuffled, seed);
      while (queue_.push(reader->read_one())) {
      }
      turn = turn_to_open();
      db.reset();
    } catch (const std::exception& e) {
      queue_.fail(e.what());
    }
  }

  std::uint64_t taken_ = 0, sum_ = 0xcbf29ce484222325u;
  Queue queue_;
  std::thread thread_;
};

void run_shuffled(const char* path, std::uint64_t values) {
  Layer layer(path, {}, true, 1, 1);
  layer.take(values);
  layer.print("shuffled");
}

/// A net of training with its data layer, and one for tests, which takes some values now and then.
void run(const char* path, std::uint64_t seed) {
  Rng rng(seed);
  Ranks of;
  of.ranks = rng.between(1, 4);
  of.rank = rng.below(of.ranks);
  const bool shuffle_train = rng.percent(30), shuffle_test = rng.percent(20), anew = rng.percent(40);
  const auto batch = rng.between(1, 60), tests = rng.between(1, 80);
  const auto prefetch = rng.between(1, 20);
  const auto make_layer = [&](bool shuffled) {
    return std::make_unique<Layer>(path, of, shuffled, static_cast<unsigned>(seed % 15), prefetch);
  };
  const std::unique_ptr<Layer> train = make_layer(shuffle_train);
  std::unique_ptr<Layer> test = make_layer(shuffle_test);
  for (std::uint32_t iteration = 0, end = rng.between(0, 40); iteration < end; ++iteration) {
    train->take(batch);
    if (!rng.percent(25)) continue;
    test->take(tests);
    test->print("test");
    if (anew) test = make_layer(shuffle_test);
  }
  train->print("train");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 5 && std::strcmp(argv[1], "make") == 0) {
      make(argv[2], std::strtoull(argv[3], nullptr, 10), std::strtoull(argv[4], nullptr, 10));
    } else if ((argc == 4 || (argc == 5 && std::strcmp(argv[4], "serial") == 0)) &&
               std::strcmp(argv[1], "run") == 0) {
      is_serial = argc == 5;
      run(argv[2], std::strtoull(argv[3], nullptr, 10));
    } else if (argc == 4 && std::strcmp(argv[1], "shuffled") == 0) {
      run_shuffled(argv[2], std::strtoull(argv[3], nullptr, 10));
    } else {
      std::fprintf(stderr, "see caffe_layers.cc\n");
      return 2;
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
