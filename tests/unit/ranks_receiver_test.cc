// The using half of a rank: what it expects, finds and drops, and what it makes of messages that are late,
// wrong or do not come.  The reader is the test, which makes the messages.
#include <gtest/gtest.h>

#include <cerrno>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/base/bytes.h"
#include "lmdbio/ranks/receiver.h"
#include "tests/support/fake_ranks.h"

namespace lmdbio::ranks {
namespace {

using records::Position;
using test::FakeMessage;
using test::FakeNetwork;
using test::FakeRecords;
using test::FakeSource;
using test::LimitedMemory;
using test::TwoRanks;
using Found = Receiver::Found;

constexpr std::uint64_t kRecords = TwoRanks::kRecords, kRounds = TwoRanks::kRounds, kAhead = TwoRanks::kAhead;

std::string text(const MDB_val& v) { return {static_cast<const char*>(v.mv_data), v.mv_size}; }

/// The receiver of rank 1, and rank 0, which sends what it is told to.
class Pair : public TwoRanks {
 public:
  explicit Pair(std::uint64_t seed, const Job& job = TwoRanks::job(), std::uint64_t memory_limit = UINT64_MAX,
                std::uint64_t keeps = 0, std::vector<std::uint32_t> nodes_of_ranks = {})
      : TwoRanks(seed, job),
        nodes(std::move(nodes_of_ranks)),
        memory(std::make_shared<LimitedMemory>(memory_limit)) {
    receiver = std::make_unique<Receiver>(assignment, std::vector<std::uint32_t>{0}, kAhead, network.rank(1),
                                          nullptr, memory, keeps, nodes);
  }

  void step() {
    if (!status.ok()) return;
    status = receiver->progress(why);
    (void)network.rank(1).poll();
  }
  template <class Done>
  bool run(Done&& done) {
    return run_until(done, [&] { step(); });
  }
  /// Whether nothing is under way, after the receiver has left.
  bool closed() {
    if (receiver->quiet()) receiver->stop();
    return receiver->closed();
  }
  /// Until nothing moves any more.
  void settle() {
    for (unsigned i = 0; i < 100; ++i) step();
  }

  void send_header(FakeMessage m) {
    sent.push_back(std::make_unique<Sent>());
    sent.back()->message = std::move(m);
    ASSERT_TRUE(network.rank(0).send(1, kHeaders, sent.back()->message.header, sent.back()->header_op).ok());
  }
  void send_bytes() {
    Sent& s = *sent.back();
    if (s.message.bytes.empty()) return;
    ASSERT_TRUE(network.rank(0).send(1, kBytes, s.message.bytes, s.bytes_op).ok());
  }
  void send(FakeMessage m) {
    send_header(std::move(m));
    send_bytes();
  }
  void send_round(std::uint64_t round) { send(message(round)); }
  /// Of a reader that has sent so many messages.
  void send_end_message(std::uint64_t messages) {
    end_count = messages;
    ASSERT_TRUE(
        network.rank(0).send(1, kEndFromReader, std::as_bytes(std::span(&end_count, 1)), end_out).ok());
  }
  void expect_end_message() { ASSERT_TRUE(network.rank(0).receive(kAnyRank, kEndToReader, {}, end_in).ok()); }

  Range positions(std::uint64_t round) const { return assignment.positions(1, round); }
  /// The first record of a round.
  Position first_of(std::uint64_t round) const {
    return {assignment.epoch_of(round), positions(round).begin};
  }
  Found find(Position at, bool impatient = false) {
    lmdbio_record r{};
    std::shared_ptr<const void> keep;
    return receiver->find(at, r, keep, impatient);
  }
  /// Whether all records of a round are here, and right.
  bool has_round(std::uint64_t round) {
    const std::uint64_t epoch = assignment.epoch_of(round);
    for (std::uint64_t p = positions(round).begin; p < positions(round).end; ++p) {
      lmdbio_record r{};
      std::shared_ptr<const void> keep;
      if (receiver->find({epoch, p}, r, keep) != Found::here) return false;
      const std::uint64_t ordinal = assignment.order_of(1).at(epoch, p);
      EXPECT_EQ(r.ordinal, ordinal);
      EXPECT_EQ(text(r.key), records.key(ordinal));
      EXPECT_EQ(text(r.value), records.value(ordinal));
      EXPECT_NE(keep, nullptr);
    }
    return true;
  }

