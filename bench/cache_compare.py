"""bench/cache --compare: the cache beside other copies on local disk.  Each row is a walk over all records, with these copies:

  none            no copy: the slow file system, with LMDBIO
  cache CODEC     the image that `lmdbio cache warm` has made
  frames CODEC    the same image, read by read_frames.cc: two threads decompress its frames, and nothing else
  local           the file itself, with stock LMDB
  squashfs BLOCK  an image of squashfs, zstd level 3, with blocks of 128 KiB or 1 MiB, with stock LMDB
  erofs           an image of erofs, lz4hc, clusters of 64 KiB, with stock LMDB
  zstd shards     databases of a 16th of the records each, packed by zstd -3.  Each is unpacked as a whole into a file in memory (or in
                  --dir), while the one before it is read with stock LMDB

The copies are evicted from the page cache before each run, and file systems are mounted anew.  The kernel mounts them if it may, else
squashfuse_ll and erofsfuse do.  A run is a process; for zstd shards, it is all processes.  The first batch is the time from the opening
until 1 MiB has been read; for cp, and for zstd shards, this includes making the (first) copy.

Two more tables: the first two epochs of a new node (an empty cache, or `cp`; evicted between the epochs), and records of 3 KiB in random
order: 2000 lookups with mdb_get, and an epoch of a reader that shuffles all records.
"""
import os
import shutil

import numpy as np

from cache_copies import FIRST, Copy, Frames, Original, Shards, copy_file, erofs, squashfs
from cache_data import write
from cache_jobs import image_facts
from measure import MIB, Failed, Skip, progress, round_order, spread, text

LOOKUP_VALUE = 3072


