#include "tests/diff/generator.h"

#include <algorithm>

namespace lmdbio::diff {
namespace {

using test::DbKind;

constexpr unsigned kSettableFlags[] = {MDB_NOTLS, MDB_NOLOCK, MDB_NORDAHEAD, MDB_NOSUBDIR};
constexpr int kStrangeOps[] = {19, 20, 255, -1, 1 << 20};
constexpr int kNullCases = 37;

bool takes_key(int op) {
  return op == MDB_SET || op == MDB_SET_KEY || op == MDB_SET_RANGE || op == MDB_GET_BOTH ||
         op == MDB_GET_BOTH_RANGE;
}

bool holds(const Environment& e, DbKind kind) {
  if (kind == DbKind::kFree) return !e.free_list.keys.empty();
  for (const test::DbSpec& d : e.dbs)
    if (d.kind == kind) return true;
  return false;
}

}  // namespace

// value: cell + 1 above bit 40, a number below.
Seed Seed::dwelling_on(const Cell& cell, std::uint64_t number) {
  const auto index = static_cast<std::uint64_t>(
      (static_cast<int>(cell.kind) * kStates + static_cast<int>(cell.state)) * kOps + cell.op);
  return Seed((index + 1) << 40 | (number & 0xFFFFFFFFFF));
}

Cell Seed::cell() const noexcept {
  const auto index = static_cast<int>(value_ >> 40) - 1;
  return {static_cast<DbKind>(index / kOps / kStates % test::kDbKinds),
          static_cast<CursorState>(index / kOps % kStates), index % kOps, 0};
}

Generator::Generator(Seed seed, Executor& executor) : seed_(seed), rng_(seed.value()), executor_(executor) {
  const unsigned theme = rng_.below(10);
  if (theme < 2)
    lifecycle_ = 45;
  else if (theme < 5)
    lifecycle_ = 20;
  if (theme == 3)
    writers_ = 5;
  else if (rng_.percent(40))
    writers_ = 1;
  if (seed.dwells() && seed.cell().state == CursorState::kRenewedNewer) writers_ = 3;
  for (int i = rng_.percent(50) ? 0 : 6; i > 0; --i)
    favourite_ops_.push_back(static_cast<int>(rng_.below(kOps - 1)));
  const std::vector<Environment>& all = executor.environments();
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!seed.dwells() || holds(all[i], seed.cell().kind)) {
      places_.push_back(static_cast<int>(i));
      if (all[i].dbs.size() > 1) named_places_.push_back(static_cast<int>(i));
    }
}

// ---- choosing ----

int Generator::pick_txn(TxnModel::Status status) {
  int found[kTxnSlots];
  std::size_t n = 0;
  for (int i = 0; i < kTxnSlots; ++i)
    if (executor_.model().txn[i].status == status) found[n++] = i;
  return n == 0 ? -1 : found[rng_.below(n)];
}

int Generator::pick_cursor() {
  int found[kCursorSlots];
  std::size_t n = 0;
  for (int i = 0; i < kCursorSlots; ++i)
    if (executor_.model().cursor[i].open) found[n++] = i;
  return n == 0 ? -1 : found[rng_.below(n)];
}

int Generator::pick_open_env() {
  const int first = static_cast<int>(rng_.below(kEnvSlots));
  return executor_.model().env[first].open ? first : 1 - first;
}

MDB_dbi Generator::pick_dbi(int txn) {
  const EnvModel& e = executor_.model().env[executor_.model().txn[txn].env];
  if (rng_.percent(4)) return static_cast<MDB_dbi>(rng_.below(e.handles.size() + 3));
  if (rng_.percent(5)) return 0;
  MDB_dbi open[80];
  std::size_t n = 0;
  open[n++] = 1;
  for (MDB_dbi d = 2; d < e.handles.size() && n < 80; ++d)
    if (e.handles[d].status == HandleModel::Status::kOpen || rng_.percent(1)) open[n++] = d;
  if (n > 1 && rng_.percent(70)) return open[rng_.between(1, static_cast<std::uint32_t>(n) - 1)];
  return open[rng_.below(n)];
}