  struct Sent {
    FakeMessage message;
    Operation header_op, bytes_op;
  };
  const std::vector<std::uint32_t> nodes;
  const std::shared_ptr<LimitedMemory> memory;
  std::unique_ptr<Receiver> receiver;
  std::deque<std::unique_ptr<Sent>> sent;
  Status status;
  std::string why;
  std::uint64_t end_count = 0;
  Operation end_in, end_out;
};

TEST(Receiver, FindsRecordsOnceTheyHaveCome) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    Pair p(seed);
    p.step();
    EXPECT_EQ(p.find(p.first_of(0)), Found::pending);
    p.send_round(0);
    ASSERT_TRUE(p.run([&] { return p.has_round(0); }));
    EXPECT_EQ(p.find(p.first_of(1)), Found::pending);
    p.send_round(1);
    ASSERT_TRUE(p.run([&] { return p.has_round(1); }));
    EXPECT_TRUE(p.status.ok());
    EXPECT_FALSE(p.receiver->resting()) << "others are to come";
    Traffic traffic;
    p.receiver->add_to(traffic);
    EXPECT_EQ(traffic.bytes_received, p.message(0).bytes.size() + p.message(1).bytes.size());
  }
}

TEST(Receiver, RecordsOutliveIt) {
  Pair p(1);
  lmdbio_record r{};
  std::shared_ptr<const void> keep;
  p.send_round(0);
  ASSERT_TRUE(p.run([&] { return p.receiver->find(p.first_of(0), r, keep) == Found::here; }));
  p.receiver->drop_before(p.first_of(1));
  EXPECT_EQ(p.find(p.first_of(0)), Found::pending) << "it was dropped";
  p.receiver->leave();
  p.send_end_message(1);
  p.expect_end_message();
  ASSERT_TRUE(p.run([&] { return p.closed(); }));
  p.receiver.reset();
  EXPECT_EQ(text(r.key), p.records.key(r.ordinal));
  EXPECT_EQ(text(r.value), p.records.value(r.ordinal));
}

TEST(Receiver, ExpectsMessagesOfAFewRounds) {
  Pair p(2);
  p.settle();
  EXPECT_EQ(p.receiver->next_round(), kAhead);
  EXPECT_EQ(p.network.most_receives, kAhead + 1) << "and an end message";
  p.receiver->require(2);
  p.settle();
  EXPECT_EQ(p.receiver->next_round(), 3u);
  EXPECT_EQ(p.network.most_receives, 3u + 1);
  p.send_round(0);
  ASSERT_TRUE(p.run([&] { return p.has_round(0); }));
  EXPECT_EQ(p.receiver->next_round(), 3u) << "it is in use";
  EXPECT_FALSE(p.receiver->resting());
}

TEST(Receiver, BytesUnderWayKeepItBusy) {
  Pair p(3);
  FakeMessage m = p.message(0);
  ASSERT_FALSE(m.bytes.empty());
  p.settle();
  EXPECT_FALSE(p.receiver->busy()) << "a header may never come";
  p.send_header(std::move(m));
  p.settle();
  EXPECT_TRUE(p.receiver->busy());
  EXPECT_EQ(p.find(p.first_of(0)), Found::pending);
  p.send_bytes();
  ASSERT_TRUE(p.run([&] { return p.has_round(0); }));
  EXPECT_FALSE(p.receiver->busy());
}

TEST(Receiver, AWrongMessageIsAnErrorThatNamesItsRank) {
  using Change = std::function<void(FakeMessage&)>;
  const auto in_header = [](auto change) {
    return [change](FakeMessage& m) {
      MessageHeader h = load<MessageHeader>(m.header.data());
      change(h);
      std::memcpy(m.header.data(), &h, sizeof h);
    };
  };
  const std::vector<std::pair<const char*, Change>> changes = {
      {"records", in_header([](MessageHeader& h) { --h.records; })},
      {"round", in_header([](MessageHeader& h) { ++h.round; })},
      {"hash", in_header([](MessageHeader& h) { h.hash ^= 1; })},
      {"bytes",
       [&](FakeMessage& m) {
         in_header([](MessageHeader& h) { ++h.bytes; })(m);
         m.bytes.push_back({});
       }},
      {"a size", [](FakeMessage& m) { m.header[sizeof(MessageHeader)] ^= std::byte{1}; }},
      {"short", [](FakeMessage& m) { m.header.resize(m.header.size() - sizeof(RecordSizes)); }},
      {"empty",
       [](FakeMessage& m) {
         m.header.clear();
         m.bytes.clear();
       }},
  };
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name);
    Pair p(4);
    FakeMessage m = p.message(0);
    change(m);
    p.send(std::move(m));
    ASSERT_TRUE(p.run([&] { return !p.status.ok(); }));
    EXPECT_EQ(p.status.raw(), EPROTO);
    EXPECT_NE(p.why.find("rank 0"), std::string::npos) << p.why;
    // It can end as usual, and receives what was sent.
    p.status = {};
    p.receiver->leave();
    p.send_end_message(1);
    p.expect_end_message();
    ASSERT_TRUE(p.run([&] { return p.closed(); }));
    EXPECT_TRUE(p.status.ok());
    EXPECT_TRUE(p.sent[0]->bytes_op.done());
  }
}

