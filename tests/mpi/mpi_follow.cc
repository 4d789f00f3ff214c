// Ranks of a real MPI job follow a database together, in random configurations.  Their shares are compared
// with the batches of a Follow of one process, and their states with its state.
//
//   mpirun -n P mpi_follow DIRECTORY LEVEL SEED CONFIGURATIONS
//
// Rank 1 is the writer, and rank 2 is the process that follows alone.  They must be on the node of rank 0.
// All others follow together, and each time that they continue from a state, another number of them does.
// LEVEL: of MPI_Init_thread.  The ranks take turns with the writer, so that all of them find the same
// commits. Exit status 0: all batches and states were the same.
#include <lmdbio/mpi_reader.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/mpi/follow_writer.h"
#include "tests/support/rng.h"

namespace {

using lmdbio::test::FollowWriter;
using lmdbio::test::Rng;

int rank = 0, ranks = 1;

int most_followers() { return ranks - 2; }
constexpr int kWriter = 1, kAlone = 2;
bool is_writer() { return rank == kWriter; }
bool is_alone() { return rank == kAlone; }
/// Returns the rank of a follower.
std::size_t rank_of(std::size_t follower) { return follower == 0 ? 0 : follower + 2; }

void put(std::string& out, std::uint64_t v) { out.append(reinterpret_cast<const char*>(&v), sizeof v); }

struct Config {
  lmdbio::Follow::Options follow;
  bool dupsort = false, uses_function = false;
};

Config config_of(Rng& rng) {
  Config c;
  lmdbio_follow_options& o = c.follow.fields;
  o.seed = rng.next();
  o.fresh = rng.percent(10) ? 0 : rng.between(1, 12);
  o.old = rng.between(o.fresh == 0 ? 1 : 0, 9);
  o.lag = rng.between(1, 5);
  o.buffer = static_cast<lmdbio_buffer>(rng.below(4));
  o.capacity = rng.between(1, 30);
  o.label_bytes = 1;
  o.label_offset = rng.below(3);
  o.existing_are_old = o.fresh == 0 || rng.percent(30);
  o.append_only = rng.percent(25);
  o.on_empty = static_cast<lmdbio_on_empty>(rng.below(3));
  o.timeout = 0.02;
  o.renew_batches = rng.between(1, 4);
  o.renew_seconds = 1e6;
  if (rng.percent(20)) o.flags = MDB_NOLOCK;
  if (rng.percent(30)) c.follow.database = "named";
  if (rng.percent(50)) c.follow.finished_key = "end";
  c.dupsort = !c.follow.database.empty() && rng.percent(50);
  c.uses_function = rng.percent(30);
  if (c.uses_function)
    c.follow.label = [](std::span<const std::byte> key, std::span<const std::byte> value) {
      return (key.empty() ? 0u : std::to_integer<std::uint64_t>(key.back())) % 3 + value.size() % 2;
    };
  return c;
}

/// What the writer puts and deletes.
class Changes {
 public:
  Changes(FollowWriter& writer, const Config& c) : writer_(writer), config_(c) {}

  void commit(Rng& rng) {
    std::set<FollowWriter::Record> puts, dels;
    for (std::uint32_t n = std::vector<std::uint32_t>{1, 1, 4, 30}[rng.below(4)]; n > 0; --n) {
      if (!records_.empty() && config_.follow.fields.append_only == 0 && rng.percent(30)) {
        const auto at = std::next(records_.begin(), rng.below(records_.size()));
        dels.insert(*at);
        records_.erase(at);
        continue;
      }
      char key[16];
      (void)std::snprintf(key, sizeof key, "%06u",
                          config_.follow.fields.append_only != 0 ? next_++ : rng.below(150));
      std::string value(1, static_cast<char>('A' + rng.below(3)));
      value += std::to_string(rng.below(3000));
      if (!config_.dupsort && rng.percent(10)) value += std::string(rng.between(3000, 9000), 'x');
      const FollowWriter::Record record(key, value);
      if (has_key(dels, key)) continue;
      if (!config_.dupsort) {
        erase_key(puts, key);
        erase_key(records_, key);
      }
      puts.insert(record);
      records_.insert(record);
    }
    std::erase_if(dels, [&](const auto& r) { return puts.contains(r); });
    for (auto at = dels.begin(); at != dels.end();)  // put in this transaction only
      at = committed_.contains(*at) ? std::next(at) : dels.erase(at);
    std::erase_if(puts, [&](const auto& r) { return has_key(dels, r.first) && !config_.dupsort; });
    writer_.commit({puts.begin(), puts.end()}, {dels.begin(), dels.end()});
    for (const auto& r : dels) committed_.erase(r);
    for (const auto& r : puts) {
      if (!config_.dupsort) erase_key(committed_, r.first);
      committed_.insert(r);
    }
    records_ = committed_;
  }
  void finish() { writer_.commit({{"end", ""}}); }

