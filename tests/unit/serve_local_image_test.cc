// The server of a node and the image on its local disk: what it reads from where, what it stores, and what
// travels.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lmdbio/base/futex.h"
#include "lmdbio/cache/codec.h"
#include "lmdbio/cache/packed_range.h"
#include "lmdbio/serve/home_files.h"
#include "lmdbio/serve/server.h"
#include "tests/support/cache_file.h"
#include "tests/support/fake_ranks.h"

namespace lmdbio::serve {
namespace {

using node::ServiceRequests;
using testing::CacheCase;
using testing::CacheDatabase;

const bool is_set = [] {
  ::setenv("LMDBIO_CACHE_CODEC", "zstd-1", 1);
  (void)testing::cache_parent();
  (void)::testing::AddGlobalTestEnvironment(new testing::CacheParent);
  return true;
}();

constexpr std::uint64_t kChunks = 5, kBytes = kChunks * kChunkBytes + 3 * cache::kFrameBytes;

node::ServedState state_of(const CacheDatabase& db) {
  cache::DatabaseState state{db.file(), db.path(), CacheDatabase::kSnapshot};
  const auto contents = cache::contents_of(state);
  EXPECT_TRUE(contents);
  return {*contents, state.snapshot, state.page_bytes, state.used_bytes};
}

/// Calls `step` until `done()`.
template <class Done, class Step>
void until(Done&& done, Step&& step) {
  while (!done()) {
    step();
    std::this_thread::yield();
  }
}

/// The file as a server has it.
struct Opened {
  Opened(const CacheDatabase& db, unsigned nodes)
      : files(file_system(nodes)), file(files->open(db.path(), state_of(db))) {
    until([&] { return file->opened().has_value(); }, [] {});
    EXPECT_TRUE(file->opened()->ok());
  }
  std::shared_ptr<Block> read(std::uint64_t offset, std::size_t bytes) {
    std::shared_ptr<Block> block = file->read(offset, bytes).value();
    wait(*block);
    return block;
  }
  void wait(const Block& block) {
    until([&] { return block.is_done(); }, [&] { (void)file->poll(); });
    (void)file->poll();
  }
  /// Reads the whole file, and stores it.
  void fill(bool is_kept = true) {
    for (std::uint64_t at = 0; at < kBytes; at += kChunkBytes)
      file->store(read(at, std::min(kChunkBytes, kBytes - at)), is_kept);
    until([&] { return !file->is_storing(); }, [&] { (void)file->poll(); });
  }
  const std::unique_ptr<HomeFiles> files;
  const std::unique_ptr<HomeFile> file;
};

class LocalImageTest : public CacheCase {
 protected:
  void SetUp() override {
    CacheCase::SetUp();
    if (!cache::built_in(cache::Codec::zstd1)) GTEST_SKIP() << "this build does not compress";
  }
  const CacheDatabase db_{kBytes};
};

TEST_F(LocalImageTest, StoresWhatItReads) {
  {
    Opened first(db_, 2);
    EXPECT_TRUE(first.file->stores());
    EXPECT_FALSE(first.read(0, 4096)->is_cached());
    first.fill();
    EXPECT_TRUE(first.read(0, 4096)->is_cached()) << "at once";
  }
  Opened second(db_, 2);
  for (std::uint64_t at = 0; at < kBytes; at += kChunkBytes) {
    const std::size_t n = std::min(kChunkBytes, kBytes - at);
    const std::shared_ptr<Block> block = second.read(at, n);
    ASSERT_TRUE(block->status().ok());
    EXPECT_TRUE(block->is_cached());
    EXPECT_FALSE(block->is_plain());
    EXPECT_TRUE(block->packed(at + 100, 50).empty()) << "the plain bytes are fewer";
    const std::vector<std::byte> packed = block->packed(at, n);
    ASSERT_FALSE(packed.empty());
    EXPECT_LT(packed.size(), n);
    std::vector<std::byte> got(n);
    cache::Scratch scratch;
    ASSERT_TRUE(cache::PackedRange::parse(packed).value().unpack(0, got, scratch).ok());
    EXPECT_TRUE(db_.has(at, got));
    const std::shared_ptr<Block> plain = second.file->unpack(block, at + 1000, 3000).value();
    second.wait(*plain);
    ASSERT_TRUE(plain->status().ok() && plain->is_plain());
    EXPECT_EQ(plain->bytes().size(), 3000u);
    EXPECT_TRUE(db_.has(at + 1000, plain->bytes()));
  }
}

TEST_F(LocalImageTest, WithoutOtherNodesThereIsNoImage) {
  Opened alone(db_, 1);
  EXPECT_FALSE(alone.file->stores());
  alone.fill();
  EXPECT_TRUE(files().empty());
}

// Parts of chunks that the server does not keep complete chunks, too.
TEST_F(LocalImageTest, StoresPartsOfChunks) {
  Opened opened(db_, 2);
  for (std::uint64_t at = 0; at < kChunkBytes; at += node::kServiceBytes) {
    EXPECT_FALSE(opened.read(0, 100)->is_cached());
    opened.file->store(opened.read(at, node::kServiceBytes), false);
    until([&] { return !opened.file->is_storing(); }, [&] { (void)opened.file->poll(); });
  }
  EXPECT_TRUE(opened.read(0, 100)->is_cached());
  EXPECT_FALSE(opened.read(kChunkBytes, 100)->is_cached());
}

TEST_F(LocalImageTest, ADamagedChunkIsReadFromTheFile) {
  (void)Opened(db_, 2).fill();
  change(file(cache::kDataEnding), kChunkBytes + 4096 + cache::kHeaderBytes + 70'000, 4);
  Opened opened(db_, 2);
  EXPECT_TRUE(opened.read(0, kChunkBytes)->status().ok());
  const std::shared_ptr<Block> damaged = opened.read(kChunkBytes, kChunkBytes);
  EXPECT_EQ(damaged->status().raw(), EAGAIN);
  const std::shared_ptr<Block> block = opened.read(kChunkBytes, kChunkBytes);
  ASSERT_TRUE(block->status().ok());
  EXPECT_FALSE(block->is_cached());
  EXPECT_TRUE(db_.has(kChunkBytes, block->bytes()));
}

TEST_F(LocalImageTest, TheImageIsRemoved) {
  Opened opened(db_, 2);
  opened.file->store(opened.read(0, kChunkBytes), true);
  std::filesystem::remove_all(directory());
  opened.fill();
  for (std::uint64_t at = 0; at < kBytes; at += kChunkBytes) {
    const std::size_t n = std::min(kChunkBytes, kBytes - at);
    const std::shared_ptr<Block> block = opened.read(at, n);
    ASSERT_TRUE(block->status().ok());
    std::vector<std::byte> got(n);
    cache::Scratch scratch;
    const std::vector<std::byte> packed = block->packed(at, n);
    if (!packed.empty()) {
      ASSERT_TRUE(cache::PackedRange::parse(packed).value().unpack(0, got, scratch).ok());
    }
    EXPECT_TRUE(db_.has(at, packed.empty() ? block->bytes() : Bytes(got)));
  }
  EXPECT_TRUE(files().empty());
}

TEST_F(LocalImageTest, TheImageOfAnotherUserIsNotUsed) {
  (void)Opened(db_, 2).fill();
  const auto images = files();
  ASSERT_EQ(::chmod(directory().c_str(), 0755), 0) << "others may use it";
  const auto expect_none = [&] {
    Opened opened(db_, 2);
    EXPECT_FALSE(opened.file->stores());
    EXPECT_FALSE(opened.read(0, kChunkBytes)->is_cached());
  };
  expect_none();
  ASSERT_EQ(::chmod(directory().c_str(), 0700), 0);
  if (::chown(directory().c_str(), ::geteuid() + 1, static_cast<gid_t>(-1)) == 0) {
    expect_none();
    EXPECT_EQ(::chown(directory().c_str(), ::geteuid(), static_cast<gid_t>(-1)), 0);
  }
  EXPECT_EQ(files().size(), images.size());
  EXPECT_TRUE(Opened(db_, 2).read(0, kChunkBytes)->is_cached());
}

// A server is killed while it stores.  The next one reads right bytes, and stores what is missing.
TEST_F(LocalImageTest, AServerIsKilledWhileItWrites) {
  for (unsigned chunks = 1; chunks <= 3; ++chunks) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      Opened opened(db_, 2);
      for (std::uint64_t c = 0; c < kChunks; ++c)
        opened.file->store(opened.read(c * kChunkBytes, kChunkBytes), true);
      const auto image = db_.image();
      until([&] { return image == nullptr || image->has_stored(chunks - 1); },
            [&] { (void)opened.file->poll(); });
      ::kill(::getpid(), SIGKILL);
    }
    ::waitpid(pid, nullptr, 0);
    {
      Opened opened(db_, 2);
      EXPECT_TRUE(opened.read(0, kChunkBytes)->is_cached());
      opened.fill();
    }
    const auto image = db_.image();
    ASSERT_NE(image, nullptr);
    EXPECT_EQ(testing::read_all_chunks(db_, *image), kChunks + 1);
    std::filesystem::remove_all(directory());
  }
}

// --- servers ----------------------------------------------------------------------------------------------

/// The programs of a node.  They decompress.
class Programs final : public ServiceRequests {
 public:
  explicit Programs(const CacheDatabase& db) : db_(db), state_(state_of(db)) {}
  bool ask(Kind kind, std::uint64_t offset, std::size_t bytes) {
    for (unsigned s = 0; s < node::kServiceSlots; ++s)
      if (used_.insert(s).second) {
        asked_.push_back({s, kind, 0, offset, bytes, state_});
        return true;
      }
    return false;
  }
  bool wait() const { return !used_.empty(); }
  void show_work() noexcept override {}
  std::optional<Request> next() noexcept override {
    if (asked_.empty()) return std::nullopt;
    const Request r = asked_.front();
    asked_.pop_front();
    return r;
  }
  std::string path(const Request&) const override { return db_.path(); }
  void finish(const Request& r, std::int64_t result, Bytes got) noexcept override {
    used_.erase(r.slot);
    if (r.kind == Kind::open) {
      stores = (result & node::kStoresResult) != 0;
      EXPECT_EQ(result & ~node::kStoresResult, 0);
      return;
    }
    std::vector<std::byte> plain(got.begin(), got.end());
    if (result > 0 && (result & node::kPackedResult) != 0) {
      ++packed;
      EXPECT_EQ(result & ~node::kPackedResult, static_cast<std::int64_t>(got.size()));
      const Result<cache::PackedRange> range = cache::PackedRange::parse(got);
      ASSERT_TRUE(range);
      EXPECT_EQ(range.value().at(), r.offset % kChunkBytes);
      plain.resize(range.value().bytes());
      cache::Scratch scratch;
      EXPECT_TRUE(range.value().unpack(range.value().at(), plain, scratch).ok());
    }
    EXPECT_EQ(plain.size(), std::min<std::uint64_t>(r.bytes, kBytes - r.offset));
    EXPECT_TRUE(db_.has(r.offset, plain)) << r.offset;
  }
  bool stores = false;
  unsigned packed = 0;

