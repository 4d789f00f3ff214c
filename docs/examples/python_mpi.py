"""Each rank of an MPI job reads its share of a shuffled order; the ranks read the file together.

    mpirun -n 4 python3 -m mpi4py python_mpi.py PATH [SEED]

Prints the number of records of each rank.  With `-m mpi4py`, an exception in one rank ends the whole job.
"""
import sys

from mpi4py import MPI

import lmdbio.mpi


def main(path, seed=0):
    comm = MPI.COMM_WORLD
    records = ordinals = 0
    with lmdbio.mpi.Reader(comm, path) as reader:
        order = lmdbio.Order.shuffled(seed, batch=32).share(comm.rank, comm.size)
        for batch in reader.stream(order):
            records, ordinals = records + len(batch), ordinals + sum(batch.ordinals)
            del batch
        count = len(reader)
    print(f"rank {comm.rank} of {comm.size}: {records} records", flush=True)
    if comm.allreduce(records) != count or comm.allreduce(ordinals) != count * (count - 1) // 2:
        raise SystemExit("the ranks together did not read each record once")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python_mpi.py PATH [SEED]")
    main(sys.argv[1], *map(int, sys.argv[2:]))