int Generator::pick_op() {
  if (!favourite_ops_.empty() && rng_.percent(60)) return favourite_ops_[rng_.below(favourite_ops_.size())];
  if (rng_.percent(1)) return kStrangeOps[rng_.below(std::size(kStrangeOps))];
  return static_cast<int>(rng_.below(kOps - 1));
}

const Contents* Generator::contents(int env, MDB_dbi dbi) const {
  const EnvModel& m = executor_.model().env[env];
  const Environment& e = executor_.environments()[static_cast<std::size_t>(m.which)];
  if (dbi == 0) return &e.free_list;
  const int db = executor_.db_of(env, dbi);
  return db < 0 ? nullptr : &e.contents[static_cast<std::size_t>(db)];
}

const test::DbSpec* Generator::spec(int env, MDB_dbi dbi) const {
  const int db = executor_.db_of(env, dbi);
  if (dbi == 0 || db < 0) return nullptr;
  const EnvModel& m = executor_.model().env[env];
  return &executor_.environments()[static_cast<std::size_t>(m.which)].dbs[static_cast<std::size_t>(db)];
}

/// A neighbour of `bytes` in most orders: usually absent, between two that are there.
std::string Generator::near(std::string bytes) {
  const auto bump = [&](std::size_t i, int by) { bytes[i] = static_cast<char>(bytes[i] + by); };
  if (bytes.empty()) return "a";
  switch (rng_.below(7)) {
    case 0:
      bump(bytes.size() - 1, 1);
      break;
    case 1:
      bump(bytes.size() - 1, -1);
      break;
    case 2:
      bump(0, rng_.percent(50) ? 1 : -1);
      break;
    case 3:
      bytes.pop_back();
      break;
    case 4:
      bytes.push_back('\0');
      break;
    case 5:
      bytes.push_back('z');
      break;
    default:
      bump(rng_.below(bytes.size()), 1);
      break;
  }
  return bytes;
}

std::string Generator::key_bytes(int env, MDB_dbi dbi) {
  const Contents* c = contents(env, dbi);
  const unsigned what = rng_.below(100);
  if (what < 60 && c != nullptr && !c->keys.empty()) {
    const std::size_t n = c->keys.size();
    const std::size_t i = what < 5 ? 0 : what < 10 ? n - 1 : rng_.below(n);
    const bool present = rng_.percent(65);
    const test::DbSpec* s = spec(env, dbi);
    if (present) return c->keys[i];
    std::string k = near(c->keys[i]);
    if (s != nullptr && (s->flags & MDB_INTEGERKEY) != 0) k.resize(s->key_min);
    if (dbi == 0) k.resize(8);
    return k;
  }
  if (what < 75) {
    const test::DbSpec* s = spec(env, dbi);
    if (s != nullptr) return test::random_key(*s, rng_);
  }
  switch (rng_.below(8)) {  // before the first, after the last, odd sizes
    case 0:
      return "";
    case 1:
      return std::string(1, '\0');
    case 2:
      return std::string(8, '\0');
    case 3:
      return std::string(8, '\xFF');
    case 4:
      return std::string(511 + rng_.below(90), static_cast<char>(rng_.next()));
    case 5:
      return std::string(4, rng_.percent(50) ? '\0' : '\xFF');
    default: {
      std::string s(rng_.between(1, 9), '\0');
      for (char& b : s) b = static_cast<char>(rng_.next());
      return s;
    }
  }
}

