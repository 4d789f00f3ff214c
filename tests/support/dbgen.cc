#include "tests/support/dbgen.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "tests/support/page_size.h"

namespace lmdbio::test {
namespace {

constexpr const char* kKindNames[kDbKinds] = {
    "plain",      "one",        "overflow",       "deep",       "dupsort",      "dupsort-deep", "dupfixed",
    "integerkey", "integerdup", "integerdup-var", "reversekey", "reversedup",   "custom-key",   "custom-dup",
    "named",      "directory",  "free",           "empty",      "never-written"};

unsigned char at(const MDB_val* v, std::size_t i) { return static_cast<const unsigned char*>(v->mv_data)[i]; }

int three_way(std::size_t a, std::size_t b) { return a < b ? -1 : a > b ? 1 : 0; }

int descending(const MDB_val* a, const MDB_val* b) {
  for (std::size_t i = 0; i < a->mv_size && i < b->mv_size; ++i)
    if (at(a, i) != at(b, i)) return three_way(at(b, i), at(a, i));
  return three_way(b->mv_size, a->mv_size);
}

int shorter_first(const MDB_val* a, const MDB_val* b) {
  if (a->mv_size != b->mv_size) return three_way(a->mv_size, b->mv_size);
  for (std::size_t i = 0; i < a->mv_size; ++i)
    if (at(a, i) != at(b, i)) return three_way(at(a, i), at(b, i));
  return 0;
}

int sum_of_bytes_first(const MDB_val* a, const MDB_val* b) {
  std::size_t sums[2] = {0, 0};
  for (std::size_t i = 0; i < a->mv_size; ++i) sums[0] += at(a, i);
  for (std::size_t i = 0; i < b->mv_size; ++i) sums[1] += at(b, i);
  return sums[0] != sums[1] ? three_way(sums[0], sums[1]) : shorter_first(a, b);
}

void check(const LmdbApi& lmdb, int rc, const char* what) {
  if (rc != 0) throw std::runtime_error(std::string(what) + ": " + lmdb.strerror(rc));
}

MDB_val as_val(const std::string& s) { return {s.size(), const_cast<char*>(s.data())}; }

/// Bytes of the given size whose content comes from `number`: short alphabets, shared prefixes, and binary.
std::string bytes_for(std::uint64_t number, unsigned low, unsigned high) {
  Rng rng(number);
  const unsigned size = rng.between(low, high);
  std::string s;
  switch (rng.below(4)) {
    case 0:
      while (s.size() < size) s.push_back(static_cast<char>('a' + rng.below(3)));
      break;
    case 1: {
      char text[32];
      std::snprintf(text, sizeof text, "%08u", static_cast<unsigned>(number & 0xFFFFF));
      s = std::string(size > 8 ? size - 8 : 0, 'p') + text;
      s.resize(size);
      break;
    }
    case 2:
      while (s.size() < size) s.push_back(static_cast<char>(rng.next() & 0xFF));
      break;
    default:
      while (s.size() < size) s.push_back(static_cast<char>(0xFE + (rng.below(5) != 0 ? 1 : 0)));
      for (std::size_t i = 0; i < 3 && i < size; ++i) s[size - 1 - i] = static_cast<char>(number >> (8 * i));
      break;
  }
  return s;
}

std::string integer_for(std::uint64_t number, unsigned size) {
  Rng rng(number);
  std::uint64_t value = rng.percent(70) ? number % 5000 : rng.next();
  std::string s(size, '\0');
  std::memcpy(s.data(), &value, std::min<std::size_t>(size, sizeof value));
  return s;
}

std::string value_for(const DbSpec& spec, std::uint64_t number) {
  if ((spec.flags & MDB_INTEGERDUP) != 0) return integer_for(number, spec.value_min);
  if ((spec.flags & MDB_DUPSORT) != 0 || spec.value_max < 64)
    return bytes_for(number, spec.value_min, spec.value_max);
  // Mostly small, some of every size up to the largest: so that overflow and inline values mix on a page.
  Rng rng(number);
  const unsigned high = rng.percent(30) ? std::min(spec.value_max, spec.value_min + 40) : spec.value_max;
  std::string s(rng.between(spec.value_min, high), '\0');
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (i % 8 == 0) bits = rng.next();
    s[i] = static_cast<char>(bits >> (8 * (i % 8)));
  }
  return s;
}

std::string key_for(const DbSpec& spec, std::uint64_t number) {
  if ((spec.flags & MDB_INTEGERKEY) != 0) return integer_for(number, spec.key_min);
  return bytes_for(number, spec.key_min, spec.key_max);
}

/// The numbers that generate() turns into keys; random_key draws from twice as many.
std::uint64_t key_number(const DbSpec& spec, std::uint32_t i) { return i * 7919u + spec.keys * 31u + 1; }

/// A zero-length value cannot be joined by a second one (MDB_BAD_VALSIZE).
bool holds_empty_value(const LmdbApi& lmdb, MDB_txn* txn, MDB_dbi dbi, MDB_val key) {
  MDB_val data;
  return lmdb.get(txn, dbi, &key, &data) == 0 && data.mv_size == 0;
}

void put(const LmdbApi& lmdb, MDB_txn* txn, MDB_dbi dbi, const DbSpec& spec, const std::string& key,
         const std::string& value) {
  MDB_val k = as_val(key);
  MDB_val v = as_val(value);
  if ((spec.flags & MDB_DUPSORT) != 0) {
    if (value.empty() && lmdb.is_10()) return;  // 1.0 refuses it
    if (holds_empty_value(lmdb, txn, dbi, k)) return;
    MDB_val old;
    MDB_val same = k;
    if (value.empty() && lmdb.get(txn, dbi, &same, &old) == 0) return;
  }
  check(lmdb, lmdb.put(txn, dbi, &k, &v, 0), "put");
}

void fill(const LmdbApi& lmdb, MDB_txn* txn, MDB_dbi dbi, const DbSpec& spec, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::uint32_t> order(spec.keys);
  for (std::uint32_t i = 0; i < spec.keys; ++i) order[i] = i;
  if (rng.percent(70))
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  for (const std::uint32_t i : order) {
    const std::string key = key_for(spec, key_number(spec, i));
    unsigned values = 1;
    if (spec.dups > 1) {
      if (i % 16 == 3)
        values = spec.dups;  // long lists
      else if (i % 3 != 0)
        values = rng.between(2, std::min(spec.dups, 12u));
    }
    for (unsigned v = 0; v < values; ++v) {
      std::string value = value_for(spec, rng.next() >> 40);
      if (values == 1 && i % 29 == 5 && (spec.flags & (MDB_DUPFIXED | MDB_INTEGERDUP)) == 0) value.clear();
      put(lmdb, txn, dbi, spec, key, value);
    }
  }
}

/// Opens for writing in `dir`; closes when it goes.
class Writable {
 public:
  Writable(const LmdbApi& lmdb, const EnvSpec& spec, const std::string& dir) : lmdb_(lmdb) {
    check(lmdb, lmdb.env_create(&env_), "env_create");
    lmdb.env_set_maxdbs(env_, 64);
    lmdb.env_set_mapsize(env_, spec.map_bytes);
    const int rc = lmdb.env_open(env_, dir.c_str(), MDB_NOSYNC, 0644);
    if (rc != 0) lmdb.env_close(env_);
    check(lmdb, rc, "env_open");
  }
  ~Writable() { lmdb_.env_close(env_); }
  Writable(const Writable&) = delete;
  Writable& operator=(const Writable&) = delete;

