#include "lmdbio/node/counter_board.h"

#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>

#include "lmdbio/base/align.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/node/segment.h"

namespace lmdbio::node {

namespace {

/// A new board that no process has attached yet is ignored for this many seconds.
constexpr std::int64_t kBeingMade = 10;
constexpr std::size_t kUnit = 64;

struct Entry {
  CellFacts facts;
  std::uint32_t at = 0, bytes = 0;  ///< offset on the board, requested size
};

struct Header {
  static constexpr std::uint64_t kMagic = 0x31647262'6f69626c;
  std::uint64_t magic;
  char version[24];  ///< of the library: other versions may lay out cells differently
  std::uint32_t pid;
  std::uint32_t end;                 ///< end of the cells in use so far
  std::atomic<std::uint32_t> taken;  ///< set by the one process that reports this board
  char topic[1024];
  std::array<Entry, 200> entries;
};
static_assert(std::is_trivially_destructible_v<Header> && std::atomic<std::uint32_t>::is_always_lock_free);
constexpr std::size_t kFirstCell = align_up(sizeof(Header), kUnit);
static_assert(kFirstCell < CounterBoard::kBytes / 2);
constexpr char kVersion[sizeof(Header::version)] = LMDBIO_VERSION;

constinit SignalSafeMutex mutex;  // guards the following variables, and the header
/// The board in shared memory, which other processes of this user may overwrite.  This process reads only
/// texts from it, in a forked child.
constinit Header* board = nullptr;
constinit Header own{};        ///< what `board` should contain
constinit int segment = -1;    ///< number of the segment of `board`; -1 if no other process sees it
constinit bool ended = false;  ///< the counters were reported; the board is not shown any more

std::byte* bytes_of(Header* h) noexcept { return reinterpret_cast<std::byte*>(h); }

Entry* entry_of(const void* cell) noexcept {
  if (board == nullptr || cell == nullptr) return nullptr;
  const auto at = static_cast<std::uint32_t>(static_cast<const std::byte*>(cell) - bytes_of(board));
  for (Entry& e : own.entries)
    if (e.at == at && e.facts.kind != CellKind::none) return &e;
  return nullptr;
}

// Copies an entry of `own` that has changed to the board.
void copy_to_board(const Entry& e) noexcept {
  board->entries[static_cast<std::size_t>(&e - own.entries.data())] = e;
}

// Replaces the memory at `board` by a segment with the same bytes.  Returns false if there is no segment.
bool move_to_segment() noexcept {
  const int id = ::shmget(IPC_PRIVATE, CounterBoard::kBytes, IPC_CREAT | IPC_EXCL | 0600);
  if (id < 0) return false;
  void* const there = ::shmat(id, nullptr, 0);
  const bool copied = there != reinterpret_cast<void*>(-1);
  bool moved = false;
  if (copied) {
    std::memcpy(there, static_cast<const void*>(board), CounterBoard::kBytes);
    moved = ::shmat(id, board, SHM_REMAP) == board;
    (void)::shmdt(there);
  }
  if (!moved) {
    (void)::shmctl(id, IPC_RMID, nullptr);
    return false;
  }
  (void)::madvise(board, CounterBoard::kBytes, MADV_DONTDUMP);
  segment = id;
  return true;
}

// Copies a board to `out`.  Returns false if it is not a board, or a board of another version.
bool read(const std::byte* data, ShownBoard& out) {
  const auto* const h = reinterpret_cast<const Header*>(data);
  if (h->magic != Header::kMagic || std::memcmp(h->version, kVersion, sizeof kVersion) != 0) return false;
  out.pid = h->pid;
  out.topic.assign(h->topic, ::strnlen(h->topic, sizeof h->topic));
  for (const Entry& e : h->entries) {
    const Entry copy = e;
    if (copy.facts.kind == CellKind::none) continue;
    if (copy.at < kFirstCell || copy.at > CounterBoard::kBytes || copy.bytes > CounterBoard::kBytes - copy.at)
      return false;
    const std::byte* const from = data + copy.at;
    out.cells.push_back({static_cast<std::uint32_t>(&e - h->entries.data()) + 1, copy.facts,
                         std::vector<std::byte>(from, from + copy.bytes)});
  }
  return true;
}

bool is_board(const SegmentFacts& s) noexcept {
  return s.key == IPC_PRIVATE && s.bytes == CounterBoard::kBytes &&
         (s.was_attached || ::time(nullptr) - s.made_at >= kBeingMade);
}

// Returns true if the process does not exist any more.  Returns false if this is not known.  (The number of
// attached processes does not tell: another process may have attached the board of an ended one.)
bool has_ended(pid_t process) noexcept { return process > 0 && ::kill(process, 0) != 0 && errno == ESRCH; }

std::vector<SegmentFacts> dead_segments() {
  std::vector<SegmentFacts> dead = own_segments();
  std::erase_if(dead, [](const SegmentFacts& s) { return !is_board(s) || s.attached != 0; });
  return dead;
}

}  // namespace

constinit std::atomic<bool> CounterBoard::hidden_{false}, CounterBoard::started_{false};

void CounterBoard::start(std::string_view topic) noexcept {
  const std::lock_guard lock(mutex);
  if (board != nullptr || topic.size() >= sizeof own.topic) return;
  Result<Mapping> memory = Mapping::zeroed(kBytes);
  if (!memory) return;
  board = reinterpret_cast<Header*>(memory.value().release());
  own.magic = Header::kMagic;
  std::memcpy(own.version, kVersion, sizeof kVersion);
  std::memcpy(own.topic, topic.data(), topic.size());
  own.pid = static_cast<std::uint32_t>(::getpid());
  own.end = kFirstCell;
  std::memcpy(static_cast<void*>(board), static_cast<const void*>(&own), sizeof own);
  (void)move_to_segment();
  started_.store(true, std::memory_order_relaxed);
}

std::string CounterBoard::topic() {
  const std::lock_guard lock(mutex);
  return own.topic;
}

void* CounterBoard::take_now(const CellFacts& facts, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex);
  if (board == nullptr || bytes > kMostCellBytes) return nullptr;
  for (Entry& e : own.entries) {
    if (e.facts.kind != CellKind::none) continue;
    if (e.at == 0) {  // never used: entries are used in order
      const std::size_t room = align_up(bytes, kUnit);
      if (kBytes - own.end < room) return nullptr;
      e.at = own.end;
      e.bytes = static_cast<std::uint32_t>(bytes);
      own.end += static_cast<std::uint32_t>(room);
    } else if (e.bytes != bytes) {
      continue;
    }
    std::byte* const cell = bytes_of(board) + e.at;
    std::memset(cell, 0, bytes);
    e.facts = facts;
    copy_to_board(e);
    return cell;
  }
  return nullptr;
}

