// Claim words: every order in which the steps of three processes that want one chunk can meet, with reads
// that fail, processes that end at any step, and waits that take too long, run through the real code of
// node/claim.h: chunks that are brought into the page cache, and chunk files.  With a sanitizer two
// processes: it makes each jump out of the code a system call.
#include <gtest/gtest.h>

#include <array>
#include <csetjmp>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lmdbio/node/claim.h"

namespace lmdbio::node {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr unsigned kProcesses = 2;
constexpr std::size_t kLeastStates = 400, kLeastStatesWithAnEnd = 400;
#else
constexpr unsigned kProcesses = 3;
constexpr std::size_t kLeastStates = 500'000, kLeastStatesWithAnEnd = 2'000'000;
#endif
constexpr std::uint32_t kTag = 7;

enum class Break : unsigned char {
  nothing,
  no_wake,        // a release that wakes nobody
  no_exclusion,   // a compare and exchange that always succeeds
  early_release,  // a chunk file that is shown before it is filled
};

enum class Store : unsigned char { page_cache, chunk_files };

// A process runs its program from the start for each of its steps: what earlier steps gave is read from its
// log, and the first step that is not in the log is made and ends the run.  So a state can be copied.
class Model {
 public:
  explicit Model(Break broken, unsigned crashes, bool failures, Store store = Store::page_cache)
      : broken_(broken), crashes_(crashes), failures_(failures), store_(store) {}

  struct Found {
    std::size_t states = 0, ends = 0;
    std::string wrong;  // what came out wrong first; empty: nothing
  };

  Found explore() {
    std::vector<State> open{State{}};
    std::unordered_set<std::uint64_t> seen;
    while (!open.empty() && found_.wrong.empty()) {
      const State at = std::move(open.back());
      open.pop_back();
      if (!seen.insert(hash(at)).second) continue;
      const std::size_t before = open.size();
      for (unsigned p = 0; p < kProcesses; ++p) moves_of(at, p, open);
      if (open.size() == before) end(at);
    }
    found_.states = seen.size();
    return found_;
  }

 private:
  enum class Doing : unsigned char { runs, fills, sleeps, ended, crashed };
  struct Process {
    Doing doing = Doing::runs;
    bool woken = false;
    std::vector<std::uint64_t> log;
  };
  struct State {
    std::uint64_t word = 0;
    bool there = false;                                 // in the page cache
    bool partial = false;                               // a chunk file was used that has not all bytes
    std::array<bool, kProcesses> linked{}, complete{};  // chunk files
    unsigned crashed = 0, brought = 0, failed = 0, void_claims = 0;
    std::array<Process, kProcesses> processes;
  };

  // --- what a process does ---

  struct Word {
    Model* m;
    ClaimValue load() const noexcept {
      return ClaimValue(m->step([this] { return m->now_.word; }));
    }
    bool compare_exchange(ClaimValue& expected, ClaimValue desired) const noexcept {
      // Two log entries would be two steps: the old value tells all.
      const ClaimValue before(m->step([this, expected, desired] {
        const std::uint64_t old = m->now_.word;
        if (old == expected.bits() || m->broken_ == Break::no_exclusion) m->now_.word = desired.bits();
        return m->broken_ == Break::no_exclusion ? expected.bits() : old;
      }));
      if (before.bits() == expected.bits()) return true;
      expected = before;
      return false;
    }
    void wake() const noexcept {
      m->step([this] {
        if (m->broken_ != Break::no_wake)
          for (Process& p : m->now_.processes)
            if (p.doing == Doing::sleeps) p.woken = true;
        return std::uint64_t{0};
      });
    }
  };