std::string Generator::data_bytes(int env, MDB_dbi dbi, const std::string& key) {
  const Contents* c = contents(env, dbi);
  const test::DbSpec* s = spec(env, dbi);
  if (rng_.percent(75) && c != nullptr && !c->keys.empty()) {
    // The value lists are by key, in the database's order: find this key's.
    const auto it = std::find(c->keys.begin(), c->keys.end(), key);
    const std::size_t i =
        it != c->keys.end() ? static_cast<std::size_t>(it - c->keys.begin()) : rng_.below(c->keys.size());
    const std::vector<std::string>& values = c->values[i];
    if (!values.empty()) {
      const unsigned where = rng_.below(10);
      const std::string& v = where == 0   ? values.front()
                             : where == 1 ? values.back()
                                          : values[rng_.below(values.size())];
      if (rng_.percent(55)) return v;
      std::string n = near(v);
      if (s != nullptr && (s->flags & (MDB_DUPFIXED | MDB_INTEGERDUP)) != 0 && rng_.percent(90))
        n.resize(s->value_min);
      return n;
    }
  }
  if (s != nullptr && rng_.percent(70)) return test::random_value(*s, rng_);
  return key_bytes(env, dbi);
}

/// An argument that the call only writes.  Its content is an input for calls that read it by mistake.
Arg Generator::output() {
  Arg a;
  a.null = rng_.percent(6);
  a.bytes = "untouched";
  return a;
}

// ---- proposing ----

Call Generator::open_env() {
  Call c;
  c.fn = Fn::kEnvOpen;
  c.env = static_cast<int>(rng_.below(kEnvSlots));
  const bool among_named = !named_places_.empty() && rng_.percent(35);
  const std::vector<int>& places = among_named ? named_places_ : places_;
  c.number = static_cast<std::uint64_t>(places[rng_.below(places.size())]);
  const EnvModel& other = executor_.model().env[1 - c.env];
  if (other.open && rng_.percent(30))
    c.number = static_cast<std::uint64_t>(other.which);  // the same path again
  c.flags = rng_.percent(95) ? MDB_RDONLY : 0;
  if (rng_.percent(70)) c.flags |= MDB_NOTLS;
  for (const unsigned f : kSettableFlags)
    if (f != MDB_NOTLS && rng_.percent(15)) c.flags |= f;
  // Both opens of one path must agree on locking and on where the lock file is.
  if (other.open && other.which == static_cast<int>(c.number))
    c.flags = (c.flags & ~static_cast<unsigned>(MDB_NOLOCK | MDB_NOSUBDIR)) |
              (other.flags & (MDB_NOLOCK | MDB_NOSUBDIR));
  c.op = rng_.percent(10) ? static_cast<int>(rng_.below(2)) : static_cast<int>(rng_.between(2, 20));
  c.dbi = rng_.percent(20) ? rng_.between(1, 3) : 126;
  if (rng_.percent(8)) {
    c.has_name = true;
    c.name = rng_.percent(50) ? "4096" : "1000000000";
  }
  if (rng_.percent(4)) c.txn = static_cast<int>(rng_.between(1, 3));
  if (rng_.percent(2))
    c.flags |= rng_.percent(50) ? 2u : rng_.percent(50) ? static_cast<unsigned>(MDB_FIXEDMAP) : MDB_WRITEMAP;
  if ((c.flags & MDB_RDONLY) == 0) c.flags &= ~static_cast<unsigned>(MDB_FIXEDMAP | MDB_WRITEMAP);
  return c;
}

Call Generator::begin() {
  Call c;
  c.env = pick_open_env();
  const int reset = pick_txn(TxnModel::Status::kReset);
  if (reset >= 0 && rng_.percent(70)) {
    c.fn = Fn::kTxnRenew;
    c.txn = reset;
    return c;
  }
  c.fn = Fn::kTxnBegin;
  const int slot = pick_txn(TxnModel::Status::kNone);
  c.txn = slot < 0 ? 0 : slot;
  return c;
}

Call Generator::writer_on(int env) {
  Call c;
  c.fn = Fn::kWriter;
  c.env = env;
  c.number = rng_.next() >> 24;
  return c;
}

