#include "tests/diff/sabotage.h"

#include <cerrno>
#include <csignal>

namespace lmdbio::diff {
namespace {

// The functions below wrap these.
test::LmdbApi real;

constexpr const char* kNames[kSabotages] = {
    "NEXT_NODUP steps like NEXT",
    "SET_RANGE leaves the key as it was",
    "GET_BOTH accepts a larger value",
    "data is zeroed when a get fails",
    "count is one too many",
    "cursor_renew keeps the position",
    "large values lose their last byte",
    "crashes on PREV_MULTIPLE",
    "a closed handle stays open",
    "FIRST after a failure does not reset the cursor",
    "read-only put returns EINVAL",
    "values are copied into one reused buffer",
};

int next_nodup(MDB_cursor* c, MDB_val* k, MDB_val* d, MDB_cursor_op op) {
  return real.cursor_get(c, k, d, op == MDB_NEXT_NODUP ? MDB_NEXT : op);
}

int set_range_keeps_key(MDB_cursor* c, MDB_val* k, MDB_val* d, MDB_cursor_op op) {
  const MDB_val old = k != nullptr ? *k : MDB_val{};
  const int rc = real.cursor_get(c, k, d, op);
  if (rc == 0 && op == MDB_SET_RANGE && k != nullptr) *k = old;
  return rc;
}

int get_both_is_range(MDB_cursor* c, MDB_val* k, MDB_val* d, MDB_cursor_op op) {
  return real.cursor_get(c, k, d, op == MDB_GET_BOTH ? MDB_GET_BOTH_RANGE : op);
}

int get_clears_data(MDB_txn* t, MDB_dbi dbi, MDB_val* k, MDB_val* d) {
  const int rc = real.get(t, dbi, k, d);
  if (rc != 0 && d != nullptr) d->mv_size = 0;
  return rc;
}

int no_renew(MDB_txn* t, MDB_cursor* c) {
  const bool same = t != nullptr && c != nullptr && real.cursor_txn(c) == t;
  return same ? 0 : real.cursor_renew(t, c);
}

int short_value(MDB_cursor* c, MDB_val* k, MDB_val* d, MDB_cursor_op op) {
  const int rc = real.cursor_get(c, k, d, op);
  if (rc == 0 && d != nullptr && d->mv_size > 3000) --d->mv_size;
  return rc;
}

int crash(MDB_cursor* c, MDB_val* k, MDB_val* d, MDB_cursor_op op) {
  if (op == MDB_PREV_MULTIPLE) raise(SIGSEGV);
  return real.cursor_get(c, k, d, op);
}

void keep_open(MDB_env*, MDB_dbi) {}

int first_forgets(MDB_cursor* c, MDB_val* k, MDB_val* d, MDB_cursor_op op) {
  static thread_local int last = 0;
  const int rc = real.cursor_get(c, k, d, op == MDB_FIRST && last == MDB_NOTFOUND ? MDB_NEXT_NODUP : op);
  last = rc;
  return rc;
}

int put_einval(MDB_txn* t, MDB_dbi dbi, MDB_val* k, MDB_val* d, unsigned flags) {
  const int rc = real.put(t, dbi, k, d, flags);
  return rc == EACCES ? EINVAL : rc;
}

int reused_buffer(MDB_txn* t, MDB_dbi dbi, MDB_val* k, MDB_val* d) {
  static char buffer[1 << 17];
  const int rc = real.get(t, dbi, k, d);
  if (rc != 0 || d == nullptr || d->mv_size > sizeof buffer) return rc;
  for (std::size_t i = 0; i < d->mv_size; ++i) buffer[i] = static_cast<const char*>(d->mv_data)[i];
  d->mv_data = buffer;
  return rc;
}

}  // namespace

const char* sabotage_name(int which) noexcept { return kNames[which]; }

void sabotage(int which, test::LmdbApi* api) {
  real = *api;
  switch (which) {
    case 0:
      api->cursor_get = next_nodup;
      break;
    case 1:
      api->cursor_get = set_range_keeps_key;
      break;
    case 2:
      api->cursor_get = get_both_is_range;
      break;
    case 3:
      api->get = get_clears_data;
      break;
    case 4:
      api->cursor_count = [](MDB_cursor* c, std::size_t* n) {
        const int rc = real.cursor_count(c, n);
        if (rc == 0) ++*n;
        return rc;
      };
      break;
    case 5:
      api->cursor_renew = no_renew;
      break;
    case 6:
      api->cursor_get = short_value;
      break;
    case 7:
      api->cursor_get = crash;
      break;
    case 8:
      api->dbi_close = keep_open;
      break;
    case 9:
      api->cursor_get = first_forgets;
      break;
    case 10:
      api->put = put_einval;
      break;
    default:
      api->get = reused_buffer;
      break;
  }
}

}  // namespace lmdbio::diff
