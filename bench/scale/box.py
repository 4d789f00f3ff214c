"""bench/scale/run --box PLATFORM: the speed-up of LMDBIO (`full`) over stock LMDB depends on assumptions. This command simulates both at
points of a box of assumptions around the platform (a Latin hypercube). It prints the median speed-up, the range of eight in ten points, and
the strength of the influence of each assumption. Weak scaling, cold, as --campaign --simulate.
"""
import argparse
import json
import os
import statistics

from journal import Journal
from measure import fail, machine_facts

from . import plots
from .simulated_campaign import add_running_options, job_words, sha256_of
from .simulation import simulated_jobs

# The bounds of each assumption.  Values are drawn evenly in the logarithm.
BOX = {"servers": (4, 64), "server_bytes_s": (5e8, 5e9), "latency_s": (2e-4, 5e-3), "read_ahead_bytes": (128 << 10, 4 << 20),
       "batch": (2, 32), "value_kib": (3, 110)}
SIGNATURE = ["platform_sha256", "ranks", "points", "steps", "compute", "seed"]


def parse(words):
    parser = argparse.ArgumentParser(prog="bench/scale/run --box", description=__doc__)
    add = parser.add_argument
    add("platform", help="what is not in the box, a file of JSON")
    add("--points", type=int, default=200, help="default: %(default)s")
    add("--ranks", type=int, default=1152, help="default: %(default)s")
    add("--steps", type=int, default=4, help="that are simulated (default: %(default)s)")
    add("--compute", type=float, default=0.05, help="seconds of computation after each batch (default: %(default)s)")
    add("--seed", type=int, default=1, help="default: %(default)s")
    add_running_options(parser, "scale-box", "points")
    args = parser.parse_args(words)
    if min(args.points, args.steps, args.workers) < 1 or args.ranks < 2:
        fail("--points, --steps, --workers: at least 1; --ranks: at least 2")
    args.platform_sha256 = sha256_of(args.platform)
    args.build, args.out = os.path.abspath(args.build), os.path.abspath(args.out)
    return args


def latin_hypercube(points, seed):
    """Returns points with exactly one point in each of `points` equal intervals of each dimension."""
    import numpy  # imported here, because no other job needs it
    random = numpy.random.default_rng(seed)
    drawn = []
    for low, high in BOX.values():
        at = (random.permutation(points) + random.random(points)) / points
        drawn.append(low * (high / low) ** at)
    return [dict(zip(BOX, map(float, point))) for point in zip(*drawn)]


class Box:
    def __init__(self, args):
        self.args = args
        os.makedirs(args.out, exist_ok=True)
        with open(args.platform, encoding="utf-8") as file:
            self.base = json.load(file)
        self.journal = Journal(os.path.join(args.out, "points.jsonl"), {k: getattr(args, k) for k in SIGNATURE}, args.fresh)
        self.rows = {row["point"]: row for row in self.journal.runs}

    def simulate(self, at, point):
        a = self.args
        # Round numbers of servers, pages and records to integers.
        batch, content = round(point["batch"]), "cifar10-like" if point["value_kib"] < 18 else "imagenet-like"
        storage = self.base["storage"] | {"servers": round(point["servers"]), "server_bytes_s": point["server_bytes_s"],
                                          "latency_s": point["latency_s"]}
        platform = self.base | {"storage": storage, "read_ahead_bytes": round(point["read_ahead_bytes"] / 4096) * 4096}
        path = os.path.join(a.out, f"platform-{at}.json")
        with open(path, "w", encoding="utf-8") as out:
            json.dump(platform, out)
        try:
            step_s = {}
            for strategy in ("stock", "full"):
                words = job_words(content, batch, a.ranks, a.steps, strategy, a.compute, "contiguous")
                epoch = (result := simulated_jobs.run(os.path.join(a.build, "bin", "run_scale_simulated"), path, a.ranks, words,
                                                  timeout=a.timeout))["epochs"][0]
                step_s[strategy] = (epoch["seconds"] - epoch["open_seconds"]) / result["steps"]
        finally:
            os.unlink(path)
        return {"point": at, **point, "batch": batch, "content": content, "step_s": step_s, "to_stock": step_s["stock"] / step_s["full"]}

    def all(self):
        points = latin_hypercube(self.args.points, self.args.seed)
        left = [at for at in range(len(points)) if at not in self.rows]
        return simulated_jobs.run_side_by_side(self.args.workers, lambda at: self.simulate(at, points[at]), left, self.keep,
                                           lambda at: f"point {at}")

    def keep(self, at, row):
        self.journal.add(row)
        self.rows[at] = row

    def influences(self, rows):
        """Returns Spearman's rank correlation of each assumption with the speed-up, the strongest first."""
        import numpy

        def ranked(values):
            return numpy.argsort(numpy.argsort(values))
        speed_up = ranked([r["to_stock"] for r in rows])
        found = {name: float(numpy.corrcoef(ranked([r[name] for r in rows]), speed_up)[0, 1]) for name in BOX}
        return dict(sorted(found.items(), key=lambda item: -abs(item[1])))

    def report(self):
        import numpy
        a = self.args
        rows = sorted(self.rows.values(), key=lambda r: r["point"])
        if len(rows) < 3:
            print("fewer than three points")
            return
        ratios = sorted(r["to_stock"] for r in rows)
        low, high = numpy.quantile(ratios, [0.1, 0.9])
        summary = {"median": statistics.median(ratios), "low": float(low), "high": float(high)}
        influences = self.influences(rows)
        print(f"SIMULATED: {self.base['about']}.\n{len(rows)} points, {a.ranks} ranks, {a.compute} s of computation in a step, {a.steps} "
              f"steps, cold, seed {a.seed}.\n\nfull, x stock: median {summary['median']:.1f}, 10 to 90 % of the points "
              f"{low:.1f} to {high:.1f}, all {ratios[0]:.1f} to {ratios[-1]:.1f}\n\n| assumption | from | to | rank correlation with the "
              "speed-up |\n|---|---|---|---|")
        for name, influence in influences.items():
            print(f"| {name} | {BOX[name][0]:g} | {BOX[name][1]:g} | {influence:+.2f} |")
        report = {"bench": "scale-box", "machine": machine_facts(), "options": vars(a), "platform": self.base, "box": BOX,
                  "to_stock": summary, "influences": influences, "rows": rows}
        with open(os.path.join(a.out, "result.json"), "w", encoding="utf-8") as out:
            json.dump(report, out, indent=1)
        print(f"\nResults: {os.path.join(a.out, 'result.json')}")
        plots.draw_all({os.path.join(a.out, "result.png"): lambda: plots.box(report)})


def main(words):
    box = Box(parse(words))
    failed = box.all()
    box.report()
    return 1 if failed else 0
