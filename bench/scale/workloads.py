"""bench/scale/run --workload NAMES: accelerator utilization of MLPerf Storage's training workloads, on emulated hosts with slow file
systems (bench/scale/README.md).  The data set is scaled down: it has fewer samples.  The sizes of samples, the batches and the times of
computation are those of DLIO.  Samples are shuffled, page caches are cold, and there is one epoch.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import textwrap
from typing import NamedTuple

from cold_files import make_warm
from hosts import SlowHosts, touch
from journal import Journal
from measure import MIB, Failed, fail, machine_facts, progress, round_order, size, spread, text

from . import plots
from .campaign import CONTENTS, listed, numbers, ranks_of, run_on_hosts, shapes

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Workload(NamedTuple):
    content: str
    batch: int      # samples of an accelerator and step
    compute: dict   # accelerator -> seconds of computation of a step
    workers: int    # threads that read for an accelerator
    least: float    # accelerator utilization that MLPerf Storage asks for


# dlio_benchmark/configs/workload/NAME_{a100,h100}.yaml of github.com/argonne-lcf/dlio_benchmark, commit e1919d7b6ccf: dataset.record_length_bytes
# (the contents, contents.h), reader.batch_size, train.computation_time, reader.read_threads, metric.au.  The files in configs/dlio/workload of
# github.com/mlcommons/storage, commit caa90c9c7d6a, have the same values.
WORKLOADS = {"unet3d": Workload("unet3d-like", 7, {"a100": 0.636, "h100": 0.323}, 4, 0.90),
             "resnet50": Workload("resnet50-like", 400, {"a100": 0.435, "h100": 0.224}, 8, 0.90),
             "cosmoflow": Workload("cosmoflow-like", 1, {"a100": 0.00551, "h100": 0.00350}, 4, 0.70)}
# The way in which a rank gets its samples -> options of run_scale.  WORKERS stands for the threads that the workload has.
WAYS = {"stock": ["--strategy", "stock", "--workers", "WORKERS"], "stock-alone": ["--strategy", "stock"],
        "preload": ["--strategy", "stock", "--workers", "WORKERS"], "preload-alone": ["--strategy", "stock"],
        "reader": ["--strategy", "full", "--readers", "every-rank", "--exchange", "none", "--later", "page-cache"],
        "ranks": ["--strategy", "full"]}
FEWEST_STEPS = 6
SIGNATURE = ["batch", "bytes", "epochs", "delay_us", "check"]


def workloads(string):
    return list(WORKLOADS) if string == "all" else listed(WORKLOADS, "workloads")(string)


def step_of(args, name, accelerator):
    """Returns the samples of an accelerator and step, and the seconds of its computation.  With --batch, both are scaled."""
    workload = WORKLOADS[name]
    batch = args.batch or workload.batch
    return batch, workload.compute[accelerator] * batch / workload.batch


def steps_of(args, name):
    """Returns the number of steps of an epoch."""
    batch = args.batch or WORKLOADS[name].batch
    return max(args.bytes // (batch * CONTENTS[WORKLOADS[name].content]), FEWEST_STEPS)


def data_words(name, batch, steps, ranks):
    """Returns the options that make a database with about this number of steps."""
    content = WORKLOADS[name].content
    return ["--make", content, "--bytes", str(int(CONTENTS[content] * batch * ranks * (steps - 0.5))), "--multiple", str(batch * ranks)]


def memory(field):
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))


class Campaign:
    def __init__(self, args):
        self.args, self.notes, self.failed = args, [], False
        self.program = os.path.join(args.build, "bin", "run_scale")
        self.ring = os.path.join(args.build, "bin", "raw_ring")
        self.journal = Journal(os.path.join(args.out, "jobs.jsonl"), {k: getattr(args, k) for k in SIGNATURE}, args.fresh)
        self.done = {run["job"]: run["result"] for run in self.journal.runs}
        self.hosts = {cap: SlowHosts(os.path.join(args.build, "bin", "lmdbio_slowfs"), args.dir, os.path.join(args.out, "mount"),
                                     args.delay_us, cap, timeout=args.timeout) for cap in args.caps}

    def note(self, line):
        progress("")
        print(line, flush=True)
        self.notes.append(line)

    def all(self):
        for name in self.args.workload:
            for shape in self.args.shapes:
                self.jobs_of(name, shape)
        progress("")

    def jobs_of(self, name, shape):
        """Runs the jobs of a workload and shape that have not run yet.  They use the same database."""
        a = self.args
        jobs = [(name, shape, cap, "raw", "", 0) for cap in a.caps]
        jobs += [(name, shape, cap, way, accelerator, i) for accelerator in a.accelerators for cap in a.caps
                 for i in range(a.rounds) for way in (a.ways[at] for at in round_order(len(a.ways), i))]
        missing = [job for job in jobs if "/".join(map(str, job)) not in self.done]
        hosts, ranks = map(int, shape.split("x"))
        batch, _ = step_of(a, name, a.accelerators[0])
        file = CONTENTS[WORKLOADS[name].content] * batch * hosts * ranks * steps_of(a, name)
        # The file, its copies in page caches, and batches.
        needed = (hosts + 1) * file + CONTENTS[WORKLOADS[name].content] * batch * hosts * ranks * (WORKLOADS[name].workers + 1)
        if needed > memory("MemAvailable") and missing:
            return self.note(f"{name}, {shape}: left out, because it needs {needed / 2**30:.0f} GiB of memory")
        if not missing:
            return None
        with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=a.dir) as directory:
            progress(f"{name}, {shape}: making the database")
            database = os.path.join(directory, "db")
            subprocess.run([self.program, database, *data_words(name, batch, steps_of(a, name), hosts * ranks), "--prepare"], check=True)
            for n, job in enumerate(missing):
                progress(f"job {n + 1} of {len(missing)}: {', '.join(map(str, job[:-1]))}")
                self.run(job, database)
        return None

    def run(self, job, database):
        try:
            result = self.result(job, database)
        except Failed as e:
            self.failed = True
            return self.note(f"FAILED: {e}")
        key = "/".join(map(str, job))
        self.journal.add({"job": key, "result": result})
        self.done[key] = result
        return None

    def result(self, job, database):
        a, (name, shape, cap, way, accelerator, _) = self.args, job
        hosts, ranks = map(int, shape.split("x"))
        slow, file = self.hosts[cap], os.path.join(database, "data.mdb")
        make_warm(file)
        touch(min((hosts + 1) * os.stat(file).st_size, memory("MemFree") // 4 * 3) // MIB * MIB + MIB)
        at = os.path.join(slow.mount, os.path.relpath(database, a.dir))
        if way == "raw":
            if not os.access(self.ring, os.X_OK):
                return {"MB_per_s": None}
            raw = slow.job("raw_ring", 1, 1, [self.ring, at])[0]
            return {"MB_per_s": raw["bytes"] / raw["seconds"] / 1e6}
        batch, compute = step_of(a, name, accelerator)
        words = [str(WORKLOADS[name].workers) if word == "WORKERS" else word for word in WAYS[way]]
        before = ["env", "LD_PRELOAD=" + os.path.join(a.build, "lib", "lmdbio", "liblmdb.so.0")] if way.startswith("preload") else []
        command = [*before, self.program, at, *words, "--sums", database + ".sums", "--order", "shuffled", "--batch", str(batch),
                   "--epochs", str(a.epochs), "--compute", str(compute), "--barrier", "--counters", slow.counters,
                   "--library", os.path.join(a.build, "lib", "liblmdbio_mpi.so"), *([] if a.check else ["--no-check"])]
        result = slow.job(way, hosts, ranks, command)[0]
        if result["lmdbio_loaded"] == way.startswith("stock"):
            raise Failed(f"{way}: LMDBIO is {'' if result['lmdbio_loaded'] else 'not '}in the process")
        epochs = result["epochs"]
        return {"utilization": statistics.mean(e["utilization"] for e in epochs), "steps": result["steps"], "compute_s": compute,
                "records": sum(e["records"] for e in epochs), "bytes": sum(e["bytes"] for e in epochs), "checked": result["checked"],
                "seconds": sum(e["seconds"] for e in epochs), "open_seconds": epochs[0]["open_seconds"],
                "wait_s_mean": statistics.mean(e["wait_s_mean"] for e in epochs), "busy": max(e["machine_busy"] for e in epochs),
                "storage_bytes": sum(e["storage_bytes"] for e in epochs), "memory_kib": result["memory_kib"],
                "storage_requests": sum(e["storage_requests"] for e in epochs)}

    def rows(self):
        a = self.args
        for name in a.workload:
            for accelerator in a.accelerators:
                for shape in a.shapes:
                    for cap in a.caps:
                        for way in a.ways:
                            names = ["/".join(map(str, (name, shape, cap, way, accelerator, i))) for i in range(a.rounds)]
                            runs = [self.done[n] for n in names if n in self.done]
                            if runs:
                                raw = self.done.get(f"{name}/{shape}/{cap}/raw//0", {}).get("MB_per_s")
                                yield self.row(runs, raw) | {"workload": name, "accelerator": accelerator, "shape": shape, "cap": cap,
                                                             "ranks": ranks_of(shape), "way": way}

    def row(self, runs, raw):
        first = runs[0]
        needs = first["bytes"] / self.args.epochs / first["steps"] / first["compute_s"] / 1e6
        return {"utilization": spread([r["utilization"] for r in runs]), "needs_MB_per_s": needs, "raw_MB_per_s": raw,
                "possible": min(1.0, raw / needs) if raw else None, "rounds": len(runs),
                "read_to_samples": statistics.median(r["storage_bytes"] / r["bytes"] for r in runs),
                **{k: statistics.median(r[k] for r in runs) for k in ("storage_requests", "busy", "seconds", "wait_s_mean")},
                **{k: first[k] for k in ("steps", "records", "bytes", "compute_s", "checked")},
                "memory_kib": max(r["memory_kib"] for r in runs)}

    def report(self):
        a, rows = self.args, list(self.rows())
        if not rows:
            print("nothing could be measured")
            return 1 if self.failed else 77
        print("\n" + textwrap.fill(f"""\