  void program() noexcept {
    const Word word{this};
    const Claimer me{static_cast<std::uint16_t>(running_ + 1)};
    for (;;) {
      ClaimValue value;
      if (claim(word, me, kTag, value)) {
        const bool there = step([this] {
                             if (!now_.there) process().doing = Doing::fills;
                             return std::uint64_t{now_.there};
                           }) != 0;
        if (there) {
          (void)release(word, value, true);
          return;
        }
        const bool good = step([this] {
                            process().doing = Doing::runs;
                            ++(choice_ == 0 ? now_.brought : now_.failed);
                            if (choice_ == 0) now_.there = true;
                            return std::uint64_t{choice_ == 0};
                          }) != 0;
        (void)release(word, value, good);
        return;
      }
      const Ended ended = sleep_on(word, value);
      if (ended == Ended::brought) return;
    }
  }

  // As program(), by chunk files: window/chunk_source.cc (claim_memory, filled, drop).
  void program_of_files() noexcept {
    const Word word{this};
    const Claimer me{static_cast<std::uint16_t>(running_ + 1)};
    for (;;) {
      ClaimValue value;
      Look found = claim_unless_filled(word, me, kTag, value);
      if (found == Look::filled) {
        const auto maker = static_cast<unsigned>(value.claimer()) - 1;
        const bool opened = step([this, maker] {
                              now_.partial = now_.partial || (now_.linked[maker] && !now_.complete[maker]);
                              return std::uint64_t{now_.linked[maker]};
                            }) != 0;
        if (opened) return;
        if (!take_over(word, me, value)) continue;
        found = Look::mine;
      }
      if (found == Look::mine) {
        step([this] {
          process().doing = Doing::fills;
          now_.complete[running_] = false;
          now_.linked[running_] = broken_ == Break::early_release;
          return std::uint64_t{0};
        });
        if (broken_ == Break::early_release) (void)release(word, value, true);
        const bool good = step([this] {
                            process().doing = Doing::runs;
                            ++(choice_ == 0 ? now_.brought : now_.failed);
                            now_.complete[running_] = choice_ == 0;
                            return std::uint64_t{choice_ == 0};
                          }) != 0;
        if (good) step([this] { return std::uint64_t{now_.linked[running_] = true}; });
        (void)release(word, value, good);
        // It does not keep the chunk for ever.  (With processes that end anywhere there are too many states.)
        if (good && crashes_ == 0) step([this] { return std::uint64_t{now_.linked[running_] = false}; });
        return;
      }
      (void)sleep_on(word, value);
    }
  }

  Ended sleep_on(const Word& word, ClaimValue value) noexcept {
    return wait(word, value, [this](ClaimValue v) noexcept {
      step([this, v] {
        if (static_cast<std::uint32_t>(now_.word) == v.low()) process().doing = Doing::sleeps;
        return std::uint64_t{0};
      });
      return static_cast<Slept>(step([this] {
        const bool asleep = std::exchange(process().doing, Doing::runs) == Doing::sleeps;
        const bool woken = std::exchange(process().woken, false);
        if (!asleep || woken) return static_cast<std::uint64_t>(Slept::look);
        ++now_.void_claims;
        return static_cast<std::uint64_t>(Slept::give_up);
      }));
    });
  }

  template <class Act>
  std::uint64_t step(Act act) noexcept {
    std::vector<std::uint64_t>& log = process().log;
    if (at_ < log.size()) return log[at_++];
    log.push_back(act());
    std::longjmp(stepped_, 1);  // no object on the way has a destructor
  }

  Process& process() noexcept { return now_.processes[running_]; }

  // --- the states ---

  // `p` goes on by one step.
  State after(const State& at, unsigned p, unsigned choice) {
    now_ = at;
    running_ = p;
    choice_ = choice;
    at_ = 0;
    if (setjmp(stepped_) == 0) {
      store_ == Store::page_cache ? program() : program_of_files();
      process().doing = Doing::ended;
    }
    return now_;
  }

