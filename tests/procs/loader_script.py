"""The workers of a data loader, each epoch another order: what each has read is checked, byte for byte.

    loader_script.py DIR make RECORDS BYTES
    loader_script.py DIR read START WORKERS PERSISTENT ORDER OPENED EPOCHS [KILL]
    loader_script.py DIR torch WORKERS BATCH     PyTorch's DataLoader, in order; prints "M records"

START: fork, spawn, forkserver.  PERSISTENT: one set of workers for all epochs, 0 or 1.  ORDER: shuffled, ordered.  OPENED:
before the workers are started (fork alone) or in each of them, parent or worker.  KILL: in the first epoch worker 0 kills
itself after so many batches.  Workers take batches of 8 in turn.  Prints "epoch N: M records" after each epoch, and goes
on with each line of its input.
"""
import multiprocessing
import os
import random
import signal
import sys

import lmdb

BATCH = 8


def value(i, size):
    return (b"%015d\n" % i * (size // 16 + 1))[:size]


def make(path, records, size):
    with lmdb.open(path, map_size=2 * records * (size + 4096) + (1 << 24), sync=False) as env, env.begin(write=True) as txn:
        for i in range(records):
            txn.put(b"%08d" % i, value(i, size), append=True)


def opened(path):
    return lmdb.open(path, readonly=True, lock=False, readahead=True, meminit=False, max_readers=512)


def read(env, batches, kill):
    n = 0
    for k, batch in enumerate(batches):
        if k == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        with env.begin(buffers=True) as txn:
            for i in batch:
                got = txn.get(b"%08d" % i)
                assert got == value(i, len(got)), i
                n += 1
    return n


def epoch(records, order, number, workers):
    """The batches of each worker."""
    every = list(range(records))
    if order == "shuffled":
        random.Random(number).shuffle(every)
    batches = [every[at:at + BATCH] for at in range(0, records, BATCH)]
    return [batches[w::workers] for w in range(workers)]


def worker(path, env, pipe):
    env = env or opened(path)
    while (work := pipe.recv()) is not None:
        pipe.send(read(env, *work))


def torch_loader(path, workers, batch):
    import torch

    class Records(torch.utils.data.Dataset):
        env = None

        def __getitem__(self, i):
            self.env = self.env or opened(path)
            with self.env.begin() as txn:
                return i, torch.frombuffer(bytearray(txn.get(b"%08d" % i)), dtype=torch.uint8)

        def __len__(self):
            with opened(path) as env:
                return env.stat()["entries"]

    total = 0
    for numbers, values in torch.utils.data.DataLoader(Records(), batch_size=batch, num_workers=workers):
        for i, got in zip(numbers.tolist(), values):
            assert got.numpy().tobytes() == value(i, len(got)), i
            total += 1
    print(f"{total} records")


def main(path, start, workers, persistent, order, where, epochs, kill):
    context = multiprocessing.get_context(start)
    env = opened(path)
    records = env.stat()["entries"]
    if where == "worker":
        env.close()
        env = None
    running = []
    for number in range(epochs):
        if not running:
            for _ in range(workers):
                ours, theirs = context.Pipe()
                process = context.Process(target=worker, args=(path, env, theirs))
                process.start()
                theirs.close()
                running.append((process, ours))
        shares = epoch(records, order, number, workers)
        for w, (share, (_, pipe)) in enumerate(zip(shares, running)):
            pipe.send((share, kill if w == 0 and number == 0 else None))
        total, dead = 0, []
        for w, (process, pipe) in enumerate(running):
            try:
                total += pipe.recv()
            except EOFError:
                process.join()
                dead.append(w)
        assert dead == ([0] if kill is not None and number == 0 else []), dead
        if dead or not persistent or number == epochs - 1:
            for w, (process, pipe) in enumerate(running):
                if w not in dead:
                    pipe.send(None)
                    process.join()
                    assert process.exitcode == 0, process.exitcode
            running = []
        print(f"epoch {number}: {total} records", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    if sys.argv[2] == "make":
        make(sys.argv[1], int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[2] == "torch":
        torch_loader(sys.argv[1], int(sys.argv[3]), int(sys.argv[4]))
    else:
        START, WORKERS, PERSISTENT, ORDER, WHERE, EPOCHS = sys.argv[3:9]
        main(sys.argv[1], START, int(WORKERS), int(PERSISTENT), ORDER, WHERE, int(EPOCHS),
             int(sys.argv[9]) if len(sys.argv) > 9 else None)
