// What has been called how often, in memory shared by all processes of a campaign.
#pragma once

#include <atomic>
#include <cstdint>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>

#include "tests/diff/call.h"
#include "tests/diff/undefined.h"
#include "tests/support/dbgen.h"

namespace lmdbio::diff {

/// The state a cursor is in when a call meets it.
enum class CursorState : std::uint8_t {
  kUnset,
  kPositioned,    // neither first nor last
  kEnd,           // on the first or last entry, or beyond
  kAfterFailure,  // the previous call on this cursor failed
  kBetween,       // SET_RANGE or GET_BOTH_RANGE put it on a larger entry than asked for
  kRenewedNewer,  // just renewed into a transaction with a newer snapshot
};
inline constexpr int kStates = 6;
const char* name_of(CursorState s) noexcept;

/// What is known about a handle number when a call passes it.
enum class DbiState : std::uint8_t {
  kMain,
  kFreeList,
  kOpenedBefore,
  kOpenedHere,
  kOpenedLater,
  kClosed,
  kClosedSinceBegin,
  kReusedSinceBegin,
  kOpenerAborted,
  kOpenerReset,
  kNeverOpened,
  kOutOfRange,
};
inline constexpr int kDbiStates = 12;
const char* name_of(DbiState s) noexcept;

/// Ways in which mdb_dbi_open went.
enum class OpenWay : std::uint8_t {
  kMain,
  kMainWithFlags,
  kAlreadyOpen,
  kNewSlot,
  kReusedSlot,
  kFull,
  kAbsent,
  kCreateReadOnly,
  kNotADatabase,
  kBadFlags,
  kEmptyName,
  kEndedTxn,
  kOther,
};
inline constexpr int kOpenWays = 13;
const char* name_of(OpenWay w) noexcept;

struct Coverage {
  using Counter = std::atomic<std::uint32_t>;
  Counter cursor[test::kDbKinds][kStates][kOps];
  Counter undefined[test::kDbKinds][kStates][kOps];  // left out: stock reads what it must not
  Counter reasons[kUndefined][kFns];
  Counter cursor_reasons[kUndefined][kOps];
  Counter versions[test::kDbKinds][kStates][kOps];  // the two stock versions differed
  Counter function[kFns];
  Counter function_versions[kFns];
  Counter dbi[kDbiStates][kFns];
  Counter open[kOpenWays];
  std::atomic<std::uint64_t> calls;
  std::atomic<std::uint64_t> programs;
  std::atomic<std::uint64_t> values_checked;
  std::atomic<std::uint64_t> as_loaded_version;  // tested == other stock, != reference

  static void count(Counter& c) noexcept { c.fetch_add(1, std::memory_order_relaxed); }
};

/// True if programs can bring a cursor on a database of this kind into this state.
bool reachable(test::DbKind kind, CursorState state) noexcept;

/// The reachable cell with the fewest calls.
struct Cell {
  test::DbKind kind;
  CursorState state;
  int op;
  std::uint32_t calls;
};
Cell rarest_cell(const Coverage& c) noexcept;

void print(std::ostream& out, const Coverage& c);
nlohmann::json to_json(const Coverage& c);

}  // namespace lmdbio::diff
