// Counters that other processes see: of one that runs, of one that has ended, of a forked child; and boards
// that are damaged, full, or cannot be had.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "lmdbio/node/counter_board.h"
#include "lmdbio/node/segment.h"
#include "tests/support/ahead_file.h"
#include "tests/support/node_processes.h"

namespace lmdbio::node {
namespace {

struct Numbers {
  std::uint64_t a = 0, b = 0;
};

std::string topic() { return "/tmp/counter-board-test." + std::to_string(::getpid()); }

std::vector<ShownBoard> boards(const std::string& of) {
  return take_boards([&of](const ShownBoard& b) { return b.topic == of; });
}

/// A process that runs `body` and is then killed, or goes on until it is told to end.
class Process {
 public:
  explicit Process(const std::function<void()>& body) {
    int down[2], up[2];
    EXPECT_EQ(::pipe(down), 0);
    EXPECT_EQ(::pipe(up), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      CounterBoard::after_fork_in_child();
      body();
      char c = 0;
      (void)!::write(up[1], &c, 1);
      (void)!::read(down[0], &c, 1);
      ::_exit(0);
    }
    to_ = down[1];
    ::close(down[0]);
    ::close(up[1]);
    char c;
    EXPECT_EQ(::read(up[0], &c, 1), 1);
    ::close(up[0]);
  }
  ~Process() { end(); }
  void end() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(to_);
    pid_ = 0;
  }
  std::uint32_t pid() const { return static_cast<std::uint32_t>(pid_); }

 private:
  pid_t pid_ = 0;
  int to_ = -1;
};

/// In a process of its own: a board is for good.
void in_child(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    body();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST(CounterBoard, WithoutABoardCountersAreTheirOwn) {
  EXPECT_FALSE(CounterBoard::started());
  EXPECT_EQ(CounterBoard::take({CellKind::calls}, 64), nullptr);
  Cell<Numbers> cell({CellKind::calls});
  cell->a = 5;
  EXPECT_EQ(cell->a, 5u);
  EXPECT_EQ(cell.on_board(), nullptr);
  EXPECT_EQ(CounterBoard::number_of(&cell), 0u);
  CounterBoard::show();
  CounterBoard::end();
}

TEST(CounterBoard, OthersSeeItWhileItRunsAndAfterwards) {
  const std::string name = topic();
  Process other([&name] {
    CounterBoard::start(name);
    auto* const cell = new Cell<Numbers>({CellKind::calls, 0, 7, 8});
    *(*cell) = {11, 12};
    auto* const gone = new Cell<Numbers>({CellKind::reader});
    (*gone)->a = 99;
    delete gone;
    auto* const left = new Cell<Numbers>({CellKind::reader});
    (*left)->a = 98;
    left->leave();
    (*left)->a = 97;
  });
  for (const bool lives : {true, true, false}) {
    if (!lives) other.end();
    const auto found = boards(name);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].lives, lives);
    ASSERT_EQ(found[0].cells.size(), 1u);
    const ShownBoard::Shown& cell = found[0].cells[0];
    EXPECT_EQ(cell.facts.kind, CellKind::calls);
    EXPECT_EQ(cell.facts.device, 7u);
    EXPECT_EQ(cell.facts.inode, 8u);
    EXPECT_EQ(cell.as<Numbers>().a, 11u);
    EXPECT_EQ(cell.as<Numbers>().b, 12u);
  }
  EXPECT_TRUE(boards(name).empty()) << "told once";
}

// Processes that end at the same time look at all boards: each may have the other's children's attached.
TEST(CounterBoard, AnEndedOneThatAnotherProcessLooksAt) {
  if (!own_namespaces) GTEST_SKIP() << "the board of another program might be attached";
  const std::string name = topic();
  Process other([&name] { CounterBoard::start(name); });
  std::vector<Result<Segment>> looks;
  for (const SegmentFacts& s : own_segments())
    if (s.bytes == CounterBoard::kBytes) looks.push_back(Segment::open_number(s.id));
  ASSERT_EQ(looks.size(), 1u);
  ASSERT_TRUE(looks[0]);
  for (const bool lives : {true, false}) {
    if (!lives) other.end();
    const auto found = boards(name);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].lives, lives);
  }
}

