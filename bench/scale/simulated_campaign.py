"""bench/scale/run --campaign --simulate PLATFORM: strategies x ranks, simulated (bench/scale/simulation/README.md).

Weak scaling: the number of records of a rank and step does not depend on the number of ranks. The database has as many steps as are
simulated, so page caches are cold all the time. Jobs run in parallel on all CPUs. A job of 9,216 ranks takes about 3 GB of memory.
"""
import argparse
import hashlib
import json
import os

from journal import Journal
from measure import fail, machine_facts

from . import plots
from .campaign import CONTENTS, STRATEGIES, listed
from .simulation import simulated_jobs

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RANKS = [1, 2, 4, 8, 16] + [36 << k for k in range(9)]
# Bytes of a record in the file, as in contents.h: whole pages, and its share of a leaf page.  Approximate if
# sizes differ.
RECORD_BYTES = {"cifar10-like": 4096 + 32, "imagenet-like": 28 * 4096 + 32, "raw-imagenet-like": 49 * 4096 + 32, "photographs": 28 * 4096,
                "cosmoflow-like": 691 * 4096 + 32, "resnet50-like": 28 * 4096 + 32, "unet3d-like": 35792 * 4096 + 32}
SIGNATURE = ["platform_sha256", "content", "batch", "compute", "assignment", "steps"]


