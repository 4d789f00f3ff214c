// Ranks of a job in one thread: a network whose messages take as long as chance has it, and a file system of
// made-up records that may fail.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lmdbio/ranks/assignment.h"
#include "lmdbio/ranks/message.h"
#include "lmdbio/ranks/part_source.h"
#include "lmdbio/ranks/payload.h"
#include "lmdbio/ranks/transport.h"
#include "tests/support/rng.h"

namespace lmdbio::test {

class FakeNetwork {
 public:
  explicit FakeNetwork(std::uint32_t ranks, std::uint64_t seed) : rng_(seed) {
    for (std::uint32_t r = 0; r < ranks; ++r) ends_.push_back(std::make_unique<End>(*this, r));
  }
  ranks::Transport& rank(std::uint32_t r) { return *ends_[r]; }
  /// Sends and receives that are under way.
  std::size_t open() const {
    std::size_t n = 2 * landing_.size();
    for (const auto& [key, row] : rows_) n += row.sends.size() + row.receives.size();
    for (const auto& [key, receives] : from_any_) n += receives.size();
    return n;
  }
  std::uint64_t messages = 0, bytes = 0;
  /// Of sends to one rank that were not received, at most.
  std::size_t most_waiting = 0;
  /// Receives of one rank that were under way, at most.
  std::size_t most_receives = 0;
  /// The n-th call of send() or receive() that is refused, and the n-th message that does not arrive, counted
  /// from 1; 0: none.  Both give EIO.
  std::uint64_t refuses_at = 0, loses_at = 0;

 private:
  struct Send {
    std::span<const std::byte> bytes;
    ranks::Operation* op;
  };
  struct Receive {
    std::span<std::byte> room;
    ranks::Operation* op;
  };
  struct Row {
    std::deque<Send> sends;
    std::deque<Receive> receives;
  };

  class End final : public ranks::Transport {
   public:
    End(FakeNetwork& net, std::uint32_t rank) : net_(net), rank_(rank) {}
    std::uint32_t rank() const noexcept override { return rank_; }
    std::uint32_t ranks() const noexcept override { return static_cast<std::uint32_t>(net_.ends_.size()); }
    Status send(std::uint32_t to, unsigned channel, std::span<const std::byte> bytes,
                ranks::Operation& op) override {
      if (to == rank_) throw std::logic_error("a message to itself");
      if (++net_.calls_ == net_.refuses_at) return Status::from_errno(EIO);
      Row& row = net_.rows_[{rank_, to, channel}];
      row.sends.push_back({bytes, &op});
      net_.most_waiting = std::max(net_.most_waiting, row.sends.size());
      op = {};
      op.under_way = true;
      return {};
    }
    Status receive(std::uint32_t from, unsigned channel, std::span<std::byte> room,
                   ranks::Operation& op) override {
      if (++net_.calls_ == net_.refuses_at) return Status::from_errno(EIO);
      net_.receives_of(from, rank_, channel).push_back({room, &op});
      net_.most_receives = std::max(net_.most_receives, ++net_.receives_[rank_]);
      op = {};
      op.under_way = true;
      return {};
    }
    Status poll() override {
      net_.deliver();
      return {};
    }
    void cancel(ranks::Operation& op) override {
      std::size_t ended = 0;
      for (auto& [key, row] : net_.rows_)
        ended += std::erase_if(row.receives, [&](const Receive& r) { return r.op == &op; });
      for (auto& [key, receives] : net_.from_any_)
        ended += std::erase_if(receives, [&](const Receive& r) { return r.op == &op; });
      if (ended == 0) return;  // it has begun
      --net_.receives_[rank_];
      op.under_way = false;
      op.status = Status::from_errno(ECANCELED);
    }

   private:
    FakeNetwork& net_;
    const std::uint32_t rank_;
  };

  std::deque<Receive>& receives_of(std::uint32_t from, std::uint32_t to, unsigned channel) {
    return from == ranks::kAnyRank ? from_any_[{to, channel}] : rows_[{from, to, channel}].receives;
  }