  template <class Body>
  void commit(Body body) {
    MDB_txn* txn = nullptr;
    check(lmdb_, lmdb_.txn_begin(env_, nullptr, 0, &txn), "txn_begin");
    try {
      body(txn);
    } catch (...) {
      lmdb_.txn_abort(txn);
      throw;
    }
    check(lmdb_, lmdb_.txn_commit(txn), "txn_commit");
  }

 private:
  const LmdbApi& lmdb_;
  MDB_env* env_ = nullptr;
};

DbSpec db(DbKind kind, unsigned flags, unsigned keys, unsigned key_min, unsigned key_max, unsigned value_min,
          unsigned value_max, unsigned dups = 1) {
  DbSpec s;
  s.kind = kind;
  s.flags = flags;
  s.keys = keys;
  s.key_min = key_min;
  s.key_max = key_max;
  s.value_min = value_min;
  s.value_max = value_max;
  s.dups = dups;
  return s;
}

DbSpec with_comparators(DbSpec s, int key, int dup) {
  s.key_comparator = key;
  s.dup_comparator = dup;
  return s;
}

DbSpec named(std::string name, DbSpec s) {
  s.name = std::move(name);
  return s;
}

DbSpec dupfixed(unsigned size, unsigned keys, unsigned dups) {
  return db(DbKind::kDupfixed, MDB_DUPSORT | MDB_DUPFIXED, keys, 1, 20, size, size, dups);
}

DbSpec integer_dup(unsigned size, unsigned keys, unsigned dups, unsigned more_flags = 0) {
  return db(DbKind::kIntegerDup, MDB_DUPSORT | MDB_DUPFIXED | MDB_INTEGERDUP | more_flags, keys, 4, 4, size,
            size, dups);
}

/// One of each kind, as they may stand under a name.
std::vector<DbSpec> assortment(unsigned n, Rng& rng) {
  const unsigned dups = rng.between(40, 300);
  return {
      db(DbKind::kNamed, 0, n, 1, 24, 0, 80),
      db(DbKind::kOverflow, 0, n / 8 + 2, 1, 24, 0, 9000),
      db(DbKind::kDupsort, MDB_DUPSORT, n / 4 + 2, 1, 24, 1, 40, dups),
      dupfixed(1u << rng.below(5), n / 4 + 2, dups),
      db(DbKind::kIntegerKey, MDB_INTEGERKEY, n, 8, 8, 0, 40),
      db(DbKind::kIntegerKey, MDB_INTEGERKEY | MDB_DUPSORT, n / 4 + 2, 4, 4, 1, 40, dups / 2),
      integer_dup(rng.percent(50) ? 4 : 8, n / 4 + 2, dups),
      db(DbKind::kIntegerDupVar, MDB_DUPSORT | MDB_INTEGERDUP, n / 8 + 2, 1, 24, 8, 8, dups / 2),
      db(DbKind::kReverseKey, MDB_REVERSEKEY, n, 1, 24, 0, 40),
      db(DbKind::kReverseDup, MDB_DUPSORT | MDB_REVERSEDUP, n / 8 + 2, 1, 24, 1, 40, dups / 2),
      with_comparators(db(DbKind::kCustomKey, 0, n, 1, 24, 0, 40), static_cast<int>(rng.below(kComparators)),
                       -1),
      with_comparators(db(DbKind::kCustomDup, MDB_DUPSORT, n / 4 + 2, 1, 24, 1, 40, dups), -1,
                       static_cast<int>(rng.below(kComparators))),
      db(DbKind::kEmpty, 0, 0, 1, 24, 0, 40),
      db(DbKind::kEmpty, MDB_DUPSORT, 0, 1, 24, 1, 40, 4),
  };
}

EnvSpec named_env(const char* name, unsigned page_size, unsigned n, bool churn, Rng& rng) {
  EnvSpec e;
  e.name = name;
  e.page_size = page_size;
  e.churn = churn;
  e.dbs.push_back(db(DbKind::kDirectory, 0, 12, 1, 12, 0, 40));
  for (DbSpec& s : assortment(n, rng))
    e.dbs.push_back(named(std::string(name_of(s.kind)) + "-" + std::to_string(e.dbs.size()), std::move(s)));
  return e;
}

}  // namespace

