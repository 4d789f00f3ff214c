// What processes tell each other of their private memory.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lmdbio/node/memory_note.h"

namespace lmdbio::node {
namespace {

const std::uint64_t kGroup =
    (std::uint64_t{1} << 48) + static_cast<std::uint64_t>(::getpid());  // no cgroup's

/// A process with a note, until it is killed.
class Process {
 public:
  Process(std::uint64_t group, std::uint64_t used, std::uint64_t promised) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      MemoryNote note;
      MemoryOfOthers none;
      char done = note.look(group, none) ? 'y' : 'n';
      note.set(used, promised);
      if (::write(ends[1], &done, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char done = 0;
    EXPECT_EQ(::read(ends[0], &done, 1), 1);
    has_note = done == 'y';
    ::close(ends[0]);
    ::close(ends[1]);
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  ~Process() { kill(); }
  bool has_note = false;

 private:
  pid_t pid_ = 0;
};

TEST(MemoryNote, AddsUpOthersOfTheGroup) {
  MemoryNote mine;
  MemoryOfOthers o;
  if (!mine.look(kGroup, o)) GTEST_SKIP() << "no shared memory";
  EXPECT_EQ(o.processes, 0u);
  mine.set(1, 2);
  Process a(kGroup, 100, 150), b(kGroup, 300, 200), elsewhere(kGroup + 1, 7, 7), idle(kGroup, 0, 0);
  ASSERT_TRUE(a.has_note && b.has_note && elsewhere.has_note && idle.has_note);
  o = {};
  EXPECT_TRUE(mine.look(kGroup, o));
  EXPECT_EQ(o.processes, 2u);
  EXPECT_EQ(o.used, 400u);
  EXPECT_EQ(o.promised, 450u);
  b.kill();  // and its note with it
  o = {};
  EXPECT_TRUE(mine.look(kGroup, o));
  EXPECT_EQ(o.processes, 1u);
  EXPECT_EQ(o.used, 100u);
}

TEST(MemoryNote, OfAForkedChild) {
  MemoryNote note;
  MemoryOfOthers o;
  if (!note.look(kGroup, o)) GTEST_SKIP() << "no shared memory";
  note.set(5, 5);
  const pid_t child = ::fork();
  if (child == 0) {
    note.forget();
    note.set(9, 9);  // nowhere
    MemoryOfOthers parent;
    ::_exit(note.look(kGroup, parent) && parent.processes == 1 && parent.used == 5 ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lmdbio::node
