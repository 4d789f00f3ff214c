// A whole file of any bytes, read as programs read one: lookups and cursors with every operation.
//
// The input is the file, and behind its last whole page a program: one byte a call.
#include <lmdb.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "lmdbio/format/meta_view.h"
#include "lmdbio/tree/cursor.h"
#include "lmdbio/tree/env.h"
#include "lmdbio/tree/txn.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/file_image.h"

namespace {

using namespace lmdbio;
using testing::ExactBytes;

constexpr std::size_t kMostBytes = 256 << 10, kMostSteps = 400, kMostTouched = 4096;
volatile unsigned sink;

MDB_val as_val(const std::string& s) { return {s.size(), const_cast<char*>(s.data())}; }

class Reader {
 public:
  Reader(const ExactBytes& file, std::size_t page_size, Bytes program, tree::Behaviour behaviour)
      : file_(file), page_size_(page_size), program_(program), behaviour_(behaviour) {}

  void run() {
    auto env = tree::Env::over(file_.bytes(), {page_size_, file_.bytes().size(), 4, false, behaviour_});
    if (!env) return;
    env_ = std::move(env).value();
    txn_ = std::make_unique<tree::Txn>(*env_);
    if (!begin()) return;
    walk(tree::kMainDbi);
    walk(tree::kFreeDbi);
    open_named();
    calls();
  }

 private:
  bool begin() {
    const tree::MetaSource source(env_->metas().records);
    std::uint64_t txnid = 0;
    (void)source.renew(txnid);
    const Status st = txn_->begin(txnid, source);
    FUZZ_REQUIRE(st.ok() != txn_->blocked());
    return st.ok();
  }
  // A damaged tree blocks the transaction: another one goes on.
  void check(Status st) {
    const int rc = st.raw();
    FUZZ_REQUIRE(rc == 0 || rc == MDB_NOTFOUND || rc == MDB_CORRUPTED || rc == MDB_PAGE_NOTFOUND ||
                 rc == EINVAL || rc == MDB_BAD_TXN || rc == MDB_INCOMPATIBLE || rc == MDB_BAD_VALSIZE ||
                 rc == MDB_BAD_DBI);
    const bool damaged = rc == MDB_CORRUPTED || rc == MDB_PAGE_NOTFOUND || rc == MDB_BAD_TXN;
    FUZZ_REQUIRE(damaged == txn_->blocked());
    if (!damaged) return;
    for (auto& c : cursors_) {
      if (c != nullptr) FUZZ_REQUIRE(c->get(nullptr, nullptr, MDB_FIRST).raw() == MDB_BAD_TXN);
    }
    txn_->end(true);
    FUZZ_REQUIRE(begin());
    for (auto& c : cursors_) {
      if (c != nullptr) c->renew(*txn_);
    }
  }
  void touch(const MDB_val& v) {
    FUZZ_REQUIRE(v.mv_size == 0 || file_.holds(v.mv_data, v.mv_size));
    unsigned sum = 0;
    for (std::size_t i = 0; i < std::min(v.mv_size, kMostTouched); ++i)
      sum += static_cast<const unsigned char*>(v.mv_data)[i];
    sink = sum;
    if (v.mv_size != 0) sink = static_cast<const unsigned char*>(v.mv_data)[v.mv_size - 1];
  }
  void remember(const MDB_val& v, std::vector<std::string>& in) {
    if (in.size() < 24)
      in.emplace_back(static_cast<const char*>(v.mv_data), std::min<std::size_t>(v.mv_size, 600));
  }

