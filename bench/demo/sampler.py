#!/usr/bin/python3
"""An ordinary Python program that does not know LMDBIO.  It reads records with python3-lmdb in random order, with one
transaction for each record, as PyTorch data sets do.  Prints one line of JSON.
"""
import argparse
import json
import random
import time
import zlib

import lmdb


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database")
    parser.add_argument("--samples", type=int, default=1000)
    args = parser.parse_args()
    env = lmdb.open(args.database, readonly=True, lock=False, readahead=False, meminit=False)
    with env.begin() as txn:
        keys = list(txn.cursor().iternext(keys=True, values=False))
    choose = random.Random(1)
    order = [choose.choice(keys) for _ in range(args.samples)]
    size = checksum = 0
    begin = time.perf_counter()
    for key in order:
        with env.begin(buffers=True) as txn:
            value = txn.get(key)
            size += len(value)
            checksum = zlib.crc32(value, checksum)
    seconds = time.perf_counter() - begin
    env.close()
    print(json.dumps({"records": len(order), "bytes": size, "checksum": f"{checksum:08x}", "seconds": seconds}))


if __name__ == "__main__":
    main()
