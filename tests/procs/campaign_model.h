// What the campaign's databases hold.  Every value starts with its record's number and the commit that wrote
// it, and each further byte follows from these two, so a wrong byte tells where it came from.
//
// Database "m" has the records.  Record 0 is written by each commit; of the others a commit writes or deletes
// one in `turns`.  Database "d" has sorted duplicates of a fixed size, of which a commit adds and deletes
// some.  The first commit, which creates everything, is transaction 1, and each commit writes something, so
// the state of a snapshot is its transaction number less 1.
#pragma once

#include <lmdb.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/procs/known_bytes.h"

namespace lmdbio::campaign {

enum class Sizes { kSmall, k3K, k100K, kMixed, kLarge };
constexpr const char* kSizeNames[] = {"small", "3k", "100k", "mixed", "large"};

/// What each value starts with, as far as it is long enough.
struct Head {
  std::uint64_t number, version;
};

class Model {
 public:
  static constexpr std::uint64_t kDupKeys = 40, kDups = 60, kDupBytes = 16;

  /// "SIZES:RECORDS:TURNS"
  explicit Model(const std::string& text) {
    const std::size_t one = text.find(':'), two = text.find(':', one + 1);
    bool found = false;
    for (std::size_t i = 0; i < std::size(kSizeNames); ++i)
      if (text.substr(0, one) == kSizeNames[i]) sizes_ = static_cast<Sizes>(i), found = true;
    if (two == text.npos || !found) bad(text);
    records_ = std::strtoull(text.c_str() + one + 1, nullptr, 10);
    turns_ = std::strtoull(text.c_str() + two + 1, nullptr, 10);
    if (records_ < 2 || turns_ < 2) bad(text);
  }

  std::uint64_t records() const { return records_; }

  /// Whether the commit that makes state `t` writes or deletes record `i`.
  bool written(std::uint64_t i, std::uint64_t t) const {
    return t == 0 || i == 0 || (mixed(i) + t) % turns_ == 0;
  }
  /// The last commit up to `t` that wrote or deleted record `i`.
  std::uint64_t version(std::uint64_t i, std::uint64_t t) const {
    if (i == 0) return t;
    const std::uint64_t since = (mixed(i) + t) % turns_;
    return since < t ? t - since : 0;
  }
  /// Whether commit `v` wrote record `i`; else it deleted the record.
  static bool kept(std::uint64_t i, std::uint64_t v) {
    return i == 0 || v == 0 || mixed(i * 31 + v) % 11 != 0;
  }
  bool present(std::uint64_t i, std::uint64_t t) const { return i < records_ && kept(i, version(i, t)); }
  /// The first record from `i` on that state `t` has; records() if there is none.
  std::uint64_t next(std::uint64_t i, std::uint64_t t) const {
    while (i < records_ && !present(i, t)) ++i;
    return i;
  }
  /// The last record up to `i` that state `t` has.  Record 0 is always there.
  std::uint64_t previous(std::uint64_t i, std::uint64_t t) const {
    while (!present(i, t)) --i;
    return i;
  }

  std::size_t size(std::uint64_t i, std::uint64_t v) const {
    if (i == 0) return sizeof(Head);
    const std::uint64_t h = mixed(i * 1000003 + v * 7919 + 5), r = mixed(h) >> 1;
    switch (sizes_) {
      case Sizes::kSmall:
        return r % 300;
      case Sizes::k3K:
        return 2900 + r % 400;
      case Sizes::k100K:
        return 100000 + r % 5000;
      case Sizes::kLarge:
        return 140000 + r % 400000;
      case Sizes::kMixed:
        break;
    }
    const std::uint64_t kind = h % 100;
    return kind < 3    ? 0
           : kind < 35 ? r % 300
           : kind < 55 ? 300 + r % 4000
           : kind < 95 ? 4000 + r % 60000
                       : r % 300000;
  }
  void fill(std::uint64_t i, std::uint64_t v, void* to) const {
    const std::size_t n = size(i, v), head = std::min(n, sizeof(Head));
    const Head h{i, v};
    std::memcpy(to, &h, head);
    fill_known(i, v, static_cast<char*>(to) + head, n - head);
  }
  /// Whether `value` is that of record `i` in state `t`.
  bool right(std::uint64_t i, std::uint64_t t, const MDB_val& value) const {
    const std::uint64_t v = version(i, t);
    if (!kept(i, v) || value.mv_size != size(i, v)) return false;
    const std::size_t head = std::min(value.mv_size, sizeof(Head));
    const Head h{i, v};
    return std::memcmp(value.mv_data, &h, head) == 0 &&
           is_known(i, v, static_cast<const char*>(value.mv_data) + head, value.mv_size - head) != 0;
  }
  /// What is wrong with a value, for a message.
  std::string explain(std::uint64_t i, std::uint64_t t, const MDB_val& value) const {
    char text[400];
    if (i >= records_) return "no such record";
    const std::uint64_t v = version(i, t);
    Head told{};
    std::memcpy(&told, value.mv_data, std::min(value.mv_size, sizeof told));
    std::string expected(kept(i, v) ? size(i, v) : 0, '\0');
    if (kept(i, v)) fill(i, v, expected.data());
    const char* const got = static_cast<const char*>(value.mv_data);
    std::size_t at = 0, wrong = 0, zeros = 0;
    const std::size_t n = std::min(expected.size(), value.mv_size);
    for (std::size_t k = n; k-- > 0;)
      if (got[k] != expected[k]) at = k, ++wrong, zeros += got[k] == 0;
    std::snprintf(
        text, sizeof text,
        "record %llu, state %llu: expected version %llu (%s), %zu bytes; got %zu bytes that start with "
        "record "
        "%llu, version %llu; %zu of the bytes are wrong, first at %zu, %zu of them are zero; address %p",
        static_cast<unsigned long long>(i), static_cast<unsigned long long>(t),
        static_cast<unsigned long long>(v), kept(i, v) ? "present" : "deleted", expected.size(),
        value.mv_size, static_cast<unsigned long long>(told.number),
        static_cast<unsigned long long>(told.version), wrong, at, zeros, value.mv_data);
    return text;
  }

  bool dup_present(std::uint64_t key, std::uint64_t dup, std::uint64_t t) const {
    return dup == 0 || ((mixed(key * 65537 + dup) % (2 * turns_) + t) / turns_) % 2 == 0;
  }
  static void fill_dup(std::uint64_t key, std::uint64_t dup, unsigned char (&to)[kDupBytes]) {
    for (unsigned b = 0; b < 8; ++b) to[b] = static_cast<unsigned char>(dup >> (56 - 8 * b));
    fill_known(key, dup, to + 8, 8);
  }

 private:
  [[noreturn]] static void bad(const std::string& text) {
    std::fprintf(stderr, "campaign: not SIZES:RECORDS:TURNS: %s\n", text.c_str());
    std::exit(2);
  }

  Sizes sizes_ = Sizes::kSmall;
  std::uint64_t records_ = 0, turns_ = 0;
};

}  // namespace lmdbio::campaign
