#!/usr/bin/python3
"""The MPI example of docs/examples does what it says, and exchanges records only if they are not in the page cache.  One log line says so.

    example_test.py MPIRUN PROGRAM
"""
import json
import os
import re
import subprocess
import sys
import tempfile

RANKS, RECORDS, EPOCHS = 3, 1000, 2
SIZES = [i * 37 % 9000 for i in range(RECORDS)]
EXPECTED = [(r, EPOCHS * len(SIZES[r::RANKS]), EPOCHS * sum(SIZES[r::RANKS])) for r in range(RANKS)]


def run(mpirun, program, directory, io):
    """What the ranks print, and the statistics of the job."""
    stats = os.path.join(directory, f"stats-{io}")
    job = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mpi_job.py")
    env = ["env", f"LMDBIO_STATS={stats}", "LMDBIO_LOG=info"] + ([f"LMDBIO_IO={io}"] if io else [])
    done = subprocess.run([sys.executable, "-B", job, mpirun, str(RANKS), *env, program, directory, "64"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout)
        sys.exit(done.returncode)
    with open(stats, encoding="utf-8") as f:
        job = next(line["job"] for line in map(json.loads, f) if "job" in line)
    told = sorted(tuple(map(int, m)) for m in re.findall(r"rank (\d+): (\d+) records, (\d+) bytes", done.stdout))
    return told, job, re.findall(r": (the ranks read together|each rank reads alone: .*)", done.stdout)


def main():
    mpirun, program = sys.argv[1:]
    try:
        import lmdb
    except ImportError:
        print("no python3-lmdb")
        return 77
    failed = 0
    with tempfile.TemporaryDirectory(prefix="lmdbio_mpi_") as directory:
        with lmdb.open(directory, map_size=1 << 28) as env, env.begin(write=True) as txn:
            for i, size in enumerate(SIZES):
                txn.put(b"%06d" % i, b"x" * size)
        with open(os.path.join(directory, "data.mdb"), "rb") as f:
            while f.read(1 << 20):
                pass
        for io, exchanges in (("", False), ("buffered", True), ("direct", True)):
            told, job, how = run(mpirun, program, directory, io)
            print(f"LMDBIO_IO={io}:", told, job, how)
            failed += how != ["the ranks read together" if exchanges else
                              "each rank reads alone: the records are in the page caches of all nodes"]
            failed += told != EXPECTED or (job["messages"] != 0) != exchanges
            failed += job["bytes"] != sum(e[2] for e in EXPECTED) + EPOCHS * RECORDS * 6 or job["records_alone"] != 0
    return 0 if failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