Call Generator::env_query() {
  static constexpr Fn kQueries[] = {Fn::kEnvInfo,         Fn::kEnvStat,     Fn::kEnvFlags,    Fn::kEnvPath,
                                    Fn::kEnvLimits,       Fn::kEnvSetFlags, Fn::kEnvSync,     Fn::kEnvUserctx,
                                    Fn::kEnvLateSettings, Fn::kReaderList,  Fn::kReaderCheck, Fn::kTxnId,
                                    Fn::kTxnEnv,          Fn::kCursorTxn,   Fn::kCursorDbi};
  Call c;
  c.fn = kQueries[rng_.below(std::size(kQueries))];
  c.env = pick_open_env();
  c.txn = static_cast<int>(rng_.below(kTxnSlots));
  c.cursor = static_cast<int>(rng_.below(kCursorSlots));
  static constexpr unsigned kEnvFlags[] = {MDB_NOSYNC,   MDB_NOMETASYNC, MDB_NOMEMINIT,
                                           MDB_MAPASYNC, MDB_RDONLY,     MDB_NOTLS};
  c.flags = kEnvFlags[rng_.below(std::size(kEnvFlags))];
  c.op = static_cast<int>(rng_.below(2));
  c.number = rng_.below(1000);
  return c;
}

Call Generator::misuse() {
  Call c;
  c.env = static_cast<int>(rng_.below(kEnvSlots));
  c.txn = static_cast<int>(rng_.below(kTxnSlots));
  c.cursor = static_cast<int>(rng_.below(kCursorSlots));
  switch (rng_.below(4)) {
    case 0:
      c.fn = Fn::kTxnBeginWrite;
      c.flags = 0;
      break;
    case 1:
      c.fn = Fn::kTxnBeginNested;
      c.env = executor_.model().txn[c.txn].env;
      c.flags = rng_.percent(50) ? MDB_RDONLY : 0;
      break;
    case 2:
      c.fn = Fn::kTxnRenew;  // also one that is active
      break;
    default:
      c.fn = Fn::kNullHandle;
      c.op = static_cast<int>(rng_.below(kNullCases));
      break;
  }
  return c;
}

Call Generator::open_dbi(int txn) {
  Call c;
  c.fn = Fn::kDbiOpen;
  c.txn = txn;
  const EnvModel& m = executor_.model().env[executor_.model().txn[txn].env];
  const Environment& e = executor_.environments()[static_cast<std::size_t>(m.which)];
  const bool has_names = e.dbs.size() > 1;
  const unsigned what = rng_.below(100);
  const test::DbSpec* chosen = &e.dbs[0];
  if (has_names && what < 75) {
    chosen = &e.dbs[1 + rng_.below(e.dbs.size() - 1)];
    if (seed_.dwells() && rng_.percent(60))
      for (std::size_t i = 1; i < e.dbs.size(); ++i)
        if (e.dbs[i].kind == seed_.cell().kind) chosen = &e.dbs[i];
  }
  if (chosen != &e.dbs[0]) {
    c.has_name = true;
    c.name = chosen->name;
  } else if (what >= 90) {
    c.has_name = true;
    const Contents& main = e.contents[0];
    switch (rng_.below(4)) {
      case 0:
        c.name = "absent";
        break;
      case 1:
        c.name = "";
        break;
      case 2:
        c.name = std::string(rng_.between(500, 530), 'n');
        break;
      default:
        c.name = main.keys.empty() ? "x" : main.keys[rng_.below(main.keys.size())];
        c.name = c.name.substr(0, c.name.find('\0'));
        break;
    }
  }
  // Integer comparison of keys that are no integers reads past them: only flags that the database has.
  c.flags = rng_.percent(50) ? chosen->flags : 0;
  if (rng_.percent(10)) c.flags |= MDB_CREATE;
  if (rng_.percent(4)) c.flags |= MDB_DUPSORT;
  if (rng_.percent(3)) c.flags |= MDB_REVERSEKEY | MDB_REVERSEDUP;
  if (rng_.percent(2)) c.flags |= MDB_DUPFIXED;
  if (rng_.percent(2)) c.flags |= 1u << rng_.below(31);
  if ((chosen->flags & MDB_INTEGERKEY) == 0) c.flags &= ~static_cast<unsigned>(MDB_INTEGERKEY);
  if ((chosen->flags & MDB_INTEGERDUP) == 0) c.flags &= ~static_cast<unsigned>(MDB_INTEGERDUP);
  return c;
}

