// Reading an image in every way, for tests of damaged files.
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/tree/cursor.h"
#include "lmdbio/tree/env.h"
#include "lmdbio/tree/txn.h"
#include "tests/support/file_image.h"

namespace lmdbio::testing {

inline MDB_val as_val(const std::string& s) { return {s.size(), const_cast<char*>(s.data())}; }

/// A file's bytes, alone in memory, and a transaction over them.
class Damaged {
 public:
  Damaged(const FileImage& image, tree::Behaviour behaviour = {})
      : bytes(image.bytes()), page_size_(image.page_size()), behaviour_(behaviour) {
    env = std::move(
        tree::Env::over(bytes.bytes(), {pages_of(page_size_), bytes.bytes().size(), 4, false, behaviour_})
            .value());
    txn = std::make_unique<tree::Txn>(*env);
    begin();
  }
  void begin() {
    const tree::MetaSource source(env->metas().records);
    std::uint64_t txnid = 0;
    EXPECT_TRUE(source.renew(txnid).ok());
    EXPECT_TRUE(txn->begin(txnid, source).ok());
  }
  /// Every call that a cursor knows, from each state that the ones before it left.  Returns the codes seen
  /// (bit 0: MDB_CORRUPTED, bit 1: MDB_PAGE_NOTFOUND).
  unsigned read_all(const std::vector<std::string>& keys) {
    unsigned seen = 0;
    constexpr MDB_cursor_op kWalks[][2] = {
        {MDB_FIRST, MDB_NEXT},        {MDB_LAST, MDB_PREV},           {MDB_FIRST, MDB_NEXT_NODUP},
        {MDB_LAST, MDB_PREV_NODUP},   {MDB_FIRST, MDB_NEXT_DUP},      {MDB_LAST, MDB_PREV_DUP},
        {MDB_FIRST, MDB_GET_CURRENT}, {MDB_FIRST, MDB_NEXT_MULTIPLE}, {MDB_LAST, MDB_PREV_MULTIPLE},
        {MDB_FIRST, MDB_LAST_DUP},    {MDB_LAST, MDB_FIRST_DUP},      {MDB_FIRST, MDB_GET_MULTIPLE},
    };
    for (const auto& w : kWalks) {
      tree::Cursor c(*txn, tree::kMainDbi);
      MDB_cursor_op op = w[0];
      for (int i = 0; i < 60; ++i, op = w[1]) {
        if (!step(c, nullptr, op, seen)) break;
        std::size_t n;
        if (c.has_dups()) note(c.count(n), seen);
      }
    }
    {  // back from the end, and forth again
      tree::Cursor c(*txn, tree::kMainDbi);
      for (const MDB_cursor_op op :
           {MDB_LAST, MDB_PREV, MDB_PREV, MDB_NEXT, MDB_GET_CURRENT, MDB_NEXT, MDB_NEXT})
        step(c, nullptr, op, seen);
    }
    for (const std::string& key : keys) {
      for (const MDB_cursor_op op : {MDB_SET, MDB_SET_KEY, MDB_SET_RANGE, MDB_GET_BOTH, MDB_GET_BOTH_RANGE}) {
        tree::Cursor c(*txn, tree::kMainDbi);
        if (!step(c, &key, op, seen)) continue;
        for (const MDB_cursor_op after : {MDB_NEXT, MDB_GET_CURRENT, MDB_SET_RANGE, MDB_PREV})
          step(c, &key, after, seen);
      }
      MDB_val v{};
      const Status st = txn->get(tree::kMainDbi, as_val(key), v);
      if (st.ok()) inside(v);
      note(st, seen);
    }
    return seen;
  }

  ExactBytes bytes;
  std::unique_ptr<tree::Env> env;
  std::unique_ptr<tree::Txn> txn;

 private:
  bool step(tree::Cursor& c, const std::string* key, MDB_cursor_op op, unsigned& seen) {
    MDB_val k = key != nullptr ? as_val(*key) : MDB_val{}, v = key != nullptr ? as_val(*key) : MDB_val{};
    const Status st = c.get(&k, &v, op);
    if (st.ok()) {
      if (key == nullptr || k.mv_data != key->data()) inside(k);
      if (key == nullptr || v.mv_data != key->data()) inside(v);
    }
    note(st, seen);
    return st.ok();
  }
  void inside(const MDB_val& v) {
    EXPECT_TRUE(v.mv_data == nullptr || bytes.holds(v.mv_data, v.mv_size));
    for (std::size_t i = 0; i < v.mv_size; ++i) sum_ = sum_ + static_cast<const unsigned char*>(v.mv_data)[i];
  }
  // Damage is reported once and blocks the transaction; the next one sees it anew.
  void note(Status st, unsigned& seen) {
    const int rc = st.raw();
    EXPECT_TRUE(rc == 0 || rc == MDB_NOTFOUND || rc == EINVAL || rc == MDB_INCOMPATIBLE ||
                rc == MDB_BAD_VALSIZE || rc == MDB_CORRUPTED || rc == MDB_PAGE_NOTFOUND || rc == MDB_BAD_TXN)
        << rc;
    const bool damage = rc == MDB_CORRUPTED || rc == MDB_PAGE_NOTFOUND;
    seen |= rc == MDB_CORRUPTED ? 1u : rc == MDB_PAGE_NOTFOUND ? 2u : 0u;
    EXPECT_EQ(txn->blocked(), damage || rc == MDB_BAD_TXN);
    if (!txn->blocked()) return;
    MDB_val v{};
    tree::Cursor c(*txn, tree::kMainDbi);
    EXPECT_EQ(c.get(&v, &v, MDB_FIRST).raw(), MDB_BAD_TXN);
    txn->end(true);
    begin();
  }

  std::size_t page_size_;
  tree::Behaviour behaviour_;
  volatile unsigned sum_ = 0;
};

}  // namespace lmdbio::testing
