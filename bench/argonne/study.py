"""How readers, files, orders and sizes of records affect programs that read training data from slow storage: the questions of
"Large Scale Caching and Streaming of Training Data for Online Deep Learning", for LMDB databases.

Varies the number of readers, one file for each reader or one for all, the order, the size of a record (what a program asks for at a
time), the storage, and a writer that appends records meanwhile. Measures each combination with three programs:

  stock    stock LMDB
  preload  the same program with LMDBIO preloaded
  reader   a program that calls LMDBIO: lmdbio_stream, or lmdbio_follow for new and old records

Orders:
  sequential  each reader reads its part in key order
  shuffled    each reader reads its part of a permutation, by mdb_get
  rehearsal   batches of new and old records: stock LMDB reads the new ones with a cursor and old ones with mdb_get. A follower
              shuffles the records that exist; if several share a file, each takes as many records as the others, which overlap

The table shows MB/s of all readers together with the opening, the 99th percentile of the waits for a batch in ms, and KiB per
request to the storage. Writes JSON and a plot.

    bench/factors --study argonne --quick    # one factor at a time, 64 MiB: at most 3 minutes
    bench/factors --study argonne            # all combinations, 256 MiB, three rounds: 12 to 17 hours; --bytes 64M: a quarter

To continue a command that was interrupted or killed, start it again with the same options: runs.jsonl in the directory of --out has the
finished runs.

Storage is a set-up of bench/cold: slow-DELAYms[-READAHEAD][-maxREQUEST][-capMB]. The kernel's read-ahead (default: 128K) sets the size
of the requests that page faults make. With 0K they have 4 KiB, as with MDB_NORDAHEAD. Readers and the writer use the same mount; the data
below it are in memory.

Exit status: 0; 1 if a reader failed or if readers read other bytes; 77 if nothing could be measured.
"""
import argparse
import contextlib
import itertools
import json
import math
import os
import shutil
import subprocess

import cold_bench
from cold_files import setup
from journal import Journal
from measure import MIB, Failed, Skip, checksum, fail, progress, round_order, shown_size, size, spread, text
from node_bench import NodeBench
from node_ranks import Ranks

LABELS = {"stock": "stock", "preload": "preload", "reader": "reader"}
ORDERS = ("sequential", "shuffled", "rehearsal")
# The usual levels of each factor, and the one that it has while another factor varies.
FACTORS = {"readers": ("1,2,4,8,16", "4"), "files": ("shared,own", "shared"), "value": ("3072,16384,112640", "16384"),
           "storage": ("slow-1ms,slow-1ms-0K,slow-1ms-4M,slow-5ms,slow-1ms-cap100", "slow-1ms"), "writer": ("no,yes", "no")}
QUICK_READERS = "1,4,16"


def p99(waits):
    """Returns the 99th percentile: the longest of fewer than 100 waits."""
    return sorted(waits)[math.ceil(0.99 * len(waits)) - 1]


def planned(orders, levels, one_at_a_time):
    """Returns the usual level of each factor, and tuples of an order and a level of each factor: all, or those that differ from the
    usual ones in one factor.  One reader with a file of its own is left out, if one reader of a shared file is the same."""
    usual = {f: level if level in levels[f] else levels[f][0] for f, (_, level) in FACTORS.items()}
    return usual, [c for c in itertools.product(orders, *levels.values())
                   if (c[1:3] != ("1", "own") or "shared" not in levels["files"]) and
                   (not one_at_a_time or sum(a != b for a, b in zip(c[1:], usual.values())) <= 1)]


