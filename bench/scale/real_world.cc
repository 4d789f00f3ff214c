#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/common.h"
#include "bench/process_use.h"
#include "bench/rank_of_node.h"
#include "bench/scale/training.h"
#include "bench/scale/world.h"
#include "lmdbio/io/engine_select.h"
#include "lmdbio/io/read_queue.h"

namespace lmdbio::bench {

namespace {

constexpr unsigned kDepth = 64;

class FileStorage final : public Storage {
 public:
  explicit FileStorage(const std::string& path) : path_(path) {
    struct stat st {};
    if (::stat(path.c_str(), &st) != 0) die_errno(path.c_str());
    size_ = static_cast<std::uint64_t>(st.st_size);
  }
  FileStorage(const FileStorage&) = delete;
  FileStorage& operator=(const FileStorage&) = delete;
  ~FileStorage() override {
    queue_.reset();
    if (map_ != nullptr) ::munmap(const_cast<std::byte*>(map_), size_);
  }

  std::uint64_t bytes() const override { return size_; }
  void copy_mapped(Place value, std::byte* to) override {
    if (map_ == nullptr) {
      const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
      void* const map = fd < 0 ? MAP_FAILED : ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
      if (map == MAP_FAILED) die_errno(path_.c_str());
      ::close(fd);
      map_ = static_cast<const std::byte*>(map);
    }
    if (value.bytes != 0) std::memcpy(to, map_ + value.offset, value.bytes);
  }
  void start(Span span, std::byte* to) override {
    if (queue_ == nullptr) {
      // Opened at the first request, because the open makes a direct read as a test.  Mapped strategies must
      // make none.
      Result<File> opened = File::open(path_.c_str(), File::Mode::direct_if_possible);
      if (!opened) die("%s: %s", path_.c_str(), std::strerror(opened.error().raw()));
      file_ = std::make_unique<File>(std::move(opened).value());
      auto engine = select_engine(*file_, kDepth, EngineKind::uring, nullptr);
      if (!engine) die("%s: %s", path_.c_str(), std::strerror(engine.error().raw()));
      queue_ = std::make_unique<ReadQueue>(std::move(engine).value(), size_, kMostRequest);
    }
    if (span.offset >= size_ || span.end() >= size_ + kAlignment)
      die("%s: damaged: it ends too early", path_.c_str());
    const std::uint64_t bytes = std::min(span.bytes, size_ - span.offset);
    if (!queue_->add(group_, {span.offset, bytes}, to).ok()) die("out of memory");
    queue_->submit();
    counters_.count(bytes, queue_->in_flight());
  }
  void wait() override {
    if (queue_ == nullptr || group_.done()) return;
    if (const Status st = queue_->wait(group_); !st.ok())
      die("%s: cannot be read: %s", path_.c_str(), std::strerror(st.raw()));
  }
  IoCounters counters() const override { return counters_; }

 private:
  static constexpr std::size_t kMostRequest = std::size_t{64} << 20;
  const std::string path_;
  std::unique_ptr<File> file_;
  std::uint64_t size_ = 0;
  const std::byte* map_ = nullptr;
  std::unique_ptr<ReadQueue> queue_;
  ReadGroup group_;
  IoCounters counters_;
};

/// Adds to `seconds` the CPU time of this thread during the timer's lifetime.
class CpuTimer {
 public:
  explicit CpuTimer(double& seconds) noexcept : seconds_(seconds), begin_(now()) {}
  CpuTimer(const CpuTimer&) = delete;
  CpuTimer& operator=(const CpuTimer&) = delete;
  ~CpuTimer() { seconds_ += now() - begin_; }

 private:
  static double now() noexcept {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }
  double& seconds_;
  const double begin_;
};

/// A shared window whose memory belongs to the first rank.
class SharedWindow final : public NodeMemory {
 public:
  /// Adds the CPU time of waits to `asking_s`, which must outlive this object.
  SharedWindow(MPI_Comm group, double& asking_s) noexcept : group_(group), asking_s_(asking_s) {
    MPI_Comm_rank(group, &rank_);
  }
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;
  ~SharedWindow() override { free(); }

  void reserve(std::uint64_t bytes) override {
    {
      const CpuTimer timer(asking_s_);
      MPI_Bcast(&bytes, 1, MPI_UINT64_T, 0, group_);
    }
    if (bytes <= room_) return;
    free();
    room_ = bytes + bytes / 4;
    const MPI_Aint mine = rank_ == 0 ? static_cast<MPI_Aint>(room_ + Storage::kAlignment) : 0;
    void* own = nullptr;
    MPI_Win_allocate_shared(mine, 1, MPI_INFO_NULL, group_, &own, &window_);
    MPI_Aint size = 0;
    int unit = 0;
    void* begin = nullptr;
    MPI_Win_shared_query(window_, 0, &size, &unit, &begin);
    // Align the memory in the reader.  Each process has mapped the window at another address.
    const std::uint64_t at = reinterpret_cast<std::uintptr_t>(begin);
    std::uint64_t shift = (at + Storage::kAlignment - 1) / Storage::kAlignment * Storage::kAlignment - at;
    MPI_Bcast(&shift, 1, MPI_UINT64_T, 0, group_);
    bytes_ = static_cast<std::byte*>(begin) + shift;
  }
  void wait_for_all() override {
    const CpuTimer timer(asking_s_);
    MPI_Barrier(group_);
  }
  std::byte* bytes() const noexcept override { return bytes_; }