TEST(Receiver, RecordsThatTheReaderCouldNotReadFail) {
  Pair p(5);
  FakeMessage m = p.message(0);
  const RecordSizes failed{RecordSizes::kFailed, 0};
  const std::size_t first = p.records.key(m.ordinals[0]).size() + p.records.value(m.ordinals[0]).size();
  std::memcpy(m.header.data() + sizeof(MessageHeader), &failed, sizeof failed);
  m.bytes.erase(m.bytes.begin(), m.bytes.begin() + static_cast<std::ptrdiff_t>(first));
  MessageHeader h = load<MessageHeader>(m.header.data());
  h.bytes = m.bytes.size();
  std::memcpy(m.header.data(), &h, sizeof h);
  p.send(std::move(m));
  const Position at = p.first_of(0);
  ASSERT_TRUE(p.run([&] { return p.find(at) != Found::pending; }));
  EXPECT_EQ(p.find(at), Found::failed);
  lmdbio_record r{};
  std::shared_ptr<const void> keep;
  ASSERT_EQ(p.receiver->find({0, at.position + 1}, r, keep), Found::here) << "the others are there";
  EXPECT_EQ(text(r.value), p.records.value(r.ordinal));
}

TEST(Receiver, WhatAReaderWillNotSendFails) {
  Pair p(6);
  p.send_round(0);
  p.send_end_message(1);
  ASSERT_TRUE(p.run([&] { return p.has_round(0) && p.find(p.first_of(1)) == Found::failed; }));
  p.receiver->drop_before(p.first_of(1));
  p.settle();
  EXPECT_EQ(p.find(p.first_of(2)), Found::failed) << "rounds that were opened later as well";
  p.receiver->leave();
  p.expect_end_message();
  ASSERT_TRUE(p.run([&] { return p.closed(); }));
  EXPECT_EQ(p.network.open(), 0u) << "what does not come is not waited for";
}

TEST(Receiver, AnImpatientCallerGoesOnWithoutALateReader) {
  Pair p(7);
  p.settle();
  EXPECT_EQ(p.find(p.first_of(0)), Found::pending);
  EXPECT_EQ(p.find(p.first_of(0), true), Found::failed);
  EXPECT_EQ(p.find(p.first_of(0)), Found::failed) << "the reader is late";
  p.send_round(0);
  ASSERT_TRUE(p.run([&] { return p.has_round(0); })) << "what came late can be used";
  EXPECT_EQ(p.find(p.first_of(1)), Found::failed) << "but shows nothing of what comes next";
  p.receiver->drop_before(p.first_of(1));
  p.send_round(1);
  p.send_round(2);
  p.settle();
  EXPECT_TRUE(p.has_round(1) && p.has_round(2));
  p.receiver->drop_before(p.first_of(3));
  p.settle();
  EXPECT_EQ(p.find(p.first_of(3)), Found::pending) << "round 2 came in time";
}

TEST(Receiver, WithoutMemoryMessagesWait) {
  Pair p(8, TwoRanks::job(), 0);
  p.send_round(0);
  p.send_round(1);
  p.settle();
  EXPECT_TRUE(p.receiver->lacks_memory());
  EXPECT_EQ(p.find(p.first_of(0)), Found::pending);
  EXPECT_FALSE(p.sent[0]->bytes_op.done());
  p.memory->give_back(p.message(0).bytes.size());
  ASSERT_TRUE(p.run([&] { return p.has_round(0); }));
  p.settle();
  EXPECT_TRUE(p.receiver->lacks_memory()) << "for the next one";
  p.memory->give_back(p.message(1).bytes.size());
  ASSERT_TRUE(p.run([&] { return p.has_round(1); }));
  p.settle();
  EXPECT_FALSE(p.receiver->lacks_memory());
}