const char* name_of(DbKind kind) noexcept { return kKindNames[static_cast<std::size_t>(kind)]; }

MDB_cmp_func* comparator(int which) noexcept {
  static constexpr MDB_cmp_func* kFunctions[kComparators] = {descending, shorter_first, sum_of_bytes_first};
  return kFunctions[which];
}

std::vector<EnvSpec> catalogue(std::uint64_t seed) {
  Rng rng(seed);
  std::vector<EnvSpec> all;
  const auto add = [&](std::string name, unsigned page_size, DbSpec spec) {
    EnvSpec e;
    e.name = std::move(name) + "-" + std::to_string(page_size);
    e.page_size = page_size;
    const bool deep = spec.kind == DbKind::kDeep || spec.kind == DbKind::kDupsortDeep;  // stays deep
    e.churn = rng.percent(40) && !deep;
    if (spec.kind != DbKind::kNeverWritten) e.dbs.push_back(std::move(spec));
    all.push_back(std::move(e));
  };
  const auto any_page = [&] { return 512u << rng.below(7); };
  using K = DbKind;
  add("plain", 4096, db(K::kPlain, 0, rng.between(200, 900), 1, 24, 0, 200));
  add("plain-any", any_page(), db(K::kPlain, 0, rng.between(40, 300), 1, 24, 0, 50));
  add("plain-long-keys", 4096, db(K::kPlain, 0, 300, 200, 511, 0, 20));
  add("one", 4096, db(K::kOne, 0, 1, 1, 24, 0, 50));
  add("one-overflow", 4096, db(K::kOne, 0, 1, 1, 24, 5000, 20000));
  add("one-dup", 4096, db(K::kOne, MDB_DUPSORT, 1, 1, 24, 1, 50, 1));
  add("overflow", 4096, db(K::kOverflow, 0, 120, 1, 40, 0, 12000));
  add("overflow", 512, db(K::kOverflow, 0, 80, 1, 40, 100, 3000));
  add("overflow", 32768, db(K::kOverflow, 0, 24, 1, 40, 10000, 70000));
  add("deep", 512, db(K::kDeep, 0, 2600, 50, 78, 0, 20));  // over 512 leaf pages: lookups prefetch
  add("deep", 4096, db(K::kDeep, 0, 1400, 400, 511, 0, 60));
  add("dupsort", 4096,
      db(K::kDupsort, MDB_DUPSORT, rng.between(60, 200), 1, 24, 1, 60, rng.between(60, 200)));
  add("dupsort-any", any_page(), db(K::kDupsort, MDB_DUPSORT, 60, 1, 24, 1, 40, rng.between(3, 80)));
  add("dupsort-deep", 512, db(K::kDupsortDeep, MDB_DUPSORT, 24, 1, 24, 10, 70, 900));
  add("dupsort-deep", 4096, db(K::kDupsortDeep, MDB_DUPSORT, 20, 1, 24, 200, 400, 700));
  for (const unsigned size : {1u, 2u, 4u, 8u, 16u, 37u})
    add("dupfixed-" + std::to_string(size), rng.percent(50) ? 4096 : any_page(),
        dupfixed(size, rng.between(20, 80), rng.between(100, 500)));
  add("dupfixed-deep", 512, dupfixed(16, 20, 2500));
  all.back().churn = false;
  add("integerkey-4", 4096, db(K::kIntegerKey, MDB_INTEGERKEY, 700, 4, 4, 0, 60));
  add("integerkey-8", 4096, db(K::kIntegerKey, MDB_INTEGERKEY, 700, 8, 8, 0, 60));
  add("integerkey-8", 512, db(K::kIntegerKey, MDB_INTEGERKEY, 500, 8, 8, 0, 60));
  add("integerkey-dup", 4096, db(K::kIntegerKey, MDB_INTEGERKEY | MDB_DUPSORT, 90, 8, 8, 1, 30, 100));
  add("integerdup-4", 4096, integer_dup(4, 60, 800));
  add("integerdup-8", any_page(), integer_dup(8, 60, 500));
  add("integerdup-key", 1024, integer_dup(8, 60, 300, MDB_INTEGERKEY));
  add("integerdup-var", 4096, db(K::kIntegerDupVar, MDB_DUPSORT | MDB_INTEGERDUP, 60, 1, 24, 4, 4, 300));
  add("reversekey", any_page(), db(K::kReverseKey, MDB_REVERSEKEY, 500, 1, 24, 0, 50));
  add("reversekey-dup", 4096, db(K::kReverseKey, MDB_REVERSEKEY | MDB_DUPSORT, 60, 1, 24, 1, 50, 60));
  add("reversedup", 4096, db(K::kReverseDup, MDB_DUPSORT | MDB_REVERSEDUP, 60, 1, 24, 1, 60, 200));
  add("reversedup-fixed", any_page(),
      db(K::kReverseDup, MDB_DUPSORT | MDB_REVERSEDUP | MDB_DUPFIXED, 60, 1, 24, 6, 6, 200));
  for (int c = 0; c < kComparators; ++c) {
    const std::string which = std::to_string(c);
    add("custom-key-" + which, any_page(), with_comparators(db(K::kCustomKey, 0, 400, 1, 24, 0, 50), c, -1));
    add("custom-dup-" + which, 4096,
        with_comparators(db(K::kCustomDup, MDB_DUPSORT, 60, 1, 24, 1, 40, 200), c % 2 == 0 ? c : -1, c));
  }
  add("custom-dupfixed", 1024, with_comparators(dupfixed(8, 40, 300), -1, 0));
  all.back().dbs[0].kind = K::kCustomDup;
  add("empty", 4096, db(K::kEmpty, 0, 0, 1, 24, 0, 50));
  add("empty-dup", 4096, db(K::kEmpty, MDB_DUPSORT, 0, 1, 24, 1, 50, 5));
  add("never-written", 4096, db(K::kNeverWritten, 0, 0, 1, 24, 0, 50));
  add("never-written", 16384, db(K::kNeverWritten, 0, 0, 1, 24, 0, 50));
  all.push_back(named_env("named", 4096, 150, true, rng));
  all.push_back(named_env("named-small", 1024, 30, false, rng));
  all.push_back(named_env("named-large-pages", 16384, 150, true, rng));
  for (std::size_t i = 0; i < all.size(); ++i) all[i].seed = rng.next() >> 20;
  return all;
}