 private:
  using Records = std::set<FollowWriter::Record>;
  static bool has_key(const Records& r, const std::string& key) {
    const auto at = r.lower_bound({key, ""});
    return at != r.end() && at->first == key;
  }
  static void erase_key(Records& r, const std::string& key) {
    std::erase_if(r, [&](const auto& x) { return x.first == key; });
  }
  FollowWriter& writer_;
  const Config& config_;
  Records records_, committed_;
  unsigned next_ = 0;
};

/// What a call of next() has returned, and the position afterwards.  `share` and `shares`: of a batch of one
/// process, only this share of it.
struct Answer {
  int code = 0;
  std::uint64_t position = 0, fresh = 0;
  std::vector<std::string> records;
  std::uint64_t transaction = 0, pending = 0;

  std::string share(std::size_t which, std::size_t of) const {
    std::string out;
    std::uint64_t new_ones = 0;
    std::string bytes;
    for (std::size_t i = which; i < records.size(); i += of) {
      new_ones += i < fresh;
      put(bytes, records[i].size());
      bytes += records[i];
    }
    for (const std::uint64_t v : {static_cast<std::uint64_t>(code), position, new_ones, transaction, pending})
      put(out, v);
    return out + bytes;
  }
};

void add(Answer& a, const lmdbio::Follow::Next& next) {
  a.position = next.batch.position();
  a.fresh = next.fresh;
  for (const lmdbio::Record& r : next.batch) {
    std::string& s = a.records.emplace_back();
    put(s, r.ordinal);
    put(s, r.key.size());
    s.append(reinterpret_cast<const char*>(r.key.data()), r.key.size());
    s.append(reinterpret_cast<const char*>(r.value.data()), r.value.size());
  }
}

/// Reads a batch ahead.  Returns an empty answer if there is none.
Answer read_ahead(lmdbio::Follow& follow, std::uint64_t batches) {
  Answer a;
  if (const std::optional<lmdbio::Follow::Next> next = follow.ahead(batches)) add(a, *next);
  return a;
}

/// Takes the next batch.  If `looks_ahead`, reads batches ahead sometimes, on each rank at other times.
Answer ask(lmdbio::Follow& follow, bool looks_ahead) {
  static Rng rng(static_cast<std::uint64_t>(rank));
  Answer a, ahead;
  try {
    if (looks_ahead && rng.between(0, 1) == 0) (void)read_ahead(follow, rng.between(0, 4));
    const bool waits = rng.between(0, 1) == 0, ended = waits && !follow.wait();
    if (looks_ahead && waits && !ended) ahead = read_ahead(follow, 0);
    const std::optional<lmdbio::Follow::Next> next = ended ? std::nullopt : follow.next();
    if (next)
      add(a, *next);
    else
      a.code = MDB_NOTFOUND;
    if (next && !ahead.records.empty() && ahead.share(0, 1) != a.share(0, 1))
      throw std::runtime_error("batch " + std::to_string(a.position) + " is not the one that was read ahead");
  } catch (const lmdbio::Error& e) {
    a.code = e.code();
  }
  a.transaction = follow.transaction();
  a.pending = follow.pending();
  return a;
}

/// Returns the texts of all ranks on the last one.
std::vector<std::string> gather(const std::string& own) {
  const int size = static_cast<int>(own.size());
  std::vector<int> sizes(static_cast<std::size_t>(ranks)), at(sizes.size());
  MPI_Gather(&size, 1, MPI_INT, sizes.data(), 1, MPI_INT, kAlone, MPI_COMM_WORLD);
  int total = 0;
  if (is_alone())
    for (std::size_t r = 0; r < sizes.size(); ++r) at[r] = std::exchange(total, total + sizes[r]);
  std::string all(static_cast<std::size_t>(total), '\0');
  MPI_Gatherv(own.data(), size, MPI_BYTE, all.data(), sizes.data(), at.data(), MPI_BYTE, kAlone,
              MPI_COMM_WORLD);
  std::vector<std::string> out;
  if (is_alone())
    for (std::size_t r = 0; r < sizes.size(); ++r)
      out.push_back(all.substr(static_cast<std::size_t>(at[r]), static_cast<std::size_t>(sizes[r])));
  return out;
}

/// The ranks that follow, some of them together, and one alone.
class Followers {
 public:
  Followers(std::string path, const Config& c) : path_(std::move(path)), config_(c) {}
  ~Followers() {
    follow_.reset();
    mpi_.reset();
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }
  Followers(const Followers&) = delete;
  Followers& operator=(const Followers&) = delete;