Call Generator::dbi_call() {
  Call c;
  int txn = pick_txn(rng_.percent(94) ? TxnModel::Status::kActive : TxnModel::Status::kReset);
  if (txn < 0) return begin();
  const int env = executor_.model().txn[txn].env;
  c.env = env;
  c.txn = txn;
  c.dbi = pick_dbi(txn);
  c.op = static_cast<int>(rng_.below(test::kComparators));
  const unsigned what = rng_.below(100);
  if (what < 20) return open_dbi(txn);
  if (what < 60) {
    c.fn = Fn::kGet;
    c.key = {rng_.percent(2), key_bytes(env, c.dbi)};
    c.data = output();
  } else if (what < 68) {
    c.fn = rng_.percent(60) ? Fn::kCmp : Fn::kDcmp;
    c.key = {false, key_bytes(env, c.dbi)};
    c.data = {false, key_bytes(env, c.dbi)};
  } else if (what < 76) {
    c.fn = Fn::kStat;
  } else if (what < 84) {
    c.fn = Fn::kDbiFlags;
  } else if (what < 88) {
    c.fn = Fn::kDbiClose;
  } else if (what < 91 && rng_.percent(40)) {
    // Mostly what the database was written with: another order makes most searches meaningless.
    const test::DbSpec* s = spec(env, c.dbi);
    const bool dup = s != nullptr && s->dup_comparator >= 0 && rng_.percent(50);
    c.fn = dup ? Fn::kSetDupsort : Fn::kSetCompare;
    const int own = s == nullptr ? -1 : dup ? s->dup_comparator : s->key_comparator;
    if (own >= 0 && rng_.percent(90))
      c.op = own;
    else if (rng_.percent(70))
      return write_call();
  } else {
    return write_call();
  }
  return c;
}

Call Generator::write_call() {
  Call c;
  c.txn = static_cast<int>(rng_.below(kTxnSlots));
  c.cursor = static_cast<int>(rng_.below(kCursorSlots));
  if (executor_.model().txn[c.txn].status != TxnModel::Status::kNone) c.dbi = pick_dbi(c.txn);
  c.key = {rng_.percent(10), "key"};
  c.data = {rng_.percent(10), "data"};
  static constexpr unsigned kPutFlags[] = {
      0, MDB_NOOVERWRITE, MDB_NODUPDATA, MDB_APPEND, MDB_RESERVE, MDB_CURRENT, 1};
  c.flags = kPutFlags[rng_.below(std::size(kPutFlags))];
  static constexpr Fn kWrites[] = {Fn::kPut, Fn::kDel, Fn::kDrop, Fn::kCursorPut, Fn::kCursorDel};
  c.fn = kWrites[rng_.below(std::size(kWrites))];
  c.op = static_cast<int>(rng_.below(3));
  return c;
}

/// A database written in another order is of little use before its comparison functions are set.
bool Generator::set_comparators(Call* c) {
  const int txn = pick_txn(TxnModel::Status::kActive);
  if (txn < 0) return false;
  const int env = executor_.model().txn[txn].env;
  const std::vector<HandleModel>& handles = executor_.model().env[env].handles;
  for (MDB_dbi d = 1; d < handles.size(); ++d) {
    const test::DbSpec* s = spec(env, d);
    if (s == nullptr) continue;
    c->txn = txn;
    c->dbi = d;
    if (s->key_comparator >= 0 && (handles[d].compared & 1) == 0) {
      c->fn = Fn::kSetCompare;
      c->op = s->key_comparator;
      return true;
    }
    if (s->dup_comparator >= 0 && (handles[d].compared & 2) == 0) {
      c->fn = Fn::kSetDupsort;
      c->op = s->dup_comparator;
      return true;
    }
  }
  return false;
}

