// Servers of several nodes in one thread, with programs, and a file system with one file.
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/serve/server.h"
#include "tests/support/fake_ranks.h"
#include "tests/support/rng.h"

namespace lmdbio::serve {

using node::ServiceRequests;
using test::Rng;

inline constexpr node::ServedState kState{{11, 12}, 13, 4096, 0};
inline constexpr const char* kPath = "/shared/data.mdb";

inline std::int64_t clock_ns = 0;

inline constexpr std::uint64_t kChunks = 13;
inline constexpr std::uint64_t kBytes = kChunks * kChunkBytes + 12345;

inline const std::vector<std::byte>& contents() {
  static const std::vector<std::byte> all = [] {
    std::vector<std::byte> made(kBytes);
    for (std::uint64_t i = 0; i < kBytes; ++i) made[i] = static_cast<std::byte>(i * 40503 >> 7);
    return made;
  }();
  return all;
}

/// A file system with one file, whose reads take as long as chance has it.
class FakeFiles final : public HomeFiles {
 public:
  FakeFiles(std::uint64_t bytes, std::uint64_t seed) : bytes_(bytes), rng_(seed) {}
  std::unique_ptr<HomeFile> open(const std::string& path, const node::ServedState& state) override {
    const bool is_it = path == kPath && state == kState && !is_another;
    ++opens;
    return std::make_unique<File>(*this, is_it ? Status() : Status::from_errno(ESTALE));
  }
  std::uint64_t read = 0, reads = 0, opens = 0;
  bool is_another = false, fails = false, is_outdated = false;
  unsigned slow_turns = 0;  ///< that each read takes; 0: as chance has it
  unsigned ended = 0;       ///< requests of others that have ended

 private:
  struct FakeBlock final : Block {
    FakeBlock(std::uint64_t offset, std::size_t n, unsigned d, bool bad)
        : Block(offset), data(n), delay(d), fails(bad) {
      std::memcpy(data.data(), contents().data() + offset, n);
    }
    bool is_done() const noexcept override { return delay == 0; }
    Status status() const noexcept override { return fails ? Status::from_errno(EIO) : Status(); }
    Bytes bytes() const noexcept override { return data; }
    std::vector<std::byte> data;
    unsigned delay;
    bool fails;
  };
  class File final : public HomeFile {
   public:
    File(FakeFiles& files, Status opened) : files_(files), opened_(opened), turns_(files.rng_.below(9)) {}
    std::optional<Status> opened() noexcept override {
      if (turns_ == 0) return opened_;
      --turns_;
      return {};
    }
    std::uint64_t size() const noexcept override { return files_.bytes_; }
    Result<std::shared_ptr<Block>> read(std::uint64_t offset, std::size_t bytes) noexcept override {
      EXPECT_LE(offset + bytes, files_.bytes_);
      files_.read += bytes;
      ++files_.reads;
      // A slow file system does one read after the other.
      const unsigned turns = files_.slow_turns != 0
                                 ? files_.slow_turns * (1 + static_cast<unsigned>(blocks_.size()))
                                 : 1 + files_.rng_.below(9);
      blocks_.push_back(std::make_shared<FakeBlock>(offset, bytes, turns, files_.fails));
      return std::shared_ptr<Block>(blocks_.back());
    }
    bool start_check() noexcept override {
      is_current_ = !files_.is_outdated;
      return true;
    }
    bool is_busy() const noexcept override { return !blocks_.empty(); }
    bool is_current() noexcept override { return is_current_; }
    bool poll() noexcept override {
      for (const std::shared_ptr<FakeBlock>& b : blocks_)
        if (b->delay != 0) --b->delay;
      return std::erase_if(blocks_, [](const std::shared_ptr<FakeBlock>& b) { return b->is_done(); }) != 0 ||
             std::exchange(files_.ended, 0u) != 0;
    }