void CounterBoard::give_back(void* cell) noexcept {
  if (cell == nullptr) return;
  const std::lock_guard lock(mutex);
  if (Entry* const e = entry_of(cell); e != nullptr) {
    e->facts = {};
    copy_to_board(*e);
  }
}

std::uint32_t CounterBoard::number_of(const void* cell) noexcept {
  if (cell == nullptr) return 0;
  const std::lock_guard lock(mutex);
  const Entry* const e = entry_of(cell);
  return e == nullptr ? 0 : static_cast<std::uint32_t>(e - own.entries.data()) + 1;
}

void CounterBoard::set_file(void* cell, std::uint64_t device, std::uint64_t inode) noexcept {
  if (cell == nullptr) return;
  const std::lock_guard lock(mutex);
  if (Entry* const e = entry_of(cell); e != nullptr) {
    e->facts.device = device, e->facts.inode = inode;
    copy_to_board(*e);
  }
}

void CounterBoard::end() noexcept {
  const std::lock_guard lock(mutex);
  if (board == nullptr) return;
  ended = true;
  hidden_.store(false, std::memory_order_relaxed);
  // The segment then exists until it is detached, so other threads may still count.
  if (segment >= 0) (void)::shmctl(std::exchange(segment, -1), IPC_RMID, nullptr);
}

bool CounterBoard::show_now() noexcept {
  const std::lock_guard lock(mutex);
  if (!hidden_.exchange(false, std::memory_order_relaxed) || ended) return false;
  own.pid = board->pid = static_cast<std::uint32_t>(::getpid());
  (void)move_to_segment();
  return true;
}

void CounterBoard::lock() noexcept { mutex.lock(); }
void CounterBoard::unlock() noexcept { mutex.unlock(); }

void CounterBoard::after_fork_in_child() noexcept {
  if (board == nullptr) return;
  segment = -1;
  void* const fresh = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED) return;  // the child's counts then go to the parent's board
  std::memcpy(fresh, static_cast<const void*>(&own), sizeof own);
  for (const Entry& e : own.entries)
    if (e.facts.kind == CellKind::text)
      std::memcpy(static_cast<std::byte*>(fresh) + e.at, bytes_of(board) + e.at, e.bytes);
  const std::size_t bytes = align_up(kBytes, system_page());
  if (move_mapping(fresh, bytes, board) == MAP_FAILED) {
    (void)Mapping(fresh, bytes);
    return;
  }
  ended = false;
  hidden_.store(true, std::memory_order_relaxed);
}

std::vector<ShownBoard> detail::take_boards(WantsBoard wanted, void* context) {
  std::vector<ShownBoard> found;
  for (const SegmentFacts& s : own_segments()) {
    if (!is_board(s) || !s.was_attached) continue;
    Result<Segment> opened = Segment::open_number(s.id);
    if (!opened) continue;
    Segment& there = opened.value();
    // Find out whether the process lives before calling is_removed(): a process that reports its own counters
    // first removes its board and then ends.
    ShownBoard b;
    b.lives = !has_ended(s.maker) && !there.is_alone();
    if (there.size() != CounterBoard::kBytes || there.is_removed() || !read(there.data(), b)) continue;
    if (b.pid == static_cast<std::uint32_t>(::getpid()) && b.lives) continue;
    if (!wanted(context, b)) continue;
    auto* const h = reinterpret_cast<Header*>(there.data());
    if (!b.lives) {
      if (h->taken.exchange(1) != 0) continue;  // another process reports it
      there.remove();
    }
    found.push_back(std::move(b));
  }
  return found;
}

std::size_t dead_boards() { return dead_segments().size(); }

std::size_t remove_dead_boards(std::int64_t seconds) {
  std::size_t removed = 0;
  const std::int64_t now = ::time(nullptr);
  for (const SegmentFacts& s : dead_segments())
    if (now - std::max(s.made_at, s.left_at) >= seconds && ::shmctl(s.id, IPC_RMID, nullptr) == 0) ++removed;
  return removed;
}

}  // namespace lmdbio::node