  // To both ends and to every key found.
  void walk(MDB_dbi dbi) {
    for (const auto& [edge, step] : {std::pair{MDB_FIRST, MDB_NEXT}, std::pair{MDB_LAST, MDB_PREV}}) {
      cursors_[0] = std::make_unique<tree::Cursor>(*txn_, dbi);
      MDB_cursor_op op = edge;
      for (std::size_t i = 0; i < kMostSteps; ++i, op = step) {
        MDB_val k{}, v{};
        const Status st = cursors_[0]->get(&k, &v, op);
        if (st.ok()) {
          touch(k);
          touch(v);
          remember(k, keys_);
          remember(v, values_);
        }
        check(st);
        if (!st.ok()) break;
      }
    }
    cursors_[0].reset();
    for (const std::string& key : keys_) get(dbi, key);
  }
  void get(MDB_dbi dbi, const std::string& key) {
    MDB_val v{};
    const Status st = txn_->get(dbi, as_val(key), v);
    if (st.ok()) touch(v);
    check(st);
  }
  void open_named() {
    MDB_dbi dbi = tree::kMainDbi;
    check(txn_->open_dbi(nullptr, 0, dbi));
    MDB_dbi end = tree::kCoreDbs;
    for (const std::string& key : std::vector<std::string>(keys_)) {
      if (key.find('\0') != std::string::npos) continue;
      const Status st = txn_->open_dbi(key.c_str(), 0, dbi);
      check(st);
      if (!st.ok()) continue;
      walk(dbi);
      end = std::max(end, dbi + 1);
    }
    dbis_ = end;
  }

  void calls() {
    for (std::size_t i = 0; i < std::min<std::size_t>(program_.size(), kMostSteps); ++i) {
      const auto byte = std::to_integer<unsigned>(program_[i]);
      const std::size_t which = (byte >> 5) % cursors_.size();
      const unsigned what = byte & 31;
      MDB_dbi dbi = static_cast<MDB_dbi>((byte >> 5) + i) % dbis_;
      if (!txn_->has_dbi(dbi, true)) dbi = tree::kMainDbi;
      std::unique_ptr<tree::Cursor>& cursor = cursors_[which];
      if (cursor == nullptr) cursor = std::make_unique<tree::Cursor>(*txn_, dbi);
      const std::string key = pick(keys_, i), value = pick(values_, i + byte);
      switch (what) {
        case 31:
          cursor = nullptr;
          continue;
        case 30:
          get(dbi, key);
          continue;
        case 29: {
          std::size_t n = 0;
          check(cursor->count(n));
          continue;
        }
        case 28:
          txn_->end(true);
          FUZZ_REQUIRE(begin());
          for (auto& c : cursors_) {
            if (c != nullptr) c->renew(*txn_);
          }
          continue;
        default:
          break;
      }
      const auto op = static_cast<MDB_cursor_op>(what % 19);
      MDB_val k = as_val(key), v = as_val(value);
      const MDB_val key_in = k, value_in = v;
      const bool null_key = i % 7 == 3, null_data = i % 5 == 2;
      const Status st = cursor->get(null_key ? nullptr : &k, null_data ? nullptr : &v, op);
      if (k.mv_data != key_in.mv_data) touch(k);
      if (v.mv_data != value_in.mv_data) touch(v);
      check(st);
    }
  }
  std::string pick(const std::vector<std::string>& from, std::size_t i) const {
    std::string s = from.empty() ? "key" : from[i * 7 % from.size()];
    if (i % 3 == 1 && !s.empty()) s.back() = static_cast<char>(s.back() + 1);
    if (i % 11 == 5) s.resize(s.size() / 2);
    return s;
  }

  const ExactBytes& file_;
  const std::size_t page_size_;
  const Bytes program_;
  const tree::Behaviour behaviour_;
  std::unique_ptr<tree::Env> env_;
  std::unique_ptr<tree::Txn> txn_;
  std::array<std::unique_ptr<tree::Cursor>, 3> cursors_;
  MDB_dbi dbis_ = tree::kCoreDbs;
  std::vector<std::string> keys_, values_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < format::kMetaBytes || size > kMostBytes) return 0;
  const Bytes input = std::as_bytes(std::span(data, size));
  const auto meta = format::parse_meta(input);
  if (!meta) return 0;
  const std::size_t page_size = format::page_size(meta.value());
  const std::size_t file_size = size / page_size * page_size;
  const ExactBytes file(input.first(file_size));
  const Bytes program = input.subspan(file_size);
  for (const int release : {24, 90})
    Reader(file, page_size, program, tree::Behaviour::of_release(release)).run();
  return 0;
}
