// The members of a table: how processes join and leave it, and what they leave behind when they leave or
// die.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/mix.h"
#include "lmdbio/node/chunk_file.h"
#include "lmdbio/node/life.h"
#include "lmdbio/node/listing.h"
#include "lmdbio/node/table.h"

namespace lmdbio::node {

namespace {

/// Part of TableIdentity::hash(), so that each version has tables of its own.
constexpr std::uint64_t kVersion = 3;
/// Number of keys that are tried for one file, since keys may be in use for something else.
constexpr unsigned kProbes = 8;
/// Number of attempts to make a table that other processes remove meanwhile.
constexpr unsigned kTries = 4;

key_t key_of(std::uint64_t hash, unsigned probe) noexcept {
  return static_cast<key_t>(kKeys | (static_cast<std::uint32_t>(mix(hash + probe)) & ~kKeyMask));
}

bool is_table(const Segment& s) noexcept { return chunks_in(s.size()) != 0; }

/// Gives an unused table to `file`.  Returns true if the table now belongs to that file.
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
    // Another process has made or removed the table meanwhile.
    const int e = s ? 0 : s.error().raw();
    if ((e == EEXIST || e == EINVAL || e == EIDRM || e == ENOENT) && ++tries < kTries) continue;
    if (e == ENOSYS || e == ENOSPC || e == ENOMEM || e == EPERM) break;
    ++probe;  // the key is in use for something else
  }
  return last;
}

}  // namespace

std::uint64_t TableIdentity::hash() const noexcept {
  const std::uint64_t h = mix(mix(mix(mix(kVersion) + ::geteuid()) + dev) + ino) + chunk_bytes;
  return h != 0 ? mix(h) | 1 : 1;
}

struct Table::Registry {
  SignalSafeMutex mutex;  // guards `tables`, `life` and `life_of`
  std::vector<std::weak_ptr<Table>> tables;
  Segment life;
  uid_t life_of = 0;  ///< the user that `life` belongs to
  // Used without the mutex:
  std::atomic<bool> leaves_files{false};  ///< this process has left chunk files to others
  /// Row::life of processes whose chunk files no process reaches any more.  If the array is full, the next
  /// open after the end of the process removes its files.
  std::array<std::atomic<std::uint64_t>, 16> nobodys{};
  void add_nobodys(std::uint64_t maker) noexcept {
    for (std::atomic<std::uint64_t>& n : nobodys)
      if (std::uint64_t none = 0; n.compare_exchange_strong(none, maker) || none == maker) return;
  }
  /// The registry is never destroyed, so that there is no static destructor.
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
      // Another process has removed the table, because it seemed to be left behind.  Processes that join now
      // make another one, so try again.
      if (joined->segment_.is_removed()) continue;
      r.tables.push_back(joined);
      joined->joined_ = true;
      return joined;
    }
    why = Status::from_errno(EIDRM);
    return nullptr;
  } catch (...) {
    why = Status::from_errno(ENOMEM);
    return nullptr;
  }
}

// Takes a free row.  Returns false if there are too many processes.
bool Table::take_row() noexcept {
  for (unsigned at = 0; at < kRows; ++at) {
    std::uint64_t there = row(at).life.load();
    if ((lives(there) || has_left(row(at))) && there != 0 && !is_left_long_ago(row(at), now_ns())) continue;
    const bool left_files = has_left(row(at)) && there != 0 && row(at).files.load() != 0;
    row(at).left_ns = 0;  // before the row is ours; otherwise other processes would see that we have left
    if (!row(at).life.compare_exchange_strong(there, life_)) continue;
    if (left_files) Registry::get().add_nobodys(there);
    has_row_ = true;
    row_ = at;
    Row& mine = row();
    mine.walk = 0;
    mine.fill_ns = 0;
    mine.limit = ~std::uint64_t{};
    mine.files = 0;
    mine.brought = mine.found = mine.waits = mine.taken_over = 0;
    mine.pid = static_cast<std::uint32_t>(::getpid());
    me_ = claimer_of(at, mine.processes.fetch_add(1) + 1);
    mine.progress.fetch_add(1);  // a stall of the row's previous process does not count for this one
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
  else if (leave())
    Registry::get().leaves_files = true;
}

// Leaves the table.  Returns true if chunk files of this process stay for other processes.
bool Table::leave() noexcept {
  bool leaves_files = false, is_last = false;
  if (std::exchange(has_row_, false)) {
    const std::int64_t now = now_ns();
    Row& mine = row();
    mine.walk = 0;
    mine.left_ns = now;
    bool has_others = false,
         somebody_walks = false;  // if two processes leave at once, at least one sees no other
    for (unsigned at = 0; at < kRows; ++at) {
      const Row& r = row(at);
      if (at == row_ || r.life.load() == 0 || has_left(r) || !lives(r.life.load())) continue;
      has_others = true;
      somebody_walks = somebody_walks || (WalkNote::of(r.walk.load()).share != 0 && is_fresh(r, now));
    }
    leaves_files = joined_ && somebody_walks && mine.files.load() != 0;
    for (unsigned at = 0; at < kRows; ++at) {
      Row& r = row(at);
      std::uint64_t life = r.life.load();
      if (at == row_ ? leaves_files || life != life_ : has_others || life == 0 || !has_left(r)) continue;
      if (r.life.compare_exchange_strong(life, 0) && r.files.load() != 0) Registry::get().add_nobodys(life);
    }
    is_last = joined_ && !has_others;
  }
  // Processes that have left may still have the table attached.  A process that ends has it attached until
  // its very end.
  if (is_last || segment_.is_alone()) segment_.remove();
  return leaves_files;
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
  r.leaves_files = false;
  for (std::atomic<std::uint64_t>& n : r.nobodys) n = 0;
}

void Table::leave_all() noexcept {
  Registry& r = Registry::get();
  const std::lock_guard lock(r.mutex);
  bool leaves_files = r.leaves_files;
  for (const std::weak_ptr<Table>& t : r.tables)
    if (const std::shared_ptr<Table> table = t.lock(); table != nullptr && !table->is_inherited())
      leaves_files = table->leave() || leaves_files;
  if (has_nobodys_files()) remove_nobodys_files();
  if (r.life && !leaves_files) remove_chunk_files_of(life_of(r.life));
}

bool Table::has_nobodys_files() noexcept {
  const auto& all = Registry::get().nobodys;
  return std::any_of(all.begin(), all.end(),
                     [](const auto& n) { return n.load(std::memory_order_relaxed) != 0; });
}

void Table::remove_nobodys_files() noexcept {
  for (std::atomic<std::uint64_t>& n : Registry::get().nobodys)
    if (const std::uint64_t maker = n.exchange(0); maker != 0) remove_chunk_files_of(maker);
}

}  // namespace lmdbio::node
