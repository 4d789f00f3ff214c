"""Reads a database as one of the programs of bench/servers, which know nothing of LMDBIO unless the job is "reader".  Prints a line
of JSON with checksums that do not depend on the order: one of each epoch, or of all epochs together if they have different records
("strided").  For each epoch it has the seconds, and what this host's file system has read so far.

    servers_reader.py DATABASE MOUNT JOB EPOCHS HOSTS
"""
import json
import os
import random
import sys
import time
import zlib

import lmdb

BATCH = 16


def environment(path):
    return lmdb.open(path, readonly=True, lock=False, readahead=False, subdir=False)


class Records:
    """A dataset for a DataLoader: each worker opens the database itself."""

    def __init__(self, path, keys):
        self.path, self.keys, self.txn = path, keys, None

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, i):
        if self.txn is None:
            self.txn = environment(self.path).begin()
        return zlib.crc32(self.txn.get(self.keys[i]))


def keys_of(path):
    with environment(path) as env, env.begin() as txn:
        return list(txn.cursor().iternext(keys=True, values=False))


def walk(path, hosts):
    txn = environment(path).begin()
    while True:
        yield from (zlib.crc32(value) for _, value in txn.cursor())
        yield None


def strided(path, hosts):
    """Every host's share of the records, as Caffe reads it: a cursor that skips the records of the others.  Each epoch is that of
    another rank, so that the hosts have all read the same after as many epochs as there are hosts."""
    txn, rank = environment(path).begin(), int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    while True:
        cursor, at = txn.cursor(), 0
        found = cursor.first()
        while found:
            if at % hosts == rank:
                yield zlib.crc32(cursor.value())
            found, at = cursor.next(), at + 1
        rank = (rank + 1) % hosts
        yield None


def lookups(path, hosts):
    txn = environment(path).begin()
    keys = keys_of(path)
    while True:
        random.shuffle(keys)
        yield from (zlib.crc32(txn.get(key)) for key in keys)
        yield None


def loader(path, hosts):
    import torch.utils.data
    batches = torch.utils.data.DataLoader(Records(path, keys_of(path)), BATCH, shuffle=True, num_workers=2, persistent_workers=True,
                                          multiprocessing_context="fork", collate_fn=list)
    while True:
        for batch in batches:
            yield from batch
        yield None


def reader(path, hosts):
    import lmdbio
    stream = lmdbio.Reader(path, lock=False).stream(lmdbio.Order.shuffled(random.getrandbits(32), batch=BATCH).repeat(None), bytes_as="mapped")
    left = total = len(lmdbio.Reader(path, lock=False))
    for batch in stream:
        for value in batch.values:
            yield zlib.crc32(value)
            left -= 1
            if left == 0:
                left = total
                yield None


def main():
    path, mount, job, epochs, hosts = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
    begun, found, done, checksums = time.monotonic(), 0, [], []
    for checksum in {"walk": walk, "strided": strided, "lookups": lookups, "loader": loader, "reader": reader}[job](path, hosts):
        if checksum is not None:
            found ^= checksum
            continue
        if job != "strided" or len(done) == epochs - 1:
            checksums.append(found)
            found = 0
        with open(mount + "/.slowfs/counters", encoding="ascii") as file:
            read = json.load(file)["read"]["bytes"]
        now = time.monotonic()
        done.append({"seconds": now - begun, "read_so_far": read})
        begun = now
        if len(done) == epochs:
            break
    sys.stdout.write(json.dumps({"checksums": checksums, "epochs": done}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # without waiting for workers


if __name__ == "__main__":
    main()
