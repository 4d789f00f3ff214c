#!/usr/bin/env python3
"""The examples of docs/examples do what they say."""
import ctypes
import os
import subprocess
import sys
import unittest

import shimtest

RECORDS = 5000
MASK = (1 << 64) - 1


def value(i):
    return bytes([i % 251]) * (50 + i * 37 % 9000)


class Val(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("data", ctypes.c_char_p)]


def make(path, records=range(RECORDS), end=False):
    """By the real LMDB.  `end`: also the key that ends docs/examples/follow.cc."""
    lmdb = ctypes.CDLL(shimtest.CONFIG["lmdb"])
    env, txn, dbi = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint()

    def must(rc):
        if rc != 0:
            raise AssertionError(rc)
    must(lmdb.mdb_env_create(ctypes.byref(env)))
    must(lmdb.mdb_env_set_mapsize(env, ctypes.c_size_t(1 << 28)))
    must(lmdb.mdb_env_open(env, path.encode(), 0x10000, 0o600))
    must(lmdb.mdb_txn_begin(env, None, 0, ctypes.byref(txn)))
    must(lmdb.mdb_dbi_open(txn, None, 0, ctypes.byref(dbi)))
    for key, data in [(b"%06d" % i, value(i)) for i in records] + [(b"end", b"")] * end:
        must(lmdb.mdb_put(txn, dbi, ctypes.byref(Val(len(key), key)), ctypes.byref(Val(len(data), data)), 0))
    must(lmdb.mdb_txn_commit(txn))
    lmdb.mdb_env_close(env)


def mix(x):
    x = (x + 0x9e3779b97f4a7c15) & MASK
    x = ((x ^ (x >> 30)) * 0xbf58476d1ce4e5b9) & MASK
    x = ((x ^ (x >> 27)) * 0x94d049bb133111eb) & MASK
    return x ^ (x >> 31)


def shuffle(seed, epoch, count, i):
    """After docs/format.md."""
    bits = max(8, (count - 1).bit_length())
    low = bits // 2
    key, x = mix(mix(seed) ^ epoch), i
    while True:
        left, right = x >> low, x & ((1 << low) - 1)
        for r in range(8):
            k = key + r * 0xd1b54a32d192ed03
            if r % 2 == 0:
                left ^= mix((k + right) & MASK) & ((1 << (bits - low)) - 1)
            else:
                right ^= mix((k + left) & MASK) & ((1 << low) - 1)
        x = left << low | right
        if x < count:
            return x


def total(ordinals):
    return sum(i + sum(value(i)) for i in ordinals)


class Examples(shimtest.Case):
    def setUp(self):
        super().setUp()
        self.db = self.fresh()
        make(self.db)

    def output(self, mode, argv, stdin=None):
        run = subprocess.run([shimtest.program(argv[0]), *argv[1:]], env=shimtest.environment(mode), input=stdin,
                             capture_output=True, text=True, timeout=100, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout.splitlines()

    def test_batches(self):
        size = sum(len(value(i)) for i in range(RECORDS))
        self.assertEqual(self.output("stock", ["batches", self.db, "000017", "none", "004999"]),
                         [f"{RECORDS} records, {size} bytes", f"000017: record 17, {len(value(17))} bytes",
                          "none: no such record", f"004999: record 4999, {len(value(4999))} bytes"])

    def test_epochs(self):
        ranks = 3
        for rank in range(ranks):
            share = [[shuffle(42, epoch, RECORDS, i) for i in range(RECORDS) if i // 32 % ranks == rank] for epoch in range(2)]
            lines = self.output("stock", ["epochs", self.db, str(rank), str(ranks)])
            place = next(line for line in lines if line.startswith("a job")).split()
            epoch, position = int(place[5]), int(place[6])
            self.assertEqual([line for line in lines if line.startswith("epoch")],
                             [f"epoch {e}: {total(share[e])}" for e in range(2)])
            rest = self.output("stock", ["epochs", self.db, str(rank), str(ranks), str(epoch), str(position)])
            left = [share[epoch][position:], *share[epoch + 1:]]
            self.assertEqual([line for line in rest if line.startswith("epoch")],
                             [f"epoch {epoch + k}: {total(part)}" for k, part in enumerate(left)])
            rest = self.output("stock", ["epochs", self.db, str(rank), str(ranks), "2", "0"])
            self.assertEqual(rest, ["epoch 2: 0"], "nothing is left")

    def test_follow(self):
        state = os.path.join(self.dir, "state")
        make(self.db, (), end=True)
        line, = self.output("stock", ["follow", self.db, state])
        # The old ones of a batch were drawn five batches earlier, when there were none at first.
        self.assertRegex(line, rf"^{RECORDS} new records, {(RECORDS // 32 + 1 - 5) * 8} old ones, \d+ bytes$")
        self.assertLess(os.path.getsize(state), 100000)
        make(self.db, range(900000, 900064))
        line, = self.output("stock", ["follow", self.db, state])
        self.assertRegex(line, r"^64 new records, 16 old ones, ")
        self.assertRegex(self.output("stock", ["follow", self.db, state])[0], r"^0 new records, 0 old ones, 0 bytes$")

    def test_prefetch(self):
        wanted = [shuffle(1, 0, RECORDS * 2, i) for i in range(3000)]  # half of them do not exist
        there = [i for i in wanted if i < RECORDS]
        keys = "".join(f"{i:06d}\n" for i in wanted)
        line = f"{len(there)} of {len(wanted)} keys, {sum(len(value(i)) for i in there)} bytes"
        self.assertEqual(self.output("stock", ["prefetch", self.db], keys), [line])
        for mode in (m for m in shimtest.modes() if m == "preload"):
            self.assertEqual(self.output(mode, ["prefetch", self.db], keys), [line + ", prefetched"])


if __name__ == "__main__":
    sys.exit(shimtest.main())
