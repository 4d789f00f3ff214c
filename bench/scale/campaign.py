"""bench/scale/run --campaign: strategies x ranks on emulated hosts, from cold and from warm page caches."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap

import cold_bench
from cold_files import make_warm, slowfs
from hosts import SlowHosts, touch
from journal import Journal
from measure import MIB, Failed, Skip, fail, interval, machine_facts, progress, round_order, shown_size, size, text

from . import plots

STRATEGIES = ["stock", "lmm", "lmm-dm", "lmm-dio", "lmm-dio-prov", "lmm-dio-prov-coal", "lmm-dio-prov-coal-stag", "full"]
# The previous step of each strategy.
BEFORE = {"lmm": "stock", "lmm-dm": "lmm", "lmm-dio": "lmm", "lmm-dio-prov": "lmm-dio", "lmm-dio-prov-coal": "lmm-dio-prov",
          "lmm-dio-prov-coal-stag": "lmm-dio-prov-coal", "full": "lmm-dio-prov-coal"}
CONTENTS = {"cifar10-like": 3072, "imagenet-like": 112640, "raw-imagenet-like": 196608, "photographs": 112640,
            "cosmoflow-like": 2828486, "resnet50-like": 114660, "unet3d-like": 146600628}  # bytes of a value, on average
# Options that must be the same when a campaign continues.
SIGNATURE = ["contents", "bytes", "batch", "epochs", "compute", "allreduce_mb", "assignment", "order", "delay_us", "cap", "rate",
             "job"]


def ranks_of(shape):
    hosts, ranks = shape.split("x")
    return int(hosts) * int(ranks)


class Campaign:
    def __init__(self, args):
        self.args, self.notes, self.failed = args, [], False
        self.most_ranks = max(map(ranks_of, args.shapes))
        self.hosts = SlowHosts(os.path.join(args.build, "bin", "lmdbio_slowfs"), args.dir, os.path.join(args.out, "mount"),
                               args.delay_us, args.cap, args.rate, args.timeout)
        self.journal = Journal(os.path.join(args.out, "jobs.jsonl"), {k: getattr(args, k) for k in SIGNATURE}, args.fresh)
        self.done = {run["job"]: run["result"] for run in self.journal.runs}
        self.program = os.path.join(args.build, "bin", "run_scale")
        self.made = {}

    def note(self, line):
        if line not in self.notes:
            self.notes.append(line)
            progress("")
            print(line, flush=True)

    def database(self, content, scaling, ranks):
        """Returns the name of a database.  Makes the database and its checksums at the first use, and reads it into memory."""
        size_bytes = self.args.bytes if scaling == "strong" else self.args.bytes * ranks // self.most_ranks
        step = self.args.batch * (self.most_ranks if scaling == "strong" else ranks)  # records
        name = f"{content}-{size_bytes}-{step}"
        if name not in self.made:
            progress(f"making {name}")
            path = os.path.join(self.args.dir, name)
            subprocess.run([self.program, path, "--make", content, "--bytes", str(size_bytes), "--multiple", str(step),
                            "--prepare"], check=True)
            self.made[name] = os.stat(os.path.join(path, "data.mdb")).st_size
        make_warm(os.path.join(self.args.dir, name, "data.mdb"))
        return name

    def jobs(self):
        """Yields all jobs in the order in which they run: the strategies of a round in turn."""
        a = self.args
        kinds = [(content, scaling, shape, state, compute) for content in a.contents for scaling in a.scaling for shape in a.shapes
                 for state in a.states for compute in a.compute]
        for i in range(a.rounds):
            for kind in kinds:
                for at in round_order(len(a.strategies), i):
                    yield (*kind, a.strategies[at], i)

    def run(self, content, scaling, shape, state, compute, strategy, _):
        a = self.args
        hosts, ranks = map(int, shape.split("x"))
        name = self.database(content, scaling, hosts * ranks)
        batch = a.batch * self.most_ranks // (hosts * ranks) if scaling == "strong" else a.batch
        at = os.path.join(self.hosts.mount, name)
        touch((hosts + 2) * self.made[name])  # for page caches, and memory of ranks
        command = [self.program, at, "--sums", os.path.join(a.dir, name + ".sums"), "--strategy", strategy,
                   "--batch", str(batch), "--epochs", str(a.epochs), "--compute", str(compute), "--allreduce-mb", str(a.allreduce_mb),
                   "--assignment", a.assignment, "--order", a.order, "--counters", self.hosts.counters,
                   "--library", os.path.join(a.build, "lib", "liblmdbio_mpi.so"), *a.job]
        result, said = self.hosts.job(strategy, hosts, ranks, command, warm=os.path.join(at, "data.mdb") if state == "warm" else "")
        if said:
            self.note(f"{strategy} says: {said[0]}")
        for epoch in result["epochs"]:  # long, and not needed here
            del epoch["step_seconds"], epoch["step_wait_s_mean"]
        result["file_bytes"] = self.made[name]
        return result

    def all(self):
        jobs = list(self.jobs())
        missing = [job for job in jobs if "/".join(map(str, job)) not in self.done]
        if len(missing) < len(jobs):
            self.note(f"{len(jobs) - len(missing)} of {len(jobs)} jobs have run before: {self.journal.path}")
        for n, job in enumerate(missing):
            progress(f"job {n + 1} of {len(missing)}: {', '.join(map(str, job[:-1]))}")
            try:
                name, result = "/".join(map(str, job)), self.run(*job)
                self.journal.add({"job": name, "result": result})
                self.done[name] = result
            except Failed as e:
                self.failed = True
                self.note(f"FAILED: {e}")
        progress("")

    # ---- results --------------------------------------------------------------------------------------------------------

    def results(self, key):
        names = ["/".join(map(str, (*key, i))) for i in range(self.args.rounds)]
        return [self.done[name] for name in names if name in self.done]

    def rows(self):
        a = self.args
        for content in a.contents:
            for scaling in a.scaling:
                for shape in a.shapes:
                    for state in a.states:
                        for compute in a.compute:
                            for part in ["first", "later"] if a.epochs > 1 else ["first"]:
                                yield from self.rows_of((content, scaling, shape, state, compute), part)

    def rows_of(self, kind, part):
        seconds = {}
        for strategy in self.args.strategies:
            runs = self.results((*kind, strategy))
            if not runs:
                continue

            def of(what, runs=runs):
                return [statistics.mean(e[what] for e in (r["epochs"][:1] if part == "first" else r["epochs"][1:])) for r in runs]

            seconds[strategy] = of("seconds")
            row = dict(zip(["content", "scaling", "shape", "state", "compute"], kind)) | {
                "strategy": strategy, "part": part, "ranks": ranks_of(kind[2]), "rounds": len(runs), "seconds": interval(seconds[strategy]),
                "wait_s": statistics.median(of("wait_s_mean")), "skew_s": statistics.median(of("skew_s")),
                "share_of_io": statistics.median(of("share_of_io")),
                "MB_per_s": statistics.median(b / s / 1e6 for b, s in zip(of("bytes"), seconds[strategy])),
                "storage_to_file": statistics.median(b / r["file_bytes"] for b, r in zip(of("storage_bytes"), runs)),
                "requests": statistics.median(of("storage_requests")), "memory_kib": max(r["memory_kib"] for r in runs),
                "node_bytes": statistics.median(r["library"]["node_bytes"] if "library" in r else r["places_sent_bytes"] for r in runs),
                "memory_bytes": statistics.median(r.get("library", {}).get("memory_bytes", 0) for r in runs)}
            row["to_stock"] = self.ratio(seconds, "stock", strategy)
            row["step"] = self.ratio(seconds, BEFORE.get(strategy), strategy)
            row["overlap"] = self.overlap(kind, strategy, part, seconds[strategy], runs)
            yield row

    @staticmethod
    def ratio(seconds, before, strategy):
        """Returns the speed relative to `before`, by round."""
        if before not in seconds or before == strategy or len(seconds[before]) != len(seconds[strategy]):
            return None
        return interval([b / s for b, s in zip(seconds[before], seconds[strategy])])

    def overlap(self, kind, strategy, part, seconds, runs):
        """Returns the hidden part, 0 to 1, of I/O or computation, whichever is shorter; None if not measured."""
        alone = self.results((*kind[:4], self.args.compute[0], strategy))
        if kind[4] == self.args.compute[0] or len(alone) != len(runs):
            return None
        computes = (kind[4] - self.args.compute[0]) * runs[0]["steps"]
        io = [statistics.mean(e["seconds"] for e in (r["epochs"][:1] if part == "first" else r["epochs"][1:])) for r in alone]
        return statistics.median(max(0.0, min(1.0, (i + computes - s) / min(i, computes))) for i, s in zip(io, seconds))

    def report(self):
        a = self.args
        rows = list(self.rows())
        if not rows:
            print("nothing could be measured")
            return 1 if self.failed else 77
        paragraph = f"""\
