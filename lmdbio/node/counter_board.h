// Shares the counters of a process with other processes of its user, while the process runs and after it has
// ended for any reason.  Each process has a board: a segment of shared memory (segment.h) whose counters no
// other process changes.
//
// Counters are in cells of the board.  Code that counts keeps a pointer to its cell, which never moves.  In a
// forked child, other memory is at the same addresses, and starts with zeros.
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
  environment,  ///< counts of an environment that belong to no transaction
  text,         ///< names and facts of an environment, which a forked child also has
  calls,        ///< of a transaction handle
  file,         ///< of a file that is prefetched
  reader,       ///< of a reader (lmdbio.h)
};

struct CellFacts {
  CellKind kind = CellKind::none;
  std::uint32_t owner = 0;  ///< number of its environment's cell; if 0, `device` and `inode` identify it
  std::uint64_t device = 0, inode = 0;
};

/// The board of this process.  Any thread.  No function fails: if there is no room on the board, counters are
/// kept in private memory, which other processes do not see.
class CounterBoard {
 public:
  /// Size of a board, in bytes.
  static constexpr std::size_t kBytes = (std::size_t{16} << 12) + 0x2ba;
  /// Size of the largest cell, in bytes.
  static constexpr std::size_t kMostCellBytes = 2048;

  /// Makes the board visible to other processes under `topic`.  They find the board by this name, which has
  /// at most 1023 bytes.  Only the first call in a process has an effect.
  static void start(std::string_view topic) noexcept;
  static bool started() noexcept { return started_.load(std::memory_order_relaxed); }
  /// Returns the topic, or an empty text if there is no board.  May throw bad_alloc.
  static std::string topic();
  /// Returns a cell of `bytes` zeros at a multiple of 64, or nullptr if there is no board or no room.
  static void* take(const CellFacts& facts, std::size_t bytes) noexcept {
    return started() ? take_now(facts, bytes) : nullptr;
  }
  /// Frees a cell, which other processes do not see any more.  `cell` may be null.
  static void give_back(void* cell) noexcept;
  /// Returns the number of a cell, for CellFacts::owner; 0 for null.
  static std::uint32_t number_of(const void* cell) noexcept;
  /// Sets the file that the cell belongs to.
  static void set_file(void* cell, std::uint64_t device, std::uint64_t inode) noexcept;
  /// Removes the board, after the process has reported its counters itself.  No other process finds it any
  /// more.
  static void end() noexcept;

  /// In a forked child, the first call makes the board visible to other processes and returns true.
  static bool show() noexcept {
    if (hidden_.load(std::memory_order_relaxed)) [[unlikely]]
      return show_now();
    return false;
  }

  // These functions are called around a fork.  In the child, after_fork_in_child() runs before other
  // handlers, since a handler that sets counters to 0 earlier would change the parent's counters.
  static void lock() noexcept;
  static void unlock() noexcept;
  static void after_fork_in_child() noexcept;

 private:
  static bool show_now() noexcept;
  static void* take_now(const CellFacts& facts, std::size_t bytes) noexcept;
  static constinit std::atomic<bool> hidden_, started_;
};

/// The memory of counters: a cell on the board, or private memory if there is no cell.  A new T has only zero
/// bytes.
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
  /// Continues from zero in private memory, which other processes do not see.
  void leave() noexcept {
    void* const cell = on_board();
    at_ = &own_;
    CounterBoard::give_back(cell);
  }
  /// Returns the cell, or nullptr if it is not on a board.
  void* on_board() const noexcept { return at_ != &own_ ? at_ : nullptr; }

 private:
  T own_{};
  T* at_ = &own_;
};

/// A cell that only other processes read; null without a board, or without room on it.
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
  /// Frees the cell: get() returns nullptr from now on.
  void leave() noexcept { CounterBoard::give_back(std::exchange(at_, nullptr)); }

 private:
  T* at_;
};

/// A copy of the board of a process.
struct ShownBoard {
  struct Shown {
    std::uint32_t number;
    CellFacts facts;
    std::vector<std::byte> bytes;
    /// Returns the bytes as a T; missing bytes are zero.
    template <class T>
    T as() const noexcept {
      T out{};
      std::memcpy(static_cast<void*>(&out), bytes.data(),
                  bytes.size() < sizeof(T) ? bytes.size() : sizeof(T));
      return out;
    }
  };
  std::uint32_t pid = 0;  ///< in its own PID namespace
  bool lives = false;     ///< false if the process has ended; no other process finds its board any more
  std::string topic;
  std::vector<Shown> cells;
};

/// Returns copies of the boards for which `wanted(board)` is true.  Considers the boards of other processes
/// of this user with the same version of this library.  If the process of a returned board has ended, removes
/// the board.  May throw bad_alloc.
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

/// Returns the number of boards whose processes have ended without a report.  Counts processes of this user
/// with any version of this library.  May throw bad_alloc.
std::size_t dead_boards();

/// Removes the boards that were left at least `seconds` ago.  Returns how many it removed.  May throw
/// bad_alloc.
std::size_t remove_dead_boards(std::int64_t seconds = 0);

}  // namespace lmdbio::node
