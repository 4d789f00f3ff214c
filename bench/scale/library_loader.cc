// The loader that uses LMDBIO's readers and streams.  It loads the library by name, so that processes of
// other strategies do not contain the library.
#include <lmdbio/mpi.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "bench/common.h"
#include "bench/functions.h"
#include "bench/rank_of_node.h"
#include "bench/scale/loader.h"
#include "bench/scale/stream_order.h"

namespace lmdbio::bench {

namespace {

/// A file for the library's statistics, unless the user has set LMDBIO_STATS.  Rank 0 writes the statistics
/// of the job.  Other ranks write none: hosts may share the directory and use the same process numbers.
class Statistics {
 public:
  Statistics() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank != 0 || std::getenv("LMDBIO_STATS") != nullptr) return;
    const char* const tmp = std::getenv("TMPDIR");
    file_ = std::string(tmp != nullptr ? tmp : "/tmp") + "/run_scale." + std::to_string(::getpid()) + ".json";
    ::setenv("LMDBIO_STATS", file_.c_str(), 1);
  }
  Statistics(const Statistics&) = delete;
  Statistics& operator=(const Statistics&) = delete;
  ~Statistics() {
    if (!file_.empty()) ::unlink(file_.c_str());
  }
  /// Returns the counters of all ranks, on rank 0 after lmdbio_mpi_finalize.
  LibraryCounters of_job() const {
    LibraryCounters c;
    std::ifstream in(file_);
    for (std::string line; std::getline(in, line);) {
      const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
      if (!j.contains("job")) continue;
      const nlohmann::json& job = j["job"];
      c.known = true;
      c.file_bytes = job.at("file_bytes");
      c.file_requests = job.at("file_requests");
      c.memory_bytes = job.at("memory_bytes");
      c.messages = job.at("messages");
      c.rank_bytes = job.at("rank_bytes");
      c.node_bytes = job.at("node_bytes");
    }
    return c;
  }

 private:
  std::string file_;
};

class LibraryLoader final : public Loader {
 public:
  explicit LibraryLoader(const LoaderSettings& s) : settings_(s) {
    const Functions resolve(s.library.c_str(), RTLD_NOW | RTLD_LOCAL);
    resolve("lmdbio_error", error_);
    resolve("lmdbio_mpi_init", mpi_init_);
    resolve("lmdbio_mpi_poll", mpi_poll_);
    resolve("lmdbio_mpi_finalize", mpi_finalize_);
    resolve("lmdbio_mpi_reader_open", mpi_reader_open_);
    resolve("lmdbio_reader_open", reader_open_);
    resolve("lmdbio_reader_count", reader_count_);
    resolve("lmdbio_reader_close", reader_close_);
    resolve("lmdbio_stream_open", stream_open_);
    resolve("lmdbio_stream_next", stream_next_);
    resolve("lmdbio_stream_close", stream_close_);
    resolve("lmdbio_batch_release", batch_release_);
    int rank = 0, ranks = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (s.strategy.exchange == Strategy::Exchange::redistributed) {
      lmdbio_mpi_options options{};
      options.size = sizeof options;
      options.readers_per_node = s.strategy.readers_per_node;
      options.stagger_group = s.strategy.group;
      reads_ = static_cast<unsigned>(rank_of_node()) < s.strategy.readers_per_node;
      check(mpi_init_(MPI_COMM_WORLD, &options, &mpi_));
      check(mpi_reader_open_(mpi_, s.database.c_str(), nullptr, &reader_));
    } else {
      check(reader_open_(s.database.c_str(), nullptr, &reader_));
    }
    check(reader_count_(reader_, &records_));
    const std::uint64_t steps = steps_per_epoch(records_, s.batch, static_cast<std::uint64_t>(ranks));
    if (steps == 0) die("%s: fewer records than one batch for each rank", s.database.c_str());
    steps_ = StepCounter(s.batch, steps);
    const lmdbio_order order = order_of(s, rank, ranks);
    check(stream_open_(reader_, &order, &stream_));
  }
  LibraryLoader(const LibraryLoader&) = delete;
  LibraryLoader& operator=(const LibraryLoader&) = delete;
  ~LibraryLoader() override { close(); }
  void poll() override {
    if (mpi_ != nullptr) check(mpi_poll_(mpi_));
  }
  void close() override {
    if (reader_ == nullptr) return;
    release();
    stream_close_(stream_);
    reader_close_(std::exchange(reader_, nullptr));
    if (mpi_ == nullptr) return;
    check(mpi_finalize_(mpi_));
    library_ = statistics_.of_job();
  }

  std::uint64_t records() const override { return records_; }
  LoaderCounters counters() const override {
    LoaderCounters c;
    c.reads = reads_;
    c.library = library_;
    return c;
  }
  std::span<const Value> next() override {
    do {
      release();
      check(stream_next_(stream_, &batch_));
    } while (!steps_.is_next(batch_->epoch, batch_->position));
    steps_.step();
    values_.clear();
    for (std::size_t i = 0; i < batch_->count; ++i) {
      const lmdbio_record& r = batch_->records[i];
      values_.push_back({r.ordinal, {static_cast<const std::byte*>(r.value.mv_data), r.value.mv_size}});
    }
    return values_;
  }

 private:
  void check(int rc) const {
    if (rc != 0) die("%s", error_());
  }
  void release() {
    if (batch_ != nullptr) batch_release_(batch_);
    batch_ = nullptr;
  }

  const LoaderSettings settings_;
  const Statistics statistics_;
  LibraryCounters library_;
  decltype(&::lmdbio_error) error_;
  decltype(&::lmdbio_mpi_init) mpi_init_;
  decltype(&::lmdbio_mpi_poll) mpi_poll_;
  decltype(&::lmdbio_mpi_finalize) mpi_finalize_;
  decltype(&::lmdbio_mpi_reader_open) mpi_reader_open_;
  decltype(&::lmdbio_reader_open) reader_open_;
  decltype(&::lmdbio_reader_count) reader_count_;
  decltype(&::lmdbio_reader_close) reader_close_;
  decltype(&::lmdbio_stream_open) stream_open_;
  decltype(&::lmdbio_stream_next) stream_next_;
  decltype(&::lmdbio_stream_close) stream_close_;
  decltype(&::lmdbio_batch_release) batch_release_;
  lmdbio_mpi* mpi_ = nullptr;
  lmdbio_reader* reader_ = nullptr;
  lmdbio_stream* stream_ = nullptr;
  const lmdbio_batch* batch_ = nullptr;
  bool reads_ = true;
  std::uint64_t records_ = 0;
  StepCounter steps_{1};
  std::vector<Value> values_;
};

}  // namespace

std::unique_ptr<Loader> library_loader(const LoaderSettings& settings) {
  return std::make_unique<LibraryLoader>(settings);
}

}  // namespace lmdbio::bench