Call Generator::open_cursor() {
  Call c;
  c.fn = Fn::kCursorOpen;
  const int txn = pick_txn(rng_.percent(97) ? TxnModel::Status::kActive : TxnModel::Status::kReset);
  if (txn < 0) return begin();
  c.txn = txn;
  c.cursor = static_cast<int>(rng_.below(kCursorSlots));
  c.dbi = pick_dbi(txn);
  return c;
}

Call Generator::renew_cursor() {
  Call c;
  c.fn = Fn::kCursorRenew;
  const int cursor = pick_cursor();
  int txn = pick_txn(rng_.percent(97) ? TxnModel::Status::kActive : TxnModel::Status::kReset);
  if (cursor < 0 || txn < 0) return open_cursor();
  for (int i = 0; i < 3 && executor_.model().txn[txn].env != executor_.model().cursor[cursor].env; ++i)
    txn = pick_txn(executor_.model().txn[txn].status);  // mostly in the same environment
  c.cursor = cursor;
  c.txn = txn;
  return c;
}

Call Generator::cursor_get(int cursor, int op) {
  Call c;
  c.fn = Fn::kCursorGet;
  c.cursor = cursor;
  c.op = op;
  const CursorModel& m = executor_.model().cursor[cursor];
  if (takes_key(op)) {
    c.key = {rng_.percent(1), key_bytes(m.env, m.dbi)};
    c.data = op == MDB_GET_BOTH || op == MDB_GET_BOTH_RANGE
                 ? Arg{rng_.percent(2), data_bytes(m.env, m.dbi, c.key.bytes)}
                 : output();
  } else {
    c.key = output();
    c.data = output();
  }
  return c;
}

Call Generator::propose() {
  const Model& m = executor_.model();
  if (!m.env[0].open && !m.env[1].open) return open_env();
  if (pick_txn(TxnModel::Status::kActive) < 0 && rng_.percent(80)) return begin();
  Call comparators;
  if (rng_.percent(30) && set_comparators(&comparators)) return comparators;
  if (rng_.percent(writers_)) return writer_on(pick_open_env());
  if (seed_.dwells() && rng_.percent(70)) return dwell();
  if (rng_.percent(lifecycle_)) {
    Call c;
    c.env = pick_open_env();
    c.txn = static_cast<int>(rng_.below(kTxnSlots));
    c.cursor = static_cast<int>(rng_.below(kCursorSlots));
    switch (rng_.below(16)) {
      case 0:
        return open_env();
      case 1:
      case 2:
        return begin();
      case 3:
        c.fn = Fn::kTxnReset;
        return c;
      case 4:
        c.fn = Fn::kTxnAbort;
        return c;
      case 5:
        c.fn = Fn::kTxnCommit;
        return c;
      case 6:
      case 7:
        return open_cursor();
      case 8:
        c.fn = Fn::kCursorClose;
        return c;
      case 9:
        return renew_cursor();
      case 10:
        return env_query();
      case 11:
        return misuse();
      case 12:
        c.fn = rng_.percent(70) ? Fn::kEnvClose : Fn::kEnvSetMapsize;
        return c;
      default:
        return dbi_call();
    }
  }
  if (rng_.percent(18)) return dbi_call();
  if (rng_.percent(2)) return env_query();
  const int cursor = pick_cursor();
  if (cursor < 0 || rng_.percent(4)) return open_cursor();
  if (!executor_.cursor_usable(cursor)) return renew_cursor();
  if (rng_.percent(4)) {
    Call c;
    c.fn = Fn::kCursorCount;
    c.cursor = cursor;
    return c;
  }
  return cursor_get(cursor, pick_op());
}