std::vector<EnvSpec> large_catalogue(std::uint64_t seed) {
  Rng rng(seed);
  std::vector<EnvSpec> all;
  using K = DbKind;
  const auto add = [&](std::string name, unsigned page_size, bool churn, std::vector<DbSpec> specs) {
    EnvSpec e;
    e.name = std::move(name) + "-" + std::to_string(page_size);
    e.page_size = page_size;
    e.churn = churn;
    e.dbs = std::move(specs);
    e.map_bytes = std::size_t{2} << 30;
    all.push_back(std::move(e));
  };
  const DbSpec values = db(K::kOverflow, 0, 160, 1, 40, 0, 400'000),
               fewer = db(K::kOverflow, 0, 6, 1, 40, 3'000'000, 12'000'000),
               more = db(K::kOverflow, 0, 1600, 4, 40, 0, 20'000),
               inside = db(K::kPlain, 0, 40'000, 4, 24, 0, 700),
               long_keys = db(K::kPlain, 0, 30'000, 200, 511, 0, 200),
               lists = db(K::kDupsort, MDB_DUPSORT, 500, 1, 24, 20, 400, 1500),
               fixed = dupfixed(64, 400, 12'000),
               numbers = db(K::kIntegerKey, MDB_INTEGERKEY, 6000, 8, 8, 0, 4000);
  add("values", 4096, false, {values});
  add("values-churned", 4096, true, {values});
  add("values", 512, rng.percent(50), {db(K::kOverflow, 0, 160, 1, 40, 0, 200'000)});
  add("values", 32768, rng.percent(50), {values});
  add("huge-values", 4096, false, {fewer});
  add("small-values", 4096, rng.percent(50), {more});
  add("small-values", 16384, false, {more});
  add("plain", 4096, true, {inside});
  add("long-keys", 4096, false, {long_keys});
  add("dupsort", 4096, rng.percent(50), {lists});
  add("dupfixed", 4096, false, {fixed});
  add("integerkey", 4096, true, {numbers});
  add("named", 4096, true,
      {db(K::kDirectory, 0, 12, 1, 12, 0, 40), named("values", values), named("small", more),
       named("lists", lists), named("inside", inside)});
  for (EnvSpec& e : all) e.seed = rng.next() >> 20;
  return all;
}

int open_database(const LmdbApi& lmdb, MDB_txn* txn, const DbSpec& spec, unsigned extra_flags, MDB_dbi* dbi) {
  const char* name = spec.name.empty() ? nullptr : spec.name.c_str();
  int rc = lmdb.dbi_open(txn, name, spec.flags | extra_flags, dbi);
  if (rc == 0 && spec.key_comparator >= 0) rc = lmdb.set_compare(txn, *dbi, comparator(spec.key_comparator));
  if (rc == 0 && spec.dup_comparator >= 0) rc = lmdb.set_dupsort(txn, *dbi, comparator(spec.dup_comparator));
  return rc;
}

std::string random_key(const DbSpec& spec, Rng& rng) {
  return key_for(spec, key_number(spec, rng.below(2 * static_cast<std::size_t>(spec.keys) + 4)));
}

std::string random_value(const DbSpec& spec, Rng& rng) { return value_for(spec, rng.next() >> 40); }

void scribble(const LmdbApi& lmdb, MDB_txn* txn, MDB_dbi dbi, const DbSpec& spec, Rng& rng, unsigned steps) {
  for (unsigned i = 0; i < steps; ++i) {
    const std::string key = random_key(spec, rng);
    MDB_val k = as_val(key);
    const unsigned what = rng.below(10);
    if (what < 5) {
      put(lmdb, txn, dbi, spec, key, random_value(spec, rng));
    } else if (what < 8 || (spec.flags & MDB_DUPSORT) == 0) {
      const int rc = lmdb.del(txn, dbi, &k, nullptr);
      if (rc != MDB_NOTFOUND && rc != MDB_INCOMPATIBLE) check(lmdb, rc, "del");
    } else {  // one value of a key
      MDB_cursor* cursor = nullptr;
      check(lmdb, lmdb.cursor_open(txn, dbi, &cursor), "cursor_open");
      MDB_val v;
      int rc = lmdb.cursor_get(cursor, &k, &v, MDB_SET_RANGE);
      if (rc == 0 && rng.percent(50)) rc = lmdb.cursor_get(cursor, &k, &v, MDB_LAST_DUP);
      if (rc == 0) rc = lmdb.cursor_del(cursor, 0);
      lmdb.cursor_close(cursor);
      if (rc != MDB_NOTFOUND) check(lmdb, rc, "cursor_del");
    }
  }
}

void generate(const LmdbApi& lmdb, const EnvSpec& spec, const std::string& dir) {
  {
    const PageSizeOverride page_size(spec.page_size);
    Writable env(lmdb, spec, dir);
    Rng rng(spec.seed);
    for (const DbSpec& d : spec.dbs) {
      env.commit([&](MDB_txn* txn) {
        MDB_dbi dbi = 0;
        check(lmdb, open_database(lmdb, txn, d, MDB_CREATE, &dbi), "dbi_open");
        if (d.kind == DbKind::kEmpty) put(lmdb, txn, dbi, d, "k", std::string(d.value_min + 1, 'v'));
        fill(lmdb, txn, dbi, d, rng.next() >> 20);
      });
      if (d.kind == DbKind::kEmpty) {
        env.commit([&](MDB_txn* txn) {
          MDB_dbi dbi = 0;
          check(lmdb, open_database(lmdb, txn, d, 0, &dbi), "dbi_open");
          check(lmdb, lmdb.drop(txn, dbi, 0), "drop");
        });
      }
    }
    for (int round = 0; spec.churn && round < 3; ++round) {
      for (const DbSpec& d : spec.dbs) {
        if (d.kind == DbKind::kEmpty) continue;
        env.commit([&](MDB_txn* txn) {
          MDB_dbi dbi = 0;
          check(lmdb, open_database(lmdb, txn, d, 0, &dbi), "dbi_open");
          scribble(lmdb, txn, dbi, d, rng, d.keys / 3 + 1);
        });
      }
    }
  }
  unlink((dir + "/lock.mdb").c_str());
}

}  // namespace lmdbio::test
