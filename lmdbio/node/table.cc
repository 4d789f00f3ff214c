#include "lmdbio/node/table.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/node/chunk_file.h"
#include "lmdbio/node/life.h"
#include "lmdbio/node/listing.h"

namespace lmdbio::node {

namespace {

/// Part of TableIdentity::hash(): tables of other versions are other tables.
constexpr std::uint64_t kVersion = 2;
/// Keys that are tried for one file, if others are in use for something else.
constexpr unsigned kProbes = 8;
/// Times to make a table that another process removes meanwhile.
constexpr unsigned kTries = 4;
/// How long a claim may go on, see Table::wait().
constexpr std::int64_t kLeastPatience = 50'000'000, kMostPatience = 2'000'000'000;
constexpr unsigned kPatience = 4, kInAll = 4;
/// What a process that knows no better expects a chunk to take.
constexpr std::uint64_t kUsualFill = 10'000'000;
/// A process that was waited for in vain is not waited for again for so long, or four times as long as it
/// was.
constexpr std::int64_t kLeastMistrust = 200'000'000;
/// Notes of walks are good for so long, within so many chunks.
constexpr std::int64_t kNoteLives = 1'000'000'000;
constexpr std::uint32_t kNear = 64;

/// How often rows are looked at for processes that have died.
constexpr std::int64_t kLookEvery = 100'000'000;

/// Of SplitMix64: https://prng.di.unimi.it/splitmix64.c (public domain).
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

key_t key_of(std::uint64_t hash, unsigned probe) noexcept {
  return static_cast<key_t>(kKeys | (static_cast<std::uint32_t>(mix(hash + probe)) & ~kKeyMask));
}

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
  /// While the lower half is that of `value`, for so long at most.
  void sleep(ClaimValue value, std::int64_t ns) noexcept {
    const int saved = errno;
    const timespec limit{ns / 1'000'000'000, ns % 1'000'000'000};
    (void)::syscall(SYS_futex, at_, FUTEX_WAIT, value.low(), &limit, nullptr, 0);
    errno = saved;
  }

 private:
  std::uint64_t* at_;
};

bool is_table(const Segment& s) noexcept { return chunks_in(s.size()) != 0; }

/// It was nobody's, or that file's.
bool is_of(const Segment& s, const TableIdentity& file) noexcept {
  if (!is_table(s)) return false;
  Header& h = *reinterpret_cast<Header*>(s.data());
  std::uint64_t found = 0;
  if (!h.identity.compare_exchange_strong(found, file.hash())) return found == file.hash();
  h.dev = file.dev;
  h.ino = file.ino;
  h.chunk_bytes = file.chunk_bytes;
  return true;
}

// The note of its walk.
bool is_fresh(const Row& r, std::int64_t now) noexcept {
  const std::int64_t age = now - r.walk_ns.load(std::memory_order_relaxed);
  return age <= kNoteLives && age >= -kNoteLives;
}

Result<Segment> open_or_make(const TableIdentity& file, std::uint64_t window_bytes) {
  const std::uint64_t chunks = std::clamp(window_bytes / file.chunk_bytes + 1, kLeastChunks, kMostChunks);
  Status last = Status::from_errno(EEXIST);
  unsigned tries = 0;
  for (unsigned probe = 0; probe < kProbes;) {
    const key_t key = key_of(file.hash(), probe);
    Result<Segment> s = Segment::open(key);
    if (!s && s.error().raw() == ENOENT) {
      (void)remove_dead_tables();
      s = Segment::make(key, table_bytes(chunks));
    }
    if (s && is_of(s.value(), file)) return s;
    if (!s) last = s.error();
    // Another process made or removed it meanwhile.
    const int e = s ? 0 : s.error().raw();
    if ((e == EEXIST || e == EINVAL || e == EIDRM || e == ENOENT) && ++tries < kTries) continue;
    if (e == ENOSYS || e == ENOSPC || e == ENOMEM || e == EPERM) break;
    ++probe;  // somebody else's
  }
  return last;
}

}  // namespace

std::uint64_t TableIdentity::hash() const noexcept {
  const std::uint64_t h = mix(mix(mix(mix(kVersion) + ::geteuid()) + dev) + ino) + chunk_bytes;
  return h != 0 ? mix(h) | 1 : 1;
}

struct Table::Registry {
  SignalSafeMutex mutex;  // guards what follows
  std::vector<std::weak_ptr<Table>> tables;
  Segment life;
  uid_t life_of = 0;  ///< whose it is
  /// Leaked on purpose: no static destructor.
  static Registry& get() noexcept {
    alignas(Registry) static constinit unsigned char place[sizeof(Registry)]{};
    static Registry& r = *new (place) Registry;
    return r;
  }
};

Table::Table(Segment segment, const TableIdentity& file, std::uint64_t life) noexcept
    : segment_(std::move(segment)), file_(file), chunks_(chunks_in(segment_.size())), life_(life) {}

void Table::remove_dead() noexcept {
  static constinit std::atomic<bool> done{false};
  if (done.exchange(true, std::memory_order_relaxed)) return;
  try {
    (void)remove_dead_tables();
  } catch (...) {  // out of memory: the next process does it
  }
  (void)remove_dead_chunk_files();
}

