#include "tests/diff/coverage.h"

#include <iomanip>
#include <nlohmann/json.hpp>
#include <ostream>

namespace lmdbio::diff {
namespace {

using test::DbKind;
using test::kDbKinds;

constexpr const char* kStateNames[kStates] = {"unset",         "positioned", "end",
                                              "after-failure", "between",    "renewed"};
constexpr const char* kDbiNames[kDbiStates] = {
    "main",           "free-list",    "opened-before",      "opened-here",
    "opened-later",   "closed",       "closed-since-begin", "reused-since-begin",
    "opener-aborted", "opener-reset", "never-opened",       "out-of-range"};
constexpr const char* kWayNames[kOpenWays] = {
    "main",   "main-with-flags", "already-open",   "new-slot",  "reused-slot", "full",
    "absent", "create-readonly", "not-a-database", "bad-flags", "empty-name",  "ended-txn",
    "other"};

template <class Visit>
void each_cell(Visit visit) {
  for (int k = 0; k < kDbKinds; ++k)
    for (int s = 0; s < kStates; ++s)
      for (int o = 0; o < kOps; ++o) visit(k, s, o);
}

/// A cell that is called by nobody but was left out by the thousand is undefined through and through.
bool always_undefined(const Coverage& c, int k, int s, int o) {
  return c.cursor[k][s][o] == 0 && c.undefined[k][s][o] >= 100;
}

}  // namespace

const char* name_of(CursorState s) noexcept { return kStateNames[static_cast<std::size_t>(s)]; }
const char* name_of(DbiState s) noexcept { return kDbiNames[static_cast<std::size_t>(s)]; }
const char* name_of(OpenWay w) noexcept { return kWayNames[static_cast<std::size_t>(w)]; }

bool reachable(DbKind kind, CursorState state) noexcept {
  const bool needs_records =
      state == CursorState::kPositioned || state == CursorState::kEnd || state == CursorState::kBetween;
  if (kind == DbKind::kEmpty || kind == DbKind::kNeverWritten) return !needs_records;
  if (kind == DbKind::kOne) return state != CursorState::kPositioned;
  return true;
}

Cell rarest_cell(const Coverage& c) noexcept {
  Cell best{DbKind::kPlain, CursorState::kUnset, 0, UINT32_MAX};
  each_cell([&](int k, int s, int o) {
    const auto kind = static_cast<DbKind>(k);
    const auto state = static_cast<CursorState>(s);
    const std::uint32_t n = c.cursor[k][s][o];
    if (reachable(kind, state) && !always_undefined(c, k, s, o) && n < best.calls) best = {kind, state, o, n};
  });
  return best;
}

void print(std::ostream& out, const Coverage& c) {
  out << "cursor calls by operation (columns: state before, " << kDbKinds
      << " kinds of database in each row)\n";
  out << std::left << std::setw(34) << "kind / operation" << std::right;
  for (int s = 0; s < kStates; ++s) out << std::setw(14) << kStateNames[s];
  out << '\n';
  for (int k = 0; k < kDbKinds; ++k) {
    for (int o = 0; o < kOps; ++o) {
      out << std::left << std::setw(18) << name_of(static_cast<DbKind>(k)) << std::setw(16) << op_name(o)
          << std::right;
      for (int s = 0; s < kStates; ++s) {
        if (!reachable(static_cast<DbKind>(k), static_cast<CursorState>(s)) && c.cursor[k][s][o] == 0)
          out << std::setw(14) << '-';
        else if (always_undefined(c, k, s, o))
          out << std::setw(14) << "undefined";
        else
          out << std::setw(14) << c.cursor[k][s][o];
      }
      out << '\n';
    }
  }
  out << "handles: calls by what was known of the number\n";
  for (int d = 0; d < kDbiStates; ++d) {
    out << "  " << std::left << std::setw(20) << kDbiNames[d] << std::right;
    for (int f = 0; f < kFns; ++f)
      if (c.dbi[d][f] != 0) out << ' ' << name_of(static_cast<Fn>(f)) << '=' << c.dbi[d][f];
    out << '\n';
  }
  out << "dbi_open:";
  for (int w = 0; w < kOpenWays; ++w) out << ' ' << kWayNames[w] << '=' << c.open[w];
  out << "\ncalls by function:";
  for (int f = 0; f < kFns; ++f) out << ' ' << name_of(static_cast<Fn>(f)) << '=' << c.function[f];
  out << "\nleft out, stock undefined:\n";
  for (int u = 1; u < kUndefined; ++u) {
    out << "  " << name_of(static_cast<Undefined>(u)) << ':';
    for (int f = 0; f < kFns; ++f)
      if (c.reasons[u][f] != 0 && static_cast<Fn>(f) != Fn::kCursorGet)
        out << ' ' << name_of(static_cast<Fn>(f)) << '=' << c.reasons[u][f];
    for (int o = 0; o < kOps; ++o)
      if (c.cursor_reasons[u][o] != 0) out << ' ' << op_name(o) << '=' << c.cursor_reasons[u][o];
    out << '\n';
  }
  out << "stock versions differ (operation, state before: kinds of database):\n";
  for (int o = 0; o < kOps; ++o) {
    for (int s = 0; s < kStates; ++s) {
      std::string kinds;
      for (int k = 0; k < kDbKinds; ++k)
        if (c.versions[k][s][o] != 0)
          kinds +=
              std::string(" ") + name_of(static_cast<DbKind>(k)) + "=" + std::to_string(c.versions[k][s][o]);
      if (!kinds.empty()) out << "  " << op_name(o) << ", " << kStateNames[s] << ':' << kinds << '\n';
    }
  }
  for (int f = 0; f < kFns; ++f)
    if (c.function_versions[f] != 0 && static_cast<Fn>(f) != Fn::kCursorGet)
      out << "  " << name_of(static_cast<Fn>(f)) << ": " << c.function_versions[f] << '\n';
}

nlohmann::json to_json(const Coverage& c) {
  nlohmann::json j;
  j["calls"] = c.calls.load();
  j["programs"] = c.programs.load();
  j["values_checked"] = c.values_checked.load();
  j["as_loaded_version"] = c.as_loaded_version.load();
  each_cell([&](int k, int s, int o) {
    const auto kind = static_cast<DbKind>(k);
    const auto put = [&](const char* table, std::uint32_t n) {
      if (n != 0) j[table][name_of(kind)][kStateNames[s]][op_name(o)] = n;
    };
    if (reachable(kind, static_cast<CursorState>(s)))
      j["cursor"][name_of(kind)][kStateNames[s]][op_name(o)] = c.cursor[k][s][o].load();
    put("undefined", c.undefined[k][s][o]);
    put("versions_differ", c.versions[k][s][o]);
  });
  for (int f = 0; f < kFns; ++f) {
    const char* name = name_of(static_cast<Fn>(f));
    j["function"][name] = c.function[f].load();
    if (c.function_versions[f] != 0) j["function_versions_differ"][name] = c.function_versions[f].load();
    for (int d = 0; d < kDbiStates; ++d)
      if (c.dbi[d][f] != 0) j["dbi"][kDbiNames[d]][name] = c.dbi[d][f].load();
  }
  for (int u = 1; u < kUndefined; ++u) {
    for (int f = 0; f < kFns; ++f)
      if (c.reasons[u][f] != 0)
        j["reasons"][name_of(static_cast<Undefined>(u))][name_of(static_cast<Fn>(f))] =
            c.reasons[u][f].load();
    for (int o = 0; o < kOps; ++o)
      if (c.cursor_reasons[u][o] != 0)
        j["reasons"][name_of(static_cast<Undefined>(u))][op_name(o)] = c.cursor_reasons[u][o].load();
  }
  for (int w = 0; w < kOpenWays; ++w) j["dbi_open"][kWayNames[w]] = c.open[w].load();
  return j;
}

}  // namespace lmdbio::diff
