"""Reads the values of an LMDB database in a random order.  LMDBIO prefetches some hundred values ahead.

    LD_PRELOAD=liblmdbio.so python3 prefetch.py PATH [SEED]

PATH is an environment's directory or data file.  Without LMDBIO, or where it does not serve the environment, it
reads the same values by mdb_get alone.  Prints how many values, their bytes and a checksum; "prefetched" if LMDBIO did that.
"""
import ctypes
import os
import random
import sys
import zlib

import lmdb

AHEAD, PIECE = 256, 64


class Val(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("data", ctypes.c_char_p)]


class Prefetch:
    """Passes LMDBIO the next keys of a transaction's main database.  Does nothing if LMDBIO is not in the process."""

    MAIN = 1  # the handle of the main database; mdb_dbi_open returns those of other databases

    def __init__(self, txn):
        self.txn = None
        try:
            self.lib = ctypes.CDLL(None)
            find, tell = self.lib.lmdbio_txn_in, self.lib.lmdbio_prefetch
        except (OSError, AttributeError):
            return  # no LMDBIO in this process
        find.restype = ctypes.c_void_p
        find.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        tell.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.POINTER(Val), ctypes.c_size_t]
        # py-lmdb's Transaction holds the MDB_txn* somewhere in its own memory.
        self.txn = find(id(txn), type(txn).__basicsize__)

    def __call__(self, keys):
        if not self.txn or not keys:
            return False
        vals = (Val * len(keys))(*((len(k), k) for k in keys))
        return self.lib.lmdbio_prefetch(self.txn, self.MAIN, vals, len(keys)) == 0


def main(path, seed):
    env = lmdb.open(path, readonly=True, lock=True, subdir=os.path.isdir(path))
    with env.begin(buffers=True) as txn:
        keys = [bytes(k) for k in txn.cursor().iternext(keys=True, values=False)]
        random.Random(seed).shuffle(keys)
        prefetch = Prefetch(txn)
        prefetched, done, size, check = False, 0, 0, 0
        for i, key in enumerate(keys):
            if done < len(keys) and done + PIECE <= i + AHEAD:
                prefetched = prefetch(keys[done:i + AHEAD]) or prefetched
                done = i + AHEAD
            value = txn.get(key)
            size += len(value)
            check = zlib.crc32(value, check)
        print(f"{len(keys)} values, {size} bytes, {check:08x}")
        print("prefetched" if prefetched else "not prefetched", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
