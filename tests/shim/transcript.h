// What the programs under test share: every call prints one line, so that two runs can be compared as text.
// C, so that lmdb.h and the ABI are proved from C.  Nothing here depends on an address, a time or an
// identity.
#ifndef LMDBIO_TESTS_SHIM_TRANSCRIPT_H_
#define LMDBIO_TESTS_SHIM_TRANSCRIPT_H_

#include <lmdb.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((unused, format(printf, 1, 2))) static void say(const char* format, ...) {
  va_list args;
  va_start(args, format);
  vprintf(format, args);
  va_end(args);
  putchar('\n');
}

__attribute__((unused)) static int reported(const char* call, int rc) {
  printf("%s = %d\n", call, rc);
  return rc;
}

// Prints the call as written and its code; gives the code.
#define CALL(call) reported(#call, (call))

// For calls without which the rest makes no sense.
#define MUST(call)                                                       \
  do {                                                                   \
    const int must_rc = (call);                                          \
    if (must_rc != 0) {                                                  \
      printf("line %d: %s = %d, giving up\n", __LINE__, #call, must_rc); \
      fflush(stdout);                                                    \
      exit(1);                                                           \
    }                                                                    \
  } while (0)

#define CHECK(condition)                                           \
  do {                                                             \
    if (!(condition)) {                                            \
      printf("line %d: %s does not hold\n", __LINE__, #condition); \
      fflush(stdout);                                              \
      exit(1);                                                     \
    }                                                              \
  } while (0)

__attribute__((unused)) static uint64_t hash_bytes(const void* bytes, size_t n) {
  const unsigned char* p = bytes;
  uint64_t h = 1469598103934665603u;
  for (size_t i = 0; i < n; ++i) h = (h ^ p[i]) * 1099511628211u;
  return h;
}

// A value that no call gives: shows whether a call left its output alone.
static char untouched_byte;
__attribute__((unused)) static MDB_val untouched(void) {
  MDB_val v = {77, &untouched_byte};
  return v;
}

__attribute__((unused)) static void show(const char* name, const MDB_val* v) {
  if (v->mv_data == &untouched_byte) {
    printf(" %s=untouched/%zu", name, v->mv_size);
    return;
  }
  if (v->mv_data == NULL) {
    printf(" %s=null/%zu", name, v->mv_size);
    return;
  }
  printf(" %s=%zu:%016llx:", name, v->mv_size, (unsigned long long)hash_bytes(v->mv_data, v->mv_size));
  for (size_t i = 0; i < v->mv_size && i < 12; ++i) {
    const unsigned char c = ((const unsigned char*)v->mv_data)[i];
    if (c > 32 && c < 127)
      putchar(c);
    else
      printf("\\%02x", c);
  }
}

__attribute__((unused)) static MDB_val text(const char* s) {
  MDB_val v = {strlen(s), (void*)(uintptr_t)s};
  return v;
}

static const struct {
  const char* name;
  MDB_cursor_op op;
} kOps[] = {{"FIRST", MDB_FIRST},
            {"FIRST_DUP", MDB_FIRST_DUP},
            {"GET_BOTH", MDB_GET_BOTH},
            {"BOTH_RANGE", MDB_GET_BOTH_RANGE},
            {"GET_CURRENT", MDB_GET_CURRENT},
            {"GET_MULTIPLE", MDB_GET_MULTIPLE},
            {"LAST", MDB_LAST},
            {"LAST_DUP", MDB_LAST_DUP},
            {"NEXT", MDB_NEXT},
            {"NEXT_DUP", MDB_NEXT_DUP},
            {"NEXT_MULTIPLE", MDB_NEXT_MULTIPLE},
            {"NEXT_NODUP", MDB_NEXT_NODUP},
            {"PREV", MDB_PREV},
            {"PREV_DUP", MDB_PREV_DUP},
            {"PREV_NODUP", MDB_PREV_NODUP},
            {"SET", MDB_SET},
            {"SET_KEY", MDB_SET_KEY},
            {"SET_RANGE", MDB_SET_RANGE},
            {"PREV_MULTIPLE", MDB_PREV_MULTIPLE}};
enum { kOpCount = sizeof kOps / sizeof kOps[0] };

__attribute__((unused)) static const char* op_name(MDB_cursor_op op) {
  for (size_t i = 0; i < kOpCount; ++i)
    if (kOps[i].op == op) return kOps[i].name;
  return "?";
}

// One step of a cursor with its outputs, also those of a failed call.
__attribute__((unused)) static int step(MDB_cursor* cursor, MDB_cursor_op op, MDB_val* key, MDB_val* data) {
  const int rc = mdb_cursor_get(cursor, key, data, op);
  printf("  %s = %d", op_name(op), rc);
  show("key", key);
  show("data", data);
  putchar('\n');
  return rc;
}

__attribute__((unused)) static void show_stat(const char* name, const MDB_stat* s) {
  say("%s: psize %u depth %u branch %zu leaf %zu overflow %zu entries %zu", name, s->ms_psize, s->ms_depth,
      s->ms_branch_pages, s->ms_leaf_pages, s->ms_overflow_pages, s->ms_entries);
}

#endif
