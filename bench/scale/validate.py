"""bench/scale/run --validate: compares the times of simulated jobs with those of real ones.

Measures the constants of this machine (as --calibrate does), simulates all jobs with them, writes these predictions to a file, and prints
its SHA-256. Only then the real jobs run on emulated hosts. No constant comes from a run of the training loop. All jobs are cold, one epoch
long and compute nothing. Options are those of --campaign, and:

    --multiply MEMBER=FACTOR   makes a constant wrong by this factor, e.g. storage.latency_s=2: the validation must detect it
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

# Largest busy part of the CPUs of a valid row: emulated hosts share CPUs, simulated ones do not.  Polling for
# ranks of the same node does not count, because it yields the CPU to other processes.
MOST_BUSY = 0.7
# Bounds of |predicted / measured - 1|: for the median, for nine in ten rows, and for all rows.
MEDIAN, NINE_IN_TEN, LARGEST = 0.10, 0.20, 0.35
FEWEST_ROWS, SAME_ORDER = 0.6, 0.95
DEFAULTS = ["--shapes", "1x1,1x2,1x4,4x1,4x2", "--rounds", "5"]
FIXED = ["--states", "cold", "--epochs", "1", "--compute", "0", "--scaling", "strong"]


def parse(words):
    """Returns the arguments of a campaign, with `multiply` and `reuse`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--multiply", action="append", default=[])
    parser.add_argument("--reuse", action="store_true")
    own, words = parser.parse_known_args(words)
    if "--help" in words or "-h" in words:
        print(__doc__)
    build = os.path.join(calibrate.TOP, "build")
    args = campaign.parse([*DEFAULTS, "--out", os.path.join(build, "scale-validation"), *words, *FIXED])
    args.reuse, args.multiply = own.reuse, {}
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
        """Returns all (content, shape, strategy)."""
        return list(itertools.product(self.args.contents, self.args.shapes, self.args.strategies))

    def predict(self, jobs):
        a = self.args
        measured = os.path.join(a.out, "measured.json")
        if a.reuse:
            with open(measured, encoding="utf-8") as file:
                constants = json.load(file)
        else:
            constants = calibrate.Calibration(calibrate.parse([measured, "--build", a.build, "--delay-us", str(a.delay_us), "--cap",
                                                               str(a.cap), "--rate", a.rate])).run()
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
        for n, (content, shape, strategy) in enumerate(self.keys()):
            progress(f"simulating {content}, {shape}, {strategy}: {n + 1} of {len(self.keys())}")
            hosts, each = map(int, shape.split("x"))
            batch = a.batch * jobs.most_ranks // (hosts * each)
            words = ["db", "--make", content, "--bytes", str(a.bytes), "--multiple", str(a.batch * jobs.most_ranks), "--strategy", strategy,
                     "--batch", str(batch), "--assignment", a.assignment, *a.job]
            epoch = simulated_jobs.run(program, self.platform, hosts * each, words, each)["epochs"][0]
            self.predictions[f"{content}/{shape}/{strategy}"] = {
                "seconds": epoch["seconds"] - epoch["open_seconds"], "requests": epoch["storage_requests"], "bytes": epoch["storage_bytes"]}
        progress("")
        path = os.path.join(a.out, "predictions.json")
        with open(path, "w", encoding="utf-8") as out:
            json.dump({"platform": constants, "predictions": self.predictions}, out, indent=1)
        with open(path, "rb") as file:
            print(f"Predictions: {path}\nSHA-256:     {hashlib.sha256(file.read()).hexdigest()}", flush=True)

    def rows(self, jobs):
        for key in self.keys():
            content, shape, strategy = key
            predicted = self.predictions["/".join(key)]
            runs = [run["epochs"][0] for run in jobs.results((content, "strong", shape, "cold", 0.0, strategy))]
            if not runs:
                continue
            seconds = [e["seconds"] - e["open_seconds"] for e in runs]
            measured = statistics.median(seconds)
            busy = statistics.median(e.get("machine_busy", 1) - e["asking_cpu_s"] / e["seconds"] / os.cpu_count() for e in runs)
            yield {"content": content, "shape": shape, "strategy": strategy, "runs": len(runs), "seconds": interval(seconds),
                   "spread": (max(seconds) - min(seconds)) / measured, "predicted_s": predicted["seconds"],
                   "error": predicted["seconds"] / measured - 1, "busy": busy, "counts": busy <= MOST_BUSY,
                   "half_width": self.half_width(seconds),
                   **{what: {"measured": [min(e[f"storage_{what}"] for e in runs), max(e[f"storage_{what}"] for e in runs)],
                             "predicted": predicted[what]} for what in ("requests", "bytes")}}

    @staticmethod
    def half_width(seconds):
        """Returns the relative half width of the middle half of the runs, an estimate of the error of the median."""
        quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 2 else [min(seconds), 0, max(seconds)]
        return (quartiles[2] - quartiles[0]) / 2 / statistics.median(seconds)

    def verdict(self, rows):
        """Returns the bounds, each as (what, holds)."""
        counted = [r for r in rows if r["counts"]]
        errors = [max(abs(r["error"]) - r["half_width"], 0) for r in counted]
        pairs = [(a, b) for a, b in itertools.combinations(counted, 2) if (a["content"], a["shape"]) == (b["content"], b["shape"])
                 and abs(a["seconds"]["median"] / b["seconds"]["median"] - 1) > a["half_width"] + b["half_width"]]
        same = sum((a["seconds"]["median"] < b["seconds"]["median"]) == (a["predicted_s"] < b["predicted_s"]) for a, b in pairs)
        yield f"{len(counted)} of {len(rows)} rows count: the CPUs were at most {100 * MOST_BUSY:.0f} % busy", \
            len(counted) >= FEWEST_ROWS * len(rows)
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
              f"{a.rounds} rounds. Seconds of one\ncold epoch without opening: medians. Error: predicted / measured - 1; in brackets the "
              "half width of the middle half of the\nreal runs, by which each bound is widened. Requests, bytes: at the file systems, "
              "predicted / the range of real runs.\nBusy: of all CPUs, without what waiting ranks take to ask for others of their node; "
              "rows above 70 % do not count.\n")
        columns = ["content", "shape", "strategy", "measured s", "predicted s", "error", "busy", "requests", "bytes"]
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for r in rows:
            shown = [r["content"], r["shape"], r["strategy"], text(r["seconds"]), f"{r['predicted_s']:.3f}",
                     f"{100 * r['error']:+.0f} % [{100 * r['half_width']:.0f}]", f"{100 * r['busy']:.0f} %{'' if r['counts'] else ' *'}"]
            for what in ("requests", "bytes"):
                low, high = r[what]["measured"]
                shown.append(f"{r[what]['predicted']} / {f'{low}-{high}' if low != high else low}")
            print(f"| {' | '.join(shown)} |")
        print()
        verdict = list(self.verdict(rows))
        for what, holds in verdict:
            print(f"{'holds' if holds else 'FAILS'}: {what}")
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