  void deliver() {
    for (auto& [key, row] : rows_) {
      const auto [from, to, channel] = key;
      const auto any = from_any_.find({to, channel});
      std::deque<Receive>& receives = any != from_any_.end() ? any->second : row.receives;
      while (!row.sends.empty() && !receives.empty() && rng_.below(2) == 0) {
        const Send s = row.sends.front();
        const Receive r = receives.front();
        row.sends.pop_front();
        receives.pop_front();
        if (s.bytes.size() > r.room.size()) throw std::logic_error("a message that is longer than its room");
        r.op->from = from;
        --receives_[to];
        landing_.emplace_back(s, r);
      }
    }
    // Those that have begun end in any order.
    for (std::size_t i = landing_.size(); i-- > 0;) {
      if (rng_.below(2) != 0) continue;
      const auto [s, r] = landing_[i];
      std::copy(s.bytes.begin(), s.bytes.end(), r.room.begin());
      ++messages;
      bytes += s.bytes.size();
      r.op->bytes = s.bytes.size();
      if (messages == loses_at) s.op->status = r.op->status = Status::from_errno(EIO);
      s.op->under_way = r.op->under_way = false;
      ++ends_[0]->events;  // of all ranks together
      landing_.erase(landing_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  Rng rng_;
  std::uint64_t calls_ = 0;
  std::vector<std::unique_ptr<End>> ends_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, unsigned>, Row> rows_;
  std::map<std::pair<std::uint32_t, unsigned>, std::deque<Receive>> from_any_;
  std::map<std::uint32_t, std::size_t> receives_;  ///< of each rank, that have not begun
  std::vector<std::pair<Send, Receive>> landing_;  ///< begun
};

/// Records of 0 to 300 bytes, each another one, of a seed.
struct FakeRecords {
  std::uint64_t seed = 0;
  std::string key(std::uint64_t ordinal) const {
    return "key " + std::to_string(seed) + " " + std::to_string(ordinal);
  }
  std::string value(std::uint64_t ordinal) const {
    Rng rng(seed * 1000003 + ordinal);
    std::string v(rng.below(4) == 0 ? 0 : rng.below(300), '\0');
    for (char& c : v) c = static_cast<char>(rng.below(256));
    return v;
  }
};

/// What a reader sends to a rank for a round: as message.h describes it.
struct FakeMessage {
  std::vector<std::byte> header, bytes;
  std::vector<std::uint64_t> ordinals;
};
inline FakeMessage message_of(const ranks::Assignment& assignment, const FakeRecords& records,
                              std::uint64_t round, std::uint32_t reader, std::uint32_t rank) {
  const auto put = [](std::vector<std::byte>& to, const void* from, std::size_t n) {
    const auto* const at = static_cast<const std::byte*>(from);
    to.insert(to.end(), at, at + n);
  };
  FakeMessage m;
  std::vector<ranks::Assignment::Need> needs;
  assignment.needs(round, assignment.part_read_by(round, reader), needs);
  std::vector<ranks::RecordSizes> sizes;
  std::uint64_t hash = 0;
  for (const ranks::Assignment::Need& need : needs) {
    if (need.rank != rank) continue;
    const std::string key = records.key(need.ordinal), value = records.value(need.ordinal);
    sizes.push_back({static_cast<std::uint32_t>(key.size()), static_cast<std::uint32_t>(value.size())});
    put(m.bytes, key.data(), key.size());
    put(m.bytes, value.data(), value.size());
    m.ordinals.push_back(need.ordinal);
    hash = ranks::ordinals_hash(hash, need.ordinal);
  }
  const ranks::MessageHeader header{static_cast<std::uint32_t>(sizes.size()),
                                    static_cast<std::uint32_t>(round), m.bytes.size(), hash};
  put(m.header, &header, sizeof header);
  put(m.header, sizes.data(), sizes.size() * sizeof(ranks::RecordSizes));
  return m;
}

/// A job of two ranks, of which rank 0 reads, and what the tests of its two halves need.
struct TwoRanks {
  static constexpr std::uint64_t kRecords = 40, kRounds = 4, kAhead = 2;

  /// Rounds of ten records, of which each rank uses every other one.
  static ranks::Job job() {
    ranks::Job job;
    job.order.size = sizeof job.order;
    job.order.kind = LMDBIO_ORDER_SEQUENTIAL;
    job.order.batch = 5;
    job.order.end_epoch = 1;
    job.ranks = 2;
    job.readers = 1;
    job.round_records = kRecords / kRounds;
    return job;
  }

  TwoRanks(std::uint64_t seed, const ranks::Job& job)
      : assignment(ranks::Assignment::make(job, kRecords).value()), records{seed}, network(job.ranks, seed) {}

  /// The message that rank 0 sends to a rank for a round.
  FakeMessage message(std::uint64_t round, std::uint32_t rank = 1) const {
    return message_of(assignment, records, round, 0, rank);
  }
  /// Calls step() until done() returns true.  Returns false if that takes too long.
  template <class Done, class Step>
  static bool run_until(Done&& done, Step&& step) {
    for (unsigned i = 0; i < 3000; ++i) {
      if (done()) return true;
      step();
    }
    return false;
  }

  const ranks::Assignment assignment;
  const FakeRecords records;
  FakeNetwork network;
};

/// So many bytes, for the messages of one rank.
class LimitedMemory final : public ranks::PayloadMemory {
 public:
  explicit LimitedMemory(std::uint64_t limit) : left_(limit) {}
  bool take(std::uint64_t bytes) noexcept override {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }
  void give_back(std::uint64_t bytes) noexcept override { left_ += bytes; }

 private:
  std::uint64_t left_;
};

class FakeSource final : public ranks::PartSource {
 public:
  /// Of each 100 reads so many fail, so many starts find no memory.
  struct Faults {
    unsigned reads = 0, starts = 0;
  };
  FakeSource(FakeRecords records, std::uint64_t seed, Faults faults)
      : records_(records), rng_(seed), faults_(faults) {}

  Status start(std::span<const std::uint64_t> ordinals, ranks::PartUse use,
               std::unique_ptr<ranks::PartRead>& out, std::string& why) override {
    why = "no memory";
    if (rng_.percent(faults_.starts)) return Status::from_errno(ENOMEM);
    auto read = std::make_unique<Read>();
    for (const std::uint64_t o : ordinals) {
      read->data->push_back({o, records_.key(o), records_.value(o)});
      times[o] += 1;
      if (use.comes_again) to_page_cache[o] += 1;
    }
    read->polls = least_polls + rng_.below(6);
    read->fails = rng_.percent(faults_.reads);
    if (use.may_lend && has_cache) {
      read->lent = true;
      lent_.push_back(read->data);
    }
    if (under_way != nullptr) {
      read->counted = under_way;
      under_way->most = std::max(under_way->most, ++under_way->now);
    }
    failed += read->fails;
    out = std::move(read);
    return {};
  }
  /// Reads under way, and the most there were; several sources may share it.
  struct UnderWay {
    unsigned now = 0, most = 0;
  };
  UnderWay* under_way = nullptr;
  unsigned least_polls = 0;  ///< that a read takes
  bool caches() const noexcept override { return has_cache; }
  bool has_cache = false;                           ///< it lends what it may
  std::map<std::uint64_t, unsigned> times;          ///< how often each record was read
  std::map<std::uint64_t, unsigned> to_page_cache;  ///< of these: to stay there
  unsigned failed = 0;

 private:
  struct Read final : ranks::PartRead {
    struct One {
      std::uint64_t ordinal;
      std::string key, value;
    };
    ~Read() override {
      end();
      if (lent)
        for (One& one : *data) {
          std::fill(one.key.begin(), one.key.end(), '?');
          std::fill(one.value.begin(), one.value.end(), '?');
        }
    }
    bool done() noexcept override {
      if (polls != 0) --polls;
      if (polls == 0) end();
      return polls == 0;
    }
    void wait() noexcept override {
      polls = 0;
      end();
    }
    void end() noexcept {
      if (counted != nullptr) --counted->now;
      counted = nullptr;
    }
    Status record(std::size_t i, lmdbio_record& out, std::string& why) override {
      if (polls != 0) throw std::logic_error("a record of a read that is not done");
      why = "it failed";
      if (fails) return Status::from_errno(EIO);
      One& one = data->at(i);
      out = {one.ordinal, {one.key.size(), one.key.data()}, {one.value.size(), one.value.data()}};
      return {};
    }
    std::shared_ptr<const void> bytes() const override {
      if (lent) throw std::logic_error("bytes of a read that lends");
      return data;
    }
    bool lends() const noexcept override { return lent; }
    std::shared_ptr<std::vector<One>> data = std::make_shared<std::vector<One>>();
    unsigned polls = 0;
    bool fails = false, lent = false;
    UnderWay* counted = nullptr;
  };
  const FakeRecords records_;
  Rng rng_;
  const Faults faults_;
  std::vector<std::shared_ptr<void>> lent_;  ///< their memory stays, their content does not
};

}  // namespace lmdbio::test
