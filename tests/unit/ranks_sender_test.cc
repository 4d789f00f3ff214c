// The reading half of a rank: what it reads and sends, how it copes with failures and without memory, and how
// it ends.  The other rank is the test, which knows the messages.
#include <gtest/gtest.h>

#include <cerrno>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/base/bytes.h"
#include "lmdbio/ranks/sender.h"
#include "tests/support/fake_ranks.h"

namespace lmdbio::ranks {
namespace {

using test::FakeMessage;
using test::FakeSource;
using test::LimitedMemory;
using test::TwoRanks;

constexpr std::uint64_t kRecords = TwoRanks::kRecords, kRounds = TwoRanks::kRounds, kAhead = TwoRanks::kAhead;

struct More {
  FakeSource::Faults faults{};
  std::uint64_t memory = UINT64_MAX;
  bool has_cache = false;
};

/// The sender of rank 0, and rank 1, which receives one message after the other.
class Pair : public TwoRanks {
 public:
  explicit Pair(std::uint64_t seed, const Job& job = TwoRanks::job(), const More& more = {})
      : TwoRanks(seed, job), source(records, seed, more.faults) {
    source.has_cache = more.has_cache;
    source.under_way = &reads;
    sender = std::make_unique<Sender>(assignment, 0, std::vector<std::uint32_t>{0}, kAhead, Turns::Settings{},
                                      network.rank(0), source, std::make_shared<LimitedMemory>(more.memory));
  }

  /// One call of each.  `receives`: rank 1 takes messages.
  void step(bool receives = true) {
    if (const Status st = sender->progress(0); !st.ok()) status = st;
    if (receives) receive();
    (void)network.rank(0).poll();
  }
  /// Until `done()`; false if that takes too long.
  template <class Done>
  bool run(Done&& done, bool receives = true) {
    return run_until(done, [&] { step(receives); });
  }
  /// Messages that rank 1 has, header and bytes.
  std::size_t came() const {
    return coming.empty() || coming.back()->whole ? coming.size() : coming.size() - 1;
  }
  void send_end_message() { ASSERT_TRUE(network.rank(1).send(0, kEndToReader, {}, end_out).ok()); }
  void expect_end_message() {
    ASSERT_TRUE(network.rank(1)
                    .receive(0, kEndFromReader, std::as_writable_bytes(std::span(&end_count, 1)), end_in)
                    .ok());
  }
  /// Whether nothing is under way, after the end or after the sender has left.
  bool closed() {
    if (sender->quiet()) sender->stop();
    return sender->closed();
  }
  bool has_end_message() const { return end_count != UINT64_MAX && end_in.done(); }

  struct Coming {
    std::vector<std::byte> header, bytes;
    Operation op;
    bool has_header = false, whole = false;
    MessageHeader head() const { return load<MessageHeader>(header.data()); }
    std::vector<RecordSizes> sizes() const {
      std::vector<RecordSizes> out(head().records);
      std::memcpy(out.data(), header.data() + sizeof(MessageHeader), out.size() * sizeof(RecordSizes));
      return out;
    }
    bool all_failed() const {
      for (const RecordSizes& s : sizes())
        if (s.key != RecordSizes::kFailed) return false;
      return head().bytes == 0 && head().records != 0;
    }
  };

  FakeSource source;
  FakeSource::UnderWay reads;
  std::unique_ptr<Sender> sender;
  Status status;
  std::deque<std::unique_ptr<Coming>> coming;
  std::uint64_t end_count = UINT64_MAX;
  Operation end_out, end_in;