/// Something that helps to bring this cursor into `state`.
Call Generator::reach(int cursor, CursorState state) {
  const CursorModel& m = executor_.model().cursor[cursor];
  Call c;
  c.cursor = cursor;
  c.env = m.env;
  c.txn = m.txn;
  switch (state) {
    case CursorState::kUnset:
      c.fn = Fn::kCursorRenew;
      return c;
    case CursorState::kPositioned: {
      const int ops[] = {MDB_SET, MDB_SET_KEY, MDB_NEXT, MDB_SET_RANGE};
      return cursor_get(cursor, ops[rng_.below(4)]);
    }
    case CursorState::kEnd:
      return cursor_get(cursor, rng_.percent(50) ? MDB_FIRST : MDB_LAST);
    case CursorState::kAfterFailure: {
      const int ops[] = {MDB_SET, MDB_GET_BOTH, MDB_NEXT_DUP, MDB_PREV_DUP, 19, MDB_SET_RANGE, MDB_SET_KEY};
      return cursor_get(cursor, ops[rng_.below(7)]);
    }
    case CursorState::kBetween:
      return cursor_get(cursor, rng_.percent(75) ? MDB_SET_RANGE : MDB_GET_BOTH_RANGE);
    case CursorState::kRenewedNewer:
      if (m.dbi > 1 && m.dbi < executor_.model().env[m.env].handles.size() &&
          executor_.model().env[m.env].handles[m.dbi].opened_by == m.txn) {
        c.fn = Fn::kTxnCommit;  // a reset would close the handle
        return c;
      }
      if (executor_.model().txn[m.txn].txnid > m.txnid)
        c.fn = Fn::kCursorRenew;
      else if (executor_.model().txn[m.txn].status == TxnModel::Status::kReset)
        c.fn = Fn::kTxnRenew;
      else if (rng_.percent(60))
        c.fn = Fn::kTxnReset;
      else
        c = writer_on(m.env);
      return c;
  }
  return c;
}

Call Generator::dwell() {
  const Cell cell = seed_.cell();
  const Model& m = executor_.model();
  int mine[kCursorSlots];
  std::size_t n = 0;
  for (int i = 0; i < kCursorSlots; ++i)
    if (m.cursor[i].open && m.env[m.cursor[i].env].open &&
        executor_.kind_of(m.cursor[i].env, m.cursor[i].dbi) == cell.kind)
      mine[n++] = i;
  if (n < 4) {  // a handle and a cursor of that kind
    const int txn = pick_txn(TxnModel::Status::kActive);
    if (txn < 0) return begin();
    const EnvModel& e = m.env[m.txn[txn].env];
    Call c;
    c.fn = Fn::kCursorOpen;
    c.txn = txn;
    c.cursor = static_cast<int>(rng_.below(kCursorSlots));
    if (m.cursor[c.cursor].open) c.fn = Fn::kCursorClose;
    MDB_dbi have[80];
    std::size_t handles = 0;
    for (MDB_dbi d = 0; d < e.handles.size() && handles < 80; ++d)
      if ((d < 2 || e.handles[d].status == HandleModel::Status::kOpen) &&
          executor_.kind_of(m.txn[txn].env, d) == cell.kind)
        have[handles++] = d;
    if (handles == 0 || rng_.percent(10)) return open_dbi(txn);
    c.dbi = have[rng_.below(handles)];
    return c;
  }
  const int cursor = mine[rng_.below(n)];
  if (!executor_.cursor_usable(cursor)) {
    if (cell.state == CursorState::kRenewedNewer && rng_.percent(30)) return writer_on(m.cursor[cursor].env);
    if (m.txn[m.cursor[cursor].txn].status == TxnModel::Status::kActive) {
      Call c;
      c.fn = Fn::kCursorRenew;
      c.cursor = cursor;
      c.txn = m.cursor[cursor].txn;
      return c;
    }
    return renew_cursor();
  }
  if (m.txn[m.cursor[cursor].txn].status != TxnModel::Status::kActive) {
    Call c;
    c.fn = Fn::kTxnRenew;
    c.txn = m.cursor[cursor].txn;
    return c;
  }
  if (executor_.state_of(cursor) != cell.state) return reach(cursor, cell.state);
  const int op = cell.op < kOps - 1 ? cell.op : kStrangeOps[rng_.below(std::size(kStrangeOps))];
  return cursor_get(cursor, rng_.percent(75) ? op : pick_op());
}

Call Generator::next() {
  for (;;) {
    const Call c = propose();
    if (executor_.feasible(c)) return c;
  }
}

}  // namespace lmdbio::diff
