"""bench/scale/run --validate: compares the times of simulated jobs with those of real ones.

Measures the constants of this machine (as --calibrate does), simulates all jobs with them, writes these predictions to a file, and prints
its SHA-256. Only then the real jobs run on emulated hosts. No constant comes from a run of the training loop. All jobs are cold. By
default they compute nothing and have one epoch; later epochs get rows of their own. Options are those of --campaign, and:

    --multiply MEMBER=FACTOR   makes a constant wrong by this factor, e.g. storage.latency_s=2: the validation must detect it. Wake-ups
                               that cost nothing: --multiply cpu.wake_s=0 --multiply cpu.woken_s=0
    --quick                    measures page faults with few processes and rounds, for tests
    --reuse                    uses the constants and the real jobs of the last validation in --out
"""
import argparse
import hashlib
import itertools
import json
import os
import statistics
import sys
import tempfile

import slowfs
from measure import Failed, Skip, fail, interval, machine_facts, progress, text

from . import calibrate, campaign, plots
from .simulation import simulated_jobs

# Largest busy part of the CPUs of a valid row, except for mapped strategies: only their CPU time is simulated.  Polling for ranks of the
# same node does not count, because it yields the CPU to other processes.
MOST_BUSY, MAPPED = 0.7, ("stock", "lmm", "lmm-dm")
# Bounds of |predicted / measured - 1|: for the median, for nine in ten rows, and for all rows.
MEDIAN, NINE_IN_TEN, LARGEST = 0.10, 0.20, 0.35
FEWEST_ROWS, SAME_ORDER = 0.6, 0.95
# Bound for `lmm` with this number of processes on a node or more.
MANY_PROCESSES, LMM = 16, 0.15
DEFAULTS = ["--shapes", "1x1,1x2,1x4,4x1,4x2", "--rounds", "5", "--epochs", "1"]
FIXED = ["--states", "cold", "--scaling", "strong"]