 private:
  const CacheDatabase& db_;
  const node::ServedState state_;
  std::deque<Request> asked_;
  std::set<unsigned> used_;
};

/// A job of servers.  Their nodes share one local disk here, whose image has the chunks of all of them.
struct Job {
  Job(const CacheDatabase& db, unsigned n, std::uint64_t memory = std::uint64_t{1} << 30) : network(n, n) {
    for (unsigned i = 0; i < n; ++i) {
      files.push_back(file_system(n));
      programs.push_back(std::make_unique<Programs>(db));
      servers.push_back(std::make_unique<Server>(*programs[i], network.rank(i), *files[i],
                                                 Server::Settings{memory, 600'000'000'000, now_ns}));
      EXPECT_TRUE(servers[i]->start().ok());
      EXPECT_TRUE(programs[i]->ask(ServiceRequests::Kind::open, 0, std::strlen(db.path())));
    }
    run();
  }
  ~Job() {
    until(
        [&] { return std::none_of(servers.begin(), servers.end(), [](auto& s) { return s->is_storing(); }); },
        [&] { step(); });
  }
  void step() {
    for (auto& s : servers) (void)s->step();
  }
  void run() {
    until([&] { return std::none_of(programs.begin(), programs.end(), [](auto& p) { return p->wait(); }); },
          [&] { step(); });
  }
  /// Each node reads the file in pieces.
  void read(std::size_t piece) {
    std::size_t n = piece;
    for (std::uint64_t at = 0; at < kBytes; at += n) {
      n = std::min<std::size_t>(piece, kChunkBytes - at % kChunkBytes);  // not of two chunks
      for (auto& p : programs)
        until([&] { return p->ask(ServiceRequests::Kind::read, at, n); }, [&] { step(); });
    }
    run();
  }
  std::uint64_t sum(std::uint64_t node::ServiceCounts::*count) const {
    std::uint64_t all = 0;
    for (const auto& s : servers) all += s->counts().*count;
    return all;
  }
  test::FakeNetwork network;
  std::vector<std::unique_ptr<HomeFiles>> files;
  std::vector<std::unique_ptr<Programs>> programs;
  std::vector<std::unique_ptr<Server>> servers;
};

TEST_F(LocalImageTest, ASecondJobReadsNothingAndSendsCompressedBytes) {
  for (const unsigned n : {2u, 4u}) {
    {
      Job first(db_, n);
      first.read(node::kServiceBytes);
      EXPECT_EQ(first.sum(&node::ServiceCounts::read), kBytes);
      EXPECT_EQ(first.sum(&node::ServiceCounts::cached), 0u);
      EXPECT_EQ(first.sum(&node::ServiceCounts::to_programs), n * kBytes);
      for (const auto& p : first.programs) EXPECT_TRUE(p->stores);
    }
    std::uint64_t stored = 0;
    for (const cache::TableEntry& e : entries(kChunks + 1)) stored += e.bytes;
    EXPECT_LT(stored, kBytes * 4 / 5);
    Job second(db_, n);
    second.read(node::kServiceBytes);
    EXPECT_EQ(second.sum(&node::ServiceCounts::read), 0u);
    EXPECT_EQ(second.sum(&node::ServiceCounts::alone), 0u);
    EXPECT_EQ(second.sum(&node::ServiceCounts::cached), kBytes);
    EXPECT_EQ(second.sum(&node::ServiceCounts::to_programs), n * kBytes);
    EXPECT_EQ(second.sum(&node::ServiceCounts::from_nodes), second.sum(&node::ServiceCounts::to_nodes));
    for (const auto& s : second.servers) EXPECT_LE(s->counts().from_nodes, stored);
    for (const auto& p : second.programs) EXPECT_GT(p->packed, 0u);
    std::filesystem::remove_all(directory());
  }
}

// Small records travel as they are, and do not make later large requests travel so.
TEST_F(LocalImageTest, SmallRequestsOfACompressedChunk) {
  { Job(db_, 2).read(node::kServiceBytes); }
  for (const std::uint64_t memory : {std::uint64_t{1} << 30, 2 * kChunkBytes, std::uint64_t{0}}) {
    Job job(db_, 2, memory);
    job.read(30'000 + 4);
    EXPECT_EQ(job.sum(&node::ServiceCounts::read), 0u) << memory;
    for (const auto& s : job.servers) EXPECT_LE(s->counts().kept, memory);
    const std::uint64_t before = job.sum(&node::ServiceCounts::from_nodes);
    EXPECT_LE(before, kBytes);
    job.read(node::kServiceBytes);
    EXPECT_LT(job.sum(&node::ServiceCounts::from_nodes) - before, kBytes * 4 / 5) << memory;
    EXPECT_EQ(job.sum(&node::ServiceCounts::read), 0u) << memory;
  }
}

TEST_F(LocalImageTest, ADamagedChunkCostsOneRead) {
  { Job(db_, 2).read(node::kServiceBytes); }
  change(file(cache::kDataEnding), 2 * (kChunkBytes + 4096) + cache::kHeaderBytes + 9, 4);
  {
    Job job(db_, 2);
    job.read(node::kServiceBytes);
    EXPECT_EQ(job.sum(&node::ServiceCounts::read), kChunkBytes);
  }
  Job job(db_, 2);
  job.read(node::kServiceBytes);
  EXPECT_EQ(job.sum(&node::ServiceCounts::read), 0u) << "it was stored again";
}

// Homes without memory store the parts that they read, so each chunk leaves the file system about once.
TEST_F(LocalImageTest, HomesWithoutMemory) {
  { Job(db_, 2, 0).read(node::kServiceBytes); }
  Job job(db_, 2, 0);
  job.read(node::kServiceBytes);
  EXPECT_EQ(job.sum(&node::ServiceCounts::read), 0u);
  EXPECT_EQ(job.sum(&node::ServiceCounts::kept), 0u);
}

}  // namespace
}  // namespace lmdbio::serve
