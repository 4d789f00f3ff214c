// Chunk states: every order in which two readers, a writer, a thread that reads chunks and one that reclaims
// them can meet, with every system call that can fail failing, run through the real ChunkTable.
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <string>
#include <unordered_set>
#include <vector>

#include "lmdbio/window/chunk_table.h"

namespace lmdbio::window {
namespace {

// A file of two pages.  Snapshot s is what page s % 2 holds: the number s.  A writer overwrites that page to
// make snapshot s + 2, before it commits, but not while somebody holds s.
constexpr unsigned kPages = 2, kReaders = 2;

enum class Break : unsigned char {
  nothing,
  refusal_ignored,  // a reader goes on although its begin was refused
  early_write,      // the writer does not look at readers: not the table's fault, but it must show
};

template <class Table>
class Model {
 public:
  Model(unsigned chunks, unsigned commits, Break broken)
      : chunks_(chunks), commits_(commits), broken_(broken), table_(Table::make(chunks)) {}

  struct Found {
    std::size_t states = 0;
    std::string story;  // of the first wrong read; empty: there is none
  };

  // All states that can be reached, each once; a state is made anew by doing again what led to it.
  Found explore() {
    Found found;
    std::unordered_set<std::string> seen;
    nodes_ = {{0, 0}};
    restart();
    seen.insert(key());
    for (std::size_t at = 0; at < nodes_.size(); ++at) {
      const std::vector<unsigned char> path = path_to(at);
      for (unsigned char action = 0; action < kActions; ++action) {
        restart();
        for (const unsigned char a : path) (void)act(a);
        if (!act(action) || !seen.insert(key()).second) continue;
        nodes_.push_back({static_cast<std::uint32_t>(at), action});
        if (wrong_reader() < kReaders) {
          found.states = seen.size();
          found.story = tell(path, action);
          return found;
        }
      }
    }
    found.states = seen.size();
    return found;
  }

 private:
  enum Action : unsigned char {
    kWrite,
    kCommit,
    kHold0,
    kHold1,
    kBegin0,  // then with the failures of kFailures
    kBegin1 = kBegin0 + 4,
    kEnd0 = kBegin1 + 4,
    kEnd1,
    kStart0,
    kStart1,
    kRead0,
    kRead1,
    kFinish0,
    kFinish1,
    kUnpublished0,
    kUnpublished1,
    kFailedRead0,
    kFailedRead1,
    kReclaim0,
    kReclaim1,
    kUnreclaimed0,
    kUnreclaimed1,
    kActions,
  };
  struct Node {
    std::uint32_t parent;
    unsigned char action;
  };
  struct Reader {
    enum Phase : unsigned char { idle, holds, reads } phase = idle;
    unsigned snapshot = 0;
  };
  struct Fill {
    bool busy = false;
    unsigned read = 0;  // pages
    std::array<unsigned, kPages> staging{};
    ChunkTable::Generation generation{};
  };
  struct State {
    std::array<unsigned, kPages> file{0, 1};
    unsigned newest = 1;  // committed
    bool written = false;
    std::array<Reader, kReaders> readers;
    std::array<Fill, kPages> fills;
    std::array<bool, kPages> is_private{};  // by chunk
    std::array<unsigned, kPages> memory{};  // by page
  };
  struct Places {
    Model& m;
    int fail = -1;  // the restore that fails, counted from 0
    bool publish_fails = false, all_fails = false;
    bool publish(ChunkIndex i) noexcept {
      if (publish_fails) return false;
      State& s = m.now_;
      s.is_private[raw(i)] = true;
      for (unsigned p = m.first(raw(i)); p < m.first(raw(i) + 1); ++p)
        s.memory[p] = s.fills[raw(i)].staging[p];
      return true;
    }
    bool restore(ChunkIndex i) noexcept {
      if (fail-- == 0) return false;
      m.now_.is_private[raw(i)] = false;
      return true;
    }
    bool restore_all() noexcept {
      if (all_fails) return false;
      m.now_.is_private = {};
      return true;
    }
  };

  unsigned first(unsigned chunk) const { return chunk * (kPages / chunks_); }