TEST(Receiver, LeavingReceivesAndDropsWhatIsSent) {
  for (const std::uint64_t memory : {std::uint64_t{0}, UINT64_MAX}) {
    SCOPED_TRACE(memory);
    Pair p(9, TwoRanks::job(), memory);
    p.send_round(0);
    p.settle();
    EXPECT_EQ(p.network.open(), 1u + kAhead - 1 + (memory == 0 ? 1 : 0)) << "no end message is under way";
    p.receiver->leave();
    EXPECT_TRUE(p.receiver->has_left());
    EXPECT_EQ(p.find(p.first_of(0)), Found::failed);
    p.settle();
    EXPECT_FALSE(p.closed());
    // The reader had begun these.
    for (std::uint64_t round = 1; round < kRounds; ++round) p.send_round(round);
    p.send_end_message(kRounds);
    EXPECT_FALSE(p.run([&] { return p.closed(); })) << "the reader does not know";
    p.expect_end_message();
    ASSERT_TRUE(p.run([&] { return p.closed(); }));
    EXPECT_TRUE(p.status.ok());
    EXPECT_TRUE(p.receiver->resting());
    for (const auto& s : p.sent) EXPECT_TRUE(s->header_op.done() && s->bytes_op.done());
    EXPECT_EQ(p.network.open(), 0u);
  }
}

TEST(Receiver, SendsNoEndMessageAfterTheLastRound) {
  Pair p(9);
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    p.send_round(round);
    ASSERT_TRUE(p.run([&] { return p.has_round(round); }));
    if (round + 1 < kRounds) p.receiver->drop_before(p.first_of(round + 1));
  }
  EXPECT_FALSE(p.receiver->quiet()) << "it is in use";
  p.receiver->leave();
  p.expect_end_message();
  p.step();
  EXPECT_TRUE(p.receiver->quiet());
  p.settle();
  EXPECT_FALSE(p.end_in.done());
  p.receiver->stop();
  EXPECT_TRUE(p.receiver->closed());
  EXPECT_EQ(p.network.open(), 1u) << "only what the test has begun";
}

TEST(Receiver, AWrongMessageIsNoErrorToARankThatHasLeft) {
  Pair p(9);
  p.settle();
  p.receiver->leave();
  FakeMessage m = p.message(1);
  p.send(std::move(m));  // of another round
  p.send_end_message(1);
  p.expect_end_message();
  ASSERT_TRUE(p.run([&] { return p.closed(); }));
  EXPECT_TRUE(p.status.ok()) << p.why;
}

TEST(Receiver, RoundsThatAreNotUsedAnyMoreAreReceivedAndDropped) {
  Pair p(10);
  p.settle();
  p.receiver->drop_before(p.first_of(2));
  p.settle();
  EXPECT_EQ(p.receiver->next_round(), kRounds) << "others are expected";
  for (std::uint64_t round = 0; round < 3; ++round) p.send_round(round);
  ASSERT_TRUE(p.run([&] { return p.has_round(2); }));
  EXPECT_EQ(p.find(p.first_of(0)), Found::pending);
  EXPECT_TRUE(p.sent[1]->bytes_op.done());
  EXPECT_FALSE(p.receiver->resting()) << "one is still to come";
  p.send_round(3);
  ASSERT_TRUE(p.run([&] { return p.has_round(3); }));
  EXPECT_TRUE(p.receiver->resting()) << "that was all";
}

TEST(Receiver, KeptRecordsAreFoundInTheNextEpoch) {
  Job job = TwoRanks::job();
  job.order.end_epoch = 2;
  job.kept_parts = kKeptParts;
  for (const std::uint64_t keeps : {UINT64_MAX, std::uint64_t{1}}) {
    SCOPED_TRACE(keeps);
    Pair p(11, job, UINT64_MAX, keeps);
    ASSERT_EQ(p.assignment.kept_rounds(), kRounds);
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      p.send_round(round);
      ASSERT_TRUE(p.run([&] { return p.has_round(round); }));
      p.receiver->drop_before(round + 1 < kRounds ? p.first_of(round + 1) : Position{1, 0});
    }
    for (std::uint64_t round = kRounds; round < 2 * kRounds; ++round) {
      ASSERT_TRUE(p.run([&] { return p.find(p.first_of(round)) != Found::pending; }));
      if (keeps == 1)
        EXPECT_EQ(p.find(p.first_of(round)), Found::failed) << "nobody sends it, and there was no room";
      else
        EXPECT_TRUE(p.has_round(round));
      EXPECT_TRUE(p.receiver->resting());
      p.receiver->drop_before(round + 1 < 2 * kRounds ? p.first_of(round + 1) : Position{2, 0});
    }
    EXPECT_EQ(p.sent.size(), kRounds) << "nothing was sent twice";
  }
}