def ranks(string):
    found = [int(n) for n in string.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return found


def add_running_options(parser, out, kept):
    """Adds options of commands that run many simulated jobs.  `kept`: the results that a journal below build/`out` keeps."""
    add = parser.add_argument
    add("--workers", type=int, default=os.cpu_count(), help="jobs that run side by side (default: %(default)s)")
    add("--timeout", type=float, default=1800, help="seconds that a job may take (default: %(default)s)")
    add("--fresh", action="store_true", help=f"forget the {kept} that have been simulated before")
    add("--out", default=os.path.join(TOP, "build", out), help=f"where results go, and {kept}.jsonl, from which a run that was "
        f"interrupted goes on (default: build/{out})")
    add("--build", default=os.path.join(TOP, "build", "dev"), help="build directory (default: %(default)s)")


def parse(words):
    parser = argparse.ArgumentParser(prog="bench/scale/run --campaign --simulate", description=__doc__)
    add = parser.add_argument
    add("--simulate", required=True, metavar="PLATFORM", help="the machine, a file of JSON: bench/scale/simulation/README.md")
    add("--strategies", type=listed(STRATEGIES, "strategies"), default=",".join(STRATEGIES), help="default: all")
    add("--ranks", type=ranks, default=",".join(map(str, RANKS)), help="default: %(default)s")
    add("--content", choices=CONTENTS, default="cifar10-like", help="of the database (default: %(default)s)")
    add("--batch", type=int, default=4, help="records of a rank in a step (default: %(default)s)")
    add("--steps", type=int, default=16, help="that are simulated (default: %(default)s)")
    add("--compute", type=float, default=0.05, help="seconds of computation after each batch (default: %(default)s)")
    add("--assignment", choices=["strided", "contiguous"], default="contiguous", help="default: %(default)s")
    add_running_options(parser, "scale-simulated", "jobs")
    args = parser.parse_args(words)
    if min(args.batch, args.steps, args.workers) < 1:
        fail("--batch, --steps, --workers: at least 1")
    args.simulate = os.path.abspath(args.simulate)
    args.platform_sha256 = sha256_of(args.simulate)
    return args


def sha256_of(path):
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError as e:
        fail(e)


def job_words(content, batch, count, steps, strategy, compute, assignment):
    """Returns the options of a job on `count` ranks whose database has this number of steps."""
    step_bytes = RECORD_BYTES[content] * batch * count
    # The database gets records until it has this number of bytes and whole steps.
    return ["db", "--make", content, "--bytes", str(int(step_bytes * (steps - 0.5))), "--multiple", str(batch * count),
            "--strategy", strategy, "--batch", str(batch), "--compute", str(compute), "--assignment", assignment]


class Campaign:
    def __init__(self, args):
        self.args = args
        os.makedirs(args.out, exist_ok=True)
        self.journal = Journal(os.path.join(args.out, "jobs.jsonl"), {k: getattr(args, k) for k in SIGNATURE}, args.fresh)
        self.rows = {(row["ranks"], row["strategy"]): row for row in self.journal.runs}

    def job(self, key):
        a, (count, strategy) = self.args, key
        words = job_words(a.content, a.batch, count, a.steps, strategy, a.compute, a.assignment)
        result = simulated_jobs.run(os.path.join(a.build, "bin", "run_scale_simulated"), a.simulate, count, words, timeout=a.timeout)
        epoch, steps = result["epochs"][0], result["steps"]
        return {"ranks": count, "nodes": result["nodes"], "strategy": strategy, "steps": steps,
                "step_s": (epoch["seconds"] - epoch["open_seconds"]) / steps, "open_s": epoch["open_seconds"],
                "share_of_io": epoch["share_of_io"], "requests": epoch["storage_requests"] / steps,
                "read_to_values": epoch["storage_bytes"] / epoch["bytes"], "bytes": epoch["bytes"] / steps}

    def all(self):
        """Runs all jobs, the largest first, because they take longest.  Reports and omits jobs that fail."""
        left = [(n, s) for n in sorted(self.args.ranks, reverse=True) for s in self.args.strategies if (n, s) not in self.rows]
        return simulated_jobs.run_side_by_side(self.args.workers, self.job, left, self.keep, lambda key: f"{key[1]}, {key[0]} ranks")

    def keep(self, key, row):
        self.journal.add(row)
        self.rows[key] = row

    def report(self):
        a = self.args
        rows = [self.rows[n, s] for n in a.ranks for s in a.strategies if (n, s) in self.rows]
        for row in rows:
            stock = self.rows.get((row["ranks"], "stock"))
            row["to_stock"] = stock["step_s"] / row["step_s"] if stock else None
        with open(a.simulate, encoding="utf-8") as file:
            platform = json.load(file)
        report = {"bench": "scale-simulated", "machine": machine_facts(), "options": vars(a), "platform": platform, "rows": rows}
        with open(os.path.join(a.out, "result.json"), "w", encoding="utf-8") as out:
            json.dump(report, out, indent=1)
        print(f"SIMULATED: {platform['about']}.\n{a.content}, {a.batch} records of a rank in a step, {a.compute} s of computation, cold, "
              f"{a.steps} steps.  Step: mean, without opening.  I/O: share of\nopening and waiting in the time of all ranks.  Requests: at "
              "the file system, of a step.  Read: bytes there / bytes of values.\n")
        columns = ["ranks", "nodes", "strategy", "step s", "x stock", "I/O", "open s", "requests", "read"]
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for r in rows:
            shown = [r["ranks"], r["nodes"], r["strategy"], f"{r['step_s']:.4f}", f"{r['to_stock']:.2f}" if r["to_stock"] else "",
                     f"{100 * r['share_of_io']:.0f} %", f"{r['open_s']:.3f}", f"{r['requests']:.0f}", f"{r['read_to_values']:.2f}"]
            print(f"| {' | '.join(map(str, shown))} |")
        if of_lmm := [r for r in rows if r["strategy"] == "lmm" and r["to_stock"]]:
            best = max(of_lmm, key=lambda r: r["to_stock"])
            print(f"\nlmm: at most {best['to_stock']:.2f} x stock, with {best['ranks']} ranks. The paper reports up to {plots.PAPER_LMM} x, "
                  f"{plots.PAPER_LMM / best['to_stock']:.1f} times as much.")
        print(f"\nResults: {os.path.join(a.out, 'result.json')}")
        if rows:
            plots.draw_all({os.path.join(a.out, "result.png"): lambda: plots.simulated(report)})


def main(words):
    args = parse(words)
    args.build, args.out = os.path.abspath(args.build), os.path.abspath(args.out)
    campaign = Campaign(args)
    failed = campaign.all()
    campaign.report()
    return 1 if failed else 0