  // The table cannot be copied, but what is left of an earlier run can be taken out of it.
  void restart() {
    Table& t = table_.value();
    for (unsigned c = 0; c < chunks_; ++c)
      if (t.state(ChunkIndex{c}) == ChunkState::filling)
        (void)t.ChunkTable::finish(ChunkIndex{c}, t.generation(), false, Places{*this});
    while (!t.residents().empty()) (void)t.ChunkTable::reclaim(t.residents().back(), Places{*this});
    base_ = t.newest_snapshot() + 1;
    (void)t.ChunkTable::advance(base_ + 1, Places{*this});
    now_ = State();
  }

  bool act(unsigned char a) {
    Table& t = table_.value();
    State& s = now_;
    if (a == kWrite) {
      const unsigned made = s.newest + 1;
      if (s.written || made > commits_ + 1) return false;
      for (const Reader& r : s.readers)
        if (r.phase != Reader::idle && r.snapshot % kPages == made % kPages && broken_ != Break::early_write)
          return false;
      s.file[made % kPages] = made;
      s.written = true;
      return true;
    }
    if (a == kCommit) {
      if (!s.written) return false;
      s.written = false;
      ++s.newest;
      return true;
    }
    if (a == kHold0 || a == kHold1) {
      Reader& r = s.readers[a - kHold0];
      if (r.phase != Reader::idle) return false;
      r = {Reader::holds, s.newest};
      return true;
    }
    if (a >= kBegin0 && a < kEnd0) {
      Reader& r = s.readers[a < kBegin1 ? 0 : 1];
      if (r.phase != Reader::holds) return false;
      constexpr int kPiece[] = {-1, 0, 1, 0};  // none; the first; a later one; the first, and all
      const int failure = (a - kBegin0) % 4;
      const Status st = t.advance(base_ + r.snapshot, Places{*this, kPiece[failure], false, failure == 3});
      r.phase = st.ok() || broken_ == Break::refusal_ignored ? Reader::reads : Reader::idle;
      if (r.phase == Reader::idle) r.snapshot = 0;
      return true;
    }
    if (a == kEnd0 || a == kEnd1) {
      Reader& r = s.readers[a - kEnd0];
      if (r.phase != Reader::reads) return false;
      r = {};
      return true;
    }
    const unsigned c = a % 2 == kStart0 % 2 ? 0 : 1;
    if (c >= chunks_) return false;
    const ChunkIndex chunk{c};
    Fill& f = s.fills[c];
    switch (a - c) {
      case kStart0:
        if (t.state(chunk) != ChunkState::file) return false;
        f = {};
        f.busy = true;
        f.generation = t.start(chunk);
        return true;
      case kRead0:
        if (!f.busy || f.read == kPages / chunks_) return false;
        f.staging[first(c) + f.read] = s.file[first(c) + f.read];
        ++f.read;
        return true;
      case kFinish0:
      case kUnpublished0:
        if (!f.busy || f.read != kPages / chunks_) return false;
        (void)t.finish(chunk, f.generation, true, Places{*this, -1, a - c == kUnpublished0});
        f = {};
        return true;
      case kFailedRead0:
        if (!f.busy) return false;
        (void)t.finish(chunk, f.generation, false, Places{*this});
        f = {};
        return true;
      case kReclaim0:
      case kUnreclaimed0:
        if (t.state(chunk) != ChunkState::resident) return false;
        (void)t.reclaim(chunk, Places{*this, a - c == kReclaim0 ? -1 : 0});
        return true;
    }
    return false;
  }

  unsigned wrong_reader() const {
    for (unsigned i = 0; i < kReaders; ++i) {
      const Reader& r = now_.readers[i];
      const unsigned p = r.snapshot % kPages, c = p / (kPages / chunks_);
      if (r.phase == Reader::reads && (now_.is_private[c] ? now_.memory[p] : now_.file[p]) != r.snapshot)
        return i;
    }
    return kReaders;
  }

  std::string key() {
    const State& s = now_;
    const Table& t = table_.value();
    std::string k;
    const auto add = [&k](auto v) { k += static_cast<char>(v); };
    add(s.newest * 2 + s.written);
    for (const unsigned v : s.file) add(v);
    for (const Reader& r : s.readers) add(r.phase * 16 + r.snapshot);
    for (unsigned c = 0; c < chunks_; ++c) {
      add(static_cast<unsigned>(t.state(ChunkIndex{c})) * 8 + s.is_private[c] * 4 + s.fills[c].busy * 2 +
          (s.fills[c].busy && s.fills[c].generation == t.generation()));
      add(s.fills[c].read);
      for (unsigned p = first(c); p < first(c + 1); ++p) {
        add(p < first(c) + s.fills[c].read ? s.fills[c].staging[p] : 0);
        add(s.is_private[c] ? s.memory[p] : 0);
      }
    }
    for (const ChunkIndex i : t.residents()) add(raw(i));
    add('/');
    add(t.newest_snapshot() - base_);
    return k;
  }