 private:
  void receive() {
    Transport& to = network.rank(1);
    if (coming.empty() || coming.back()->whole) {
      coming.push_back(std::make_unique<Coming>());
      Coming& next = *coming.back();
      next.header.resize(header_bytes(static_cast<std::size_t>(assignment.most_positions())));
      ASSERT_TRUE(to.receive(0, kHeaders, next.header, next.op).ok());
      return;
    }
    Coming& now = *coming.back();
    if (!now.op.done()) return;
    if (!now.has_header) {
      now.has_header = true;
      now.header.resize(now.op.bytes);
      now.bytes.resize(static_cast<std::size_t>(now.head().bytes));
      if (now.bytes.empty())
        now.whole = true;
      else
        ASSERT_TRUE(to.receive(0, kBytes, now.bytes, now.op).ok());
      return;
    }
    now.whole = true;
  }
};

TEST(Sender, SendsEachRoundsRecordsInOrder) {
  for (std::uint64_t seed = 0; seed < 10; ++seed)
    for (const bool lends : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " lends " << lends);
      Pair p(seed, TwoRanks::job(), {{}, UINT64_MAX, lends});
      p.sender->send_nothing_here();
      ASSERT_TRUE(p.run([&] { return p.came() == kRounds; }));
      EXPECT_TRUE(p.status.ok());
      std::uint64_t bytes = 0;
      for (std::uint64_t round = 0; round < kRounds; ++round) {
        const FakeMessage due = p.message(round);
        EXPECT_EQ(p.coming[round]->header, due.header) << round;
        EXPECT_EQ(p.coming[round]->bytes, due.bytes) << round;
        bytes += due.bytes.size();
      }
      Traffic traffic;
      p.sender->add_to(traffic);
      EXPECT_EQ(traffic.messages_sent, kRounds);
      EXPECT_EQ(traffic.bytes_sent, bytes);
      EXPECT_EQ(p.sender->events(), kRounds);
      EXPECT_EQ(p.source.times.size(), kRecords / 2) << "its own records are not wanted";
      EXPECT_EQ(p.source.times.begin()->second, 1u);
    }
}

TEST(Sender, ItsOwnRecordsAreTakenOnce) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    Pair p(seed);
    OwnRecords own;
    EXPECT_FALSE(p.sender->take_own(0, own)) << "nothing was read";
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      ASSERT_TRUE(p.run([&] { return p.sender->take_own(round, own); }));
      const FakeMessage due = p.message(round, 0);
      ASSERT_TRUE(own.copied) << "half of the round is the other rank's";
      EXPECT_EQ(own.header, due.header);
      EXPECT_TRUE(std::equal(due.bytes.begin(), due.bytes.end(), own.bytes.data(),
                             own.bytes.data() + own.bytes.size()));
      EXPECT_FALSE(p.sender->take_own(round, own)) << "once";
    }
    EXPECT_EQ(p.source.times.size(), kRecords);
  }
}

TEST(Sender, ARankAloneGetsWhatWasRead) {
  Job job = TwoRanks::job();
  job.ranks = 1;
  Pair p(1, job);
  OwnRecords own;
  ASSERT_TRUE(p.run([&] { return p.sender->take_own(0, own); }, false));
  ASSERT_FALSE(own.copied);
  ASSERT_NE(own.read, nullptr);
  ASSERT_EQ(own.which.size(), kRecords / kRounds);
  std::uint64_t hash = 0;
  for (std::uint64_t i = 0; i < kRecords / kRounds; ++i) hash = ordinals_hash(hash, i);
  EXPECT_EQ(own.hash, hash);
  for (std::size_t i = 0; i < own.which.size(); ++i) {
    lmdbio_record r{};
    std::string why;
    ASSERT_TRUE(own.read->record(own.which[i], r, why).ok());
    EXPECT_EQ(r.ordinal, i);
  }
  ASSERT_TRUE(p.run([&] { return p.sender->take_own(1, own) && p.sender->take_own(2, own); }, false) ||
              p.run([&] { return p.sender->take_own(2, own); }, false));
  ASSERT_TRUE(p.run([&] { return p.sender->take_own(3, own); }, false));
  ASSERT_TRUE(p.run([&] { return p.closed(); }, false));
  EXPECT_TRUE(p.sender->resting());
}