TEST(Receiver, RecordsThatCameLateAreKept) {
  Job job = TwoRanks::job();
  job.order.end_epoch = 2;
  job.kept_parts = kKeptParts;
  Pair p(11, job, UINT64_MAX, UINT64_MAX);
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    p.settle();
    p.receiver->drop_before(round + 1 < kRounds ? p.first_of(round + 1) : Position{1, 0});
    p.send_round(round);
  }
  p.settle();
  for (std::uint64_t round = kRounds; round < 2 * kRounds; ++round) {
    ASSERT_TRUE(p.run([&] { return p.has_round(round); })) << round;
    p.receiver->drop_before(round + 1 < 2 * kRounds ? p.first_of(round + 1) : Position{2, 0});
  }
}

TEST(Receiver, FindsItsOwnRecordsInWhatItReads) {
  // Alone all records are its own, and stay where they were read; of two ranks it takes copies.
  for (const std::uint32_t ranks : {1u, 2u}) {
    SCOPED_TRACE(ranks);
    Job job = TwoRanks::job();
    job.ranks = ranks;
    const Assignment assignment = Assignment::make(job, kRecords).value();
    const FakeRecords records{12};
    FakeNetwork network(ranks, 12);
    FakeSource source(records, 12, {});
    const auto memory = std::make_shared<LimitedMemory>(UINT64_MAX);
    Sender sender(assignment, 0, {0}, kAhead, {}, network.rank(0), source, memory);
    Receiver receiver(assignment, {0}, kAhead, network.rank(0), &sender, memory);
    std::string why;
    const std::uint64_t end = assignment.positions(0, 0).end;
    ASSERT_GT(end, 0u);
    for (std::uint64_t position = 0; position < end; ++position) {
      lmdbio_record r{};
      std::shared_ptr<const void> keep;
      Found found = Found::pending;
      for (unsigned i = 0; i < 3000 && found == Found::pending; ++i) {
        ASSERT_TRUE(sender.progress(0).ok());
        ASSERT_TRUE(receiver.progress(why).ok()) << why;
        found = receiver.find({0, position}, r, keep);
        (void)network.rank(0).poll();
      }
      ASSERT_EQ(found, Found::here);
      EXPECT_NE(keep, nullptr);
      EXPECT_EQ(r.ordinal, position * ranks);
      EXPECT_EQ(text(r.key), records.key(r.ordinal));
      EXPECT_EQ(text(r.value), records.value(r.ordinal));
    }
    Traffic traffic;
    receiver.add_to(traffic);
    EXPECT_EQ(traffic.bytes_received, 0u);
  }
}

TEST(Receiver, CountsWhatComesFromOtherNodes) {
  for (const std::uint32_t node : {0u, 1u}) {
    Pair p(13, TwoRanks::job(), UINT64_MAX, 0, {0, node});
    p.send_round(0);
    ASSERT_TRUE(p.run([&] { return p.has_round(0); }));
    Traffic traffic;
    p.receiver->add_to(traffic);
    EXPECT_EQ(traffic.bytes_received, p.message(0).bytes.size());
    EXPECT_EQ(traffic.bytes_from_nodes, node == 0 ? 0 : p.message(0).bytes.size());
  }
}

TEST(Receiver, AnErrorOfTheTransportIsPassedOn) {
  for (const bool lost : {false, true}) {
    unsigned errors = 0;
    for (std::uint64_t k = 1;; ++k) {
      SCOPED_TRACE(::testing::Message() << "lost " << lost << " k " << k);
      ASSERT_LT(k, 100u);
      Pair p(14);
      p.send_round(0);
      p.send_round(1);
      p.send_end_message(2);
      // Those calls were the reader's.
      (lost ? p.network.loses_at : p.network.refuses_at) = lost ? k : 5 + k;
      if (p.run([&] { return !p.status.ok() || (p.has_round(0) && p.has_round(1)); }) && p.status.ok()) {
        p.settle();
        if (p.status.ok()) break;
      }
      ASSERT_FALSE(p.status.ok()) << "it waits for ever";
      EXPECT_EQ(p.status.raw(), EIO);
      ++errors;
    }
    EXPECT_GE(errors, 5u) << "two headers, two messages, an end message";
  }
}

}  // namespace
}  // namespace lmdbio::ranks