   private:
    FakeFiles& files_;
    const Status opened_;
    std::uint64_t turns_;
    bool is_current_ = true;
    std::vector<std::shared_ptr<FakeBlock>> blocks_;
  };
  const std::uint64_t bytes_;
  Rng rng_;
};

/// The programs of a node.
class FakePrograms final : public ServiceRequests {
 public:
  FakePrograms() : paths_(node::kServiceSlots) {}
  /// Asks; the answer is in results() later.  Returns false if all slots are in use.
  bool open(const std::string& path = kPath, const node::ServedState& state = kState) {
    const unsigned slot = free_slot();
    if (slot == node::kServiceSlots) return false;
    paths_[slot] = path;
    asked_.push_back({slot, Kind::open, 0, 0, path.size(), state});
    return true;
  }
  bool read(std::uint64_t offset, std::size_t bytes, std::uint32_t file = 0) {
    const unsigned slot = free_slot();
    if (slot == node::kServiceSlots) return false;
    asked_.push_back({slot, Kind::read, file, offset, bytes, kState});
    return true;
  }
  void show_work() noexcept override { ++shown; }
  std::optional<Request> next() noexcept override {
    if (asked_.empty()) return std::nullopt;
    const Request r = asked_.front();
    asked_.pop_front();
    return r;
  }
  std::string path(const Request& r) const override { return paths_[r.slot]; }
  void finish(const Request& r, std::int64_t result, Bytes got) noexcept override {
    EXPECT_TRUE(used_.contains(r.slot)) << "a request is finished twice";
    used_.erase(r.slot);
    if (r.kind == Kind::read && result > 0 &&
        (got.size() != static_cast<std::size_t>(result) ||
         std::memcmp(got.data(), contents().data() + r.offset, got.size()) != 0))
      ++wrong;
    results[{r.offset, r.bytes}] = result;
    ++finished;
  }
  void show_counts(const node::ServiceCounts& shown_counts) noexcept override { counts = shown_counts; }
  std::size_t open_requests() const { return used_.size(); }
  std::map<std::pair<std::uint64_t, std::size_t>, std::int64_t> results;
  unsigned wrong = 0, finished = 0, shown = 0;
  node::ServiceCounts counts;  ///< as the server has shown them

 private:
  unsigned free_slot() {
    for (unsigned s = 0; s < node::kServiceSlots; ++s)
      if (used_.insert(s).second) return s;
    return node::kServiceSlots;
  }
  std::vector<std::string> paths_;
  std::deque<Request> asked_;
  std::set<unsigned> used_;
};

struct Node {
  Node(ranks::Transport& transport, std::uint64_t bytes, std::uint64_t memory, std::uint64_t seed,
       std::uint64_t copies)
      : files(bytes, seed),
        server(programs, transport, files,
               {memory, 700'000'000, []() noexcept { return clock_ns; }, copies}) {
    EXPECT_TRUE(server.start().ok());
  }
  FakePrograms programs;
  FakeFiles files;
  Server server;
};

struct Nodes {
  Nodes(unsigned n, std::uint64_t bytes, std::uint64_t memory, std::uint64_t seed, std::uint64_t copies = 0)
      : network(n, seed) {
    for (unsigned i = 0; i < n; ++i)
      all.push_back(std::make_unique<Node>(network.rank(i), bytes, memory, seed + i, copies));
  }
  Node& operator[](unsigned i) { return *all[i]; }
  /// Steps all servers but those that are stopped, until no program waits.
  void run(const std::set<unsigned>& stopped = {}) {
    for (unsigned turns = 0; turns < 60'000; ++turns) {
      bool waits = false;
      for (unsigned i = 0; i < all.size(); ++i) {
        if (!stopped.contains(i)) (void)all[i]->server.step();
        waits = waits || (all[i]->programs.open_requests() != 0 && !stopped.contains(i));
      }
      clock_ns += 100'000;
      if (!waits) return;
    }
    FAIL() << "programs wait for ever";
  }
  void open_everywhere() {
    for (auto& n : all) EXPECT_TRUE(n->programs.open());
    run();
  }
  std::uint64_t read() const {
    std::uint64_t sum = 0;
    for (const auto& n : all) sum += n->files.read;
    return sum;
  }
  unsigned wrong() const {
    unsigned sum = 0;
    for (const auto& n : all) sum += n->programs.wrong;
    return sum;
  }

  test::FakeNetwork network;
  std::vector<std::unique_ptr<Node>> all;
};

/// The program of a node reads the file in pieces, in order.
inline void read_all(Nodes& nodes, unsigned node, const std::set<unsigned>& stopped = {}) {
  for (std::uint64_t at = 0; at < kBytes; at += node::kServiceBytes) {
    while (!nodes[node].programs.read(at, node::kServiceBytes)) nodes.run(stopped);
  }
  nodes.run(stopped);
}

}  // namespace lmdbio::serve
