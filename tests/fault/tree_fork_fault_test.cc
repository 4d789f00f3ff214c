// A child that is forked in a walk and cannot open the file anew: its path leads elsewhere and the program's
// descriptor is closed.  The mapping still has the file.
#include <gtest/gtest.h>
#include <lmdb.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "lmdbio/ahead/readahead.h"
#include "lmdbio/tree/cursor.h"
#include "tests/support/ahead_file.h"
#include "tests/support/format_version.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/walk_env.h"

// Forking beside threads is what is tested.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace lmdbio::tree {
namespace {

using testing::WalkEnv;

const bool set = testing::script_all_reads("8M");

constexpr unsigned kValues = 90;
/// A need of so few pages is read by itself, not in a chunk.
constexpr std::uint64_t kPagesEach = 20;

/// In the child: 0, or what went wrong.
template <class Body>
void in_child_without_the_file(WalkEnv& env, Body&& body) {
  ASSERT_EQ(::unlink(env.path()), 0);
  env.drop_page_cache();
  testing::expect_success(testing::fork_a_child([&] {
    ::alarm(60);
    ::close(env.fd());
    return body();
  }));
}

TEST(ForkedWalk, ANeedIsLeftToTheMapping) {
  ASSERT_TRUE(set);
  WalkEnv env(kValues, kPagesEach, true);
  ahead::Readahead ahead(env.env().file());
  ahead::FreeRun run;
  bool leaves = false;
  const auto step = [&](unsigned i) {
    return ahead.step(ahead::Readahead::Step::value, env.at_leaf(), env.value(i), env.view(), run, leaves);
  };
  ASSERT_TRUE(step(10).ok());
  in_child_without_the_file(env, [&] {
    if (env.env().file().existing_window_file() == nullptr) return 1;
    for (const unsigned i : {50u, 30u, 80u, 70u}) {
      if (const Status st = step(i); !st.ok()) return st.raw() == EBADF ? 2 : 3;
      if (!run.covers(env.value(i).first, kPagesEach - 1)) return 4;
      if (static_cast<char>(*(env.view().at(format::Pgno{env.value(i).first}) + testing::kPageHeader)) != 'v')
        return 5;
    }
    return 0;
  });
}

TEST(ForkedWalk, ACursorGoesOn) {
  WalkEnv env(kValues, kPagesEach, true);
  Cursor c(env.txn(), kMainDbi);
  MDB_val k{}, v{};
  ASSERT_TRUE(c.get(&k, &v, MDB_FIRST).ok());
  in_child_without_the_file(env, [&] {
    for (unsigned i = 1; i < kValues; ++i) {
      if (!c.get(&k, &v, MDB_NEXT).ok()) return 1;
      if (std::string(static_cast<const char*>(k.mv_data), k.mv_size) != WalkEnv::key_of(i)) return 2;
      if (v.mv_size != kPagesEach * WalkEnv::kPage - testing::kPageHeader ||
          *(static_cast<const char*>(v.mv_data) + v.mv_size - 1) != 'v')
        return 3;
    }
    return c.get(&k, &v, MDB_NEXT).raw() == MDB_NOTFOUND ? 0 : 4;
  });
}

}  // namespace
}  // namespace lmdbio::tree