TEST(Sender, ReadsOnlySoManyRoundsAhead) {
  Pair p(2);
  p.sender->send_nothing_here();
  EXPECT_FALSE(p.run([&] { return p.source.times.size() > kAhead * kRecords / kRounds / 2; }, false))
      << "nobody takes the messages";
  EXPECT_EQ(p.source.times.size(), kAhead * kRecords / kRounds / 2);
  EXPECT_LE(p.reads.most, kAhead);
  EXPECT_FALSE(p.sender->busy()) << "the other rank has to move";
  ASSERT_TRUE(p.run([&] { return p.came() == kRounds; }));

  Pair own(2);
  EXPECT_FALSE(own.run([&] { return own.came() > kAhead; })) << "its own records are not taken";
  EXPECT_EQ(own.came(), kAhead);
}

TEST(Sender, AReadThatFailedIsTold) {
  for (const bool at_start : {false, true}) {
    SCOPED_TRACE(at_start);
    const FakeSource::Faults faults{at_start ? 0u : 100u, at_start ? 100u : 0u};
    Pair p(3, TwoRanks::job(), {faults, UINT64_MAX, false});
    OwnRecords own;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      ASSERT_TRUE(p.run([&] { return p.sender->take_own(round, own); }));
      ASSERT_TRUE(p.run([&] { return p.came() > round; }));
      EXPECT_TRUE(p.coming[round]->all_failed());
      EXPECT_EQ(p.coming[round]->head().hash, load<MessageHeader>(p.message(round).header.data()).hash);
    }
    EXPECT_TRUE(p.status.ok()) << "ranks read these themselves";
  }
}

TEST(Sender, WithoutMemoryForMessagesRanksReadThemselves) {
  Pair p(4, TwoRanks::job(), {{}, 0, false});
  OwnRecords own;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    ASSERT_TRUE(p.run([&] { return p.sender->take_own(round, own); }));
    EXPECT_FALSE(own.copied) << "there is no room for a copy";
    ASSERT_NE(own.read, nullptr);
    lmdbio_record r{};
    std::string why;
    EXPECT_TRUE(own.read->record(own.which[0], r, why).ok()) << "but for what was read";
    EXPECT_EQ(r.ordinal, round * kRecords / kRounds);
    ASSERT_TRUE(p.run([&] { return p.came() > round; }));
    EXPECT_TRUE(p.coming[round]->all_failed());
  }
}

TEST(Sender, ItIsQuietWhenTheLastMessageHasCome) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    Pair p(seed);
    p.sender->send_nothing_here();
    p.source.least_polls = 40;  // the last reads are under way when no further one begins
    p.expect_end_message();
    EXPECT_FALSE(p.run([&] { return p.sender->quiet(); }, false)) << "nobody takes the messages";
    ASSERT_TRUE(p.run([&] { return p.sender->quiet(); }));
    EXPECT_EQ(p.came(), kRounds);
    EXPECT_TRUE(p.sender->resting());
    EXPECT_FALSE(p.sender->closed()) << "end messages may still come";
    p.sender->leave();
    for (unsigned i = 0; i < 100; ++i) p.step(false);
    EXPECT_FALSE(p.has_end_message()) << "the other rank knows that this was all";
    EXPECT_TRUE(p.sender->quiet());

    Pair q(seed);
    q.sender->send_nothing_here();
    q.expect_end_message();
    ASSERT_TRUE(q.run([&] { return q.sender->quiet(); }));
    q.send_end_message();
    ASSERT_TRUE(q.run([&] { return q.has_end_message(); }, false)) << "a rank that leaves gets an answer";
    EXPECT_EQ(q.end_count, kRounds) << "it tells how many messages it has sent";
    ASSERT_TRUE(q.run([&] { return q.closed(); }, false));
    EXPECT_FALSE(q.sender->has_left());
  }
}

