#!/usr/bin/python3
"""Tests that a job's reads and messages grow as the README here says: compares the formulas there with simulated jobs of three sizes, on
a database that stock LMDB has written.

    growth_test.py RUN_SCALE RUN_SCALE_SIMULATED PLATFORM
"""
import os
import subprocess
import sys
import tempfile

import lmdb

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))
from scale.simulated_campaign import job_words  # noqa: E402
from scale.simulation import simulated_jobs  # noqa: E402

RANKS = [72, 288, 1152]
RANKS_OF_NODE, BATCH, STEPS, VALUE, PAGE = 36, 4, 8, 3072, 4096
PART = 4 << 20  # bytes that a reader of `full` reads at a time
METAS = 16 * PAGE  # upper bound on the end of the second meta page
# The kernel's reads for the meta pages when an environment is opened.
OPENING = 12 * PAGE


class Facts:
    """Facts about a job and its database, with the names of the README here."""

    def __init__(self, ranks, database):
        with lmdb.open(database, readonly=True, lock=False) as env:
            stat = env.stat()
        self.P, self.N, self.S, self.B = ranks, ranks // RANKS_OF_NODE, STEPS, BATCH
        self.E, self.L, self.T = stat["entries"], stat["leaf_pages"], stat["branch_pages"]
        self.V = stat["overflow_pages"] * PAGE
        self.F = os.stat(os.path.join(database, "data.mdb")).st_size
        self.R = -(-self.E // (PART // ((self.V + self.L * PAGE) // self.E) * self.N))


def bytes_read(f):
    """Returns the bytes read from the file system in a cold epoch."""
    of_leaf = f.E / f.L  # records
    guessed = f.S * (f.P * f.B / of_leaf + f.N) * PAGE  # leaf pages of a step: each node reads one more than its share
    return {
        "stock": f.N * f.F,
        "lmm": f.N * f.F,
        "lmm-dio": f.V + f.N * (METAS + (f.T + f.L) * PAGE),
        "lmm-dio-prov": f.V + f.N * (METAS + (f.T + 1) * PAGE) + guessed,
        "full": f.V + f.N * (OPENING + f.T * PAGE) + (2 * f.L + f.R * f.N) * PAGE,
    }


def main():
    program, simulated, platform = map(os.path.abspath, sys.argv[1:4])
    failed = checks = 0

    def expect(right, what):
        nonlocal failed, checks
        checks += 1
        if not right:
            failed += 1
        print(f"{'' if right else 'WRONG: '}{what}")

    with tempfile.TemporaryDirectory(prefix="lmdbio_growth_") as directory:
        for ranks in RANKS:
            database = os.path.join(directory, str(ranks))
            words = job_words("cifar10-like", BATCH, ranks, STEPS, "full", 0, "contiguous")
            subprocess.run([program, database, *words[1:words.index("--strategy")], "--prepare", "--no-check"], check=True)
            facts = Facts(ranks, database)
            for strategy, formula in bytes_read(facts).items():
                words = job_words("cifar10-like", BATCH, ranks, STEPS, strategy, 0, "contiguous")
                job = simulated_jobs.run(simulated, platform, ranks, words)
                read = job["epochs"][0]["storage_bytes"]
                expect(abs(read / formula - 1) < 0.012, f"{ranks} ranks, {strategy}: {read} bytes, by the formula {formula:.0f}: "
                       f"{100 * (read / formula - 1):+.1f} %")
            library = job["library"]  # of full
            between = facts.E * VALUE * (facts.N - 1) / facts.N
            expect(abs(library["node_bytes"] / between - 1) < 0.012,
                   f"{ranks} ranks: {library['node_bytes']} bytes between nodes, by the formula {between:.0f}")
            most = min(facts.E / facts.B + facts.R * facts.N, facts.R * facts.N * (facts.P - 1))
            expect(0.7 * most <= library["messages"] <= most,
                   f"{ranks} ranks: {library['messages']} messages with records, by the formula at most {most:.0f}")
    print(f"{checks} checks, {failed} failed")
    return 0 if failed == 0 and checks == len(RANKS) * 7 else 1


if __name__ == "__main__":
    sys.exit(main())
