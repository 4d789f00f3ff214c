#!/usr/bin/python3
"""An ordinary data loader over python3-lmdb, which does not know LMDBIO.  Worker processes fetch batches of records,
shuffled or in order, each record once an epoch, as a PyTorch DataLoader does with multiprocessing.  Prints one line of
JSON.  The time includes the start of the workers.
"""
import argparse
import json
import multiprocessing
import random
import time
import zlib

import lmdb

BATCH = 16


class Worker:
    """The state of a worker between two batches."""
    def __init__(self, database):
        self.txn = lmdb.open(database, readonly=True, lock=False, readahead=False, meminit=False).begin(buffers=True)

    def fetch(self, keys):
        """Returns the sums of the sizes and checksums of a batch's records, which do not depend on the order."""
        values = [self.txn.get(key) for key in keys]
        return len(values), sum(map(len, values)), sum(map(zlib.crc32, values))


def begin(database):
    global worker
    worker = Worker(database)


def fetch(keys):
    return worker.fetch(keys)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--in-order", action="store_true", help="do not shuffle")
    args = parser.parse_args()
    with lmdb.open(args.database, readonly=True, lock=False) as env, env.begin() as txn:
        keys = list(txn.cursor().iternext(keys=True, values=False))
    choose = random.Random(1)
    total, seconds = [0, 0, 0], []
    start = time.perf_counter()
    with multiprocessing.get_context("fork").Pool(args.workers, begin, (args.database,)) as pool:
        for _ in range(args.epochs):
            if not args.in_order:
                choose.shuffle(keys)
            batches = [keys[i:i + BATCH] for i in range(0, len(keys), BATCH)]
            for done in pool.imap_unordered(fetch, batches):
                total = [a + b for a, b in zip(total, done)]
            seconds.append(time.perf_counter() - start)
            start = time.perf_counter()
    print(json.dumps({"records": total[0], "bytes": total[1], "checksum": f"{total[2]:x}", "seconds": sum(seconds)}))


if __name__ == "__main__":
    main()