TEST(CounterBoard, ItIsGoneOnceTheProcessHasTold) {
  const std::string name = topic();
  Process other([&name] {
    CounterBoard::start(name);
    auto* const cell = new Cell<Numbers>({CellKind::calls});
    CounterBoard::end();
    (*cell)->a = 1;  // other threads go on
  });
  EXPECT_TRUE(boards(name).empty());
  other.end();
  EXPECT_TRUE(boards(name).empty());
}

// A child counts from zero, in memory of its own; others see it from show() on.
TEST(CounterBoard, AForkedChild) {
  in_child([] {
    const std::string name = topic();
    CounterBoard::start(name);
    Cell<Numbers> calls({CellKind::calls, 0, 1, 2}), text({CellKind::text});
    *calls = {5, 6};
    *text = {50, 60};
    Numbers* const at = &*calls;
    Process child([&] {
      EXPECT_EQ(&*calls, at);
      EXPECT_EQ(calls->a, 0u);
      EXPECT_EQ(text->a, 50u) << "names are the parent's";
      calls->a = 3;
    });
    EXPECT_EQ(calls->a, 5u);
    EXPECT_TRUE(boards(name).empty()) << "not shown; and a process does not find its own";
    child.end();
    EXPECT_TRUE(boards(name).empty());

    Process shown([&] {
      calls->b = 4;
      CounterBoard::show();
      calls->a = 3;
      Cell<Numbers>* const more = new Cell<Numbers>({CellKind::reader});
      (*more)->a = 8;
    });
    calls->a = 7;
    for (const bool lives : {true, false}) {
      if (!lives) shown.end();
      const auto found = boards(name);
      ASSERT_EQ(found.size(), 1u);
      EXPECT_EQ(found[0].lives, lives);
      if (lives) {
        EXPECT_EQ(found[0].pid, shown.pid());
      }
      ASSERT_EQ(found[0].cells.size(), 3u);
      EXPECT_EQ(found[0].cells[0].as<Numbers>().a, 3u);
      EXPECT_EQ(found[0].cells[0].as<Numbers>().b, 4u);
      EXPECT_EQ(found[0].cells[1].as<Numbers>().b, 60u);
      EXPECT_EQ(found[0].cells[2].as<Numbers>().a, 8u);
    }
    EXPECT_EQ(calls->a, 7u);
    CounterBoard::end();
  });
}

// A grandchild whose parent was never shown.
TEST(CounterBoard, AChildOfAChild) {
  in_child([] {
    const std::string name = topic();
    CounterBoard::start(name);
    Cell<Numbers> calls({CellKind::calls});
    in_child([&] {
      CounterBoard::after_fork_in_child();
      calls->a = 100;
      Process grandchild([&] {
        EXPECT_EQ(calls->a, 0u);
        CounterBoard::show();
        calls->a = 2;
      });
      const auto found = boards(name);
      ASSERT_EQ(found.size(), 2u) << "the grandparent's and the grandchild's";
      EXPECT_EQ(found[0].cells[0].as<Numbers>().a + found[1].cells[0].as<Numbers>().a, 2u);
      EXPECT_EQ(calls->a, 100u);
      grandchild.end();
      EXPECT_EQ(boards(name).size(), 2u);
    });
    CounterBoard::end();
  });
}

TEST(CounterBoard, CellsAreUsedAgain) {
  in_child([] {
    CounterBoard::start(topic());
    for (int i = 0; i < 10'000; ++i) {
      Cell<Numbers> cell({CellKind::calls});
      ASSERT_NE(cell.on_board(), nullptr) << i;
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(cell.on_board()) % 64, 0u);
      ASSERT_EQ(cell->a, 0u);
      cell->a = 1;
    }
    // Full: the next count in their own memory.
    std::vector<std::unique_ptr<Cell<Numbers>>> all;
    std::size_t on = 0;
    for (int i = 0; i < 1000; ++i) {
      all.push_back(std::make_unique<Cell<Numbers>>(CellFacts{CellKind::calls}));
      (*all.back())->a = 1;
      on += all.back()->on_board() != nullptr ? 1u : 0u;
    }
    EXPECT_GE(on, 100u);
    EXPECT_LT(on, 1000u);
    CounterBoard::end();
  });
}

TEST(CounterBoard, TopicsThatAreTooLong) {
  in_child([] {
    CounterBoard::start(std::string(1024, 'x'));
    EXPECT_FALSE(CounterBoard::started());
    CounterBoard::start(std::string(1023, 'x'));
    EXPECT_TRUE(CounterBoard::started());
    CounterBoard::end();
  });
}