class Compare:
    def __init__(self, args, where, kind):
        self.args, self.where, self.database = args, where, kind
        self.local = os.path.join(args.dir, kind)
        self.records = write(self.local, kind, args.size, args.value, args.pictures)
        os.remove(os.path.join(self.local, "lock.mdb"))
        self.data = os.path.join(self.local, "data.mdb")
        self.bytes, self.ways, self.skipped, self.out = os.path.getsize(self.data), {}, {}, {}

    def add(self, name, make):
        """Adds a copy, unless what it needs is missing."""
        progress(f"{name}: making")
        try:
            way = make(name)
            with way.ready():  # a file system may not be mountable
                pass
            self.ways[name] = way
        except Skip as why:
            self.skipped[name] = str(why)

    def cached(self, codec):
        return lambda name: Original(self.args, name, self.where, self.database, codec).fill()

    def in_turns(self, measure):
        """Calls measure(name) for each copy in each round, in turns.  Returns lists of what it returned."""
        made, names = {name: [] for name in self.ways}, list(self.ways)
        for i in range(self.args.rounds):
            for at in round_order(len(names), i):
                progress(f"round {i + 1} of {self.args.rounds}: {names[at]}")
                made[names[at]].append(measure(names[at]))
        progress("")
        return made

    def walks(self):
        add, args = self.add, self.args
        words = np.fromfile(self.data, dtype="<u8")
        self.ways["none"] = Original(args, "none", self.where, self.database)
        for codec in args.codecs:
            add(f"cache {codec}", self.cached(codec))
            facts = image_facts(self.ways[f"cache {codec}"].at)
            if facts["codec"] != "raw":
                words_used = np.bitwise_xor.reduce(words[:facts["used_bytes"] // 8])
                add(f"frames {codec}", lambda name, at=self.ways[f"cache {codec}"].at: Frames(args, name, at, f"{int(words_used):016x}"))
        add("local", lambda name: Copy(args, name, self.local))
        for name, block in (("squashfs 128K", "128K"), ("squashfs 1M", "1M")):
            add(name, lambda name, block=block: squashfs(args, name, self.local, block))
        add("erofs", lambda name: erofs(args, name, self.local))
        add("zstd shards", lambda name: Shards(args, name, self.local))

        digests = set()

        def measure(name):
            way = self.ways[name]
            first = way.first() if way.first else None
            seconds, result = way.walk()
            if way.checked:
                digests.add(result["digest"])
            if result.get("records", self.records) != self.records or len(digests) > 1:
                raise Failed(f"{name}: read other records")
            return seconds, first

        made = self.in_turns(measure)
        seconds = {name: [s for s, _ in runs] for name, runs in made.items()}

        def over(other, name):
            return [a / b for a, b in zip(seconds[other], seconds[name])]

        print(f"\nwalk, {self.database}, {self.bytes / MIB:.0f} MiB\n\n"
              "| copy | size / file | first batch, s [range] | walk, s [range] | none / walk | frames / walk | squashfs 128K / walk |\n|---|---|---|---|---|---|---|")
        for name, way in self.ways.items():
            row = {"size_of_file": way.bytes() / self.bytes, "mount": getattr(way, "how", None), "seconds": spread(seconds[name]),
                   "none_over_walk": spread(over("none", name))}
            if way.first:
                row["first_batch"] = spread([first for _, first in made[name]])
            if name.startswith("cache"):
                for other, column in ((name.replace("cache", "frames"), "frames_over_walk"), ("squashfs 128K", "squashfs_over_walk")):
                    if other in seconds:
                        row[column] = spread(over(other, name))
            self.out.setdefault("walks", {})[name] = row
            cells = [text(row[column], 3 if column == "first_batch" else 2) if column in row else ""
                     for column in ("first_batch", "seconds", "none_over_walk", "frames_over_walk", "squashfs_over_walk")]
            print(f"| {name}{' (' + row['mount'] + ')' if row['mount'] else ''} | {row['size_of_file']:.2f} | {' | '.join(cells)} |", flush=True)

    def two_epochs(self):
        self.ways = {"cache": Original(self.args, "new", self.where, self.database, self.args.codec), "cp": Copy(self.args, "cp", os.path.join(self.args.dir, "cp"))}
        names = {"cache": f"cache {self.args.codec}, empty", "cp": "cp, then stock LMDB"}

        def measure(name):
            way, copying = self.ways[name], 0
            if name == "cp":
                shutil.rmtree(way.at, ignore_errors=True)
                os.mkdir(way.at)
                self.where.prepare(self.database)
                copying = copy_file(os.path.join(self.where.dir, self.database, "data.mdb"), way.at)
            else:
                way.empty()
            first = copying + (self.first_batch_of_copy(way) if name == "cp" else way.first())
            if name == "cache":
                way.empty()
            one, two = copying + way.walk()[0], way.walk()[0]
            return first, one, two, self.where.told()["request_bytes"] / self.bytes if name == "cache" else 0

        made = self.in_turns(measure)
        print("\ntwo epochs\n\n| job | first batch, s [range] | first epoch, s | second epoch, s | second reads / file | both, s | cp / job |\n"
              "|---|---|---|---|---|---|---|")
        both = {name: [b + c for _, b, c, _ in runs] for name, runs in made.items()}
        for name, runs in made.items():
            row = dict(zip(("first_batch", "first", "second", "second_reads"), map(spread, zip(*runs)))) | {"both": spread(both[name])}
            row["cp_over_job"] = spread([a / b for a, b in zip(both["cp"], both[name])])
            self.out.setdefault("two_epochs", {})[names[name]] = row
            print(f"| {names[name]} | {text(row['first_batch'])} | {text(row['first'], 2)} | {text(row['second'], 2)} | "
                  f"{text(row['second_reads'], 2)} | {text(row['both'], 2)} | {text(row['cp_over_job'], 2)} |", flush=True)

    @staticmethod
    def first_batch_of_copy(way):
        return way.job("walk", way.at, FIRST)[1]["mark_seconds"]  # what was copied is in the page cache

    def random_reads(self):
        self.ways = {"none": Original(self.args, "none", self.where, self.database)}
        for codec in self.args.codecs:
            self.add(f"cache {codec}", self.cached(codec))
        self.add("squashfs 1M", lambda name: squashfs(self.args, name + " random", self.local, "1M"))
        digests = {"lookups": set(), "reader": set()}

        def measure(name):
            way = self.ways[name]
            with way.ready() as path:
                found = way.lookups(self.records, path)
            with way.ready() as path:
                seconds, read = way.job("shuffled", path)
            digests["lookups"].add(found["set_digest"])
            digests["reader"].add(read["digest"])
            if any(len(different) > 1 for different in digests.values()):
                raise Failed(f"{name}: read other records")
            return found["records"] / found["seconds"], self.records / seconds

        made = self.in_turns(measure)
        print(f"\nrecords of {LOOKUP_VALUE // 1024} KiB, {self.bytes / MIB:.0f} MiB, random order\n\n"
              "| copy | lookups/s [range] | of squashfs | reader, records/s [range] | of squashfs |\n|---|---|---|---|---|")
        for name, runs in made.items():
            row, cells = {}, []
            for at, what in enumerate(("lookups", "reader")):
                row[what] = spread([r[at] for r in runs])
                cells.append(text(row[what], 0))
                if "squashfs 1M" in made:
                    row[what + "_of_squashfs"] = spread([r[at] / s[at] for r, s in zip(runs, made["squashfs 1M"])])
                cells.append(text(row[what + "_of_squashfs"], 2) if "squashfs 1M" in made else "")
            self.out.setdefault("random", {})[name] = row
            print(f"| {name} | {' | '.join(cells)} |", flush=True)

    def tell(self):
        for name, why in self.skipped.items():
            print(f"{name}: not measured: {why}")
        return self.out | {"skipped": self.skipped}


def compare(args, where):
    bench = Compare(args, where, args.kind)
    bench.walks()
    bench.two_epochs()
    rows = {"walk": bench.tell()}
    shutil.rmtree(bench.local)
    args.value = LOOKUP_VALUE
    bench = Compare(args, where, "image")
    bench.random_reads()
    return rows | {"random": bench.tell()}
