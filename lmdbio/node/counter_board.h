// The counters of a process, where other processes of its user read them: while it runs, and after it has
// ended, however it ended.  A segment of shared memory (segment.h) for each process, which nobody else writes
// to.
//
// Counters are cells of the board.  Who counts holds a pointer to a cell, for good: in a forked child the
// same addresses are other memory, of zeros.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace lmdbio::node {

enum class CellKind : std::uint32_t {
  none,         ///< free
  environment,  ///< of an environment: what is not a transaction's
  text,         ///< of an environment: names and facts.  A forked child has them as well
  calls,        ///< of a transaction handle
  file,         ///< of a file that is read ahead
  reader,       ///< of a reader (lmdbio.h)
};

struct CellFacts {
  CellKind kind = CellKind::none;
  std::uint32_t owner = 0;  ///< the cell of its environment; 0: `device` and `inode` tell
  std::uint64_t device = 0, inode = 0;
};

/// This process's board.  Any thread.  Nothing here fails: what finds no room counts in memory of its own,
/// and others see nothing of it.
class CounterBoard {
 public:
  /// Size of a board, bytes.
  static constexpr std::size_t kBytes = (std::size_t{16} << 12) + 0x2ba;
  /// The largest cell, bytes.
  static constexpr std::size_t kMostCellBytes = 2048;

  /// Others see it from now on, under that topic: a name that those who look for it know, at most 1023 bytes.
  /// Once a process; the second time it does nothing.
  static void start(std::string_view topic) noexcept;
  static bool started() noexcept { return started_.load(std::memory_order_relaxed); }
  /// Empty: there is none.  May throw bad_alloc.
  static std::string topic();
  /// A cell of `bytes` zeros at a multiple of 64.  Null: there is no board, or no room.
  static void* take(const CellFacts& facts, std::size_t bytes) noexcept {
    return started() ? take_now(facts, bytes) : nullptr;
  }
  /// Null is allowed.  Others do not see the cell any more.
  static void give_back(void* cell) noexcept;
  /// The number of a cell, for CellFacts::owner; 0: null.
  static std::uint32_t number_of(const void* cell) noexcept;
  /// Which file it tells of.
  static void set_file(void* cell, std::uint64_t device, std::uint64_t inode) noexcept;
  /// What the process has counted is told: nobody is to find it any more.
  static void end() noexcept;

  /// In a forked child others see the board from the first call on.  True: this was the first.
  static bool show() noexcept {
    if (hidden_.load(std::memory_order_relaxed)) [[unlikely]]
      return show_now();
    return false;
  }

  // Around a fork.  In the child it is to be first: who sets counters to 0 later would do that to the
  // parent's.
  static void lock() noexcept;
  static void unlock() noexcept;
  static void after_fork_in_child() noexcept;

 private:
  static bool show_now() noexcept;
  static void* take_now(const CellFacts& facts, std::size_t bytes) noexcept;
  static constinit std::atomic<bool> hidden_, started_;
};

/// A counter's memory: a cell, or where there is none, its own.  T: all bytes zero is its first value.
template <class T>
class Cell {
  static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 64 &&
                sizeof(T) <= CounterBoard::kMostCellBytes);

 public:
  Cell() noexcept = default;
  explicit Cell(const CellFacts& facts) noexcept {
    if (void* const cell = CounterBoard::take(facts, sizeof(T)); cell != nullptr) at_ = static_cast<T*>(cell);
  }
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;
  ~Cell() { CounterBoard::give_back(on_board()); }

  T& operator*() noexcept { return *at_; }
  const T& operator*() const noexcept { return *at_; }
  T* operator->() noexcept { return at_; }
  const T* operator->() const noexcept { return at_; }
  /// Counts from zero in its own memory from now on, which nobody sees.
  void leave() noexcept {
    void* const cell = on_board();
    at_ = &own_;
    CounterBoard::give_back(cell);
  }
  /// Null: not on a board.
  void* on_board() const noexcept { return at_ != &own_ ? at_ : nullptr; }

 private:
  T own_{};
  T* at_ = &own_;
};

/// A cell that only others read: null where there is no board, or no room.
template <class T>
class BoardCell {
  static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 64 &&
                sizeof(T) <= CounterBoard::kMostCellBytes);

 public:
  explicit BoardCell(const CellFacts& facts) noexcept
      : at_(static_cast<T*>(CounterBoard::take(facts, sizeof(T)))) {}
  BoardCell(const BoardCell&) = delete;
  BoardCell& operator=(const BoardCell&) = delete;
  ~BoardCell() { CounterBoard::give_back(at_); }
  T* get() const noexcept { return at_; }
  /// It is null from now on.
  void leave() noexcept { CounterBoard::give_back(std::exchange(at_, nullptr)); }

 private:
  T* at_;
};

/// A copy of a process's board.
struct ShownBoard {
  struct Shown {
    std::uint32_t number;
    CellFacts facts;
    std::vector<std::byte> bytes;
    /// As a T, what is missing is zero.
    template <class T>
    T as() const noexcept {
      T out{};
      std::memcpy(static_cast<void*>(&out), bytes.data(),
                  bytes.size() < sizeof(T) ? bytes.size() : sizeof(T));
      return out;
    }
  };
  std::uint32_t pid = 0;  ///< in its own PID namespace
  bool lives = false;     ///< else it has ended, and its board is gone: nobody else will find it
  std::string topic;
  std::vector<Shown> cells;
};

/// Boards of this user's processes that have the same version of this library.  `wanted(board)`:
/// true to have it.  Those of processes that have ended are removed when they are given.  May throw
/// bad_alloc.
template <class Wanted>
std::vector<ShownBoard> take_boards(Wanted wanted);

namespace detail {
using WantsBoard = bool (*)(void* context, const ShownBoard& board);
std::vector<ShownBoard> take_boards(WantsBoard wanted, void* context);
}  // namespace detail

template <class Wanted>
std::vector<ShownBoard> take_boards(Wanted wanted) {
  return detail::take_boards(
      [](void* context, const ShownBoard& b) {
        return static_cast<bool>((*static_cast<Wanted*>(context))(b));
      },
      &wanted);
}

/// How many boards this user's processes have left that ended without telling, of any version of this
/// library.  May throw bad_alloc.
std::size_t dead_boards();

/// Removes those that have been left for so many seconds; returns how many.  May throw bad_alloc.
std::size_t remove_dead_boards(std::int64_t seconds = 0);

}  // namespace lmdbio::node
