"""bench/cache --capacity: how much of each kind of data a cache holds, and what the second epoch reads if the cache is too small.

For each kind, fills a cache by `lmdbio cache warm`, with LMDBIO_CACHE_CODEC=smallest and auto, and prints plain bytes / stored bytes
of the image, beside the least ratio that is expected and the estimate of `lmdbio info --pack`.  Then fills a cache that may use half
of the file's size (at least 16 MiB), and counts what a job reads from the slow file system: in order (walk) and shuffled (reader).  It
should read at most max(0, 1 - ratio / 2) + 0.03 of the file.  A cache of this size that evicts the least recently used chunk is simulated beside
it, with the same ratio.  In the simulation, each epoch visits each chunk once.  These are counts; other load does not matter, except
that the codec depends on measured rates.  Use --size 256M or more: LMDBIO checks the space after each 64 MiB, and only then finds that
compressed chunks leave room for more.
"""
import collections
import json
import os
import random
import shutil

from cache_data import KINDS, write
from cache_jobs import CHUNK, cold_tree, image_facts, run, run_job, settings, warm
from measure import MIB, Failed, progress

SLACK, LEAST_CACHE = 0.03, 16 * MIB
CHOSEN_BY = ("smallest", "auto")


def lru_misses(chunks, room, shuffled, epochs=20):
    """Returns the share of chunks that an LRU of `room` chunks does not have, in all epochs after the first one."""
    choose, kept, misses = random.Random(1), collections.OrderedDict(), 0
    for epoch in range(1 + epochs):
        for chunk in choose.sample(range(chunks), chunks) if shuffled else range(chunks):
            if chunk in kept:
                kept.move_to_end(chunk)
                continue
            misses += epoch > 0
            kept[chunk] = None
            if len(kept) > room:
                kept.popitem(last=False)
    return misses / (chunks * epochs)


class Capacity:
    def __init__(self, args):
        self.args, self.rows, self.cache = args, [], os.path.join(args.dir, "cache")

    def empty(self):
        shutil.rmtree(self.cache, ignore_errors=True)
        os.mkdir(self.cache)

    def image(self, where, name, codec, size=None):
        where.prepare(name)
        self.empty()
        more = settings(self.cache, codec, size)
        warm(self.args.build, os.path.join(where.dir, name), more)
        return image_facts(self.cache), more

    def estimate(self, name):
        _, out, _ = run(self.args.build, [os.path.join(self.args.build, "bin", "lmdbio"), "info", "--pack", "--json", os.path.join(self.args.dir, name)])
        return max(recipe["ratio"] for recipe in json.loads(out)["pack"]["recipes"])

    def second_epoch(self, where, name, job, more):
        where.prepare(name)
        cold_tree(self.cache)
        _, read = run_job(self.args.build, job, os.path.join(where.dir, name), more=more)
        return where.told()["request_bytes"], read

    def kind(self, where, kind):
        args = self.args
        progress(f"{kind}: writing")
        write(os.path.join(args.dir, kind), kind, args.size, args.value, args.pictures)
        file_bytes = os.path.getsize(os.path.join(args.dir, kind, "data.mdb"))
        progress(f"{kind}: filling")
        made = {codec: self.image(where, kind, codec)[0] for codec in CHOSEN_BY}
        row = {"kind": kind, "least": KINDS[kind].least, "estimate": self.estimate(kind), "file_bytes": file_bytes, **made}
        room = max(file_bytes // 2, LEAST_CACHE)
        half, more = self.image(where, kind, "smallest", room)
        row |= {"half": half, "room_bytes": room, "bound": max(0, 1 - row["smallest"]["ratio"] * room / file_bytes) + SLACK}
        for job in ("walk", "shuffled"):
            progress(f"{kind}: {job}")
            read_bytes, read = self.second_epoch(where, kind, job, more)
            if read != run_job(args.build, job, os.path.join(args.dir, kind))[1]:
                raise Failed(f"{kind}, {job}: read other records than without a cache")
            lru = lru_misses(half["chunks"], int(room * half["ratio"] / CHUNK), job == "shuffled")
            row[job] = {"read_of_file": read_bytes / file_bytes, "lru": lru}
        progress("")
        shutil.rmtree(os.path.join(args.dir, kind))
        self.rows.append(row)

    def show(self):
        print(f"pictures: {self.args.pictures.source()}\n")
        print("| kind | ratio, smallest | codec, filter | at least | ratio, auto | codec, filter | info --pack, best |\n|---|---|---|---|---|---|---|")
        for row in self.rows:
            cells = [f"{row[codec]['ratio']:.2f} | {row[codec]['codec']}, {row[codec]['filter']}" for codec in CHOSEN_BY]
            least = "raw" if row["kind"] == "jpeg" else f"{row['least']:.2f}" if row["least"] else ""
            print(f"| {row['kind']} | {cells[0]} | {least} | {cells[1]} | {row['estimate']:.2f} |")
        print("\n| cache of half the file: kind | chunks in the cache | read / file, in order | shuffled | bound | LRU, in order | LRU, shuffled |\n"
              "|---|---|---|---|---|---|---|")
        for row in self.rows:
            read, lru = ([f"{row[job][what]:.2f}" for job in ("walk", "shuffled")] for what in ("read_of_file", "lru"))
            print(f"| {row['kind']} | {row['half']['chunks_there']} of {row['half']['chunks']} | {' | '.join(read)} | {row['bound']:.2f} | "
                  f"{' | '.join(lru)} |", flush=True)