  /// Opens the database on the first `n` ranks, and on the one that is alone.  Returns the error code.
  int open(int n, std::vector<std::byte> state) {
    n_ = n;
    const bool follows = !is_writer() && !is_alone() && rank < (n == 1 ? 1 : n + 2);
    MPI_Comm_split(MPI_COMM_WORLD, follows ? 0 : MPI_UNDEFINED, rank, &comm_);
    lmdbio::Follow::Options options = config_.follow;
    options.state = std::move(state);
    try {
      if (follows) {
        mpi_.emplace(comm_);
        follow_.emplace(mpi_->follow(path_, options));
      } else if (is_alone()) {
        follow_.emplace(path_, options);
      }
    } catch (const lmdbio::Error& e) {
      return e.code();
    }
    return 0;
  }
  void batch(const std::string& what) {
    Answer answer;
    // Without locks, a rank may have read a batch ahead that a writer has overwritten when others need it.
    if (follow_) answer = ask(*follow_, (config_.follow.fields.flags & MDB_NOLOCK) == 0);
    const std::vector<std::string> all = gather(is_alone() || !follow_ ? "" : answer.share(0, 1));
    if (is_alone()) {
      for (std::size_t r = 0; r < static_cast<std::size_t>(n_); ++r)
        if (all[rank_of(r)] != answer.share(r, static_cast<std::size_t>(n_)))
          throw std::runtime_error(what + ": rank " + std::to_string(r) + " of " + std::to_string(n_) +
                                   " got another share of batch " + numbers(answer.share(0, 1)) + ": " +
                                   numbers(all[rank_of(r)]));
    }
    code_ = answer.code;
    transaction_ = answer.transaction;
    MPI_Bcast(&code_, 1, MPI_INT, kAlone, MPI_COMM_WORLD);
    MPI_Bcast(&transaction_, 1, MPI_UINT64_T, kAlone, MPI_COMM_WORLD);
    if (is_alone()) ++batches;
  }
  /// Returns whether the last batch ended with a permanent error.
  bool failed() const { return code_ != 0 && code_ != MDB_NOTFOUND && code_ != ETIMEDOUT; }
  std::uint64_t transaction() const { return transaction_; }
  /// Returns the state on all ranks.
  std::vector<std::byte> state(const std::string& what) {
    std::string own;
    if (follow_) {
      const std::vector<std::byte> s = follow_->state();
      own.assign(reinterpret_cast<const char*>(s.data()), s.size());
    }
    const std::vector<std::string> all = gather(own);
    std::uint64_t size = own.size();
    if (is_alone())
      for (std::size_t r = 0; r < static_cast<std::size_t>(n_); ++r)
        if (all[rank_of(r)] != own)
          throw std::runtime_error(what + ": rank " + std::to_string(r) + " has another state");
    MPI_Bcast(&size, 1, MPI_UINT64_T, kAlone, MPI_COMM_WORLD);
    own.resize(size);
    MPI_Bcast(own.data(), static_cast<int>(size), MPI_BYTE, kAlone, MPI_COMM_WORLD);
    const auto bytes = std::as_bytes(std::span(own));
    return {bytes.begin(), bytes.end()};
  }

  static inline std::uint64_t batches = 0;

