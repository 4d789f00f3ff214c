"""bench/scale/run --workload NAMES --simulate PLATFORM: accelerator utilization of MLPerf Storage's training workloads, simulated
(bench/scale/simulation/README.md).  Weak scaling: each accelerator has the same number of samples.  They are used in the order of keys,
because shuffled streams in which each rank reads for itself cannot be simulated.  Page caches are cold.
"""
import argparse
import json
import os

from journal import Journal
from measure import fail, machine_facts

from .campaign import listed
from .simulated_campaign import add_running_options, ranks, sha256_of
from .simulation import simulated_jobs
from .workloads import WAYS, add_workload_options, data_words, print_table, step_of, write_report

SIMULATED = ["stock-alone", "ranks"]  # the ways that can be simulated
SIGNATURE = ["platform_sha256", "batch", "steps"]


def parse(words):
    parser = argparse.ArgumentParser(prog="bench/scale/run", description=__doc__)
    add = parser.add_argument
    add_workload_options(parser)
    add("--simulate", required=True, metavar="PLATFORM", help="the machine, a file of JSON: bench/scale/simulation/README.md")
    add("--ways", type=listed(SIMULATED, "simulated ways"), default=",".join(SIMULATED), help="default: %(default)s")
    add("--ranks", type=ranks, default="8,16,32,64,128,256,512,1024", help="accelerators (default: %(default)s)")
    add("--steps", type=int, default=6, help="that are simulated (default: %(default)s)")
    add_running_options(parser, "scale-simulated-workloads", "jobs")
    args = parser.parse_args(words)
    if min(args.workers, args.steps - 1) < 1 or args.batch < 0:
        fail("--workers: at least 1; --steps: at least 2; --batch: not below 0")
    args.simulate = os.path.abspath(args.simulate)
    args.platform_sha256 = sha256_of(args.simulate)
    args.build, args.out = os.path.abspath(args.build), os.path.abspath(args.out)
    return args


class Campaign:
    def __init__(self, args):
        self.args = args
        os.makedirs(args.out, exist_ok=True)
        with open(args.simulate, encoding="utf-8") as file:
            self.platform = json.load(file)
        self.journal = Journal(os.path.join(args.out, "jobs.jsonl"), {k: getattr(args, k) for k in SIGNATURE}, args.fresh)
        self.rows = {self.key(row): row for row in self.journal.runs}

    @staticmethod
    def key(row):
        return tuple(row[k] for k in ("workload", "accelerator", "ranks", "way"))

    def job(self, key):
        a, (name, accelerator, count, way) = self.args, key
        batch, compute = step_of(a, name, accelerator)
        words = ["db", *data_words(name, batch, a.steps, count), *WAYS[way], "--batch", str(batch), "--compute",
                 str(compute), "--barrier"]
        result = simulated_jobs.run(os.path.join(a.build, "bin", "run_scale_simulated"), a.simulate, count, words, timeout=a.timeout)
        epoch, storage = result["epochs"][0], self.platform["storage"]
        needs = epoch["bytes"] / result["steps"] / compute
        gives = min(storage["servers"] * storage["server_bytes_s"], result["nodes"] * storage["client_bytes_s"])
        return {"workload": name, "accelerator": accelerator, "ranks": count, "way": way, "nodes": result["nodes"],
                "steps": result["steps"], "utilization": epoch["utilization"], "needs_MB_per_s": needs / 1e6, "raw_MB_per_s": gives / 1e6,
                "possible": min(1.0, gives / needs), "read_to_samples": epoch["storage_bytes"] / epoch["bytes"],
                "storage_requests": epoch["storage_requests"], "bytes": epoch["bytes"], "records": epoch["records"], "compute_s": compute}

    def all(self):
        """Runs all jobs, the largest first, because they take longest.  Reports and omits jobs that fail."""
        a = self.args
        keys = [(name, accelerator, count, way) for count in sorted(a.ranks, reverse=True) for name in a.workload
                for accelerator in a.accelerators for way in a.ways]
        return simulated_jobs.run_side_by_side(a.workers, self.job, [k for k in keys if k not in self.rows], self.keep,
                                               lambda key: ", ".join(map(str, key)))

    def keep(self, key, row):
        self.journal.add(row)
        self.rows[key] = row

    def report(self):
        a = self.args
        rows = [self.rows[key] for name in a.workload for accelerator in a.accelerators for count in a.ranks for way in a.ways
                if (key := (name, accelerator, count, way)) in self.rows]
        print(f"SIMULATED: {self.platform['about']}.\nAccelerator utilization: time of computation / time of the epoch, both without the "
              f"first step.  In order, cold, about {a.steps} steps.\nNeeds: MB/s at which no accelerator waits.  Raw: MB/s of all servers, "
              "or of all nodes' networks if that is less.\nPossible: raw / needs, at most 1.\n")
        print_table(rows, a.ways, ["accelerator", "ranks", "nodes"], lambda r: [r["accelerator"], r["ranks"], r["nodes"]],
                    lambda r: f"{r['utilization']:.2f}")
        write_report(a.out, {"bench": "scale-simulated-workloads", "machine": machine_facts(), "options": vars(a),
                             "platform": self.platform, "rows": rows})


def main(words):
    campaign = Campaign(parse(words))
    failed = campaign.all()
    campaign.report()
    return 1 if failed else 0