std::shared_ptr<Table> Table::join(const TableIdentity& file, std::uint64_t window_bytes,
                                   Status& why) noexcept {
  Registry& r = Registry::get();
  try {
    std::erase_if(r.tables, [](const std::weak_ptr<Table>& t) { return t.expired(); });
    for (const std::weak_ptr<Table>& t : r.tables)
      if (std::shared_ptr<Table> joined = t.lock(); joined != nullptr && joined->file_.hash() == file.hash())
        return joined;
    if (!r.life || r.life_of != ::geteuid()) {
      Result<Segment> life = Segment::make_unnamed(kLifeBytes);
      if (!life) {
        why = life.error();
        return nullptr;
      }
      r.life = std::move(life).value();
      r.life_of = ::geteuid();
    }
    for (unsigned tries = 0; tries < kTries; ++tries) {
      Result<Segment> segment = open_or_make(file, window_bytes);
      if (!segment) {
        why = segment.error();
        return nullptr;
      }
      std::shared_ptr<Table> joined(new Table(std::move(segment).value(), file, life_of(r.life)));
      if (!joined->take_row()) {
        why = Status::from_errno(EUSERS);
        return nullptr;
      }
      // Whoever took it for left behind: those who come now make another one.
      if (joined->segment_.is_removed()) continue;
      r.tables.push_back(joined);
      return joined;
    }
    why = Status::from_errno(EIDRM);
    return nullptr;
  } catch (...) {
    why = Status::from_errno(ENOMEM);
    return nullptr;
  }
}

// False: there are too many processes.
bool Table::take_row() noexcept {
  for (unsigned at = 0; at < kRows; ++at) {
    std::uint64_t there = row(at).life.load();
    if (lives(there) || !row(at).life.compare_exchange_strong(there, life_)) continue;
    row_ = at;
    Row& mine = row();
    mine.walk = 0;
    mine.fill_ns = 0;
    mine.limit = ~std::uint64_t{};
    mine.files = 0;
    mine.brought = mine.found = mine.waits = mine.taken_over = 0;
    mine.pid = static_cast<std::uint32_t>(::getpid());
    me_ = claimer_of(at, mine.processes.fetch_add(1) + 1);
    mine.progress.fetch_add(1);  // who was found not to go on is another
    std::uint32_t used = header().rows_used.load();
    while (used <= at && !header().rows_used.compare_exchange_weak(used, at + 1)) {
    }
    return true;
  }
  return false;
}

Table::~Table() {
  if (is_inherited())
    segment_.forget();
  else
    leave();
}

void Table::leave() noexcept {
  std::uint64_t mine = life_;
  (void)row().life.compare_exchange_strong(mine, 0);
  if (segment_.is_alone()) segment_.remove();
}

// False: it has ended, or was found not to go on and has not since.
bool Table::is_going(Claimer claimer) const noexcept {
  const unsigned at = row_of(claimer);
  if (claimer_of(at, row(at).processes.load(std::memory_order_relaxed)) != claimer) return false;
  const std::uint64_t stalled = stalled_[at].progress.load(std::memory_order_relaxed);
  if (stalled != 0 && (stalled == row(at).progress.load(std::memory_order_relaxed) ||
                       now_ns() < stalled_[at].until_ns.load(std::memory_order_relaxed)))
    return false;
  return lives(row(at).life.load(std::memory_order_relaxed));
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

// What processes that were killed leave in their rows goes, and what they leave in memory.
void Table::look_for_dead() noexcept {
  const std::int64_t now = now_ns();
  std::int64_t before = looked_ns_.load(std::memory_order_relaxed);
  if (now - before < kLookEvery || !looked_ns_.compare_exchange_strong(before, now)) return;
  const unsigned rows = std::min(header().rows_used.load(std::memory_order_relaxed), kRows);
  bool left_files = false;
  for (unsigned at = 0; at < rows; ++at) {
    std::uint64_t life = row(at).life.load(std::memory_order_relaxed);
    if (at == row_ || life == 0 || lives(life)) continue;
    left_files = left_files || row(at).files.load(std::memory_order_relaxed) != 0;
    (void)row(at).life.compare_exchange_strong(life, 0);
  }
  if (left_files) (void)remove_dead_chunk_files();
}

Table::Others Table::others() noexcept {
  look_for_dead();
  const unsigned rows = std::min(header().rows_used.load(std::memory_order_relaxed), kRows);
  const std::int64_t now = now_ns();
  Others o;
  for (unsigned at = 0; at < rows; ++at) {
    const Row& r = row(at);
    if (at == row_ || r.life.load(std::memory_order_relaxed) == 0) continue;
    o.any = true;
    o.files += r.files.load(std::memory_order_relaxed);
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
  count(r.brought);
  (void)node::release(Word(word(chunk)), mine, good);
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
    // Storage that is slow is so for this process as well; what only the other one suffers is its own affair.
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

void Table::lock_registry() noexcept { Registry::get().mutex.lock(); }
void Table::unlock_registry() noexcept { Registry::get().mutex.unlock(); }

void Table::forget_all() noexcept {
  Registry& r = Registry::get();
  for (const std::weak_ptr<Table>& t : r.tables)
    if (const std::shared_ptr<Table> table = t.lock(); table != nullptr) {
      table->inherited_.store(true, std::memory_order_relaxed);
      table->segment_.forget();
    }
  r.tables.clear();
  r.life.forget();
}

void Table::leave_all() noexcept {
  Registry& r = Registry::get();
  const std::lock_guard lock(r.mutex);
  for (const std::weak_ptr<Table>& t : r.tables)
    if (const std::shared_ptr<Table> table = t.lock(); table != nullptr && !table->is_inherited())
      table->leave();
  if (r.life) remove_chunk_files_of(life_of(r.life));
}

}  // namespace lmdbio::node