  std::vector<unsigned char> path_to(std::size_t at) const {
    std::vector<unsigned char> path;
    for (; at != 0; at = nodes_[at].parent) path.insert(path.begin(), nodes_[at].action);
    return path;
  }

  std::string tell(const std::vector<unsigned char>& path, unsigned char last) const {
    std::string s = "actions";
    for (const unsigned char a : path) s += ' ' + std::to_string(a);
    return s + ' ' + std::to_string(last);
  }

  const unsigned chunks_, commits_;
  const Break broken_;
  Result<Table> table_;
  std::uint64_t base_ = 0;
  State now_;
  std::vector<Node> nodes_;
};

// --- the table, and weaker ones ---------------------------------------------------------------------------

struct Real : ChunkTable {
  Real(ChunkTable&& t) : ChunkTable(std::move(t)) {}  // NOLINT: as the others
  static Result<Real> make(std::uint32_t chunks) {
    Result<ChunkTable> t = ChunkTable::make(chunks);
    if (!t) return t.error();
    return Real(std::move(t).value());
  }
};

template <class Weaker>
struct Made : Real {
  using Real::Real;
  static Result<Weaker> make(std::uint32_t chunks) {
    Result<ChunkTable> t = ChunkTable::make(chunks);
    if (!t) return t.error();
    return Weaker(std::move(t).value());
  }
};

struct PublishesStale : Made<PublishesStale> {
  using Made::Made;
  template <class Places>
  bool finish(ChunkIndex i, Generation, bool good, Places&& places) {
    return ChunkTable::finish(i, generation(), good, places);
  }
};

struct DropsNothing : Made<DropsNothing> {
  using Made::Made;
  struct Idle {
    bool publish(ChunkIndex) { return true; }
    bool restore(ChunkIndex) { return true; }
    bool restore_all() { return true; }
  };
  template <class Places>
  Status advance(std::uint64_t snapshot, Places&&) {
    return ChunkTable::advance(snapshot, Idle{});
  }
};

struct TrustsRestore : Made<TrustsRestore> {
  using Made::Made;
  template <class Places>
  struct Trusting {
    Places& places;
    bool publish(ChunkIndex i) { return places.publish(i); }
    bool restore(ChunkIndex i) { return (void)places.restore(i), true; }
    bool restore_all() { return true; }
  };
  template <class Places>
  Status advance(std::uint64_t snapshot, Places&& places) {
    return ChunkTable::advance(snapshot, Trusting<Places>{places});
  }
};

constexpr unsigned kCommits = 6;

TEST(ChunkTable, ReadersSeeTheirSnapshotInAllInterleavings) {
  for (const unsigned chunks : {1u, 2u}) {
    const auto found = Model<Real>(chunks, kCommits, Break::nothing).explore();
    EXPECT_EQ(found.story, "") << chunks << " chunks";
    EXPECT_GT(found.states, 1000u);
    RecordProperty("states_" + std::to_string(chunks), static_cast<int>(found.states));
  }
}

TEST(ChunkTable, WeakerTablesAreCaught) {
  for (const unsigned chunks : {1u, 2u}) {
    EXPECT_NE(Model<PublishesStale>(chunks, kCommits, Break::nothing).explore().story, "") << chunks;
    EXPECT_NE(Model<DropsNothing>(chunks, kCommits, Break::nothing).explore().story, "") << chunks;
    EXPECT_NE(Model<TrustsRestore>(chunks, kCommits, Break::nothing).explore().story, "") << chunks;
    EXPECT_NE(Model<Real>(chunks, kCommits, Break::refusal_ignored).explore().story, "") << chunks;
    EXPECT_NE(Model<Real>(chunks, kCommits, Break::early_write).explore().story, "") << chunks;
  }
}

// --- call by call -----------------------------------------------------------------------------------------

struct Recorder {
  std::string* calls;
  bool publishes = true, restores = true, restores_all = true;
  bool publish(ChunkIndex i) const { return *calls += 'p' + std::to_string(raw(i)), publishes; }
  bool restore(ChunkIndex i) const { return *calls += 'r' + std::to_string(raw(i)), restores; }
  bool restore_all() const { return *calls += 'a', restores_all; }
};

TEST(ChunkTable, StatesAndCalls) {
  ChunkTable t = ChunkTable::make(3).value();
  std::string calls;
  const Recorder good{&calls}, unpublished{&calls, false}, stuck{&calls, true, false, false};
  EXPECT_EQ(t.chunks(), 3u);
  for (const std::uint32_t i : {0u, 1u, 2u}) EXPECT_EQ(t.state(ChunkIndex{i}), ChunkState::file);

  auto g = t.start(ChunkIndex{1});
  EXPECT_EQ(t.state(ChunkIndex{1}), ChunkState::filling);
  EXPECT_TRUE(t.finish(ChunkIndex{1}, g, true, good));
  EXPECT_EQ(t.state(ChunkIndex{1}), ChunkState::resident);
  g = t.start(ChunkIndex{0});
  EXPECT_FALSE(t.finish(ChunkIndex{0}, g, false, good)) << "not read: not published";
  g = t.start(ChunkIndex{0});
  EXPECT_FALSE(t.finish(ChunkIndex{0}, g, true, unpublished));
  EXPECT_EQ(t.state(ChunkIndex{0}), ChunkState::file);
  EXPECT_EQ(calls, "p1p0");
  calls.clear();

  EXPECT_TRUE(t.advance(0, good).ok()) << "nothing newer";
  EXPECT_EQ(calls, "");
  EXPECT_FALSE(t.reclaim(ChunkIndex{1}, stuck));
  EXPECT_EQ(t.state(ChunkIndex{1}), ChunkState::resident);
  g = t.start(ChunkIndex{2});
  calls.clear();
  EXPECT_EQ(t.advance(7, stuck).raw(), ENOMEM);
  EXPECT_EQ(calls, "r1a");
  EXPECT_EQ(t.newest_snapshot(), 0u);
  EXPECT_EQ(t.residents().size(), 1u);
  EXPECT_FALSE(t.finish(ChunkIndex{2}, g, true, good)) << "stale already";
  EXPECT_TRUE(t.advance(7, good).ok());
  EXPECT_EQ(t.newest_snapshot(), 7u);
  EXPECT_TRUE(t.residents().empty());
  EXPECT_EQ(t.state(ChunkIndex{1}), ChunkState::file);
  EXPECT_TRUE(t.advance(6, stuck).ok()) << "an older one changes nothing";
}

// Plans of damaged trees name pages anywhere.
TEST(ChunkTable, WhatLiesBeyondTheLastIsTheFiles) {
  ChunkTable t = ChunkTable::make(4096).value();  // whole pages of memory: nothing of its own behind them
  std::string calls;
  EXPECT_TRUE(t.finish(ChunkIndex{4095}, t.start(ChunkIndex{4095}), true, Recorder{&calls}));
  for (const std::uint32_t i : {4096u, 8191u, 1u << 20, 1u << 31, ~0u})
    EXPECT_EQ(t.state(ChunkIndex{i}), ChunkState::file) << i;
}

TEST(ChunkTable, AChildForgetsWhatItsParentReads) {
  ChunkTable t = ChunkTable::make(4).value();
  std::string calls;
  const auto a = t.start(ChunkIndex{0}), b = t.start(ChunkIndex{3}), c = t.start(ChunkIndex{1});
  EXPECT_TRUE(t.finish(ChunkIndex{1}, c, true, Recorder{&calls}));
  t.forget_fills();
  EXPECT_EQ(t.state(ChunkIndex{0}), ChunkState::file);
  EXPECT_EQ(t.state(ChunkIndex{3}), ChunkState::file);
  EXPECT_EQ(t.state(ChunkIndex{1}), ChunkState::resident);
  const auto again = t.start(ChunkIndex{0});
  EXPECT_NE(again, a);
  EXPECT_NE(again, b);
  EXPECT_TRUE(t.finish(ChunkIndex{0}, again, true, Recorder{&calls}));
}

}  // namespace
}  // namespace lmdbio::window
