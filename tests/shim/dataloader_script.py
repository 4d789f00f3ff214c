"""Data sets over an environment that was opened before the workers were started, as training scripts do it.

    dataloader_script.py DIR make
    dataloader_script.py DIR (plain|torch) CASE...     CASE: VARIANT,START,WORKERS,PERSISTENT,LOCK

VARIANT: item (a transaction for each item), kept (one transaction, begun before the workers), reopen (opened
again where the data set is unpickled), opened (the environment travels by pickle, which fails).  START: fork,
spawn.
PERSISTENT: one set of workers for both epochs, 0 or 1.  LOCK: 0 or 1.  Prints a line for each case.
"""
import hashlib
import multiprocessing
import random
import sys

import lmdb

COUNT, EPOCHS, BATCH = 512, 2, 16


def item(i):
    return hashlib.sha256(b"%d" % i).digest() * (1 + i % 400)


def make(path):
    with lmdb.open(path, map_size=1 << 26) as env, env.begin(write=True) as txn:
        for i in range(COUNT):
            txn.put(b"%08d" % i, item(i))


class Data:
    def __init__(self, path, variant, lock):
        self.path, self.variant, self.lock = path, variant, lock
        self.open()

    def open(self):
        self.env = lmdb.open(self.path, readonly=True, lock=self.lock, readahead=False, meminit=False)
        with self.env.begin() as txn:
            self.count = txn.stat()["entries"]
        self.txn = self.env.begin() if self.variant == "kept" else None

    def __getstate__(self):
        state = dict(self.__dict__)
        if self.variant == "reopen":
            state["env"] = state["txn"] = None
        return state

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.variant == "reopen":
            self.open()

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if self.txn is not None:
            return i, bytes(self.txn.get(b"%08d" % i))
        with self.env.begin(buffers=True) as txn:
            return i, bytes(txn.get(b"%08d" % i))


DATA = None


def adopt(data):
    global DATA
    DATA = data


def fetch(batch):
    return [DATA[i] for i in batch]


class PlainLoader:
    """multiprocessing alone: workers get the data set as they start, by fork or by pickle."""

    def __init__(self, data, start, workers, persistent):
        self.data, self.workers, self.persistent, self.pool = data, workers, persistent, None
        self.context = multiprocessing.get_context(start)

    def __iter__(self):
        order = list(range(len(self.data)))
        random.Random(1).shuffle(order)
        batches = [order[at:at + BATCH] for at in range(0, len(order), BATCH)]
        if self.workers == 0:
            for batch in batches:
                yield [self.data[i] for i in batch]
            return
        if self.pool is None:
            self.pool = self.context.Pool(self.workers, adopt, (self.data,))
        yield from self.pool.imap(fetch, batches)
        if not self.persistent:
            self.close()

    def close(self):
        if self.pool is not None:
            self.pool.close()
            self.pool.join()
            self.pool = None


def torch_loader(data, start, workers, persistent):
    from torch.utils.data import DataLoader
    return DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=workers, collate_fn=list,
                      multiprocessing_context=start if workers else None,
                      persistent_workers=bool(persistent and workers),
                      timeout=60 if workers else 0)


def run(path, kind, case):
    variant, start, workers, persistent, lock = case.split(",")
    data = Data(path, variant, lock == "1")
    loader = (PlainLoader if kind == "plain" else torch_loader)(data, start, int(workers), persistent == "1")
    for _ in range(EPOCHS):
        seen = {}
        for batch in loader:
            seen.update(batch)
            data[batch[0][0]]  # the parent reads too
        if sorted(seen) != list(range(COUNT)):
            return f"{len(seen)} of {COUNT} items"
        wrong = sum(seen[i] != item(i) for i in seen)
        if wrong:
            return f"{wrong} items wrong"
    if kind == "plain":
        loader.close()
    data.txn = None
    data.env.close()
    return "right"


def main():
    path = sys.argv[1]
    if sys.argv[2] == "make":
        return make(path)
    for case in sys.argv[3:]:
        try:
            said = run(path, sys.argv[2], case)
        except Exception as e:  # pylint: disable=broad-except
            said = (type(e).__name__ + ": " + str(e).strip().splitlines()[-1])[:200]
        print(case, said, flush=True)


if __name__ == "__main__":
    main()