  void moves_of(const State& at, unsigned p, std::vector<State>& open) {
    const Process& me = at.processes[p];
    if (me.doing == Doing::ended || me.doing == Doing::crashed) return;
    if (at.crashed < crashes_) {
      State gone = at;
      gone.processes[p].doing = Doing::crashed;
      ++gone.crashed;
      open.push_back(gone);
    }
    // Nobody waits in vain for a process that goes on.
    if (me.doing == Doing::sleeps && !me.woken && at.crashed == 0) return;
    open.push_back(after(at, p, 0));
    if (me.doing == Doing::fills && failures_ && at.failed == 0) open.push_back(after(at, p, 1));
    const State& s = open.back();
    if (store_ == Store::page_cache && s.brought > 1 + s.void_claims)
      found_.wrong = "brought twice: " + key(s);
    if (s.partial) found_.wrong = "used before all bytes were there: " + key(s);
  }

  // No process can go on.
  void end(const State& s) {
    ++found_.ends;
    for (const Process& p : s.processes)
      if (p.doing != Doing::ended && p.doing != Doing::crashed) found_.wrong = "waits for ever: " + key(s);
    if (s.brought == 0 && s.failed == 0 && s.crashed < kProcesses)
      found_.wrong = "nobody brings it: " + key(s);
    if (s.crashed == 0 && ClaimValue(s.word).state() == ClaimValue::State::claimed)
      found_.wrong = "claimed at the end: " + key(s);
    if (s.crashed == 0 && ClaimValue(s.word).is_waited_for())
      found_.wrong = "waited for at the end: " + key(s);
  }

  static std::uint64_t hash(const State& s) {
    std::uint64_t h = s.word * 2 + s.there;
    for (unsigned p = 0; p < kProcesses; ++p) h = h * 4 + s.linked[p] * 2 + s.complete[p];
    const auto add = [&h](std::uint64_t v) { h = (h ^ v) * 0x9e3779b97f4a7c15 + (h >> 29); };
    for (const Process& p : s.processes) {
      add(static_cast<std::uint64_t>(p.doing) * 2 + p.woken);
      add(p.log.size());
      for (const std::uint64_t v : p.log) add(v);
    }
    return h;
  }
  static std::string key(const State& s) {
    std::string k = std::to_string(s.word) + (s.there ? "t" : "");
    for (const Process& p : s.processes) {
      k += "|" + std::to_string(static_cast<int>(p.doing)) + (p.woken ? "w" : "");
      for (const std::uint64_t v : p.log) k += " " + std::to_string(v);
    }
    return k;
  }

  const Break broken_;
  const unsigned crashes_;
  const bool failures_;
  const Store store_;
  Found found_;
  State now_;
  unsigned running_ = 0, choice_ = 0;
  std::size_t at_ = 0;
  std::jmp_buf stepped_;
};

TEST(NodeClaim, EveryOrder) {
  const Model::Found found = Model(Break::nothing, 0, true).explore();
  EXPECT_EQ(found.wrong, "");
  EXPECT_GT(found.states, kLeastStates);
  EXPECT_GT(found.ends, 0u);
}

TEST(NodeClaim, AProcessEndsAtAnyStep) {
  const Model::Found found = Model(Break::nothing, 1, false).explore();
  EXPECT_EQ(found.wrong, "");
  EXPECT_GT(found.states, kLeastStatesWithAnEnd);
}

TEST(NodeClaim, ChunkFilesInEveryOrder) {
  for (const unsigned crashes : {0u, 1u}) {
    const Model::Found found = Model(Break::nothing, crashes, crashes == 0, Store::chunk_files).explore();
    EXPECT_EQ(found.wrong, "");
    EXPECT_GT(found.states, crashes == 0 ? kLeastStates : kLeastStatesWithAnEnd);
    EXPECT_GT(found.ends, 0u);
  }
}

TEST(NodeClaim, WhatIsBrokenIsFound) {
  EXPECT_NE(Model(Break::early_release, 0, false, Store::chunk_files).explore().wrong.find("used before"),
            std::string::npos);
  EXPECT_NE(Model(Break::no_wake, 0, false, Store::chunk_files).explore().wrong.find("waits for ever"),
            std::string::npos);
  EXPECT_NE(Model(Break::no_wake, 0, false).explore().wrong.find("waits for ever"), std::string::npos);
  EXPECT_NE(Model(Break::no_exclusion, 0, false).explore().wrong, "");
}

/// Without other processes.
class Plain {
 public:
  explicit Plain(std::uint64_t& bits) : bits_(&bits) {}
  ClaimValue load() const { return ClaimValue(*bits_); }
  bool compare_exchange(ClaimValue& expected, ClaimValue desired) const {
    if (expected.bits() != *bits_) {
      expected = load();
      return false;
    }
    *bits_ = desired.bits();
    return true;
  }
  void wake() const {}

