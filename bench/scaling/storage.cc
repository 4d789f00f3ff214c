#include "bench/scaling/storage.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bench/common.h"
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
  const std::byte* mapped() override {
    if (map_ == nullptr) {
      const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
      void* const map = fd < 0 ? MAP_FAILED : ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
      if (map == MAP_FAILED) die_errno(path_.c_str());
      ::close(fd);
      map_ = static_cast<const std::byte*>(map);
    }
    return map_;
  }
  void start(Span span, std::byte* to) override {
    if (queue_ == nullptr) {
      // Only now: whether direct reads work is tested by one, which mapped strategies are not to have.
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
    ++counters_.requests;
    counters_.bytes += bytes;
    constexpr std::uint64_t kClasses[] = {4096, 65536, 262144, 1048576};
    const auto at = std::lower_bound(std::begin(kClasses), std::end(kClasses), bytes);
    ++counters_.by_size[static_cast<std::size_t>(at - std::begin(kClasses))];
    queue_->submit();
    counters_.most_in_flight = std::max(counters_.most_in_flight, static_cast<unsigned>(queue_->in_flight()));
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

class RealWorld final : public World {
 public:
  std::unique_ptr<Storage> open(const std::string& file) override {
    return std::make_unique<FileStorage>(file);
  }
  double seconds() const override { return static_cast<double>(clock_ns()) * 1e-9; }
  void sleep(double seconds) override {
    timespec left{static_cast<time_t>(seconds),
                  static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
    while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
  }
};

}  // namespace

std::unique_ptr<World> real_world() { return std::make_unique<RealWorld>(); }

}  // namespace lmdbio::bench
