"""Workers that look records up, and count how often.

    process_stats_workers.py DIR make
    process_stats_workers.py DIR fork|spawn WORKERS closed|open|terminated|killed|kept

closed: each closes the database; open: it does not; kept: it uses its parent's transaction.  Prints the lookups of all.
"""
import multiprocessing
import os
import random
import signal
import sys

import lmdb

COUNT = 2000


def work(path, number, how, kept, results, go_on):
    env = None if kept else lmdb.open(path, readonly=True, lock=False)
    txn = kept or env.begin()
    draw = random.Random(number)
    n = 300 + number
    for _ in range(n):
        if len(txn.get(b"%08d" % draw.randrange(COUNT))) != 3000:
            sys.exit(1)
    results.put(n)
    if how == "closed":
        txn.abort()
        env.close()
    elif how in ("terminated", "killed"):
        go_on.wait()  # until all results have been taken
        os.kill(os.getpid(), signal.SIGTERM if how == "terminated" else signal.SIGKILL)


def main():
    path = sys.argv[1]
    if sys.argv[2] == "make":
        with lmdb.open(path, map_size=1 << 26) as env, env.begin(write=True) as txn:
            for i in range(COUNT):
                txn.put(b"%08d" % i, bytes([i % 256]) * 3000)
        return
    context, workers, how = multiprocessing.get_context(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    kept = lmdb.open(path, readonly=True, lock=False).begin() if how == "kept" else None
    counted = 0
    if kept:
        for i in range(17):
            kept.get(b"%08d" % i)
        counted = 17
    results, go_on = context.Queue(), context.Event()
    all_workers = [context.Process(target=work, args=(path, i, how, kept, results, go_on)) for i in range(workers)]
    for w in all_workers:
        w.start()
    counted += sum(results.get() for _ in all_workers)
    go_on.set()
    for w in all_workers:
        w.join()
    print(counted)


if __name__ == "__main__":
    main()
