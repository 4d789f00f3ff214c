#include "tests/diff/executor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

namespace lmdbio::diff {
namespace {

constexpr std::size_t kGuard = 16;  // zero bytes around every argument: stock may read that much of them
constexpr std::size_t kHeldPerTxn = 96;
constexpr unsigned kDbStale = 2;     // in StockTxn::dbflags
constexpr int kIsReadOnly = -30770;  // MDB_IS_READONLY of 1.0

std::size_t hash_of(const void* p, std::size_t n) {
  return std::hash<std::string_view>()({static_cast<const char*>(p), n});
}

bool takes_key(int op) {
  return op == MDB_SET || op == MDB_SET_KEY || op == MDB_SET_RANGE || op == MDB_GET_BOTH ||
         op == MDB_GET_BOTH_RANGE;
}
bool takes_data(int op) { return op == MDB_GET_BOTH || op == MDB_GET_BOTH_RANGE; }
bool only_looks(int op) { return op == MDB_GET_CURRENT || op == MDB_GET_MULTIPLE; }

bool on_cursor(Fn fn) {
  return fn == Fn::kCursorGet || fn == Fn::kCursorCount || fn == Fn::kCursorPut || fn == Fn::kCursorDel ||
         fn == Fn::kCursorClose || fn == Fn::kCursorTxn || fn == Fn::kCursorDbi || fn == Fn::kCursorRenew;
}

bool takes_dbi(Fn fn) {
  switch (fn) {
    case Fn::kDbiFlags:
    case Fn::kStat:
    case Fn::kSetCompare:
    case Fn::kSetDupsort:
    case Fn::kCmp:
    case Fn::kDcmp:
    case Fn::kGet:
    case Fn::kPut:
    case Fn::kDel:
    case Fn::kDrop:
    case Fn::kCursorOpen:
      return true;
    default:
      return false;
  }
}

bool makes_or_ends_handles(Fn fn) {
  return fn == Fn::kEnvOpen || fn == Fn::kTxnBegin || fn == Fn::kTxnRenew || fn == Fn::kDbiOpen ||
         fn == Fn::kCursorOpen || fn == Fn::kCursorRenew || fn == Fn::kTxnCommit;
}

const char* fill(std::vector<char>& buffer, const Arg& a) {
  buffer.assign(a.bytes.size() + 2 * kGuard, '\0');
  if (!a.bytes.empty()) std::memcpy(buffer.data() + kGuard, a.bytes.data(), a.bytes.size());
  return buffer.data() + kGuard;
}

std::string show(const MDB_val& v) {
  std::string out = std::to_string(v.mv_size) + " bytes \"";
  const char* p = static_cast<const char*>(v.mv_data);
  char text[8];
  for (std::size_t i = 0; i < v.mv_size && i < 40; ++i) {
    const auto u = static_cast<unsigned char>(p[i]);
    if (u >= 0x20 && u < 0x7F) {
      out.push_back(p[i]);
    } else {
      std::snprintf(text, sizeof text, "\\%03o", u);
      out += text;
    }
  }
  return out + (v.mv_size > 40 ? "..\"" : "\"");
}

/// What the call did to an output: left it, or set it to these bytes.
std::string compare_val(const char* what, const MDB_val& a, const MDB_val& b, const void* input) {
  const bool a_left = a.mv_data == input;
  const bool b_left = b.mv_data == input;
  if (a_left != b_left)
    return std::string(what) + (a_left ? " must stay untouched" : " must be set to " + show(a)) +
           ", but is " + (b_left ? "untouched" : show(b));
  if (a.mv_size != b.mv_size)
    return std::string(what) + " must have " + std::to_string(a.mv_size) + " bytes, has " +
           std::to_string(b.mv_size);
  if (!a_left && a.mv_size != 0 && std::memcmp(a.mv_data, b.mv_data, a.mv_size) != 0)
    return std::string(what) + " must be " + show(a) + ", is " + show(b);
  return {};
}

/// Orders are told apart by what they do: custom ones by their address, LMDB's own by two values that compare
/// one way as bytes and the other way from the end or as integers.
bool is_order(MDB_cmp_func* cmp, int custom, bool from_end) {
  if (cmp == nullptr) return true;
  if (custom >= 0) return cmp == test::comparator(custom);
  for (int i = 0; i < test::kComparators; ++i)
    if (cmp == test::comparator(i)) return false;
  alignas(8) char low_first[] = "a00ba00b";
  alignas(8) char high_first[] = "b00ab00a";
  const MDB_val a{8, low_first};
  const MDB_val b{8, high_first};
  return (cmp(&a, &b) > 0) == from_end;
}

int append_line(const char* line, void* to) {
  *static_cast<std::string*>(to) += line;
  return 0;
}

}  // namespace

Executor::Executor(std::vector<Side> sides, const std::vector<Environment>& environments, Writer& writer,
                   Coverage& coverage)
    : sides_(std::move(sides)),
      environments_(environments),
      only_common_(sides_[0].lmdb->level() < kFirstNewPatch && sides_.size() == 2),
      writer_(writer),
      coverage_(coverage) {
  for (Side& s : sides_) s.copy_is_clean.assign(environments_.size(), 0);
}

void Executor::start_program() {
  model_ = Model();
  failure_.clear();
  for (Side& s : sides_) s.dropped = false;
}

bool Executor::finish_program() {
  Call c;
  bool good = true;
  const auto end = [&](Fn fn) {
    c.fn = fn;
    if (good && feasible(c)) good = run(c);
  };
  for (c.cursor = 0; c.cursor < kCursorSlots; c.cursor += 2) end(Fn::kCursorClose);
  for (c.txn = 0; c.txn < kTxnSlots; ++c.txn) end(c.txn % 2 == 0 ? Fn::kTxnAbort : Fn::kTxnCommit);
  for (c.env = 0; c.env < kEnvSlots; ++c.env) end(Fn::kEnvClose);
  for (c.cursor = 1; c.cursor < kCursorSlots; c.cursor += 2) end(Fn::kCursorClose);
  return good;
}

// ---- what is known ----

int Executor::db_of(int env, MDB_dbi dbi) const {
  const EnvModel& e = model_.env[env];
  if (dbi == 1) return 0;
  return dbi > 1 && dbi < e.handles.size() ? e.handles[dbi].db : -1;
}

test::DbKind Executor::kind_of(int env, MDB_dbi dbi) const {
  if (dbi == 0) return test::DbKind::kFree;
  const int db = db_of(env, dbi);
  const EnvModel& e = model_.env[env];
  if (db < 0) return test::DbKind::kNamed;
  return environments_[static_cast<std::size_t>(e.which)].dbs[static_cast<std::size_t>(db)].kind;
}

DbiState Executor::dbi_state(int env, int txn, MDB_dbi dbi) const {
  const EnvModel& e = model_.env[env];
  if (dbi == 0) return DbiState::kFreeList;
  if (dbi == 1) return DbiState::kMain;
  if (dbi >= e.handles.size()) return DbiState::kOutOfRange;
  const HandleModel& h = e.handles[dbi];
  const std::uint64_t begin = model_.txn[txn].era;
  switch (h.status) {
    case HandleModel::Status::kNever:
      return DbiState::kNeverOpened;
    case HandleModel::Status::kOpenerAborted:
      return DbiState::kOpenerAborted;
    case HandleModel::Status::kOpenerReset:
      return DbiState::kOpenerReset;
    case HandleModel::Status::kClosed:
      return h.changed > begin ? DbiState::kClosedSinceBegin : DbiState::kClosed;
    case HandleModel::Status::kOpen:
      break;
  }
  if (h.opened_by == txn) return DbiState::kOpenedHere;
  if (h.opened_by < 0 && h.since <= begin) return DbiState::kOpenedBefore;
  const StockTxn t = stock(sides_[0].txn[txn]);
  return dbi < t.numdbs ? DbiState::kReusedSinceBegin : DbiState::kOpenedLater;
}

bool Executor::cursor_usable(int i) const {
  const CursorModel& c = model_.cursor[i];
  if (!c.open || c.retired) return false;
  const TxnModel& t = model_.txn[c.txn];
  if (t.status == TxnModel::Status::kNone || t.serial != c.txn_serial) return false;  // freed
  if (t.status == TxnModel::Status::kReset) return true;                              // MDB_BAD_TXN
  const EnvModel& e = model_.env[c.env];
  if (c.bound >= t.era) {
    // Not if this transaction gave the cursor's handle to another database: the record under it is now that
    // one's.
    if (c.dbi < 2) return true;
    const HandleModel& h = e.handles[c.dbi];
    return h.opened_by != c.txn || h.since < c.bound;
  }
  // Not renewed since its transaction was: sound as long as snapshot, map and handle are what they were.
  if (c.txnid != t.txnid || c.map_era != e.map_era) return false;
  if (c.dbi < 2) return true;
  const HandleModel& h = e.handles[c.dbi];
  return h.changed < c.bound && h.status == HandleModel::Status::kOpen && h.opened_by < 0;
}

CursorState Executor::state_of(int i) const {
  const CursorModel& m = model_.cursor[i];
  if (m.renewed_newer) return CursorState::kRenewedNewer;
  if (m.after_failure) return CursorState::kAfterFailure;
  const StockCursor& c = stock(sides_[0].cursor[i]);
  if (!c.initialized()) return CursorState::kUnset;
  if (m.between) return CursorState::kBetween;
  return c.eof() || c.at_first() || c.at_last() ? CursorState::kEnd : CursorState::kPositioned;
}

// ---- what may be called ----

bool Executor::handles_exist(const Call& c) const {
  const TxnModel& t = model_.txn[c.txn];
  const bool txn = t.status != TxnModel::Status::kNone;
  switch (c.fn) {
    case Fn::kEnvOpen:
      return !model_.env[c.env].open;
    case Fn::kEnvClose:
    case Fn::kEnvSetMapsize:
      for (const TxnModel& other : model_.txn)
        if (other.status != TxnModel::Status::kNone && other.env == c.env) return false;
      // A fixed map that moves gives EBUSY or not, as the kernel happens to place it.
      if (c.fn == Fn::kEnvSetMapsize && (model_.env[c.env].flags & MDB_FIXEDMAP) != 0) return false;
      return model_.env[c.env].open;
    case Fn::kTxnBeginWrite:
    case Fn::kEnvSync:
      return model_.env[c.env].open && (model_.env[c.env].flags & MDB_RDONLY) != 0;
    case Fn::kTxnBegin:
      return model_.env[c.env].open && !txn;
    case Fn::kTxnBeginNested:
      return txn && t.env == c.env;
    case Fn::kWriter:
      if (!model_.env[c.env].open || model_.env[c.env].locks_lost) return false;
      if ((model_.env[c.env].flags & MDB_NOLOCK) == 0) return true;
      for (const TxnModel& other : model_.txn)  // nothing protects their pages
        if (other.status != TxnModel::Status::kNone && other.env == c.env) return false;
      return true;
    case Fn::kEnvInfo:
    case Fn::kEnvStat:
    case Fn::kEnvFlags:
    case Fn::kEnvPath:
    case Fn::kEnvLimits:
    case Fn::kEnvSetFlags:
    case Fn::kEnvUserctx:
    case Fn::kEnvLateSettings:
    case Fn::kReaderList:
    case Fn::kReaderCheck:
    case Fn::kDbiClose:
      return model_.env[c.env].open;
    case Fn::kTxnRenew:
    case Fn::kTxnReset:
    case Fn::kTxnAbort:
    case Fn::kTxnCommit:
    case Fn::kTxnId:
    case Fn::kTxnEnv:
    case Fn::kDbiFlags:
    case Fn::kStat:
    case Fn::kSetCompare:
    case Fn::kSetDupsort:
    case Fn::kGet:
    case Fn::kPut:
    case Fn::kDel:
    case Fn::kDrop:
      return txn;
    case Fn::kCmp:
    case Fn::kDcmp:
      return txn && c.dbi < model_.env[t.env].handles.size() && !c.key.null && !c.data.null;
    case Fn::kDbiOpen:
      // The documentation's rule: a transaction that opened a handle ends before another one opens any.
      if (txn && c.has_name)
        for (const HandleModel& h : model_.env[t.env].handles)
          if (h.opened_by >= 0 && h.opened_by != c.txn) return false;
      return txn;
    case Fn::kCursorOpen:
      return txn && !model_.cursor[c.cursor].open;
    case Fn::kCursorRenew:
      return txn && model_.cursor[c.cursor].open;
    case Fn::kCursorClose:
    case Fn::kCursorDbi:
      return model_.cursor[c.cursor].open;
    case Fn::kCursorTxn:
    case Fn::kCursorGet:
    case Fn::kCursorCount:
    case Fn::kCursorPut:
    case Fn::kCursorDel:
      return cursor_usable(c.cursor);
    case Fn::kNullHandle:
      return true;
  }
  return false;
}

bool Executor::compares_keys(const Call& c) const {
  return (c.fn == Fn::kCursorGet && takes_key(c.op)) || c.fn == Fn::kGet || c.fn == Fn::kCmp ||
         c.fn == Fn::kDcmp;
}

/// mdb_cmp_cint compares as many bytes as its first argument has: longer ones than the database's reach past
/// them.
bool Executor::integers_fit(const Call& c) const {
  if (!compares_keys(c)) return true;
  const bool cursor = c.fn == Fn::kCursorGet;
  const int txn = cursor ? model_.cursor[c.cursor].txn : c.txn;
  const int env = model_.txn[txn].env;
  const MDB_dbi dbi = cursor ? model_.cursor[c.cursor].dbi : c.dbi;
  const int db = db_of(env, dbi);
  if (db < 0) return true;
  const EnvModel& e = model_.env[env];
  if (dbi > 1 && e.handles[dbi].integers &&
      e.handles[dbi].changed > (cursor ? model_.cursor[c.cursor].bound : model_.txn[txn].era) &&
      e.handles[dbi].opened_by != txn)
    return false;  // the number was given to another database since: comparison and keys may not match
  const test::DbSpec& s = environments_[static_cast<std::size_t>(e.which)].dbs[static_cast<std::size_t>(db)];
  if (c.fn == Fn::kCmp || c.fn == Fn::kDcmp) return true;  // stock_undefined()
  if ((s.flags & MDB_INTEGERKEY) != 0 && c.key.bytes.size() > s.key_min) return false;
  const bool unaligned_int = (s.flags & MDB_INTEGERDUP) != 0 && (s.flags & MDB_DUPFIXED) == 0;
  return !cursor || !takes_data(c.op) || !unaligned_int || c.data.bytes.size() <= s.value_min;
}

/// The comparison functions that a search will use are those the database was written with.
bool Executor::order_fits(const Call& c) const {
  const bool cursor = c.fn == Fn::kCursorGet && takes_key(c.op);
  if (!cursor && c.fn != Fn::kGet && c.fn != Fn::kDbiOpen) return true;
  const int slot = cursor ? model_.cursor[c.cursor].txn : c.txn;
  const TxnModel& t = model_.txn[slot];
  if (t.status != TxnModel::Status::kActive) return true;
  const StockTxn txn = stock(sides_[0].txn[slot]);
  const std::vector<test::DbSpec>& dbs = environments_[static_cast<std::size_t>(model_.env[t.env].which)].dbs;
  const auto keys_fit = [&](MDB_dbi dbi, const test::DbSpec& s) {
    return is_order(txn.dbxs[dbi].cmp, s.key_comparator, (s.flags & (MDB_REVERSEKEY | MDB_INTEGERKEY)) != 0);
  };
  if (c.fn == Fn::kDbiOpen) return !c.has_name || keys_fit(1, dbs[0]);
  const MDB_dbi dbi = cursor ? model_.cursor[c.cursor].dbi : c.dbi;
  if (dbi >= txn.numdbs) return true;
  if (dbi >= 2 && (txn.dbflags[dbi] & kDbStale) != 0 && !keys_fit(1, dbs[0])) return false;
  const int db = db_of(t.env, dbi);
  if (db < 0) return true;
  const test::DbSpec& s = dbs[static_cast<std::size_t>(db)];
  if (!keys_fit(dbi, s)) return false;
  if ((s.flags & MDB_INTEGERKEY) != 0 && !c.key.bytes.empty() && c.key.bytes.size() != s.key_min)
    return false;
  if (!cursor || !takes_data(c.op)) return true;
  const StockXcursor* x = stock(sides_[0].cursor[c.cursor]).xcursor;
  const bool from_end = (s.flags & (MDB_REVERSEDUP | MDB_INTEGERDUP)) != 0;
  const bool unaligned_int = (s.flags & MDB_INTEGERDUP) != 0 && (s.flags & MDB_DUPFIXED) == 0;
  if (unaligned_int && !c.data.bytes.empty() && c.data.bytes.size() != s.value_min) return false;
  return x == nullptr || (is_order(txn.dbxs[dbi].dcmp, s.dup_comparator, from_end) &&
                          is_order(x->dbx().cmp, s.dup_comparator, from_end));
}

Undefined Executor::stock_undefined(const Side& side, const Call& c) const {
  // A stale handle is looked up in the main database without a sub-cursor: asserts if that claims DUPSORT.
  const auto stale_lookup = [&](int txn, MDB_dbi dbi) {
    const StockTxn t = stock(side.txn[txn]);
    return dbi >= 2 && dbi < t.numdbs && (t.dbflags[dbi] & kDbStale) != 0 &&
           (t.dbs[1].flags & MDB_DUPSORT) != 0;
  };
  switch (c.fn) {
    case Fn::kCmp:
    case Fn::kDcmp: {
      const auto& dbx = stock(side.txn[c.txn]).dbxs[c.dbi];
      MDB_cmp_func* const cmp = c.fn == Fn::kCmp ? dbx.cmp : dbx.dcmp;
      if (cmp == nullptr) return Undefined::kNoComparator;
      // Integers: as many bytes are read as the first argument or the order has.
      const std::size_t n = c.key.bytes.size();
      const bool same_integers = n == c.data.bytes.size() && (n == 4 || n == 8);
      return is_order(cmp, -1, true) && !same_integers ? Undefined::kBeforeValue : Undefined::kNo;
    }
    case Fn::kGet:
      if (stale_lookup(c.txn, c.dbi)) return Undefined::kStaleLookup;
      if (c.dbi < stock(side.txn[c.txn]).numdbs && !c.key.null &&
          stock(side.txn[c.txn]).dbxs[c.dbi].cmp == nullptr)
        return Undefined::kNoComparator;
      return Undefined::kNo;
    case Fn::kStat:
    case Fn::kCursorOpen:
      return stale_lookup(c.txn, c.dbi) ? Undefined::kStaleLookup : Undefined::kNo;
    case Fn::kCursorRenew: {
      const MDB_dbi dbi = model_.cursor[c.cursor].dbi;
      if (stale_lookup(c.txn, dbi)) return Undefined::kStaleLookup;
      const StockTxn t = stock(side.txn[c.txn]);
      if (dbi < t.numdbs && (t.dbs[dbi].flags & MDB_DUPSORT) != 0 &&
          stock(side.cursor[c.cursor]).xcursor == nullptr)
        return Undefined::kRenewDupsort;
      return Undefined::kNo;
    }
    case Fn::kCursorGet:
      if (model_.txn[model_.cursor[c.cursor].txn].status == TxnModel::Status::kReset) return Undefined::kNo;
      if (stale_lookup(model_.cursor[c.cursor].txn, model_.cursor[c.cursor].dbi))
        return Undefined::kStaleLookup;
      return undefined_cursor_get(stock(side.cursor[c.cursor]), c, side.lmdb->level());
    case Fn::kCursorCount:
      if (model_.txn[model_.cursor[c.cursor].txn].status == TxnModel::Status::kReset) return Undefined::kNo;
      return undefined_cursor_count(stock(side.cursor[c.cursor]));
    case Fn::kCursorClose: {
      const CursorModel& m = model_.cursor[c.cursor];
      const TxnModel& t = model_.txn[m.txn];
      const bool freed = t.status == TxnModel::Status::kNone || t.serial != m.txn_serial;
      return side.lmdb->is_10() && freed ? Undefined::kFreedTxn : Undefined::kNo;
    }
    case Fn::kCursorPut:
      return (c.flags & MDB_MULTIPLE) != 0 ? Undefined::kSecondVal : Undefined::kNo;
    default:
      return Undefined::kNo;
  }
}

bool Executor::feasible(const Call& c) {
  if (!handles_exist(c) || !integers_fit(c)) return false;
  Undefined u = stock_undefined(sides_[0], c);
  if (u == Undefined::kNo && only_common_ && c.fn == Fn::kCursorGet &&
      versions_differ(stock(sides_[0].cursor[c.cursor]), c))
    u = Undefined::kVersions;
  if (u == Undefined::kNo && !foreign_order && !order_fits(c)) u = Undefined::kForeignOrder;
  if (u == Undefined::kNo) return true;
  Coverage::count(coverage_.reasons[static_cast<int>(u)][static_cast<int>(c.fn)]);
  if (c.fn == Fn::kCursorGet) {
    Coverage::count(coverage_.cursor_reasons[static_cast<int>(u)][op_column(c.op)]);
    Coverage::count(
        coverage_
            .undefined[static_cast<int>(kind_of(model_.cursor[c.cursor].env, model_.cursor[c.cursor].dbi))]
                      [static_cast<int>(state_of(c.cursor))][op_column(c.op)]);
  }
  return false;
}

// ---- one call on one library ----

int Executor::open_env(Side& side, const Call& c, std::string* text) {
  const Environment& e = environments_[c.number];
  const std::string dir = side.dir + "/" + std::to_string(c.number);
  bool shared = false;
  for (int i = 0; i < kEnvSlots; ++i)
    shared |= i != c.env && model_.env[i].open && model_.env[i].which == static_cast<int>(c.number);
  if (!shared && side.copy_is_clean[c.number] != 0) {
    remove_locks(dir);
  } else if (!shared) {
    fresh_copy(e, dir);
    side.copy_is_clean[c.number] = 1;
  }
  std::string path = dir;
  if ((c.flags & MDB_NOSUBDIR) != 0) path += "/data.mdb";
  if (c.txn == 1) path = side.dir + "/absent";
  if (c.txn == 2) path = dir + "/data.mdb/below-a-file";
  MDB_env*& env = side.env[c.env];
  int rc = side.lmdb->env_create(&env);
  if (rc != 0) return rc;
  int settings[3];
  settings[0] = side.lmdb->env_set_maxdbs(env, static_cast<MDB_dbi>(c.op));
  settings[1] = side.lmdb->env_set_maxreaders(env, c.dbi);
  settings[2] = c.has_name ? side.lmdb->env_set_mapsize(env, std::stoul(c.name)) : 0;
  for (const int s : settings) *text += std::to_string(s) + " ";
  rc = side.lmdb->env_open(env, path.c_str(), c.flags, 0644);
  if (rc != 0) {
    side.lmdb->env_close(env);
    env = nullptr;
  } else if (c.txn == 3) {
    *text += "again " + std::to_string(side.lmdb->env_open(env, path.c_str(), c.flags, 0644));
  }
  return rc;
}

Answer Executor::env_call(Side& side, const Call& c) {
  const test::LmdbApi& l = *side.lmdb;
  MDB_env*& env = side.env[c.env];
  Answer a;
  switch (c.fn) {
    case Fn::kEnvOpen:
      a.rc = open_env(side, c, &a.text);
      break;
    case Fn::kEnvClose:
      l.env_close(env);
      env = nullptr;
      break;
    case Fn::kEnvInfo: {
      MDB_envinfo i{};
      a.rc = l.env_info(env, &i);
      if (sides_[0].lmdb->is_10()) i.me_mapaddr = nullptr;  // that of any map
      char text[200];
      std::snprintf(text, sizeof text,
                    "mapaddr %p mapsize %zu last_pgno %zu last_txnid %zu maxreaders %u numreaders %u",
                    i.me_mapaddr, i.me_mapsize, i.me_last_pgno, i.me_last_txnid, i.me_maxreaders,
                    i.me_numreaders);
      a.text = text;
      break;
    }
    case Fn::kEnvStat:
    case Fn::kStat: {
      MDB_stat s{};
      a.rc = c.fn == Fn::kEnvStat ? l.env_stat(env, &s) : l.stat(side.txn[c.txn], c.dbi, &s);
      char text[200];
      std::snprintf(text, sizeof text, "psize %u depth %u branch %zu leaf %zu overflow %zu entries %zu",
                    s.ms_psize, s.ms_depth, s.ms_branch_pages, s.ms_leaf_pages, s.ms_overflow_pages,
                    s.ms_entries);
      a.text = text;
      break;
    }
    case Fn::kEnvFlags: {
      unsigned flags = 0;
      a.rc = l.env_get_flags(env, &flags);
      a.number = flags;
      break;
    }
    case Fn::kEnvPath: {
      const char* path = nullptr;
      mdb_filehandle_t fd = -1;
      a.rc = l.env_get_path(env, &path) | l.env_get_fd(env, &fd);
      a.text = path == nullptr ? "null"
               : std::string(path).compare(0, side.dir.size(), side.dir) == 0
                   ? std::string(path).substr(side.dir.size())
                   : std::string(path);
      a.number = fd >= 0 ? 1 : 0;
      break;
    }
    case Fn::kEnvLimits: {
      unsigned readers = 0;
      a.rc = l.env_get_maxreaders(env, &readers);
      a.number = readers * 10000ull + static_cast<unsigned>(l.env_get_maxkeysize(env));
      break;
    }
    case Fn::kEnvSetFlags:
      a.rc = l.env_set_flags(env, c.flags, c.op);
      break;
    case Fn::kEnvSetMapsize:
      a.rc = l.env_set_mapsize(env, c.number);
      break;
    case Fn::kEnvSync:
      a.rc = l.env_sync(env, c.op);
      break;
    case Fn::kEnvUserctx:
      a.number = reinterpret_cast<std::uintptr_t>(l.env_get_userctx(env));
      a.rc = l.env_set_userctx(env, reinterpret_cast<void*>(c.number));
      break;
    case Fn::kEnvLateSettings:
      a.number = static_cast<std::uint64_t>(l.env_set_maxdbs(env, 7)) << 32 |
                 static_cast<std::uint32_t>(l.env_set_maxreaders(env, 7));
      break;
    case Fn::kReaderList:
      a.rc = l.reader_list(env, append_line, &a.text);
      break;
    case Fn::kReaderCheck: {
      int dead = -1;
      a.rc = l.reader_check(env, &dead);
      a.number = static_cast<unsigned>(dead);
      break;
    }
    default:
      break;
  }
  return a;
}

Answer Executor::txn_call(Side& side, const Call& c) {
  const test::LmdbApi& l = *side.lmdb;
  MDB_env* env = side.env[c.env];
  MDB_txn*& txn = side.txn[c.txn];
  MDB_txn* const unset = reinterpret_cast<MDB_txn*>(this);  // recognisable: must stay if begin fails
  Answer a;
  switch (c.fn) {
    case Fn::kTxnBegin: {
      MDB_txn* out = unset;
      a.rc = l.txn_begin(env, nullptr, MDB_RDONLY, &out);
      a.number = out == unset ? 1 : 0;
      txn = a.rc == 0 ? out : nullptr;
      if (a.rc == 0) a.text = std::to_string(l.txn_id(txn));
      break;
    }
    case Fn::kTxnBeginWrite:
    case Fn::kTxnBeginNested: {
      MDB_txn* out = unset;
      a.rc = l.txn_begin(env, c.fn == Fn::kTxnBeginNested ? txn : nullptr, c.flags, &out);
      a.number = out == unset ? 1 : 0;
      break;
    }
    case Fn::kTxnRenew:
      a.rc = l.txn_renew(txn);
      if (a.rc == 0) a.text = std::to_string(l.txn_id(txn));
      break;
    case Fn::kTxnReset:
      l.txn_reset(txn);
      break;
    case Fn::kTxnAbort:
      l.txn_abort(txn);
      txn = nullptr;
      break;
    case Fn::kTxnCommit:
      a.rc = l.txn_commit(txn);
      txn = nullptr;
      break;
    case Fn::kTxnId:
      a.number = l.txn_id(txn);
      break;
    case Fn::kTxnEnv:
      a.number = l.txn_env(txn) == side.env[model_.txn[c.txn].env] ? 1 : 0;
      break;
    default:
      break;
  }
  return a;
}

Answer Executor::data_call(Side& side, const Call& c) {
  const test::LmdbApi& l = *side.lmdb;
  MDB_txn* txn = side.txn[c.txn];
  Answer a;
  a.has_key = !c.key.null;
  a.has_data = !c.data.null;
  a.key = {c.key.bytes.size(), key_buffer_.data() + kGuard};
  a.data = {c.data.bytes.size(), data_buffer_.data() + kGuard};
  MDB_val* key = a.has_key ? &a.key : nullptr;
  MDB_val* data = a.has_data ? &a.data : nullptr;
  switch (c.fn) {
    case Fn::kDbiOpen: {
      MDB_dbi dbi = 0xABCD;
      a.rc = l.dbi_open(txn, c.has_name ? c.name.c_str() : nullptr, c.flags, &dbi);
      a.number = dbi;
      break;
    }
    case Fn::kDbiClose:
      l.dbi_close(side.env[c.env], c.dbi);
      break;
    case Fn::kDbiFlags: {
      unsigned flags = 0xABCD;
      a.rc = l.dbi_flags(txn, c.dbi, &flags);
      a.number = flags;
      break;
    }
    case Fn::kSetCompare:
      a.rc = l.set_compare(txn, c.dbi, test::comparator(c.op));
      break;
    case Fn::kSetDupsort:
      a.rc = l.set_dupsort(txn, c.dbi, test::comparator(c.op));
      break;
    case Fn::kCmp:
    case Fn::kDcmp: {  // only the sign is promised
      const int r = c.fn == Fn::kCmp ? l.cmp(txn, c.dbi, key, data) : l.dcmp(txn, c.dbi, key, data);
      a.rc = r < 0 ? -1 : r > 0 ? 1 : 0;
      break;
    }
    case Fn::kGet:
      a.rc = l.get(txn, c.dbi, key, data);
      break;
    case Fn::kPut:
      a.rc = l.put(txn, c.dbi, key, data, c.flags);
      break;
    case Fn::kDel:
      a.rc = l.del(txn, c.dbi, key, data);
      break;
    case Fn::kDrop:
      a.rc = l.drop(txn, c.dbi, c.op);
      break;
    default:
      break;
  }
  return a;
}

Answer Executor::cursor_call(Side& side, const Call& c) {
  const test::LmdbApi& l = *side.lmdb;
  MDB_cursor*& cursor = side.cursor[c.cursor];
  Answer a;
  a.has_key = !c.key.null;
  a.has_data = !c.data.null;
  a.key = {c.key.bytes.size(), key_buffer_.data() + kGuard};
  a.data = {c.data.bytes.size(), data_buffer_.data() + kGuard};
  MDB_val* key = a.has_key ? &a.key : nullptr;
  MDB_val* data = a.has_data ? &a.data : nullptr;
  switch (c.fn) {
    case Fn::kCursorGet:
      a.rc = l.cursor_get(cursor, key, data, static_cast<MDB_cursor_op>(c.op));
      break;
    case Fn::kCursorPut:
      a.rc = l.cursor_put(cursor, key, data, c.flags);
      break;
    case Fn::kCursorDel:
      a.rc = l.cursor_del(cursor, c.flags);
      break;
    case Fn::kCursorCount: {
      std::size_t count = 0xABCD;
      a.rc = l.cursor_count(cursor, &count);
      a.number = count;
      break;
    }
    case Fn::kCursorOpen: {
      MDB_cursor* out = reinterpret_cast<MDB_cursor*>(this);
      a.rc = l.cursor_open(side.txn[c.txn], c.dbi, &out);
      a.number = out == reinterpret_cast<MDB_cursor*>(this) ? 1 : 0;
      cursor = a.rc == 0 ? out : nullptr;
      if (a.rc == 0 && side.role != Role::kTested) mark_no_subdatabase(cursor);
      break;
    }
    case Fn::kCursorRenew: {
      const CursorModel& m = model_.cursor[c.cursor];
      const TxnModel& t = model_.txn[c.txn];
      a.rc = l.cursor_renew(side.txn[c.txn], cursor);
      const bool same_pages = a.rc == 0 && m.env == t.env && m.txnid == t.txnid &&
                              m.map_era == model_.env[t.env].map_era &&
                              (m.dbi < 2 || model_.env[t.env].handles[m.dbi].changed < m.bound);
      if (a.rc == 0 && side.role != Role::kTested && !same_pages) mark_no_subdatabase(cursor);
      break;
    }
    case Fn::kCursorClose:
      l.cursor_close(cursor);
      cursor = nullptr;
      break;
    case Fn::kCursorTxn:
      a.number = l.cursor_txn(cursor) == side.txn[model_.cursor[c.cursor].txn] ? 1 : 0;
      break;
    case Fn::kCursorDbi:
      a.number = l.cursor_dbi(cursor);
      break;
    default:
      break;
  }
  return a;
}

/// Null handles and pointers for which stock has an answer.
Answer Executor::null_call(Side& side, const Call& c) {
  const test::LmdbApi& l = *side.lmdb;
  Answer a;
  MDB_val v{1, const_cast<char*>("x")};
  MDB_stat stat{};
  MDB_envinfo info{};
  std::size_t n = 0;
  unsigned u = 0;
  MDB_env* env = side.env[c.env];
  MDB_txn* txn = side.txn[c.txn];
  switch (c.op) {
    case 0:
      a.rc = l.get(nullptr, 1, &v, &v);
      break;
    case 1:
      a.rc = l.stat(nullptr, 1, &stat);
      break;
    case 2:
      a.rc = l.txn_renew(nullptr);
      break;
    case 3:
      a.rc = l.txn_commit(nullptr);
      break;
    case 4:
      l.txn_abort(nullptr);
      break;
    case 5:
      l.txn_reset(nullptr);
      break;
    case 6:
      a.number = l.txn_id(nullptr);
      break;
    case 7:
      a.number = l.txn_env(nullptr) == nullptr;
      break;
    case 8: {
      MDB_cursor* out = nullptr;
      a.rc = l.cursor_open(nullptr, 1, &out);
      break;
    }
    case 9:
      l.cursor_close(nullptr);
      break;
    case 10:
      a.rc = l.cursor_get(nullptr, &v, &v, MDB_FIRST);
      break;
    case 11:
      a.rc = l.cursor_count(nullptr, &n);
      break;
    case 12:
      a.number = l.cursor_txn(nullptr) == nullptr;
      break;
    case 13:
      a.rc = l.env_stat(nullptr, &stat);
      break;
    case 14:
      a.rc = l.env_info(nullptr, &info);
      break;
    case 15:
      a.rc = l.env_get_flags(nullptr, &u);
      break;
    case 16:
      a.rc = l.dbi_flags(nullptr, 1, &u);
      break;
    case 17:
      a.rc = l.drop(nullptr, 1, 0);
      break;
    case 18:
      a.rc = l.put(nullptr, 1, &v, &v, 0);
      break;
    case 19:
      a.rc = l.del(nullptr, 1, &v, &v);
      break;
    case 20:
      l.env_close(nullptr);
      break;
    case 21:
      a.rc = l.set_compare(nullptr, 1, test::comparator(0));
      break;
    case 22:
      a.rc = l.reader_check(nullptr, nullptr);
      break;
    case 23:
      a.rc = l.cursor_put(nullptr, &v, &v, 0);
      break;
    case 24:
      a.rc = l.env_get_maxreaders(nullptr, &u);
      break;
    case 25: {
      const char* p = nullptr;
      a.rc = l.env_get_path(nullptr, &p);
      break;
    }
    case 26:
      a.rc = env != nullptr ? l.env_stat(env, nullptr) : 0;
      break;
    case 27:
      a.rc = env != nullptr ? l.env_info(env, nullptr) : 0;
      break;
    case 28:
      a.rc = env != nullptr ? l.reader_list(env, nullptr, nullptr) : 0;
      break;
    case 29:
      a.rc = txn != nullptr ? l.stat(txn, 1, nullptr) : 0;
      break;
    case 30:
      a.rc = txn != nullptr ? l.cursor_open(txn, 1, nullptr) : 0;
      break;
    case 31:
      a.rc = txn != nullptr ? l.cursor_renew(txn, nullptr) : 0;
      break;
    case 32:
      a.rc = cursor_usable(c.cursor) ? l.cursor_count(side.cursor[c.cursor], nullptr) : 0;
      break;
    case 33:
      a.rc = l.env_set_flags(nullptr, MDB_RDONLY, 1);
      break;
    case 34:
      a.rc = l.set_dupsort(nullptr, 1, test::comparator(0));
      break;
    case 35:
      a.rc = l.env_get_path(env, nullptr);
      break;
    case 36:
      a.rc = l.env_get_fd(env, nullptr);
      break;
    default:
      break;
  }
  return a;
}

Answer Executor::call_side(Side& side, const Call& c) {
  if (running_side != nullptr)
    running_side->store(static_cast<int>(&side - sides_.data()), std::memory_order_relaxed);
  if (c.fn == Fn::kNullHandle) return null_call(side, c);
  if (c.fn <= Fn::kReaderCheck || c.fn == Fn::kStat) return env_call(side, c);
  if (c.fn <= Fn::kTxnEnv) return txn_call(side, c);
  if (c.fn <= Fn::kDrop) return data_call(side, c);
  return cursor_call(side, c);
}

// ---- comparison ----

std::string Executor::difference(const Call& c, const Answer& a, const Answer& b) const {
  if (a.rc != b.rc)
    return "returns " + std::to_string(b.rc) + " (" + sides_[0].lmdb->strerror(b.rc) + "), must return " +
           std::to_string(a.rc) + " (" + sides_[0].lmdb->strerror(a.rc) + ")";
  if (a.number != b.number)
    return "gives " + std::to_string(b.number) + ", must give " + std::to_string(a.number);
  if (a.text != b.text) return "gives \"" + b.text + "\", must give \"" + a.text + "\"";
  std::string d;
  if (!c.key.null && a.has_key) d = compare_val("key", a.key, b.key, key_buffer_.data() + kGuard);
  if (d.empty() && !c.data.null && a.has_data)
    d = compare_val("data", a.data, b.data, data_buffer_.data() + kGuard);
  return d;
}

/// Compares all answers with the reference's.  False if the library under test differs without excuse.
bool Executor::settle(const Call& c, const std::vector<Answer>& answers) {
  std::size_t other = 0;
  std::string other_differs;
  const auto asked = [&](std::size_t i) {
    return !sides_[i].dropped && !(on_cursor(c.fn) && sides_[i].cursor_differs[c.cursor]);
  };
  for (std::size_t i = 1; i < sides_.size(); ++i) {
    if (sides_[i].role != Role::kOtherStock || !asked(i)) continue;
    other = i;
    other_differs = difference(c, answers[0], answers[i]);
  }
  for (std::size_t i = 1; i < sides_.size(); ++i) {
    if (sides_[i].role != Role::kTested) continue;
    const std::string d = difference(c, answers[0], answers[i]);
    if (d.empty()) continue;
    // A handle whose name is gone from the file: old versions say NOTFOUND, new ones BAD_DBI.
    if (only_common_ && answers[0].rc == MDB_NOTFOUND && answers[i].rc == MDB_BAD_DBI) continue;
    if (!other_differs.empty() && difference(c, answers[other], answers[i]).empty()) {
      coverage_.as_loaded_version.fetch_add(1, std::memory_order_relaxed);
      if (on_cursor(c.fn)) model_.cursor[c.cursor].retired = true;
      continue;
    }
    failure_ = sides_[i].name + ": " + to_c(c) + "\n    " + d;
    return false;
  }
  if (!other_differs.empty()) {
    Coverage::count(coverage_.function_versions[static_cast<int>(c.fn)]);
    if (c.fn == Fn::kCursorGet) {
      const CursorModel& m = model_.cursor[c.cursor];
      Coverage::count(coverage_.versions[static_cast<int>(kind_of(m.env, m.dbi))]
                                        [static_cast<int>(state_before_)][op_column(c.op)]);
    }
    if (on_cursor(c.fn))
      sides_[other].cursor_differs[c.cursor] = true;
    else if (makes_or_ends_handles(c.fn) && (answers[0].rc == 0) != (answers[other].rc == 0))
      sides_[other].dropped = true;
  }
  return true;
}

void Executor::hold(Side& side, int txn, const Answer& a) {
  std::vector<Held>& held = side.held[txn];
  const auto add = [&](const MDB_val& v, const void* input) {
    if (v.mv_data == input || v.mv_data == nullptr) return;
    const Held h{v.mv_data, v.mv_size, hash_of(v.mv_data, v.mv_size)};
    if (held.size() < kHeldPerTxn)
      held.push_back(h);
    else
      held[(model_.clock * 31) % kHeldPerTxn] = h;
  };
  if (a.has_key) add(a.key, key_buffer_.data() + kGuard);
  if (a.has_data) add(a.data, data_buffer_.data() + kGuard);
}

bool Executor::values_still_there(int txn) {
  for (Side& s : sides_) {
    for (const Held& h : s.held[txn]) {
      coverage_.values_checked.fetch_add(1, std::memory_order_relaxed);
      if (hash_of(h.bytes, h.size) == h.hash) continue;
      failure_ =
          s.name + ": a value of " + std::to_string(h.size) + " bytes changed before its transaction ended";
      return false;
    }
    s.held[txn].clear();
  }
  return true;
}

// ---- running ----

void Executor::count(const Call& c) {
  Coverage::count(coverage_.function[static_cast<int>(c.fn)]);
  coverage_.calls.fetch_add(1, std::memory_order_relaxed);
  if (c.fn == Fn::kCursorGet) {
    const CursorModel& m = model_.cursor[c.cursor];
    state_before_ = state_of(c.cursor);
    Coverage::count(coverage_.cursor[static_cast<int>(kind_of(m.env, m.dbi))][static_cast<int>(state_before_)]
                                    [op_column(c.op)]);
    Coverage::count(coverage_.dbi[static_cast<int>(dbi_state(m.env, m.txn, m.dbi))][static_cast<int>(c.fn)]);
  } else if (takes_dbi(c.fn)) {
    Coverage::count(coverage_.dbi[static_cast<int>(dbi_state(model_.txn[c.txn].env, c.txn, c.dbi))]
                                 [static_cast<int>(c.fn)]);
  } else if (c.fn == Fn::kCursorRenew) {
    Coverage::count(coverage_.dbi[static_cast<int>(
        dbi_state(model_.txn[c.txn].env, c.txn, model_.cursor[c.cursor].dbi))][static_cast<int>(c.fn)]);
  }
}

bool Executor::run_writer(const Call& c) {
  const EnvModel& e = model_.env[c.env];
  std::vector<std::string> dirs;
  for (Side& s : sides_) {
    dirs.push_back(s.dir + "/" + std::to_string(e.which));
    s.copy_is_clean[static_cast<std::size_t>(e.which)] = 0;
  }
  if (writer_.commit(e.which, c.number, (e.flags & MDB_NOSUBDIR) != 0, dirs)) return true;
  failure_ = "the writer failed";
  return false;
}

// Of the lookup itself, of keys that are there, and of some that are not; one time in four.
void Executor::tell_ahead(const Side& side, const Call& c) {
  test::Rng rng(model_.clock);
  MDB_txn* const txn = side.txn[c.txn];
  if (txn == nullptr || !rng.percent(25)) return;
  const int env = model_.txn[c.txn].env;
  if (rng.percent(50)) {
    mdb_filehandle_t fd = -1;
    if (side.lmdb->env_get_fd(side.env[env], &fd) == 0) {
      (void)::fdatasync(fd);
      (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }
  }
  std::vector<std::string> keys;
  if (!c.key.null) keys.push_back(c.key.bytes);
  const int db = db_of(env, c.dbi);
  if (db >= 0) {
    const Environment& e = environments_[static_cast<std::size_t>(model_.env[env].which)];
    const std::vector<std::string>& there = e.contents[static_cast<std::size_t>(db)].keys;
    for (std::size_t n = there.empty() ? 0 : rng.below(200); n > 0; --n) {
      keys.push_back(there[rng.below(there.size())]);
      if (rng.percent(10)) keys.back() += 'x';
      if (rng.percent(10)) keys.back().resize(rng.below(12));
    }
  }
  std::erase_if(keys, [](const std::string& k) { return k.empty(); });
  std::vector<MDB_val> vals;
  for (std::string& k : keys) vals.push_back({k.size(), k.data()});
  (void)prefetch(txn, c.dbi, vals.data(), vals.size());
}

bool Executor::run(const Call& c) {
  if (before_call) before_call(c);
  count(c);
  ++model_.clock;
  if (c.fn == Fn::kWriter) return run_writer(c);
  if (c.fn == Fn::kTxnReset || c.fn == Fn::kTxnAbort || c.fn == Fn::kTxnCommit)
    if (!values_still_there(c.txn)) return false;
  fill(key_buffer_, c.key);
  fill(data_buffer_, c.data);
  answers_.assign(sides_.size(), Answer());
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    Side& s = sides_[i];
    if (s.role == Role::kOtherStock) {
      if (s.dropped && c.fn != Fn::kEnvOpen) {
        const bool ends = (c.fn == Fn::kEnvClose && s.env[c.env] != nullptr) ||
                          ((c.fn == Fn::kTxnAbort || c.fn == Fn::kTxnCommit) && s.txn[c.txn] != nullptr) ||
                          (c.fn == Fn::kCursorClose && s.cursor[c.cursor] != nullptr);
        if (ends) call_side(s, c);
        continue;
      }
      if (s.dropped) continue;
      if (on_cursor(c.fn) && c.fn != Fn::kCursorClose && s.cursor[c.cursor] == nullptr) continue;
      if (c.fn == Fn::kCursorRenew) s.cursor_differs[c.cursor] = false;
      if (c.fn == Fn::kCursorOpen) s.cursor_differs[c.cursor] = false;
      if (on_cursor(c.fn) && s.cursor_differs[c.cursor] && c.fn != Fn::kCursorClose) continue;
      if (stock_undefined(s, c) != Undefined::kNo) {  // only in this version: no longer comparable
        if (on_cursor(c.fn))
          s.cursor_differs[c.cursor] = true;
        else
          s.dropped = true;
        continue;
      }
    }
    if (prefetch != nullptr && s.role == Role::kTested && c.fn == Fn::kGet) tell_ahead(s, c);
    answers_[i] = call_side(s, c);
  }
  if (!settle(c, answers_)) return false;
  if (answers_[0].rc == 0 && (c.fn == Fn::kCursorGet || c.fn == Fn::kGet)) {
    const int txn = c.fn == Fn::kGet ? c.txn : model_.cursor[c.cursor].txn;
    for (std::size_t i = 0; i < sides_.size(); ++i)
      if (!sides_[i].dropped && answers_[i].has_data + answers_[i].has_key > 0)
        hold(sides_[i], txn, answers_[i]);
  }
  update_model(c, answers_[0]);
  return true;
}

// ---- what follows from an answer ----

void Executor::end_handles_of(int txn, HandleModel::Status status) {
  for (HandleModel& h : model_.env[model_.txn[txn].env].handles) {
    if (h.opened_by != txn) continue;
    h.opened_by = -1;
    h.changed =
        model_.clock;  // also if it was closed before: the end of its opener exports or clears it again
    if (status == HandleModel::Status::kOpen)
      h.since = model_.clock;
    else if (h.status == HandleModel::Status::kOpen)
      h.status = status;
  }
}

void Executor::update_handles(const Call& c, const Answer& a) {
  EnvModel& e = model_.env[model_.txn[c.txn].env];
  OpenWay way = OpenWay::kOther;
  if (a.rc == 0 && !c.has_name) {
    e.handles[1].compared = 0;
    way = (c.flags & ~static_cast<unsigned>(MDB_CREATE)) != 0 ? OpenWay::kMainWithFlags : OpenWay::kMain;
  } else if (a.rc == 0 && a.number < e.handles.size()) {
    HandleModel& h = e.handles[a.number];
    if (h.status == HandleModel::Status::kOpen && h.name == c.name) {
      way = OpenWay::kAlreadyOpen;
    } else {
      way = h.status == HandleModel::Status::kNever ? OpenWay::kNewSlot : OpenWay::kReusedSlot;
      h.status = HandleModel::Status::kOpen;
      h.name = c.name;
      h.compared = 0;
      h.opened_by = c.txn;
      h.changed = model_.clock;
      h.since = model_.clock;
      h.db = -1;
      const std::vector<test::DbSpec>& dbs = environments_[static_cast<std::size_t>(e.which)].dbs;
      for (std::size_t i = 1; i < dbs.size(); ++i)
        if (dbs[i].name == c.name) h.db = static_cast<int>(i);
      if (h.db > 0)
        h.integers |= (dbs[static_cast<std::size_t>(h.db)].flags & (MDB_INTEGERKEY | MDB_INTEGERDUP)) != 0;
    }
  } else if (a.rc == MDB_DBS_FULL) {
    way = OpenWay::kFull;
  } else if (a.rc == MDB_NOTFOUND) {
    way = OpenWay::kAbsent;
  } else if (a.rc == EACCES || a.rc == kIsReadOnly) {
    way = OpenWay::kCreateReadOnly;
  } else if (a.rc == MDB_INCOMPATIBLE) {
    way = OpenWay::kNotADatabase;
  } else if (a.rc == EINVAL) {
    way = OpenWay::kBadFlags;
  } else if (a.rc == MDB_BAD_VALSIZE) {
    way = OpenWay::kEmptyName;
  } else if (a.rc == MDB_BAD_TXN) {
    way = OpenWay::kEndedTxn;
  }
  Coverage::count(coverage_.open[static_cast<int>(way)]);
}

void Executor::update_model(const Call& c, const Answer& a) {
  TxnModel& t = model_.txn[c.txn];
  CursorModel& m = model_.cursor[c.cursor];
  switch (c.fn) {
    case Fn::kEnvOpen:
      if (a.rc == 0) {
        EnvModel& e = model_.env[c.env];
        e = EnvModel();
        e.open = true;
        e.which = static_cast<int>(c.number);
        e.flags = c.flags;
        e.map_era = model_.clock;
        e.max_dbs = static_cast<unsigned>(c.op);
        e.handles.resize(e.max_dbs + 2);
        for (EnvModel& other : model_.env)
          if (&other != &e && other.open && other.which == e.which) other.locks_lost = e.locks_lost = true;
      }
      break;
    case Fn::kEnvClose:
      model_.env[c.env].open = false;
      break;
    case Fn::kEnvSetMapsize:
      model_.env[c.env].map_era = model_.clock;
      break;
    case Fn::kTxnBegin:
    case Fn::kTxnRenew:
      if (a.rc != 0) break;
      if (c.fn == Fn::kTxnBegin) {
        t.env = c.env;
        t.serial = model_.clock;
      }
      t.status = TxnModel::Status::kActive;
      t.era = model_.clock;
      t.txnid = std::stoull(a.text);
      break;
    case Fn::kTxnReset:
      end_handles_of(c.txn, HandleModel::Status::kOpenerReset);
      t.status = TxnModel::Status::kReset;
      break;
    case Fn::kTxnAbort:
      end_handles_of(c.txn, HandleModel::Status::kOpenerAborted);
      t.status = TxnModel::Status::kNone;
      break;
    case Fn::kTxnCommit:
      end_handles_of(c.txn, HandleModel::Status::kOpen);
      t.status = TxnModel::Status::kNone;
      break;
    case Fn::kDbiOpen:
      update_handles(c, a);
      break;
    case Fn::kSetCompare:
    case Fn::kSetDupsort:
      if (a.rc == 0) model_.env[t.env].handles[c.dbi].compared |= c.fn == Fn::kSetCompare ? 1u : 2u;
      break;
    case Fn::kDbiClose:
      if (c.dbi >= 2 && c.dbi < model_.env[c.env].handles.size()) {
        HandleModel& h = model_.env[c.env].handles[c.dbi];
        if (h.status == HandleModel::Status::kOpen) {
          h.status = HandleModel::Status::kClosed;
          h.changed = model_.clock;
        }
      }
      break;
    case Fn::kCursorOpen:
    case Fn::kCursorRenew:
      if (a.rc != 0) break;
      m.renewed_newer = c.fn == Fn::kCursorRenew && m.env == t.env && t.txnid > m.txnid;
      if (c.fn == Fn::kCursorOpen) m.dbi = c.dbi;
      m.open = true;
      m.env = t.env;
      m.txn = c.txn;
      m.txn_serial = t.serial;
      m.bound = model_.clock;
      m.txnid = t.txnid;
      m.map_era = model_.env[t.env].map_era;
      m.after_failure = m.between = m.retired = false;
      break;
    case Fn::kCursorClose:
      m.open = false;
      break;
    case Fn::kCursorGet:
      m.renewed_newer = false;
      m.after_failure = a.rc != 0;
      if (a.rc != 0) break;
      if (c.op == MDB_SET_RANGE)
        m.between = !c.key.null && (a.key.mv_size != c.key.bytes.size() ||
                                    std::memcmp(a.key.mv_data, c.key.bytes.data(), a.key.mv_size) != 0);
      else if (c.op == MDB_GET_BOTH_RANGE)
        m.between = !c.data.null && (a.data.mv_size != c.data.bytes.size() ||
                                     std::memcmp(a.data.mv_data, c.data.bytes.data(), a.data.mv_size) != 0);
      else if (!only_looks(c.op))
        m.between = false;
      break;
    case Fn::kCursorCount:
      m.after_failure = a.rc != 0;
      break;
    default:
      break;
  }
}

}  // namespace lmdbio::diff
