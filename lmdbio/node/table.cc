#include "lmdbio/node/table.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/node/chunk_file.h"
#include "lmdbio/node/life.h"

namespace lmdbio::node {

namespace {

/// Limits on the time that a claim may take, in ns; see Table::wait().
constexpr std::int64_t kLeastPatience = 50'000'000, kMostPatience = 2'000'000'000;
constexpr unsigned kPatience = 4, kInAll = 4;
/// Expected time for a chunk, in ns, if nothing else is known.
constexpr std::uint64_t kUsualFill = 10'000'000;
/// After a wait in vain, this process does not wait for the other one again for at least this long, in ns.
/// It also does not wait again for at least four times the duration of that wait.
constexpr std::int64_t kLeastMistrust = 200'000'000;
/// How often rows are checked for processes that have died, in ns.
constexpr std::int64_t kLookEvery = 100'000'000;

/// A claim word in shared memory.
class Word {
 public:
  explicit Word(std::uint64_t* at) noexcept : at_(at) {}
  ClaimValue load() const noexcept {
    return ClaimValue(std::atomic_ref(*at_).load(std::memory_order_acquire));
  }
  bool compare_exchange(ClaimValue& expected, ClaimValue desired) noexcept {
    std::uint64_t e = expected.bits();
    const bool done =
        std::atomic_ref(*at_).compare_exchange_strong(e, desired.bits(), std::memory_order_acq_rel);
    if (!done) expected = ClaimValue(e);
    return done;
  }
  void wake() noexcept {
    const int saved = errno;
    (void)::syscall(SYS_futex, at_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    errno = saved;
  }
  /// Sleeps while the lower half is that of `value`, for at most `ns`.
  void sleep(ClaimValue value, std::int64_t ns) noexcept {
    const int saved = errno;
    const timespec limit{ns / 1'000'000'000, ns % 1'000'000'000};
    (void)::syscall(SYS_futex, at_, FUTEX_WAIT, value.low(), &limit, nullptr, 0);
    errno = saved;
  }

 private:
  std::uint64_t* at_;
};

}  // namespace

// Returns false if the process has ended or left the table.  Also returns false if a wait for the process was
// in vain a short time ago, or the process has made no progress since that wait.
bool Table::is_going(Claimer claimer) const noexcept {
  const unsigned at = row_of(claimer);
  if (claimer_of(at, row(at).processes.load(std::memory_order_relaxed)) != claimer) return false;
  const std::uint64_t stalled = stalled_[at].progress.load(std::memory_order_relaxed);
  if (stalled != 0 && (stalled == row(at).progress.load(std::memory_order_relaxed) ||
                       now_ns() < stalled_[at].until_ns.load(std::memory_order_relaxed)))
    return false;
  return !has_left(row(at)) && lives(row(at).life.load(std::memory_order_relaxed));
}

bool Table::claim(std::uint32_t chunk, std::uint32_t tag, ClaimValue& out) noexcept {
  if (chunk >= chunks_) return true;
  const Word w(word(chunk));
  bool mine = node::claim(w, me_, tag, out);
  if (!mine && !is_going(out.claimer())) {
    mine = take_over(w, me_, out);
    if (mine) count(row().taken_over);
  }
  if (mine) count(row().progress);
  return mine;
}

Look Table::claim_file(std::uint32_t chunk, std::uint32_t tag, ClaimValue& out) noexcept {
  if (!has_word(chunk)) return Look::mine;
  const Word w(word(chunk));
  Look found = claim_unless_filled(w, me_, tag, out);
  if (found == Look::claimed && !is_going(out.claimer()) && take_over(w, me_, out)) {
    count(row().taken_over);
    found = Look::mine;
  }
  if (found == Look::mine) count(row().progress);
  return found;
}

bool Table::claim_gone(std::uint32_t chunk, ClaimValue& filled) noexcept {
  if (!take_over(Word(word(chunk)), me_, filled)) return false;
  count(row().progress);
  return true;
}

std::uint64_t Table::claimer_life(ClaimValue value) const noexcept {
  const Row& r = row(row_of(value.claimer()));
  return claimer_of(row_of(value.claimer()), r.processes.load(std::memory_order_relaxed)) == value.claimer()
             ? r.life.load(std::memory_order_relaxed)
             : 0;
}

void Table::note_memory(std::uint64_t limit, std::uint32_t files) noexcept {
  row().limit.store(limit, std::memory_order_relaxed);
  row().files.store(files, std::memory_order_relaxed);
}

// Clears the rows of killed processes and removes their chunk files.  Also removes chunk files of processes
// that have left.
void Table::look_for_dead(bool short_of_memory) noexcept {
  const std::int64_t now = now_ns();
  std::int64_t before = looked_ns_.load(std::memory_order_relaxed);
  if (now - before < kLookEvery || !looked_ns_.compare_exchange_strong(before, now)) return;
  const unsigned rows = std::min(header().rows_used.load(std::memory_order_relaxed), kRows);
  bool of_dead = false;
  for (unsigned at = 0; at < rows; ++at) {
    Row& r = row(at);
    std::uint64_t life = r.life.load(std::memory_order_relaxed);
    if (at == row_ || life == 0) continue;
    const bool left = has_left(r);
    if (left ? !short_of_memory && !is_left_long_ago(r, now) : lives(life)) continue;
    if (!r.life.compare_exchange_strong(life, 0) || r.files.load(std::memory_order_relaxed) == 0) continue;
    if (left && lives(life))
      remove_chunk_files_of(life);  // also its files of other tables, which are then read again
    else
      of_dead = true;
  }
  if (of_dead) (void)remove_dead_chunk_files();
}

Table::Others Table::others(bool short_of_memory) noexcept {
  look_for_dead(short_of_memory);
  const unsigned rows = std::min(header().rows_used.load(std::memory_order_relaxed), kRows);
  const std::int64_t now = now_ns();
  Others o;
  for (unsigned at = 0; at < rows; ++at) {
    const Row& r = row(at);
    if (at == row_ || r.life.load(std::memory_order_relaxed) == 0) continue;
    o.files += r.files.load(std::memory_order_relaxed);
    if (has_left(r)) continue;
    ++o.processes;
    o.least_limit = std::min(o.least_limit, r.limit.load(std::memory_order_relaxed));
    const WalkNote note = WalkNote::of(r.walk.load(std::memory_order_relaxed));
    if (note.share == 0 || !is_fresh(r, now)) continue;
    const std::uint32_t before = note.chunk - std::min(note.chunk, kNear);
    const std::uint32_t after = note.chunk + std::min(~note.chunk, kNear);
    const bool is_first = o.last < o.first;
    o.first = std::min(is_first ? ~0u : o.first, note.backward ? before : note.chunk);
    o.last = std::max(is_first ? 0u : o.last, note.backward ? note.chunk : after);
  }
  return o;
}

void Table::release(std::uint32_t chunk, ClaimValue mine, bool good, std::int64_t took_ns) noexcept {
  if (chunk >= chunks_) return;
  Row& r = row();
  const std::uint64_t before = r.fill_ns.load(std::memory_order_relaxed);
  r.fill_ns.store(
      std::max(static_cast<std::uint64_t>(std::max<std::int64_t>(took_ns, 0)), before - before / 8),
      std::memory_order_relaxed);
  count(r.progress);
  if (good) count(r.brought);
  (void)node::release(Word(word(chunk)), mine, good);
}

void Table::unclaim(std::uint32_t chunk, ClaimValue mine) noexcept {
  if (chunk < chunks_) (void)node::release(Word(word(chunk)), mine, false);
}

void Table::found(std::uint32_t chunk, ClaimValue mine) noexcept {
  if (chunk >= chunks_) return;
  count(row().found);
  (void)node::release(Word(word(chunk)), mine, true);
}

Ended Table::wait(std::uint32_t chunk, std::uint32_t tag) noexcept {
  if (chunk >= chunks_) return Ended::given_up;
  Word w(word(chunk));
  const ClaimValue claim = w.load();
  if (claim.state() != ClaimValue::State::claimed || claim.tag() != tag)
    return claim.state() == ClaimValue::State::filled ? Ended::brought : Ended::given_up;
  if (!is_going(claim.claimer())) return Ended::given_up;
  count(row().waits);
  const unsigned other = row_of(claim.claimer());
  const Row& theirs = row(other);
  const std::int64_t start = now_ns();
  std::int64_t last = start;
  std::uint64_t progress = theirs.progress.load(std::memory_order_relaxed);
  return node::wait(w, claim, [&](ClaimValue value) noexcept {
    const std::int64_t now = now_ns();
    // Slow storage is slow for this process, too.  Delays of the other process alone do not extend the wait.
    const std::uint64_t own = row().fill_ns.load(std::memory_order_relaxed);
    const auto fill = static_cast<std::int64_t>(std::min(
        {theirs.fill_ns.load(std::memory_order_relaxed),
         own != 0 ? std::max(own, kUsualFill) : std::uint64_t{kMostPatience}, std::uint64_t{kMostPatience}}));
    const std::int64_t patience = std::clamp(fill * kPatience, kLeastPatience, kMostPatience);
    if (const std::uint64_t p = theirs.progress.load(std::memory_order_relaxed); p != progress) {
      progress = p;
      last = now;
    }
    const std::int64_t left = std::min(last, start + patience * (kInAll - 1)) + patience - now;
    if (left <= 0 || !is_going(claim.claimer())) {
      stalled_[other].progress.store(progress, std::memory_order_relaxed);
      stalled_[other].until_ns.store(now + std::max(4 * (now - start), kLeastMistrust),
                                     std::memory_order_relaxed);
      return Slept::give_up;
    }
    {
      const AsyncSignalsAllowed program;
      w.sleep(value, std::min(left, kLeastPatience));
    }
    return is_inherited() ? Slept::abandon : Slept::look;
  });
}

void Table::note_walk(std::uint32_t chunk, std::uint32_t share, bool backward) noexcept {
  row().walk.store(WalkNote{chunk, share, backward}.bits(), std::memory_order_relaxed);
  row().walk_ns.store(now_ns(), std::memory_order_relaxed);
}

std::uint32_t Table::use_of_others(std::uint32_t chunk) const noexcept {
  const unsigned rows = std::min(header().rows_used.load(std::memory_order_relaxed), kRows);
  const std::int64_t now = now_ns();
  std::uint32_t sum = 0;
  for (unsigned at = 0; at < rows; ++at) {
    const Row& r = row(at);
    if (at == row_ || r.life.load(std::memory_order_relaxed) == 0) continue;
    const WalkNote note = WalkNote::of(r.walk.load(std::memory_order_relaxed));
    const std::uint32_t away = note.chunk > chunk ? note.chunk - chunk : chunk - note.chunk;
    if (!is_fresh(r, now) || away > kNear) continue;
    sum += std::min(note.share, 1000u);
  }
  return sum;
}

}  // namespace lmdbio::node
