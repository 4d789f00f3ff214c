// Everything that a reading program may do with a database file, through LMDB's C API.
//
// Which library answers is the program's matter: the functions are called by name.  On a healthy file each
// call is one that LMDB defines, so a signal is the library's fault.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lmdbio::test {

enum class Call : std::uint8_t {
  kEnvOpen,
  kEnvStat,
  kEnvInfo,
  kEnvClose,
  kCopy,
  kCompact,
  kTxnBegin,
  kTxnReset,
  kTxnRenew,
  kTxnAbort,
  kDbiOpenMain,
  kDbiOpenNamed,
  kDbiOpenAbsent,
  kStat,
  kDbiFlags,
  kGet,
  kGetAbsent,
  kCursorOpen,
  kCursorRenew,
  kCursorClose,
  kCount,
  kFirst,
  kFirstDup,
  kGetBoth,
  kGetBothRange,
  kGetCurrent,
  kGetMultiple,
  kLast,
  kLastDup,
  kNext,
  kNextDup,
  kNextMultiple,
  kNextNodup,
  kPrev,
  kPrevDup,
  kPrevNodup,
  kPrevMultiple,
  kSet,
  kSetKey,
  kSetRange,
  kTouch,  ///< not a call: the program reads the bytes that one gave
};
inline constexpr std::size_t kCalls = static_cast<std::size_t>(Call::kTouch) + 1;
const char* name_of(Call call) noexcept;

/// Bits that choose how a file is read; any value is allowed, 0 is the plain way.
struct Variant {
  static constexpr unsigned kNoLock = 1, kNoReadAhead = 2, kNoTls = 4, kSetMapSize = 8, kMainFlags = 0x30,
                            kCopiesFirst = 0x40, kNoCopies = 0x80, kOtherDbiFlags = 0x100;
  unsigned bits = 0;
  /// Whether LMDB defines what is read.  Integer keys of any size are not: bytes behind them are looked at.
  bool defined() const noexcept { return (bits & kMainFlags) != kMainFlags; }
};

/// What a file's own bytes ask for: the pad of page 0's header, which no reader of LMDB files looks at.
Variant variant_of(const std::uint8_t* file, std::size_t size) noexcept;

/// Told of each call; the defaults do nothing.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void before(Call) {}
  virtual void after(Call, int /*rc*/) {}
  /// A scan went on after more records than a file of this size can hold, a copy did not end or has more than
  /// the file, or a value is longer than the file.
  virtual void unbounded(const char* /*what*/) {}
};

struct Outcome {
  std::uint64_t calls = 0;
  std::uint64_t damage = 0;     ///< calls that reported a damaged or refused file
  std::uint64_t unbounded = 0;  ///< as told to the observer
  std::uint64_t digest = 0;     ///< of all codes and bytes
};

/// Opens the file at `path` (MDB_RDONLY|MDB_NOSUBDIR) and calls everything.  `copy_fd` is written to and
/// truncated. Handles are closed.  No exception, no output.
Outcome call_everything(const char* path, std::size_t file_bytes, Variant variant, int copy_fd,
                        Observer& observer);

/// Whether `rc` says that a file is damaged or not an LMDB file.
bool is_damage(int rc) noexcept;

/// Limits what the process can write to a file, so that a copy that does not end ends with EFBIG.
void limit_copies() noexcept;

}  // namespace lmdbio::test
