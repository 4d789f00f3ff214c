"""Writes the records that bench/loaders reads: the same ones to an LMDB database, to one file each, and to WebDataset's tar shards."""
import io
import json
import os
import random
import shutil
import tarfile
import zlib

from measure import MIB, fail, progress

# The directory that each loader reads.
DATA = {"lmdb": "lmdb", "lmdb-readahead": "lmdb", "lmdb-preload": "lmdb", "lmdb-readahead-preload": "lmdb", "lmdbio-map": "lmdb",
        "lmdbio-iter": "lmdb", "lmdbio-tensor": "lmdb", "files": "files", "tar": "tar"}
FILES = 1000  # in a directory
SHARD_BYTES, SHARDS = 64 * MIB, 16  # shards are smaller if there would be fewer than SHARDS: each worker needs some
COMMIT_BYTES = 64 * MIB  # of a transaction that writes


class Sums:
    """Counts samples and their bytes, and sums the CRCs of their first bytes, which does not depend on the order.  `first`: number of
    bytes in the CRC; None: all."""

    def __init__(self, first):
        self.first, self.samples, self.bytes, self.checksum = first, 0, 0, 0

    def add(self, sample):
        self.samples += 1
        self.bytes += len(sample)
        self.checksum += zlib.crc32(sample[:self.first])

    def result(self):
        return {"samples": self.samples, "bytes": self.bytes, "checksum": f"{self.checksum:x}"}


def key(i):
    return f"{i:08d}"


def file_path(i):
    return os.path.join("files", f"{i // FILES:05d}", key(i) + ".bin")


def up_to(n, unit):
    return -(-n // unit) * unit


def check_space(directory, count, record_bytes):
    """Ends the program if there is too little space for `count` records that take `record_bytes` each."""
    needed, free = (count * record_bytes >> 20) + 32, shutil.disk_usage(directory).free >> 20
    if needed > free:
        fail(f"{directory}: {needed} MiB needed, {free} MiB free (see --dir, --size)")


def write(directory, count, value_bytes, seed, first):
    """Writes random records below the directory, with stock LMDB, unless they exist.  Returns the result of Sums(first) for them."""
    facts, told = {"count": count, "value_bytes": value_bytes, "seed": seed, "first": first}, os.path.join(directory, "records.json")
    if os.path.exists(told):
        with open(told, encoding="utf-8") as file:
            made = json.load(file)
        if {k: made[k] for k in facts} == facts:
            return made["sums"]
    for name in {*DATA.values()}:
        shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
    check_space(directory, count, 2 * up_to(value_bytes + 64, 4096) + 512 + up_to(value_bytes, 512))  # all three copies
    sums = Sums(first)
    with Database(directory, count, value_bytes) as database, Shards(directory, count, value_bytes) as shards:
        choose = random.Random(seed)
        for i in range(count):
            if i % 100 == 0:
                progress(f"writing: record {i} of {count}")
            value = choose.randbytes(value_bytes)
            sums.add(value)
            database.add(i, value)
            shards.add(i, value)
            path = os.path.join(directory, file_path(i))
            if i % FILES == 0:
                os.makedirs(os.path.dirname(path))
            with open(path, "wb") as file:
                file.write(value)
    progress("writing to the disk")
    os.sync()  # pages that are not written yet cannot be evicted
    with open(told, "w", encoding="utf-8") as file:
        json.dump({**facts, "sums": sums.result()}, file)
    progress("")
    return sums.result()


class Database:
    """Writes a database in key order, in several transactions."""

    def __init__(self, directory, count, value_bytes):
        import lmdb

        self.env = lmdb.open(os.path.join(directory, "lmdb"), map_size=2 * count * (value_bytes + 4096) + 64 * MIB, sync=False)
        self.txn, self.waiting = self.env.begin(write=True), 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.txn.commit()
        self.env.sync(True)
        self.env.close()

    def add(self, i, value):
        if self.waiting > COMMIT_BYTES:
            self.txn.commit()
            self.txn, self.waiting = self.env.begin(write=True), 0
        self.txn.put(key(i).encode(), value, append=True)
        self.waiting += len(value)


class Shards:
    def __init__(self, directory, count, value_bytes):
        self.directory, self.tar = os.path.join(directory, "tar"), None
        self.records = max(1, min(SHARD_BYTES // (value_bytes + 512), -(-count // SHARDS)))  # of a shard
        os.mkdir(self.directory)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.tar.close()

    def add(self, i, value):
        if i % self.records == 0:
            if self.tar:
                self.tar.close()
            self.tar = tarfile.open(os.path.join(self.directory, f"{i // self.records:06d}.tar"), "w")
        member = tarfile.TarInfo(key(i) + ".bin")
        member.size = len(value)
        self.tar.addfile(member, io.BytesIO(value))


def files_of(directory, data):
    """Returns the files that loaders of this data read, as paths below the directory."""
    if data == "lmdb":
        return [os.path.join("lmdb", "data.mdb")]
    return sorted(os.path.relpath(os.path.join(parent, name), directory)
                  for parent, _, names in os.walk(os.path.join(directory, data)) for name in names)