class Writer:
    """A `with` block of run_writer.  `said` is what it prints, after the block."""

    def __init__(self, command, env):
        self.command, self.env = command, env

    def __enter__(self):
        self.process = subprocess.Popen(self.command, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            self.process.wait()
            raise Failed(f"{' '.join(self.command)}: has not begun")
        return self

    def start(self):
        self.process.stdin.write(".")
        self.process.stdin.flush()

    def __exit__(self, kind, *_):
        if kind is not None:
            self.process.kill()
        said, _ = self.process.communicate()
        if kind is None and self.process.returncode != 0:
            raise Failed(f"{' '.join(self.command)} ended with {self.process.returncode}")
        self.said = json.loads(said) if kind is None else None


class Bench(NodeBench):
    name, labels = "argonne", LABELS
    options = ("levels", "orders", "backends", "bytes", "batch", "old", "rate", "rounds", "seed", "quick", "env")

    def all(self):
        if self.args.library == "stock":
            self.backends = [b for b in self.backends if b != "reader"]
        for storage in self.args.levels["storage"]:
            setup(storage, self.args)  # ends the program if there is no such set-up
        self.usual, combinations = planned(self.args.orders, self.args.levels, self.args.quick)
        programs = [self.args.library, *map(self.program, ("run_study", "run_writer", "lmdbio_slowfs"))]
        self.journal = Journal(os.path.join(self.args.out, "runs.jsonl"), {**{k: getattr(self.args, k) for k in self.options},
                                                                           "programs": list(map(checksum, programs))}, self.args.fresh)
        self.runs = {tuple(run["key"]): run for run in self.journal.runs}
        self.make_databases(combinations)
        total = len(combinations) * len(self.backends) * self.args.rounds
        for r in range(self.args.rounds):
            for at, combination in enumerate(combinations):
                for i in round_order(len(self.backends), r + at):
                    key = (*combination, r, self.backends[i])
                    if key not in self.runs:
                        progress(f"run {len(self.runs) + 1} of {total}: {', '.join(map(str, key[:-2]))}, {key[-1]}")
                        self.measure(key)
        progress("")
        self.publish(combinations)
        self.finish()

    def make_databases(self, combinations):
        self.names = {}
        for _, readers, files, value, *_ in combinations:
            total = self.args.bytes // (int(readers) if files == "own" else 1)
            self.names[value, total] = self.names.get((value, total)) or self.database(int(value), total)

    # Runs

    def measure(self, key):
        try:
            run = self.run_once(*key)
        except Skip:
            raise
        except (Failed, RuntimeError, OSError) as e:
            self.has_failed(f"{', '.join(map(str, key))}: {e}")
            return
        self.journal.add({"key": key, **run})
        self.runs[key] = run

    def run_once(self, order, readers, files, value, storage, writer, round_number, way):
        readers, own = int(readers), files == "own"
        name = self.names[value, self.args.bytes // (readers if own else 1)]
        directory = os.path.join(self.args.dir, "run")
        paths = [os.path.join("run", str(i)) for i in range(readers if own else 1)]
        try:
            for path in paths:  # a writer changes its database
                os.makedirs(os.path.join(self.args.dir, path))
                shutil.copy(os.path.join(self.args.dir, name, "data.mdb"), os.path.join(self.args.dir, path))
            with setup(storage, self.args) as where:
                where.prepare_files([os.path.join(path, "data.mdb") for path in paths])
                return self.read_all(where, name, paths, order, readers, writer == "yes", round_number, way)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def read_all(self, where, name, paths, order, readers, beside_writer, round_number, way):
        a, records = self.args, self.records(name)
        at = [os.path.join(where.dir, path) for path in paths]
        own = len(paths) > 1 or readers == 1
        commands = [[self.program("run_study"), at[i % len(at)], "--order", order, "--records", str(records), "--batch", str(a.batch),
                     "--old", str(a.old), "--seed", str(a.seed + round_number), "--readers", "1" if own else str(readers), "--rank",
                     "0" if own else str(i), *(["--lmdbio"] if way == "reader" else [])] for i in range(readers)]
        writing = Writer([self.program("run_writer"), *at, "--value", str(self.databases[name]["value_bytes"]), "--first", str(records),
                          "--rate", str(a.rate)], self.environment(False)) if beside_writer else None
        with contextlib.ExitStack() as stack:
            if writing:
                stack.enter_context(writing)
            ranks = stack.enter_context(Ranks(commands, way, a.timeout, env=self.environment(way != "stock")))
            for library in ranks.libraries:
                self.goes_to(way, way != "stock", library)
            before = where.told()
            if writing:
                writing.start()
            begin, lines = ranks.epoch()
            told = where.told()
            ranks.end()
        files = len(paths)
        self.check(name, files, lines, way == "reader" and order == "rehearsal" and (beside_writer or not own), f"{order}, {way}")
        seconds = (max(line["end_ns"] for line in lines) - begin) / 1e9
        waits = [w / 1000 for line in lines for w in line["waits_us"]]
        requests = told["requests"] - before["requests"] if told else 0
        stored = told["request_bytes"] - before["request_bytes"] if told else 0
        return {"seconds": seconds, "MB_per_s": sum(line["bytes"] + line["old_bytes"] for line in lines) / seconds / 1e6,
                "p99_ms": p99(waits), "median_ms": sorted(waits)[len(waits) // 2], "batches": len(waits), "requests": requests,
                "KiB_per_request": stored / requests / 1024 if requests else 0, "storage_bytes": stored,
                "cpu_s": sum(line["user_s"] + line["system_s"] for line in lines), "commits": writing.said["commits"] if writing else 0}

    def check(self, name, files, lines, overlap, what):
        """Raises Failed unless the readers have read all new records, with the same bytes as all other readers of the database.
        `overlap`: followers may have read the same records, or ones that the writer has added."""
        records, value_bytes = files * self.records(name), self.databases[name]["value_bytes"]
        read = sum(line["records"] for line in lines), sum(line["bytes"] for line in lines)
        if read != (records, records * value_bytes):
            raise Failed(f"{what}: {read[0]} records of {records}, {read[1]} bytes")
        if overlap:
            return
        digest = sum(line["digest"] for line in lines) % (1 << 64)
        expected = self.digests.setdefault((name, files), digest)
        if digest != expected:
            raise Failed(f"{what}: other bytes: checksum {digest:016x}, not {expected:016x}")

    # Results

    def publish(self, combinations):
        a = self.args
        print(f"Databases of {shown_size(a.bytes)} in total, cold. Batches of {a.batch} records, and with rehearsal {a.old} old ones. The "
              f"writer makes {a.rate} commits/s, of one record each.\nMedian{' and range' if a.rounds > 1 else ''} of {a.rounds} "
              f"round{'s' * (a.rounds > 1)}. MB/s; p99 of the waits for a batch, ms; KiB per request to the storage.")
        ways = self.backends
        self.columns(["order", *FACTORS, *(name for w in ways for name in (f"{w}: MB/s", "p99", "KiB")),
                      *(f"{w} / stock" for w in ways if w != "stock")])
        for c in combinations:
            cells, to = [], []
            for way in ways:
                found = [self.runs[(*c, r, way)] for r in range(a.rounds) if (*c, r, way) in self.runs]
                stock = {r: self.runs[(*c, r, "stock")]["MB_per_s"] for r in range(a.rounds) if (*c, r, "stock") in self.runs}
                if not found:
                    cells.append("- | - | -")
                    continue
                row = {"order": c[0], **dict(zip(FACTORS, c[1:])), "reader": way,
                       **{k: spread([run[k] for run in found]) for k in ("MB_per_s", "p99_ms", "median_ms", "KiB_per_request", "seconds",
                                                                         "storage_bytes", "requests", "cpu_s")}}
                both = [self.runs[(*c, r, way)]["MB_per_s"] / stock[r] for r in stock if (*c, r, way) in self.runs]
                row["speed_to_stock"] = spread(both) if both else None
                self.rows.append(row)
                cells.append(f"{self.shown(row['MB_per_s'], 0)} | {self.shown(row['p99_ms'], 1)} | {row['KiB_per_request']['median']:.0f}")
                if way != "stock":
                    to.append(self.shown(row["speed_to_stock"], 2) if both else "-")
            print(f"| {' | '.join([*c, *cells, *to])} |")
        self.write()

    def more(self):
        return {"usual": self.usual}

    def shown(self, value, digits):
        return text(value, digits) if self.args.rounds > 1 else f"{value['median']:.{digits}f}"


def parsed(arguments):
    parser = argparse.ArgumentParser(prog="bench/factors --study argonne", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_argument_group("factors, a list of levels each")
    group.add_argument("--orders", default=",".join(ORDERS), help="default: %(default)s")
    for factor, (levels, usual) in FACTORS.items():
        group.add_argument(f"--{factor}", metavar="LEVELS", help=f"default: {levels}; while another factor varies: {usual}")
    parser.add_argument("--backends", default=",".join(LABELS), help="programs (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one factor at a time instead of all combinations; 64M, one round, and "
                        f"{QUICK_READERS} readers")
    parser.add_argument("--rounds", type=int, help="default: 3")
    parser.add_argument("--bytes", type=size, help="size of all databases of a run together (default: 256M)")
    parser.add_argument("--batch", type=int, default=16, help="records of a batch (default: %(default)s)")
    parser.add_argument("--old", type=int, default=2, help="old records of a batch, more (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=100, help="commits/s of the writer (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of orders (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="forget the runs that were made before")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that a run may take (default: %(default)s)")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for LMDBIO, e.g. LMDBIO_LOG=info")
    parser.add_argument("--dir", help="where databases are kept and used again (default: a new one below --out, removed)")
    parser.add_argument("--out", default=os.path.join(cold_bench.TOP, "build", "argonne"),
                        help="where runs.jsonl, result.json and result.png go (default: build/argonne)")
    parser.add_argument("--build", default=os.path.join(cold_bench.TOP, "build", "dev"), help="build directory (default: %(default)s)")
    parser.add_argument("--library", help="library to preload, or 'stock' (default: the one in --build)")
    parser.add_argument("--smoke", action="store_true", help="tiny files, few combinations: proves that it works, measures nothing")
    args = parser.parse_args(arguments)
    numbers = {"rounds": 3, "bytes": 256 * MIB}
    usual = {f: levels for f, (levels, _) in FACTORS.items()}
    if args.quick:
        numbers = {"rounds": 1, "bytes": 64 * MIB}
        usual["readers"] = QUICK_READERS
    if args.smoke:
        args.quick = args.fresh = True
        numbers = {"rounds": 1, "bytes": MIB}
        usual.update(readers="1,3", value="3072,16384", storage="slow-0.1ms")
    for name, number in numbers.items():
        if getattr(args, name) is None:
            setattr(args, name, number)
    args.orders = chosen("orders", args.orders, ORDERS)
    known = {"files": ("shared", "own"), "writer": ("no", "yes")}
    args.levels = {f: chosen(f, getattr(args, f) or levels, known.get(f)) for f, levels in usual.items()}
    for f in ("readers", "value"):
        if wrong := [v for v in args.levels[f] if not v.isdigit() or not 0 < int(v) <= (512 if f == "readers" else 1 << 30)]:
            fail(f"--{f}: {wrong[0]}?")
    if args.batch < 1 or args.old < 0 or args.rounds < 1 or args.rate < 1 or args.timeout <= 0:
        fail("--batch, --rounds, --rate: at least 1; --old: at least 0; --timeout: above 0")
    if args.bytes < 2 * max(map(int, args.levels["value"])) * max(map(int, args.levels["readers"])):
        fail(f"--bytes: {shown_size(args.bytes)} are less than two records for each reader")
    return args


def chosen(name, levels, known):
    levels = list(dict.fromkeys(levels.split(",")))
    if known and (unknown := set(levels) - set(known)):
        fail(f"--{name}: unknown: {', '.join(unknown)}")
    return levels


def main(arguments):
    args = parsed(arguments)
    args.uid, args.epochs = None, 1
    args.local_bytes = args.slow_bytes = args.bytes
    try:
        cold_bench.run(Bench, args, ("warm", "run_study", "run_writer"))
    except Skip as why:
        print(f"nothing can be measured: {why}")
        raise SystemExit(77) from why
    except KeyboardInterrupt:
        progress("")
        print("interrupted: the same command goes on from here")
        raise SystemExit(130) from None