def parse(words):
    """Returns the arguments of a campaign, with `multiply` and `reuse`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--multiply", action="append", default=[])
    parser.add_argument("--reuse", action="store_true")
    parser.add_argument("--quick", action="store_true")
    own, words = parser.parse_known_args(words)
    if "--help" in words or "-h" in words:
        print(__doc__)
    build = os.path.join(calibrate.TOP, "build")
    args = campaign.parse([*DEFAULTS, "--out", os.path.join(build, "scale-validation"), *words, *FIXED])
    args.reuse, args.quick, args.multiply = own.reuse, own.quick, {}
    for word in own.multiply:
        member, _, factor = word.partition("=")
        try:
            args.multiply[member] = float(factor)
        except ValueError:
            fail(f"--multiply {word}: not MEMBER=FACTOR")
    return args


class Validation:
    def __init__(self, args):
        self.args = args
        self.predictions = {}
        self.platform = os.path.join(args.out, "platform.json")

    def keys(self):
        """Returns all (content, shape, computation, strategy)."""
        return list(itertools.product(self.args.contents, self.args.shapes, self.args.compute, self.args.strategies))

    @staticmethod
    def parts(epochs):
        """Yields ("first" or "later", facts) of a job: seconds without opening, requests and bytes of an epoch."""
        def facts(some, what):
            return statistics.mean(e[what] for e in some)
        for part, some in (("first", epochs[:1]), ("later", epochs[1:])):
            if some:
                yield part, {"seconds": facts(some, "seconds") - (some[0]["open_seconds"] if part == "first" else 0),
                             "requests": facts(some, "storage_requests"), "bytes": facts(some, "storage_bytes"),
                             "busy": statistics.mean(e.get("machine_busy", 1) - e.get("asking_cpu_s", 0) / e["seconds"] / os.cpu_count()
                                                     for e in some)}

    def predict(self, jobs):
        a = self.args
        measured = os.path.join(a.out, "measured.json")
        if a.reuse:
            with open(measured, encoding="utf-8") as file:
                constants = json.load(file)
        else:
            constants = calibrate.Calibration(calibrate.parse([measured, "--build", a.build, "--delay-us", str(a.delay_us), "--cap",
                                                               str(a.cap), "--rate", a.rate, *(["--quick"] if a.quick else [])])).run()
            with open(measured, "w", encoding="utf-8") as out:
                json.dump(constants, out, indent=1)
        for member, factor in a.multiply.items():
            part, _, name = member.partition(".")
            if not isinstance(constants.get(part), dict) or name not in constants[part]:
                raise Failed(f"--multiply {member}: the platform has no such member")
            constants[part][name] *= factor
        with open(self.platform, "w", encoding="utf-8") as out:
            json.dump(constants, out, indent=1)
        program = os.path.join(a.build, "bin", "run_scale_simulated")
        for n, (content, shape, compute, strategy) in enumerate(self.keys()):
            progress(f"simulating {content}, {shape}, {strategy}: {n + 1} of {len(self.keys())}")
            hosts, each = map(int, shape.split("x"))
            batch = a.batch * jobs.most_ranks // (hosts * each)
            words = ["db", "--make", content, "--bytes", str(a.bytes), "--multiple", str(a.batch * jobs.most_ranks), "--strategy", strategy,
                     "--batch", str(batch), "--assignment", a.assignment, "--epochs", str(a.epochs), "--compute", str(compute), *a.job]
            job = simulated_jobs.run(program, self.platform, hosts * each, words, each)
            for part, facts in self.parts(job["epochs"]):
                self.predictions[f"{content}/{shape}/{compute}/{strategy}/{part}"] = facts
        progress("")
        path = os.path.join(a.out, "predictions.json")
        with open(path, "w", encoding="utf-8") as out:
            json.dump({"platform": constants, "predictions": self.predictions}, out, indent=1)
        with open(path, "rb") as file:
            print(f"Predictions: {path}\nSHA-256:     {hashlib.sha256(file.read()).hexdigest()}", flush=True)

    def rows(self, jobs):
        for key in self.keys():
            content, shape, compute, strategy = key
            by_part = {}
            for run in jobs.results((content, "strong", shape, "cold", compute, strategy)):
                for part, facts in self.parts(run["epochs"]):
                    by_part.setdefault(part, []).append(facts)
            for part, runs in by_part.items():
                yield self.row({"content": content, "shape": shape, "compute": compute, "strategy": strategy, "part": part}, runs,
                               self.predictions["/".join(map(str, (*key, part)))])

    @classmethod
    def row(cls, key, runs, predicted):
        """`runs`, `predicted`: facts of real jobs and of the simulated one, as of parts()."""
        seconds = [facts["seconds"] for facts in runs]
        measured, busy = statistics.median(seconds), statistics.median(facts["busy"] for facts in runs)
        return {**key, "runs": len(runs), "seconds": interval(seconds), "spread": (max(seconds) - min(seconds)) / measured,
                "predicted_s": predicted["seconds"], "error": predicted["seconds"] / measured - 1, "busy": busy,
                "counts": busy <= MOST_BUSY or key["strategy"] in MAPPED, "half_width": cls.half_width(seconds),
                **{what: {"measured": [min(f[what] for f in runs), max(f[what] for f in runs)], "predicted": predicted[what]}
                   for what in ("requests", "bytes")}}

    @staticmethod
    def half_width(seconds):
        """Returns the relative half width of the middle half of the runs, an estimate of the error of the median."""
        quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 2 else [min(seconds), 0, max(seconds)]
        return (quartiles[2] - quartiles[0]) / 2 / statistics.median(seconds)

    @staticmethod
    def verdict(rows):
        """Returns the bounds, each as (what, holds)."""
        def excess(r):
            return max(abs(r["error"]) - r["half_width"], 0)

        def place(r):
            return r["content"], r["shape"], r["compute"], r["part"]
        counted = [r for r in rows if r["counts"]]
        errors = list(map(excess, counted))
        pairs = [(a, b) for a, b in itertools.combinations(counted, 2) if place(a) == place(b)
                 and abs(a["seconds"]["median"] / b["seconds"]["median"] - 1) > a["half_width"] + b["half_width"]]
        same = sum((a["seconds"]["median"] < b["seconds"]["median"]) == (a["predicted_s"] < b["predicted_s"]) for a, b in pairs)
        yield f"{len(counted)} of {len(rows)} rows count: the CPUs were at most {100 * MOST_BUSY:.0f} % busy, or the strategy is mapped", \
            len(counted) >= FEWEST_ROWS * len(rows)
        for part in ("first", "later"):
            many = [excess(r) for r in rows if r["strategy"] == "lmm" and r["part"] == part and
                    int(r["shape"].partition("x")[2]) >= MANY_PROCESSES]
            if many:
                yield f"lmm, {MANY_PROCESSES} processes of a node or more, {part} epochs: largest error {100 * max(many):.0f} % of " \
                    f"{len(many)} rows (at most {100 * LMM:.0f} %)", max(many) <= LMM
        if not counted:
            return
        within = sum(e <= NINE_IN_TEN for e in errors)
        yield f"median error {100 * statistics.median(errors):.1f} % (at most {100 * MEDIAN:.0f} %)", statistics.median(errors) <= MEDIAN
        yield f"{within} of {len(errors)} rows within {100 * NINE_IN_TEN:.0f} % (nine in ten)", within >= 0.9 * len(errors)
        yield f"largest error {100 * max(errors):.0f} % (at most {100 * LARGEST:.0f} %)", max(errors) <= LARGEST
        if pairs:
            yield f"{same} of {len(pairs)} pairs of strategies in the same order (95 %)", same >= SAME_ORDER * len(pairs)

    def report(self, rows):
        a = self.args
        print(f"\nEmulated hosts (hosts x ranks on each) on {os.cpu_count()} CPUs; {a.delay_us} us for each request, {a.cap} MB/s for all; "
              f"{a.rounds} rounds. Seconds of an\nepoch without opening: medians. Error: predicted / measured - 1; in brackets the "
              "half width of the middle half of the\nreal runs, by which each bound is widened. Requests, bytes: at the file systems, "
              "predicted / the range of real runs.\nBusy: of all CPUs, without what waiting ranks take to ask for others of their node; "
              "rows of strategies that read directly do not count above 70 %.\n")
        columns = ["content", "shape", "compute", "epoch", "strategy", "measured s", "predicted s", "error", "busy", "requests", "bytes"]
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for r in rows:
            shown = [r["content"], r["shape"], f"{r['compute']:g}", r["part"], r["strategy"], text(r["seconds"]), f"{r['predicted_s']:.3f}",
                     f"{100 * r['error']:+.0f} % [{100 * r['half_width']:.0f}]", f"{100 * r['busy']:.0f} %{'' if r['counts'] else ' *'}"]
            for what in ("requests", "bytes"):
                low, high = r[what]["measured"]
                shown.append(f"{r[what]['predicted']:.0f} / {f'{low:.0f}-{high:.0f}' if low != high else f'{low:.0f}'}")
            print(f"| {' | '.join(shown)} |")
        print()
        verdict = list(self.verdict(rows))
        for what, holds in verdict:
            print(f"{'holds' if holds else 'FAILS'}: {what}")
        if busy := [100 * abs(r["error"]) for r in rows if not r["counts"]]:
            print(f"no bound: with busier CPUs, the median error is {statistics.median(busy):.1f} %, the largest {max(busy):.0f} %")
        with open(os.path.join(a.out, "result.json"), "w", encoding="utf-8") as out:
            json.dump({"bench": "scale-validation", "machine": machine_facts(), "options": vars(a), "rows": rows,
                       "verdict": [{"what": what, "holds": holds} for what, holds in verdict]}, out, indent=1)
        print(f"\nResults: {os.path.join(a.out, 'result.json')}")
        plots.draw_all({os.path.join(a.out, "result.png"): lambda: plots.validation(rows)})
        return all(holds for _, holds in verdict)


def main(words):
    args = parse(words)
    args.build, args.out, args.fresh = os.path.abspath(args.build), os.path.abspath(args.out), not args.reuse
    os.makedirs(args.out, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data.", dir=args.out) as args.dir:
        try:
            validation, jobs = Validation(args), campaign.Campaign(args)
            validation.predict(jobs)
            if not args.reuse:
                jobs.all()
            rows = list(validation.rows(jobs))
            return 0 if rows and validation.report(rows) and not jobs.failed else 1
        except (Skip, slowfs.Missing) as e:
            print(f"emulated hosts with slow file systems cannot be had here: {e}", file=sys.stderr)
            return 77
        except Failed as e:
            print(f"error: {e}", file=sys.stderr)
            return 1
        finally:
            progress("")
