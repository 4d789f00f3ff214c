// How much memory there is: here, and in machines and groups made up of files.
#include <errno.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lmdbio/base/memory_facts.h"

namespace lmdbio {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kGiB = kMiB << 10;

/// A directory with the files that tell, removed with the object.
class Machine {
 public:
  Machine() : root_(::testing::TempDir() + "lmdbio_facts_XXXXXX") {
    EXPECT_NE(::mkdtemp(root_.data()), nullptr);
    write("proc/meminfo",
          "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\nBuffers: 1 "
          "kB\n");
  }
  ~Machine() { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path at = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(at.parent_path());
    std::ofstream(at) << text;
  }
  MemoryFacts facts() const { return memory_facts(root_.c_str()); }

 private:
  std::string root_;
};

TEST(MemoryFacts, HereTheyArePlausible) {
  errno = 4711;
  const MemoryFacts f = memory_facts();
  EXPECT_EQ(errno, 4711);
  EXPECT_GT(f.total, 16 * kMiB);
  EXPECT_LT(f.total, std::uint64_t{1} << 50);
  EXPECT_GT(f.available, 0u);
  EXPECT_LE(f.available, f.total);
}

TEST(MemoryFacts, OfTheMachine) {
  const Machine m;
  EXPECT_EQ(m.facts().total, 16 * kGiB);
  EXPECT_EQ(m.facts().available, 8 * kGiB);
}

TEST(MemoryFacts, WithoutProc) {
  const MemoryFacts f = memory_facts("/nonexistent");
  EXPECT_GT(f.total, 16 * kMiB);
  EXPECT_GT(f.available, 0u);
  EXPECT_FALSE(f.known) << "page cache does not count";
  EXPECT_GT(memory_facts(std::string(10'000, 'x').c_str()).total, 16 * kMiB);
}

TEST(MemoryFacts, GroupsOfVersionTwo) {
  Machine m;
  const std::string base = "sys/fs/cgroup/";
  m.write("proc/self/cgroup", "0::/a/b\n");
  EXPECT_EQ(m.facts().total, 16 * kGiB) << "no group tells";
  m.write(base + "a/b/memory.max", "max\n");
  m.write(base + "a/b/memory.current", std::to_string(5 * kGiB));
  EXPECT_EQ(m.facts().total, 16 * kGiB);
  m.write(base + "a/memory.max", std::to_string(2 * kGiB) + "\n");
  m.write(base + "a/memory.current", std::to_string(1536 * kMiB) + "\n");
  EXPECT_EQ(m.facts().total, 2 * kGiB) << "the one above limits as well";
  EXPECT_EQ(m.facts().available, 512 * kMiB);
  m.write(base + "a/memory.stat",
          "anon 1\nactive_file 0\ninactive_file " + std::to_string(kGiB) + "\nslab 5\n");
  EXPECT_EQ(m.facts().available, 1536 * kMiB) << "page cache can be had";
  m.write(base + "a/memory.stat", "inactive_file " + std::to_string(64 * kGiB) + "\n");
  EXPECT_EQ(m.facts().available, 2 * kGiB) << "not more than is used";
  m.write(base + "a/memory.current", std::to_string(3 * kGiB) + "\n");
  m.write(base + "a/memory.stat", "inactive_file x\n");
  EXPECT_EQ(m.facts().available, 0u) << "over its limit";
}

// A file that is read a second time moves to the active list, and is no less free for that.
TEST(MemoryFacts, PageCacheThatIsOftenUsedCountsAsFree) {
  Machine m;
  const auto mib = [](std::uint64_t n) { return std::to_string(n * kMiB) + "\n"; };
  m.write("proc/self/cgroup", "0::/a\n");
  m.write("sys/fs/cgroup/a/memory.max", mib(2048));
  m.write("sys/fs/cgroup/a/memory.current", mib(1900));
  m.write("sys/fs/cgroup/a/memory.stat", "anon 1\nfile 4711\ninactive_anon 5\nactive_anon 6\ninactive_file " +
                                             mib(300) + "active_file " + mib(1500));
  EXPECT_EQ(m.facts().available, 1948 * kMiB);
  m.write("sys/fs/cgroup/a/memory.stat", "active_file " + mib(1500));
  EXPECT_EQ(m.facts().available, 1648 * kMiB);
  m.write("sys/fs/cgroup/a/memory.stat",
          "active_file " + mib(1500) + "slab_reclaimable " + mib(100) + "slab_unreclaimable " + mib(50));
  EXPECT_EQ(m.facts().available, 1748 * kMiB);
  EXPECT_TRUE(m.facts().known);
  m.write("proc/self/cgroup", "3:memory:/b\n");
  m.write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", mib(1024));
  m.write("sys/fs/cgroup/memory/b/memory.usage_in_bytes", mib(1000));
  // Its own part, then with the groups below it: those count too.
  m.write("sys/fs/cgroup/memory/b/memory.stat", "inactive_file " + mib(1) + "active_file " + mib(2) +
                                                    "total_inactive_file " + mib(100) + "total_active_file " +
                                                    mib(200));
  EXPECT_EQ(m.facts().available, 324 * kMiB);
}

TEST(MemoryFacts, AFullGroupAboveATighterOne) {
  Machine m;
  const std::string base = "sys/fs/cgroup/";
  m.write("proc/self/cgroup", "0::/a/b\n");
  m.write(base + "a/b/memory.max", std::to_string(4 * kGiB));
  m.write(base + "a/b/memory.current", "0");
  m.write(base + "a/memory.max", std::to_string(6 * kGiB));
  m.write(base + "a/memory.current", std::to_string(5 * kGiB));
  EXPECT_EQ(m.facts().total, 4 * kGiB);
  EXPECT_EQ(m.facts().available, kGiB);
}

TEST(MemoryFacts, WhereTheKernelSlowsDown) {
  Machine m;
  const std::string base = "sys/fs/cgroup/";
  m.write("proc/self/cgroup", "0::/a\n");
  m.write(base + "a/memory.max", "max\n");
  m.write(base + "a/memory.high", std::to_string(kGiB));
  m.write(base + "a/memory.current", std::to_string(256 * kMiB));
  EXPECT_EQ(m.facts().total, kGiB);
  EXPECT_EQ(m.facts().available, 768 * kMiB);
  m.write(base + "a/memory.max", std::to_string(512 * kMiB));
  EXPECT_EQ(m.facts().total, 512 * kMiB);
}

// Processes that share a limit have the same group, whatever is below it.
TEST(MemoryFacts, WhichGroupLimits) {
  Machine m;
  const std::string base = "sys/fs/cgroup/";
  m.write("proc/self/cgroup", "0::/a/b\n");
  EXPECT_EQ(m.facts().group, 0u);
  m.write(base + "a/memory.max", std::to_string(kGiB));
  m.write(base + "a/b/memory.max", "max");
  m.write(base + "a/c/memory.max", std::to_string(2 * kGiB));
  const std::uint64_t group = m.facts().group;
  EXPECT_NE(group, 0u);
  m.write("proc/self/cgroup", "0::/a/c\n");
  EXPECT_EQ(m.facts().group, group);
  m.write(base + "a/c/memory.max", std::to_string(kGiB));
  EXPECT_EQ(m.facts().group, group) << "both meet the limit of the one above";
  m.write(base + "a/c/memory.max", std::to_string(kGiB / 2));
  EXPECT_NE(m.facts().group, group);
}

TEST(MemoryFacts, GroupsOfVersionOne) {
  Machine m;
  const std::string base = "sys/fs/cgroup/memory/";
  m.write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/c1\n1:name=systemd:/y\n0::/z\n");
  m.write("sys/fs/cgroup/cpu/x/memory.limit_in_bytes", "1");
  m.write(base + "memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(m.facts().total, 16 * kGiB);
  m.write(base + "docker/c1/memory.limit_in_bytes", std::to_string(kGiB) + "\n");
  m.write(base + "docker/c1/memory.usage_in_bytes", std::to_string(900 * kMiB) + "\n");
  m.write(base + "docker/c1/memory.stat",
          "cache 1\ntotal_inactive_file " + std::to_string(100 * kMiB) + "\n");
  EXPECT_EQ(m.facts().total, kGiB);
  EXPECT_EQ(m.facts().available, 224 * kMiB);
}

TEST(MemoryFacts, NonsenseDoesNotLimit) {
  Machine m;
  for (const char* const text : {"", "::", "0:", "0::", "\n\n\n", "0::/a/../..\n", "x"}) {
    m.write("proc/self/cgroup", text);
    EXPECT_EQ(m.facts().total, 16 * kGiB) << text;
  }
  m.write("proc/self/cgroup", "0::/" + std::string(4000, 'a'));
  EXPECT_EQ(m.facts().total, 16 * kGiB);
  m.write("proc/meminfo", "MemTotal: x kB\nMemAvailable: 1 kB\n");
  EXPECT_GT(m.facts().total, 16 * kMiB) << "from elsewhere";
}

}  // namespace
}  // namespace lmdbio
