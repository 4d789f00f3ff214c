// Keys and values whose every byte is known.  C and C++.
#ifndef LMDBIO_TESTS_PROCS_KNOWN_BYTES_H_
#define LMDBIO_TESTS_PROCS_KNOWN_BYTES_H_

#include <lmdb.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
  x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
  return x ^ x >> 32;
}

// Keys: the number, big endian, so that the order of keys is that of numbers.
static inline MDB_val known_key(uint64_t i, unsigned char (*to)[8]) {
  for (unsigned b = 0; b < 8; ++b) (*to)[b] = (unsigned char)(i >> (56 - 8 * b));
  MDB_val key;
  key.mv_size = 8;
  key.mv_data = to;
  return key;
}

static inline uint64_t number_of(const MDB_val* key) {
  uint64_t i = 0;
  if (key->mv_size != 8) return ~(uint64_t)0;
  for (unsigned b = 0; b < 8; ++b) i = i << 8 | ((const unsigned char*)key->mv_data)[b];
  return i;
}

static inline uint64_t known_word(uint64_t seed, size_t w) { return seed + w * 0x9E3779B97F4A7C15u; }

// `generation` tells states of one record apart.
static inline void fill_known(uint64_t i, uint64_t generation, void* to, size_t size) {
  const uint64_t seed = mixed(i * 2 + 1 + generation * 0x632BE59BD9B4E019u);
  size_t w = 0;
  for (; 8 * w + 8 <= size; ++w) {
    const uint64_t word = known_word(seed, w);
    memcpy((char*)to + 8 * w, &word, 8);
  }
  const uint64_t word = known_word(seed, w);
  memcpy((char*)to + 8 * w, &word, size - 8 * w);
}

static inline int is_known(uint64_t i, uint64_t generation, const void* bytes, size_t size) {
  const uint64_t seed = mixed(i * 2 + 1 + generation * 0x632BE59BD9B4E019u);
  uint64_t wrong = 0;
  size_t w = 0;
  for (; 8 * w + 8 <= size; ++w) {
    uint64_t word;
    memcpy(&word, (const char*)bytes + 8 * w, 8);
    wrong |= word ^ known_word(seed, w);
  }
  const uint64_t word = known_word(seed, w);
  return wrong == 0 && memcmp((const char*)bytes + 8 * w, &word, size - 8 * w) == 0;
}

#endif