 private:
  void free() {
    if (window_ != MPI_WIN_NULL) MPI_Win_free(&window_);
    room_ = 0;
  }
  const MPI_Comm group_;
  double& asking_s_;
  int rank_ = 0;
  MPI_Win window_ = MPI_WIN_NULL;
  std::byte* bytes_ = nullptr;
  std::uint64_t room_ = 0;
};

/// Returns whether this process has mapped a file whose path contains `what`.
bool has_mapped(const char* what) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find(what) != std::string::npos) return true;
  return false;
}

/// Returns the private and shared memory of this process, without mapped files.
std::uint64_t own_memory_kib() {
  return proc_number("/proc/self/status", "RssAnon: %" SCNu64) +
         proc_number("/proc/self/status", "RssShmem: %" SCNu64);
}

class RealWorld final : public World {
 public:
  explicit RealWorld(std::string counters) : counters_(std::move(counters)) {}
  void prepare(const Data& data, Order order) override {
    if (data.content && !std::filesystem::exists(data.database))
      make_database(data.database, *data.content, data.bytes, data.multiple);
    const bool needed = !data.no_check || order == Order::shuffled;  // make_sums() also writes the keys
    if (needed && !have_sums(data.database, data.sums)) make_sums(data.database, data.sums);
  }
  std::vector<std::uint64_t> sums(const Data& data) override {
    return data.no_check ? std::vector<std::uint64_t>() : read_sums(data.sums);
  }
  std::unique_ptr<Storage> open(const std::string& file) override {
    return std::make_unique<FileStorage>(file);
  }
  double seconds() override { return static_cast<double>(clock_ns()) * 1e-9; }
  void sleep(double seconds) override {
    timespec left{static_cast<time_t>(seconds),
                  static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
    while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
  }
  MPI_Comm split_by_node() override { return bench::split_by_node(); }
  std::unique_ptr<NodeMemory> share_memory(MPI_Comm ranks) override {
    return std::make_unique<SharedWindow>(ranks, asking_s_);
  }
  std::unique_ptr<LmdbAccess> lmdb(const std::string& directory, const std::string& keys) override {
    return real_lmdb(directory, keys);
  }
  std::unique_ptr<Loader> library_loader(const LoaderSettings& settings) override {
    return bench::library_loader(settings);
  }
  bool has_values() const override { return true; }

  ProcessFacts process() override {
    const ProcessUse use = process_use();
    ProcessFacts facts;
    facts.device_bytes = use.read_bytes;
    facts.max_rss_kib = use.max_rss_kib;
    facts.memory_kib = own_memory_kib();
    facts.lmdb_loaded = has_mapped("/liblmdb.so");
    facts.lmdbio_loaded = has_mapped("/liblmdbio.so") || has_mapped("/lmdbio/liblmdb.so");
    return facts;
  }
  CpuUse cpu_use() override {
    std::ifstream in("/proc/stat");
    std::string cpu;
    double user = 0, nice = 0, system = 0, idle = 0, waits = 0, irq = 0, softirq = 0;
    in >> cpu >> user >> nice >> system >> idle >> waits >> irq >> softirq;
    const double busy = user + nice + system + irq + softirq,
                 ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
    return {busy / ticks, (busy + idle + waits) / ticks};
  }
  double asking_seconds() override { return asking_s_; }
  std::optional<StorageUse> storage_use() override {
    if (counters_.empty()) return std::nullopt;
    std::ifstream in(counters_);
    const nlohmann::json read = nlohmann::json::parse(in).at("read");
    return StorageUse{read.at("numbered"), read.at("bytes"), 0};
  }

 private:
  const std::string counters_;
  double asking_s_ = 0;
};

class RealWorldMaker final : public WorldMaker {
 public:
  void add_options(CLI::App& app, JobSettings job) override {
    app.add_option(
        "--sums", job.data.sums,
        "checksums of all records, made with stock LMDB if they are not there (default: DATABASE.sums); "
        "each rank compares each record with its checksum");
    app.add_flag("--no-check", job.data.no_check, "compare nothing; only touch each page of each record");
    app.add_option(
        "--workers", job.loading.workers,
        "threads of a rank that read batches ahead, one each, with the strategy stock (default: 0)");
    app.add_flag("--prepare", job.data.only_prepare, "make the database and the checksums, and end");
    app.add_flag("--spin", job.training.spin, "compute on the CPU instead");
    app.add_option("--library", job.loading.library, "liblmdbio_mpi.so")->capture_default_str();
    app.add_option("--thread-level",
                   "that MPI is asked for; below multiple, LMDBIO has no thread for messages")
        ->check(CLI::IsMember({"single", "funneled", "serialized", "multiple"}).description(""))
        ->type_name("{single,funneled,serialized,multiple}");
    app.add_option("--counters", counters_, "of a slow file system, one on each node: JSON");
  }
  std::unique_ptr<World> make() override { return std::make_unique<RealWorld>(counters_); }

 private:
  std::string counters_;
};

}  // namespace

std::unique_ptr<WorldMaker> real_world() { return std::make_unique<RealWorldMaker>(); }

}  // namespace lmdbio::bench
