#!/usr/bin/python3
"""An ordinary Python program that reads training records with python3-lmdb: records in random order with a
transaction for each, as PyTorch data sets do, and all records in order with a cursor.  It knows nothing of LMDBIO.

Prints one line of JSON; the checksum is taken in a pass of its own, outside the times.
"""
import argparse
import json
import random
import time
import zlib

import lmdb


def timed(function, *args):
    start = time.perf_counter()
    result = function(*args)
    return time.perf_counter() - start, result


def sequential(env):
    size = 0
    with env.begin() as txn:
        for _, value in txn.cursor():
            size += len(value)
    return size


def samples(env, keys):
    size = 0
    for key in keys:
        with env.begin() as txn:
            size += len(txn.get(key))
    return size


def checksum(env):
    total = 0
    with env.begin(buffers=True) as txn:
        for key, value in txn.cursor():
            total = zlib.crc32(value, zlib.crc32(key, total))
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database")
    parser.add_argument("--samples", type=int, default=20000)
    parser.add_argument("--checksum", action="store_true")
    args = parser.parse_args()
    env = lmdb.open(args.database, readonly=True, lock=False, readahead=False, meminit=False)
    with env.begin() as txn:
        keys = list(txn.cursor().iternext(keys=True, values=False))
    choose = random.Random(1)
    order = [choose.choice(keys) for _ in range(args.samples)]
    result = {"records": len(keys)}
    result["random"], sampled = timed(samples, env, order)
    result["sequential"], walked = timed(sequential, env)
    result["random_again"], again = timed(samples, env, order)
    assert again == sampled
    if args.checksum:
        result["checksum"] = f"{checksum(env):08x}"
    result["bytes"] = [sampled, walked]
    env.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