TEST(Sender, ARankThatLeftGetsNothingMore) {
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (const bool endless : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " endless " << endless);
      Job job = TwoRanks::job();
      if (endless) job.order.end_epoch = LMDBIO_ENDLESS;
      Pair p(seed, job);
      p.sender->send_nothing_here();
      p.source.least_polls = seed % 2 == 0 ? 0 : 40;
      p.step(false);  // reads for it are under way
      p.send_end_message();
      p.expect_end_message();
      ASSERT_TRUE(p.run([&] { return p.has_end_message(); })) << "it is told at once";
      const std::size_t read = p.source.times.size();
      if (!endless) {
        ASSERT_TRUE(p.run([&] { return p.closed(); }));
      }
      EXPECT_FALSE(p.run([&] { return p.came() > p.end_count; })) << "more messages than it told of";
      EXPECT_EQ(p.came(), p.end_count);
      EXPECT_EQ(p.source.times.size(), read) << "nothing is read for it";
    }
}

TEST(Sender, LeavingDropsWhatWasNotSent) {
  unsigned reading = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (const unsigned steps : {1u, 5u, 30u}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " steps " << steps);
      Pair p(seed);
      for (unsigned i = 0; i < steps; ++i) p.step(false);
      const bool busy = p.sender->busy();  // asks the reads, which may end
      if (p.reads.now != 0) {
        ++reading;
        EXPECT_TRUE(busy);
      }
      const std::uint64_t sent = p.sender->events();
      p.sender->leave();
      OwnRecords own;
      EXPECT_FALSE(p.sender->take_own(0, own));
      EXPECT_TRUE(p.sender->has_left());
      p.expect_end_message();
      p.send_end_message();
      ASSERT_TRUE(p.run([&] { return p.has_end_message(); }, false));
      EXPECT_EQ(p.end_count, sent);
      if (sent != 0) {
        EXPECT_FALSE(p.run([&] { return p.closed(); }, false)) << "messages are under way";
      }
      ASSERT_TRUE(p.run([&] { return p.closed(); }));
      EXPECT_EQ(p.came(), sent);
      EXPECT_EQ(p.reads.now, 0u) << "no read is under way";
      EXPECT_EQ(p.sender->events(), sent);
    }
  EXPECT_GT(reading, 0u);
}

TEST(Sender, TheFirstRoundsGoThroughThePageCache) {
  Job job = TwoRanks::job();
  job.order.end_epoch = 2;
  Pair p(7, job);
  p.sender->send_nothing_here();
  p.sender->use_page_cache(0.5);
  ASSERT_TRUE(p.run([&] { return p.came() == 2 * kRounds; }));
  ASSERT_EQ(p.source.to_page_cache.size(), kRecords / 4) << "half of what it reads";
  EXPECT_LT(p.source.to_page_cache.rbegin()->first, kRecords / 2) << "the first half";
  EXPECT_EQ(p.source.to_page_cache.begin()->second, 2u) << "in each epoch";

  job.order.end_epoch = 1;
  Pair once(7, job);
  once.sender->use_page_cache(1);
  ASSERT_TRUE(once.run([&] { return once.came() == kAhead; }));
  EXPECT_TRUE(once.source.to_page_cache.empty()) << "nothing comes again";
}

TEST(Sender, AnErrorOfTheTransportIsPassedOn) {
  for (const bool lost : {false, true}) {
    unsigned errors = 0;
    for (std::uint64_t k = 1;; ++k) {
      SCOPED_TRACE(::testing::Message() << "lost " << lost << " k " << k);
      ASSERT_LT(k, 100u);
      Pair p(8);
      p.sender->send_nothing_here();
      // Rank 1's calls count, too, but for its receives it needs the network: so only the sender's fail.
      (lost ? p.network.loses_at : p.network.refuses_at) = k;
      Status st;
      for (unsigned i = 0; i < 300 && st.ok(); ++i) {
        st = p.sender->progress(0);
        if (lost) p.step();
        st = st.ok() ? p.status : st;
        (void)p.network.rank(0).poll();
      }
      if (st.ok()) break;
      EXPECT_EQ(st.raw(), EIO);
      ++errors;
    }
    EXPECT_GE(errors, lost ? kRounds : kAhead) << "a message each at least";
  }
}

}  // namespace
}  // namespace lmdbio::ranks