Emulated hosts on {os.cpu_count()} CPUs.  Shape: hosts x ranks on each.  Each host mounts the database anew for each job: {a.delay_us} us
for each request, {a.cap or 'unlimited'} MB/s for all hosts together; the file below them is in memory.  Memory is touched before each
job.  cold: nothing is in the hosts' page caches; warm: all is, before the job starts.  First: the first epoch, with opening; later: the
mean of the others.  Medians, and intervals of at least 95 % from order statistics (six rounds or more).  x stock, x step before: how
many times as fast as stock, and as the strategy of which it is a step: lmm of stock, lmm-dm and lmm-dio of lmm, full of
lmm-dio-prov-coal, others of the one above.  I/O: share of opening and waiting.  Read / file: from the file systems of all hosts.
Requests and skew: of the first epoch.  Overlap: the part of the shorter one of I/O and computation that was hidden."""
        print("\n" + textwrap.fill(paragraph, 130, break_on_hyphens=False))
        by_job = {}
        for r in rows:
            kind = (r["content"], r["scaling"], r["shape"], r["state"], r["compute"])
            by_job.setdefault(kind, {}).setdefault(r["strategy"], []).append(r)
        for kind, strategies in by_job.items():
            self.table(kind, strategies)
        report = {"bench": "scale-campaign", "machine": machine_facts(), "options": {**vars(a)}, "notes": self.notes, "rows": rows}
        path = os.path.join(a.out, "result.json")
        with open(path, "w", encoding="utf-8") as out:
            json.dump(report, out, indent=1)
        print(f"\nResults: {path}")
        plots.draw_all({os.path.join(a.out, name): draw for name, draw in plots.of_campaign(report).items()})
        return 1 if self.failed else 0

    @staticmethod
    def table(kind, strategies):
        """Prints a table.  `strategies`: the rows of each strategy, for the first epoch, and for later epochs if there are any."""
        content, scaling, shape, state, compute = kind
        has_overlap = any(r["overlap"] is not None for rows in strategies.values() for r in rows)
        parts = [r["part"] for r in next(iter(strategies.values()))]
        columns = ["strategy"]
        for part in parts:
            columns += [f"{part}: seconds [interval]", "x stock", "x step before", "I/O", "read / file"]
            columns += ["overlap"] if has_overlap else []
        columns += ["requests", "skew s", "MiB between nodes", "MiB of a rank"]
        print(f"\n{content}, {scaling} scaling, {shape}, {state}, {compute:g} s of computation a step\n\n| {' | '.join(columns)} |\n"
              f"|{'---|' * len(columns)}")
        for strategy, rows in strategies.items():
            shown = [strategy]
            for r in rows:
                shown += [text(r["seconds"], 3), text(r["to_stock"], 2) if r["to_stock"] else "", text(r["step"], 2) if r["step"] else "",
                          f"{100 * r['share_of_io']:.0f} %", f"{r['storage_to_file']:.2f}",
                          *([f"{r['overlap']:.2f}"] if has_overlap and r["overlap"] is not None else [""] if has_overlap else [])]
            first = rows[0]
            shown += [f"{first['requests']:.0f}", f"{first['skew_s']:.2f}", f"{first['node_bytes'] / MIB:.1f}",
                      f"{first['memory_kib'] / 1024:.0f}"]
            print(f"| {' | '.join(shown)} |")


def listed(choices, what):
    def parse(string):
        words = string.split(",")
        if unknown := [w for w in words if w not in choices]:
            raise argparse.ArgumentTypeError(f"no such {what}: {', '.join(unknown)}")
        return words
    return parse


def shapes(string):
    words = string.split(",")
    for word in words:
        hosts, _, ranks = word.partition("x")
        if not (hosts.isdigit() and ranks.isdigit() and int(hosts) and int(ranks)):
            raise argparse.ArgumentTypeError(f"'{word}' is not a shape such as 4x2")
    return words


def numbers(string):
    return sorted(float(n) for n in string.split(","))


def parse(words):
    parser = argparse.ArgumentParser(prog="bench/scale/run --campaign", description=__doc__)
    add = parser.add_argument
    add("--strategies", type=listed(STRATEGIES, "strategies"), default=",".join(STRATEGIES), help="default: all")
    add("--shapes", type=shapes, default="4x2,4x4", help="hosts x ranks on each (default: %(default)s)")
    add("--contents", type=listed(CONTENTS, "contents"), default="cifar10-like,imagenet-like",
        help="of the databases; also: photographs (default: %(default)s)")
    add("--scaling", type=listed(["strong", "weak"], "kind of scaling"), default="strong",
        help="strong: the same database and global batch for all shapes; weak: both grow with the ranks (default: %(default)s)")
    add("--states", type=listed(["cold", "warm"], "states"), default="cold,warm", help="of page caches (default: %(default)s)")
    add("--bytes", type=size, default="256M", help="size of the database of the shape with most ranks (default: %(default)s)")
    add("--batch", type=int, default=32, help="records of a rank in a step, in the shape with most ranks (default: %(default)s)")
    add("--epochs", type=int, default=2, help="default: %(default)s")
    add("--compute", type=numbers, default="0", help="seconds of computation after each batch; of a list, the first is what overlap "
        "is computed with (default: %(default)s)")
    add("--allreduce-mb", type=float, default=0, help="MB that are summed over all ranks after each batch (default: %(default)s)")
    add("--assignment", choices=["strided", "contiguous"], default="contiguous", help="default: %(default)s")
    add("--order", choices=["sequential", "shuffled"], default="sequential", help="shuffled: only for stock and full")
    add("--rounds", type=int, default=6, help="default: %(default)s; an interval needs 6")
    add("--delay-us", type=int, default=1000, help="of each request (default: %(default)s)")
    add("--cap", type=int, default=400, help="MB/s that all hosts together may read, 0: no cap (default: %(default)s)")
    add("--rate", default="", help="of each host's network link, e.g. 10gbit (default: no limit)")
    add("--timeout", type=float, default=300, help="seconds that a job may take (default: %(default)s)")
    add("--job", type=str.split, default=[], metavar="OPTIONS", help="further options of each job, e.g. '--readers-per-node 2'")
    add("--fresh", action="store_true", help="forget the jobs that have run before")
    add("--dir", help="where databases are kept and used again (default: a new directory below --out, removed)")
    add("--out", default=os.path.join(cold_bench.TOP, "build", "scale-campaign"), help="where results go, and jobs.jsonl, from which a "
        "campaign that was interrupted goes on (default: build/scale-campaign)")
    add("--build", default=os.path.join(cold_bench.TOP, "build", "dev"), help="build directory (default: %(default)s)")
    add("--smoke", action="store_true", help="tiny, one round: proves that it works, measures nothing")
    args = parser.parse_args(words)
    if args.smoke:
        args.bytes, args.rounds, args.shapes, args.delay_us, args.batch, args.epochs = 4 * MIB, 1, ["1x2", "2x2"], 100, 2, 2
        args.contents, args.scaling, args.states, args.compute, args.fresh = ["photographs"], ["weak"], ["cold"], [0.0, 0.01], True
        args.strategies = ["stock", "lmm-dio-prov-coal", "full"]
    if min(args.batch, args.epochs, args.rounds) < 1:
        fail("--batch, --epochs, --rounds: at least 1")
    if args.order == "shuffled" and set(args.strategies) - {"stock", "full"}:
        fail("--order shuffled is for the strategies stock and full only: --strategies stock,full")
    smallest = args.bytes if args.scaling == ["strong"] else args.bytes // max(map(ranks_of, args.shapes))
    for content in args.contents:
        if args.bytes < 4 * CONTENTS[content] * args.batch * max(map(ranks_of, args.shapes)):
            fail(f"{shown_size(args.bytes)} are fewer than four steps of {content}: --bytes, --batch")
        if smallest < 4 * CONTENTS[content] * args.batch:
            fail(f"{shown_size(smallest)} are fewer than four steps of {content}: --bytes, --batch")
    return args


def run_on_hosts(args, campaign):
    """Runs a campaign of this class on emulated hosts, and returns the exit status.  Databases are in args.dir; None: below args.out."""
    args.build, args.out = os.path.abspath(args.build), os.path.abspath(args.out)
    for program in ("run_scale", "lmdbio_slowfs"):
        if not os.access(os.path.join(args.build, "bin", program), os.X_OK):
            fail(f"{args.build}/bin/{program} is not there: cmake --preset dev && cmake --build --preset dev (needs MPI and libfuse3)")
    os.makedirs(args.out, exist_ok=True)
    temporary = None
    if args.dir is None:
        temporary = tempfile.TemporaryDirectory(prefix="data.", dir=args.out)
        args.dir = temporary.name
    args.dir = os.path.abspath(args.dir)
    os.makedirs(args.dir, exist_ok=True)
    try:
        with slowfs.SlowFs(os.path.join(args.build, "bin", "lmdbio_slowfs"), args.dir):
            pass
        runs = campaign(args)
        runs.all()
        return runs.report()
    except (Skip, slowfs.Missing) as e:
        print(f"emulated hosts with slow file systems cannot be had here: {e}", file=sys.stderr)
        return 77
    finally:
        progress("")
        if temporary is not None:
            temporary.cleanup()


def main(words):
    return run_on_hosts(parse(words), Campaign)
