#include "tests/diff/call.h"

#include <cctype>
#include <cstdio>
#include <istream>
#include <ostream>

namespace lmdbio::diff {
namespace {

constexpr const char* kFnNames[kFns] = {"env_open",
                                        "env_close",
                                        "env_info",
                                        "env_stat",
                                        "env_get_flags",
                                        "env_get_path",
                                        "env_get_limits",
                                        "env_set_flags",
                                        "env_set_mapsize",
                                        "env_sync",
                                        "env_userctx",
                                        "env_late_settings",
                                        "reader_list",
                                        "reader_check",
                                        "txn_begin",
                                        "txn_begin(write)",
                                        "txn_begin(nested)",
                                        "txn_renew",
                                        "txn_reset",
                                        "txn_abort",
                                        "txn_commit",
                                        "txn_id",
                                        "txn_env",
                                        "dbi_open",
                                        "dbi_close",
                                        "dbi_flags",
                                        "stat",
                                        "set_compare",
                                        "set_dupsort",
                                        "cmp",
                                        "dcmp",
                                        "get",
                                        "put",
                                        "del",
                                        "drop",
                                        "cursor_open",
                                        "cursor_close",
                                        "cursor_renew",
                                        "cursor_count",
                                        "cursor_txn",
                                        "cursor_dbi",
                                        "cursor_get",
                                        "cursor_put",
                                        "cursor_del",
                                        "null handle",
                                        "writer"};

constexpr const char* kOpNames[kOps] = {
    "FIRST",      "FIRST_DUP", "GET_BOTH", "GET_BOTH_RANGE", "GET_CURRENT",   "GET_MULTIPLE", "LAST",
    "LAST_DUP",   "NEXT",      "NEXT_DUP", "NEXT_MULTIPLE",  "NEXT_NODUP",    "PREV",         "PREV_DUP",
    "PREV_NODUP", "SET",       "SET_KEY",  "SET_RANGE",      "PREV_MULTIPLE", "(none)"};

std::string quoted(const std::string& bytes) {
  std::string out = "\"";
  for (const char c : bytes) {
    const auto u = static_cast<unsigned char>(c);
    if (u >= 0x20 && u < 0x7F && c != '"' && c != '\\') {
      out.push_back(c);
    } else {
      char text[8];
      std::snprintf(text, sizeof text, "\\%03o", u);
      out += text;
    }
  }
  return out + "\"";
}

std::string val(const Arg& a) {
  return a.null ? "NULL" : "&(MDB_val){" + std::to_string(a.bytes.size()) + ", " + quoted(a.bytes) + "}";
}

void write_string(std::ostream& out, const std::string& s) {
  out << s.size() << ' ';
  out.write(s.data(), static_cast<std::streamsize>(s.size()));
  out << ' ';
}

bool read_string(std::istream& in, std::string* s) {
  std::size_t size = 0;
  if (!(in >> size) || size > 1u << 20) return false;
  in.get();
  s->resize(size);
  in.read(s->data(), static_cast<std::streamsize>(size));
  return static_cast<bool>(in);
}

}  // namespace

const char* name_of(Fn fn) noexcept { return kFnNames[static_cast<std::size_t>(fn)]; }
const char* op_name(int op) noexcept { return kOpNames[op_column(op)]; }

std::string to_c(const Call& c) {
  const std::string env = "env" + std::to_string(c.env);
  const std::string txn = "txn" + std::to_string(c.txn);
  const std::string cur = "cur" + std::to_string(c.cursor);
  const std::string dbi = std::to_string(c.dbi);
  const auto hex = [](unsigned v) {
    char text[16];
    std::snprintf(text, sizeof text, "0x%x", v);
    return std::string(text);
  };
  const std::string name = c.has_name ? quoted(c.name) : "NULL";
  const std::string f = std::string("mdb_") + name_of(c.fn);
  switch (c.fn) {
    case Fn::kEnvOpen:
      return "mdb_env_create(&" + env + "); mdb_env_set_maxdbs(" + env + ", " + std::to_string(c.op) +
             "); mdb_env_set_maxreaders(" + env + ", " + dbi + ");" +
             (c.has_name ? " mdb_env_set_mapsize(" + env + ", " + c.name + ");" : "") + " mdb_env_open(" +
             env + ", database " + std::to_string(c.number) + ", " + hex(c.flags) + ", 0644);";
    case Fn::kTxnBegin:
      return "mdb_txn_begin(" + env + ", NULL, MDB_RDONLY, &" + txn + ");";
    case Fn::kTxnBeginWrite:
      return "mdb_txn_begin(" + env + ", NULL, " + hex(c.flags) + ", &unused);";
    case Fn::kTxnBeginNested:
      return "mdb_txn_begin(" + env + ", " + txn + ", " + hex(c.flags) + ", &unused);";
    case Fn::kTxnRenew:
    case Fn::kTxnReset:
    case Fn::kTxnAbort:
    case Fn::kTxnCommit:
    case Fn::kTxnId:
    case Fn::kTxnEnv:
      return f + "(" + txn + ");";
    case Fn::kDbiOpen:
      return f + "(" + txn + ", " + name + ", " + hex(c.flags) + ", &dbi);";
    case Fn::kDbiClose:
      return f + "(" + env + ", " + dbi + ");";
    case Fn::kDbiFlags:
    case Fn::kStat:
      return f + "(" + txn + ", " + dbi + ", &out);";
    case Fn::kSetCompare:
    case Fn::kSetDupsort:
      return f + "(" + txn + ", " + dbi + ", comparator" + std::to_string(c.op) + ");";
    case Fn::kCmp:
    case Fn::kDcmp:
    case Fn::kGet:
    case Fn::kDel:
      return f + "(" + txn + ", " + dbi + ", " + val(c.key) + ", " + val(c.data) + ");";
    case Fn::kPut:
      return f + "(" + txn + ", " + dbi + ", " + val(c.key) + ", " + val(c.data) + ", " + hex(c.flags) + ");";
    case Fn::kDrop:
      return f + "(" + txn + ", " + dbi + ", " + std::to_string(c.op) + ");";
    case Fn::kCursorOpen:
      return f + "(" + txn + ", " + dbi + ", &" + cur + ");";
    case Fn::kCursorRenew:
      return f + "(" + txn + ", " + cur + ");";
    case Fn::kCursorGet:
      return f + "(" + cur + ", " + val(c.key) + ", " + val(c.data) + ", " +
             (op_column(c.op) == kOps - 1 ? std::to_string(c.op) : std::string("MDB_") + op_name(c.op)) +
             ");";
    case Fn::kCursorPut:
      return f + "(" + cur + ", " + val(c.key) + ", " + val(c.data) + ", " + hex(c.flags) + ");";
    case Fn::kCursorDel:
      return f + "(" + cur + ", " + hex(c.flags) + ");";
    case Fn::kCursorCount:
      return f + "(" + cur + ", &count);";
    case Fn::kCursorClose:
    case Fn::kCursorTxn:
    case Fn::kCursorDbi:
      return f + "(" + cur + ");";
    case Fn::kNullHandle:
      return "/* null handle, case " + std::to_string(c.op) + " */";
    case Fn::kWriter:
      return "/* another process commits to " + env + ", seed " + std::to_string(c.number) + " */";
    case Fn::kEnvSetFlags:
      return f + "(" + env + ", " + hex(c.flags) + ", " + std::to_string(c.op) + ");";
    case Fn::kEnvSetMapsize:
      return f + "(" + env + ", " + std::to_string(c.number) + ");";
    default:
      return f + "(" + env + ");";
  }
}

void write_call(std::ostream& out, const Call& c) {
  out << static_cast<int>(c.fn) << ' ' << c.env << ' ' << c.txn << ' ' << c.cursor << ' ' << c.dbi << ' '
      << c.op << ' ' << c.flags << ' ' << c.number << ' ' << c.has_name << ' ';
  write_string(out, c.name);
  for (const Arg* a : {&c.key, &c.data}) {
    out << a->null << ' ';
    write_string(out, a->bytes);
  }
  out << '\n';
}

bool read_call(std::istream& in, Call* c) {
  int fn = 0;
  if (!(in >> fn >> c->env >> c->txn >> c->cursor >> c->dbi >> c->op >> c->flags >> c->number >> c->has_name))
    return false;
  if (fn < 0 || fn >= kFns) return false;
  c->fn = static_cast<Fn>(fn);
  if (!read_string(in, &c->name)) return false;
  for (Arg* a : {&c->key, &c->data})
    if (!(in >> a->null) || !read_string(in, &a->bytes)) return false;
  return true;
}

}  // namespace lmdbio::diff
