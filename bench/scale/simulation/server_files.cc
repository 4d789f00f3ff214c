#include "bench/scale/simulation/server_files.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <optional>
#include <utility>

#include "bench/scale/simulation/meter.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/serve/read_window.h"
#include "lmdbio/serve/server.h"

namespace lmdbio::bench {

namespace {

/// To open a file, a server reads its two meta pages, and tries a direct read, one after the other.
constexpr unsigned kReadsToOpen = 3;
constexpr std::uint64_t kPageBytes = 4096;

/// Returns the bytes of all blocks: one chunk.
const std::byte* no_content() {
  static const Mapping memory = Mapping::zeroed(serve::kChunkBytes).value();
  return memory.data();
}

}  // namespace

class SimulatedFiles::Block final : public serve::Block {
 public:
  Block(std::uint64_t offset, std::size_t bytes) : serve::Block(offset), bytes_(bytes) {}
  bool is_done() const noexcept override { return left == 0; }
  Status status() const noexcept override { return {}; }
  Bytes bytes() const noexcept override { return {no_content(), bytes_}; }

  std::uint64_t left = 1;  ///< requests under way

 private:
  const std::size_t bytes_;
};

class SimulatedFiles::File final : public serve::HomeFile {
 public:
  File(SimulatedFiles& files, bool is_it) : files_(files), is_it_(is_it) { read_to_open(kReadsToOpen); }

  std::optional<Status> opened() noexcept override {
    if (!opened_) return {};
    return is_it_ ? Status() : Status::from_errno(ESTALE);
  }
  std::uint64_t size() const noexcept override { return files_.facts_.bytes; }
  Result<std::shared_ptr<serve::Block>> read(std::uint64_t offset, std::size_t bytes) noexcept override {
    const Meter::Pause pause;
    const auto block = std::make_shared<Block>(offset, bytes);
    const std::uint64_t most = files_.facts_.most_request_bytes;
    block->left = (bytes + most - 1) / most;
    for (std::uint64_t at = 0; at < bytes; at += most)
      pending_.push_back({block, offset + at, std::min<std::uint64_t>(most, bytes - at)});
    submit();
    return std::shared_ptr<serve::Block>(block);
  }
  // The kernel has the attributes and the meta pages, so a check reads nothing.
  bool start_check() noexcept override { return true; }
  bool is_current() noexcept override { return true; }
  bool is_busy() const noexcept override { return !opened_ || in_flight_ != 0 || !pending_.empty(); }
  bool poll() noexcept override {
    const Meter::Pause pause;
    const unsigned ended = std::exchange(ended_, 0u);
    in_flight_ -= ended;
    window_.ended(ended, files_.now_ns());
    submit();
    return ended != 0;
  }

 private:
  struct Request {
    std::shared_ptr<Block> block;
    std::uint64_t offset, bytes;
  };
  void submit() {
    for (; !pending_.empty() && in_flight_ < window_.size(); ++in_flight_) {
      const Request first = std::move(pending_.front());
      pending_.pop_front();
      window_.started(1, files_.now_ns());
      files_.read(first.offset, first.bytes, [this, block = first.block] {
        ++ended_;
        --block->left;
      });
    }
  }
  void read_to_open(unsigned left) {
    files_.read(0, kPageBytes, [this, left] {
      opened_ = left == 1;
      if (left > 1) read_to_open(left - 1);
    });
  }

  SimulatedFiles& files_;
  const bool is_it_;
  bool opened_ = false;
  unsigned in_flight_ = 0, ended_ = 0;  ///< requests; ended_: of these, since the last poll()
  std::deque<Request> pending_;
  serve::ReadWindow window_;
};

std::unique_ptr<serve::HomeFile> SimulatedFiles::open(const std::string& path,
                                                      const node::ServedState& state) {
  const Meter::Pause pause;
  return std::make_unique<File>(*this, path == facts_.path && state == facts_.state);
}

void SimulatedFiles::read(std::uint64_t offset, std::uint64_t bytes, std::function<void()> done) {
  storage_.read(node_, offset, bytes, [this, done = std::move(done)] {
    done();
    wake_();
  });
}

}  // namespace lmdbio::bench