 private:
  std::uint64_t* bits_;
};

constexpr Claimer kOne{0x1234}, kOther{0xfedc};

TEST(NodeClaim, AClaimIsOfOneProcessAndOneTag) {
  std::uint64_t bits = 0;
  const Plain word(bits);
  ClaimValue mine, seen;
  ASSERT_TRUE(claim(word, kOne, 1, mine));
  EXPECT_EQ(mine.claimer(), kOne);
  EXPECT_EQ(mine.tag(), 1u);
  EXPECT_FALSE(claim(word, kOther, 1, seen));
  EXPECT_TRUE(seen.is_same(mine));
  ASSERT_TRUE(claim(word, kOther, 2, seen)) << "another snapshot is another chunk";
  EXPECT_EQ(seen.claimer(), kOther);
  EXPECT_FALSE(release(word, mine, true));
  EXPECT_TRUE(release(word, seen, true));
  EXPECT_EQ(word.load().state(), ClaimValue::State::filled);
}

TEST(NodeClaim, TheSameProcessClaimsAgainUnderAnotherNumber) {
  std::uint64_t bits = 0;
  const Plain word(bits);
  ClaimValue first, second;
  ASSERT_TRUE(claim(word, kOne, 1, first));
  ASSERT_TRUE(release(word, first, false));
  EXPECT_EQ(word.load().state(), ClaimValue::State::free);
  ASSERT_TRUE(claim(word, kOne, 1, second));
  EXPECT_FALSE(second.is_same(first));
  EXPECT_NE(second.low(), first.low()) << "who sleeps on the first is to see that it has ended";
  EXPECT_FALSE(release(word, first, true));
}

TEST(NodeClaim, WaitersStayWaitersOfTheClaimThatTakesOver) {
  std::uint64_t bits = 0;
  const Plain word(bits);
  ClaimValue mine, seen, taken;
  ASSERT_TRUE(claim(word, kOne, 1, mine));
  seen = mine;
  ASSERT_TRUE(announce_wait(word, seen));
  EXPECT_TRUE(seen.is_waited_for());
  taken = mine;
  ASSERT_TRUE(take_over(word, kOther, taken));
  EXPECT_TRUE(taken.is_waited_for());
  EXPECT_FALSE(announce_wait(word, seen));
  taken = mine;
  EXPECT_FALSE(take_over(word, kOther, taken)) << "it has ended already";
}

TEST(NodeClaim, AnyBitsAtAll) {
  for (std::uint64_t n = 1; n != 0 && n < 1'000'000'000'000'000'000; n = n * 31 + 7) {
    std::uint64_t bits = n * 0x9e3779b97f4a7c15;
    const Plain word(bits);
    ClaimValue value;
    if (!claim(word, kOne, 3, value)) {
      EXPECT_EQ(value.tag(), 3u);
      ASSERT_TRUE(take_over(word, kOne, value));
    }
    EXPECT_EQ(value.claimer(), kOne);
    EXPECT_TRUE(release(word, value, true));
    EXPECT_FALSE(word.load().is_waited_for());
  }
}

}  // namespace
}  // namespace lmdbio::node