// Whatever stands in a segment of that size: no board, or one that lies within its bounds.
TEST(CounterBoard, DamagedBoards) {
  if (!own_namespaces) GTEST_SKIP() << "boards of other programs would be taken";
  const std::string name = topic();
  (void)remove_dead_boards();
  std::size_t given = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    int id = -1;
    {
      Process other([&name] {
        CounterBoard::start(name);
        auto* const cell = new Cell<Numbers>({CellKind::calls});
        *(*cell) = {1, 2};
      });
      for (const SegmentFacts& s : own_segments())
        if (s.bytes == CounterBoard::kBytes) id = s.id;
      ASSERT_GE(id, 0);
      Result<Segment> there = Segment::open_number(id);
      ASSERT_TRUE(there);
      if (seed != 0) {
        const std::size_t at = (seed * 2654435761u) % 4096;
        std::memset(there.value().data() + at, static_cast<int>(seed * 37), 1 + seed % 24);
      }
    }
    std::size_t cells = 0;
    for (const ShownBoard& b : take_boards([](const ShownBoard&) { return true; })) {
      ++given;
      for (const ShownBoard::Shown& c : b.cells) {
        EXPECT_LE(c.bytes.size(), CounterBoard::kBytes);
        cells += c.bytes.size();
      }
    }
    if (seed == 0) {
      EXPECT_EQ(cells, sizeof(Numbers));
    }
    (void)remove_dead_boards();
  }
  EXPECT_GT(given, 10u);
  for (const SegmentFacts& s : own_segments()) EXPECT_NE(s.bytes, CounterBoard::kBytes);
}

// What another process writes to the board of one that runs changes what others see of it, and no more.
TEST(CounterBoard, OverwrittenWhileItIsUsed) {
  if (!own_namespaces) GTEST_SKIP() << "boards of other programs would be overwritten";
  for (const int value : {0xff, 0x41, 0}) {
    in_child([value] {
      CounterBoard::start("topic");
      Cell<Numbers> before({CellKind::text});
      const Cell<Numbers> counts({CellKind::calls});
      for (const SegmentFacts& s : own_segments()) {
        if (s.bytes != CounterBoard::kBytes) continue;
        Result<Segment> there = Segment::open_number(s.id);
        ASSERT_TRUE(there);
        std::memset(there.value().data(), value, CounterBoard::kBytes);
      }
      EXPECT_EQ(before->a, static_cast<unsigned>(value) * 0x0101010101010101u) << "it was overwritten";
      EXPECT_EQ(CounterBoard::topic(), "topic");
      EXPECT_EQ(CounterBoard::number_of(counts.on_board()), 2u);
      CounterBoard::set_file(counts.on_board(), 1, 2);
      before.leave();
      {
        const Cell<Numbers> again({CellKind::calls}), more({CellKind::text});
        EXPECT_EQ(CounterBoard::number_of(again.on_board()), 1u);
        EXPECT_EQ(more->a, 0u);
        EXPECT_EQ(more.on_board(), static_cast<const std::byte*>(again.on_board()) + 128);
        testing::expect_success(testing::fork_a_child([&] {
          CounterBoard::after_fork_in_child();
          CounterBoard::show();
          const Cell<Numbers> third({CellKind::calls});
          return third->a == 0 && CounterBoard::number_of(third.on_board()) == 4 ? 0 : 1;
        }));
      }
      CounterBoard::end();
    });
    (void)remove_dead_boards();
  }
}

TEST(CounterBoard, DeadOnesAreRemoved) {
  if (!own_namespaces) GTEST_SKIP() << "boards of other programs would be taken";
  const std::string name = topic();
  Process lives([&name] { CounterBoard::start(name); }), dies([&name] { CounterBoard::start(name); });
  dies.end();
  EXPECT_EQ(remove_dead_boards(1000), 0u) << "not that long ago";
  EXPECT_EQ(dead_boards(), 1u);
  EXPECT_EQ(remove_dead_boards(), 1u);
  EXPECT_EQ(boards(name).size(), 1u);
  lives.end();
  EXPECT_EQ(boards(name).size(), 1u);
  EXPECT_EQ(remove_dead_boards(), 0u);
}

}  // namespace
}  // namespace lmdbio::node