Accelerator utilization: time of computation / time of the epoch, both without the first step.  Emulated hosts on {os.cpu_count()} CPUs,
{a.delay_us} us for each request, the file below is in memory.  Cap: MB/s of all hosts together.  Needs: MB/s at which no accelerator waits.
Raw: MB/s of direct requests of 1 MiB, 32 in flight, without LMDB.  Possible: raw / needs, at most 1.  stock, preload: threads of the
workload read ahead; -alone: the training loop reads.  Medians, ranges in brackets.""", 130, break_on_hyphens=False) + "\n")
        print_table(rows, a.ways, ["accelerator", "hosts x ranks", "cap"], lambda r: [r["accelerator"], r["shape"], r["cap"] or "none"],
                    lambda r: f"{r['utilization']['median']:.2f}" if r["rounds"] == 1 else shown(r["utilization"]))
        report = {"bench": "scale-workloads", "machine": machine_facts(), "options": vars(a), "notes": self.notes, "rows": rows}
        write_report(a.out, report)
        return 1 if self.failed else 0


def shown(utilization):
    return text(utilization, 2).replace(", ", "–")


def print_table(rows, ways, first_columns, first_cells, cell):
    """Prints a table for each workload.  The rows that differ in the way only make a line."""
    for name in dict.fromkeys(r["workload"] for r in rows):
        columns = [*first_columns, "needs MB/s", "raw MB/s", "possible", *ways]
        lines = {}
        for r in rows:
            if r["workload"] == name:
                lines.setdefault(tuple(first_cells(r)), {})[r["way"]] = r
        w = WORKLOADS[name]
        print(f"{name}, at least {w.least:.2f} in MLPerf Storage\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for key, by_way in lines.items():
            r = next(iter(by_way.values()))
            raw = [f"{r['raw_MB_per_s']:.0f}", f"{r['possible']:.2f}"] if r["raw_MB_per_s"] else ["", ""]
            cells = [*key, f"{r['needs_MB_per_s']:.0f}", *raw, *(cell(by_way[way]) if way in by_way else "" for way in ways)]
            print(f"| {' | '.join(map(str, cells))} |")
        print()


def write_report(out, report):
    path = os.path.join(out, "result.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    print(f"Results: {path}")
    plots.draw_all({os.path.join(out, "utilization.png"): lambda: plots.utilization(report)})


def add_workload_options(parser):
    add = parser.add_argument
    add("--workload", type=workloads, required=True, metavar="NAMES", help=f"all, or of {', '.join(WORKLOADS)}")
    add("--accelerators", type=listed(["a100", "h100"], "accelerators"), default="a100,h100", help="default: %(default)s")
    add("--batch", type=int, default=0, help="samples of an accelerator and step; the time of computation is scaled with it "
        "(default: as in the workload)")


def parse(words):
    parser = argparse.ArgumentParser(prog="bench/scale/run", description=__doc__)
    add = parser.add_argument
    add_workload_options(parser)
    add("--ways", type=listed(WAYS, "ways"), default=",".join(WAYS), help="of getting samples (default: all)")
    add("--shapes", type=shapes, default="1x1,1x2,2x2", help="hosts x ranks on each; a rank has an accelerator (default: %(default)s)")
    add("--caps", type=numbers, default="0,400", help="MB/s that all hosts together may read, 0: no cap (default: %(default)s)")
    add("--bytes", type=size, default="1G", help=f"of the samples of an accelerator, but at least {FEWEST_STEPS} steps "
        "(default: %(default)s)")
    add("--epochs", type=int, default=1, help="the utilization is the mean of all (default: %(default)s)")
    add("--rounds", type=int, default=3, help="default: %(default)s")
    add("--delay-us", type=int, default=1000, help="of each request (default: %(default)s)")
    add("--check", action="store_true", help="compare samples with checksums, which takes CPU time that DLIO does not take")
    add("--timeout", type=float, default=300, help="seconds that a job may take (default: %(default)s)")
    add("--fresh", action="store_true", help="forget the jobs that have run before")
    add("--out", default=os.path.join(TOP, "build", "scale-workloads"), help="where results and databases go, and jobs.jsonl, from which a "
        "run that was interrupted goes on (default: build/scale-workloads)")
    add("--build", default=os.path.join(TOP, "build", "dev"), help="build directory (default: %(default)s)")
    add("--smoke", action="store_true", help="tiny, one round: proves that it works, measures nothing")
    args = parser.parse_args(words)
    if args.smoke:
        args.batch, args.bytes, args.rounds, args.shapes, args.delay_us = 2, 1, 1, ["1x1", "2x2"], 100
        args.check, args.fresh, args.accelerators = True, True, ["a100"]
    if min(args.epochs, args.rounds) < 1 or min(args.batch, args.delay_us, *args.caps) < 0:
        fail("--epochs, --rounds: at least 1; --batch, --delay-us, --caps: not below 0")
    args.caps = [int(cap) for cap in args.caps]
    return args


def main(words):
    args = parse(words)
    args.dir = None
    return run_on_hosts(args, Campaign)
