#!/usr/bin/python3
"""The MPI example of docs/examples does what it says.

    example_test.py MPIRUN PROGRAM
"""
import os
import re
import subprocess
import sys
import tempfile

RANKS, RECORDS, EPOCHS = 3, 1000, 2


def main():
    mpirun, program = sys.argv[1:]
    try:
        import lmdb
    except ImportError:
        print("no python3-lmdb")
        return 77
    with tempfile.TemporaryDirectory(prefix="lmdbio_mpi_") as directory:
        sizes = [i * 37 % 9000 for i in range(RECORDS)]
        with lmdb.open(directory, map_size=1 << 28) as env, env.begin(write=True) as txn:
            for i, size in enumerate(sizes):
                txn.put(b"%06d" % i, b"x" * size)
        job = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mpi_job.py")
        done = subprocess.run([sys.executable, "-B", job, mpirun, str(RANKS), program, directory, "64"], stdout=subprocess.PIPE,
                              text=True, check=False)
    print(done.stdout)
    if done.returncode != 0:
        return done.returncode
    told = sorted(tuple(map(int, m)) for m in re.findall(r"rank (\d+): (\d+) records, (\d+) bytes", done.stdout))
    expected = [(r, EPOCHS * len(sizes[r::RANKS]), EPOCHS * sum(sizes[r::RANKS])) for r in range(RANKS)]
    if told != expected:
        print("expected:", expected)
    return 0 if told == expected else 1


if __name__ == "__main__":
    sys.exit(main())
