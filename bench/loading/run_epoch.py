"""One run of bench/loaders: one epoch with one loader.  Prints a line of JSON: samples, bytes and checksum of the data; seconds and
CPU seconds of this process and its workers; bytes and requests read from storage; the program's waits for batches."""
import argparse
import json
import mmap
import os
import resource
import struct
import sys
import time
import warnings

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from loading import datasets  # noqa: E402
from loading.records import DATA, Sums  # noqa: E402
from measure import MIB  # noqa: E402

LARGE_BUFFER = 16 * MIB


def keep_freed_memory():
    """Lets malloc keep the memory of a batch for the next one, as in programs that have freed a larger buffer before.  Otherwise
    an epoch may take several times as long.  How long depends on what else the program allocates."""
    bytearray(LARGE_BUFFER)


def used(counters):
    """Returns the time, CPU time, bytes and requests so far, with those of workers that have ended.  Bytes and requests come from the
    counters of slowfs.  Without slowfs, the kernel counts the bytes, and no requests are counted."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    if counters:
        with open(counters, encoding="utf-8") as file:
            read = json.load(file)["read"]
        stored, requests = read["bytes"], read["numbered"]
    else:
        with open("/proc/self/io", encoding="utf-8") as file:
            stored, requests = int(dict(line.split(": ") for line in file)["read_bytes"]), 0
    return {"seconds": time.perf_counter(), "cpu_s": sum(u.ru_utime + u.ru_stime for u in both), "storage_bytes": stored,
            "requests": requests}


class Waits:
    """Measures the waits of a program for its batches.  The wait for the first batch begins at the start of the first worker, which
    then requests its first sample, not when all workers have started."""
    ROOM = struct.calcsize("d")

    def __init__(self, workers):
        self.workers, self.started = workers, mmap.mmap(-1, max(workers, 1) * self.ROOM)  # shared with the workers

    def worker_starts(self, number):
        struct.pack_into("d", self.started, number * self.ROOM, time.perf_counter())

    def batches(self, loader):
        """Yields the batches of an epoch."""
        self.started[:] = bytes(len(self.started))
        self.seconds, asked = [], time.perf_counter()
        self.begin = asked
        for batch in loader:
            self.seconds.append(time.perf_counter() - asked)
            yield batch
            asked = time.perf_counter()

    def result(self):
        started = [t for t, in struct.iter_unpack("d", self.started) if t] or [self.begin]
        first, later = self.begin + self.seconds[0] - min(started), sorted(self.seconds[1:]) or [0.0]
        return {"first_batch_s": first, "wait_p50_s": later[len(later) // 2], "wait_p99_s": later[len(later) * 99 // 100],
                "wait_longest_s": later[-1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loader", choices=DATA)
    parser.add_argument("directory", help="with the records that bench/loaders has written")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1, help="only the last one is measured; with 1, the time of opening is included")
    parser.add_argument("--first", type=int, help="how many bytes of each sample go into the checksum (default: all)")
    parser.add_argument("--counters", help="file with the counters of slowfs")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than there are CPUs
    make = datasets.maker(args.loader)
    keep_freed_memory()
    begin = used(args.counters)
    waits = Waits(args.workers)
    loader = make(args.directory, args.workers, args.seed, waits.worker_starts)
    for epoch in range(args.epochs):
        if epoch > 0:
            begin = used(args.counters)
        sums = Sums(args.first)
        for batch in waits.batches(loader):
            for sample in batch:
                sums.add(sample)
    end = used(args.counters)
    import lmdbio

    print(json.dumps({**sums.result(), **{k: end[k] - begin[k] for k in end}, **waits.result(), "preloaded": lmdbio.is_active()}))


if __name__ == "__main__":
    main()