 private:
  /// Returns the first numbers of an answer: code, position, new records, transaction, pending.
  static std::string numbers(const std::string& share) {
    std::string out;
    for (std::size_t i = 0; i + 8 <= share.size() && i < 40; i += 8) {
      std::uint64_t v = 0;
      std::memcpy(&v, share.data() + i, 8);
      out += " " + std::to_string(static_cast<std::int64_t>(v));
    }
    return out;
  }

  const std::string path_;
  const Config& config_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::optional<lmdbio::MpiRanks> mpi_;
  std::optional<lmdbio::Follow> follow_;
  int n_ = 0, code_ = 0;
  std::uint64_t transaction_ = 0;
};

/// Returns the code of the ranks that follow together and of the one alone, which must be the same.
int same_code(int code, int n, const std::string& what) {
  std::string own;
  put(own, static_cast<std::uint64_t>(code));
  const std::vector<std::string> all = gather(own);
  if (is_alone())
    for (std::size_t r = 0; r < static_cast<std::size_t>(n); ++r)
      if (all[rank_of(r)] != own)
        throw std::runtime_error(what + ": rank " + std::to_string(r) + " got another result of opening");
  MPI_Bcast(&code, 1, MPI_INT, kAlone, MPI_COMM_WORLD);
  return code;
}

void one_configuration(const std::string& directory, std::uint64_t seed) {
  Rng rng(seed);  // the same on all ranks
  const Config c = config_of(rng);
  const std::string what = "seed " + std::to_string(seed);
  const std::string path = directory + "/db" + std::to_string(seed);
  std::unique_ptr<FollowWriter> writer;
  std::unique_ptr<Changes> changes;
  std::uint64_t commits = 0;
  if (is_writer()) {
    writer = std::make_unique<FollowWriter>(path, c.follow.database, c.dupsort);
    changes = std::make_unique<Changes>(*writer, c);
  }
  Rng content(seed + 1000000);
  const auto commit = [&] {
    MPI_Barrier(MPI_COMM_WORLD);
    if (is_writer()) changes->commit(content);
    ++commits;
    MPI_Barrier(MPI_COMM_WORLD);
  };
  const auto start = [&](std::unique_ptr<Followers>& f, const std::vector<std::byte>& state) {
    f.reset();
    MPI_Barrier(MPI_COMM_WORLD);
    const int n = static_cast<int>(rng.between(1, static_cast<std::uint32_t>(most_followers())));
    f = std::make_unique<Followers>(path, c);
    const int code = same_code(f->open(n, state), n, what);
    MPI_Barrier(MPI_COMM_WORLD);
    return code == 0;
  };
  for (std::uint32_t n = rng.between(1, 3); n > 0; --n) commit();
  std::unique_ptr<Followers> followers;
  if (!start(followers, {})) throw std::runtime_error(what + ": the database cannot be opened");
  for (std::uint32_t steps = rng.between(10, 40); steps > 0; --steps) {
    const std::uint32_t kind = rng.below(100);
    if (kind < 35) {
      commit();
      continue;
    }
    if (kind < 37 && !c.follow.finished_key.empty()) {
      MPI_Barrier(MPI_COMM_WORLD);
      if (is_writer()) changes->finish();
      ++commits;
      MPI_Barrier(MPI_COMM_WORLD);
      continue;
    }
    if (kind < 50) {
      const std::vector<std::byte> state = followers->state(what);
      // A state of an older transaction is refused, unless records are only appended: then all start anew.
      if (!start(followers, state) && !start(followers, {}))
        throw std::runtime_error(what + ": the database cannot be opened again");
      continue;
    }
    followers->batch(what);
    if (followers->failed() && !start(followers, {}))
      throw std::runtime_error(what + ": the database cannot be opened after an error");
  }
  (void)(followers->failed() ? std::vector<std::byte>() : followers->state(what));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "see the head of mpi_follow.cc\n");
    return 2;
  }
  int level = 0;
  MPI_Init_thread(&argc, &argv, std::atoi(argv[2]), &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  try {
    const std::uint64_t seed = std::strtoull(argv[3], nullptr, 10), n = std::strtoull(argv[4], nullptr, 10);
    for (std::uint64_t i = 0; i < n; ++i) one_configuration(argv[1], seed + i);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  if (is_alone())
    std::printf("%llu batches were the same\n", static_cast<unsigned long long>(Followers::batches));
  MPI_Finalize();
  return 0;
}
