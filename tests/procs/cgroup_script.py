"""Workers that read a database larger than their memory cgroup; each checks the bytes it reads.

    cgroup_script.py DIR ACCESS LOADER WORKERS [BALLAST_MIB [GROWTH_MIB]]

ACCESS: walk (each worker walks through all records, and yields its own), random (lookups in random order).  LOADER: fork
(plain workers) or torch (a DataLoader).  With fork, the program has BALLAST_MIB of memory of its own, and each worker takes
GROWTH_MIB more, bit by bit, while it reads.  Prints "records N killed K failed F".
"""
import os
import random
import sys

import lmdb

BATCH = 16


def value(i, size):
    return (b"%015d\n" % i * (size // 16 + 1))[:size]


def opened(path):
    return lmdb.open(path, readonly=True, lock=False)


def read(path, access, worker, workers):
    """Ordinals of this worker's records, as they are read."""
    env = opened(path)
    count = env.stat()["entries"]
    with env.begin(buffers=True) as txn:
        if access == "walk":
            for key, found in txn.cursor():
                i = int(bytes(key))
                assert found[-32:-16] == value(i, len(found))[-32:-16], i
                if i % workers == worker:
                    assert found == value(i, len(found)), i
                    yield i
            return
        order = list(range(worker, count, workers))
        random.Random(worker).shuffle(order)
        for i in order:
            found = txn.get(b"%08d" % i)
            assert found == value(i, len(found)), i
            yield i


def fork(path, access, workers, ballast, growth):
    ours = bytearray(os.urandom(1)) * (ballast << 20)  # touched
    children, (gets, puts) = [], os.pipe()
    for w in range(workers):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                grown, n = [], 0
                for n, _ in enumerate(read(path, access, w, workers), 1):
                    if len(grown) < growth and n % 32 == 0:
                        grown.append(b"%d" % n * (1 << 20))
                os.write(puts, b"%d\n" % n)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    os.close(puts)
    ends = [os.waitpid(pid, 0)[1] for pid in children]
    with os.fdopen(gets) as f:
        records = sum(map(int, f))
    print("records", records, "killed", ends.count(9), "failed", sum(e not in (0, 9) for e in ends))
    return len(ours)


def torch(path, access, workers):
    from torch.utils import data

    class Records(data.IterableDataset):
        def __iter__(self):
            info = data.get_worker_info()
            return read(path, access, info.id if info else 0, info.num_workers if info else 1)

    records = sum(len(batch) for batch in data.DataLoader(Records(), batch_size=BATCH, num_workers=workers))
    print("records", records, "killed 0 failed 0")


if __name__ == "__main__":
    DIR, ACCESS, LOADER, WORKERS = sys.argv[1:5]
    if LOADER == "torch":
        torch(DIR, ACCESS, int(WORKERS))
    else:
        fork(DIR, ACCESS, int(WORKERS), *[*map(int, sys.argv[5:7]), 0, 0][:2])
