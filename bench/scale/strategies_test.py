#!/usr/bin/python3
"""Tests that every strategy of run_scale gives every rank the right records, with several numbers of ranks.

    strategies_test.py MPIRUN RUN_SCALE LIBLMDBIO_MPI [SEED]     other jobs for each seed; more of them if one is given

run_scale compares each record with a checksum that was made with stock LMDB before.  One database has records of one size,
written in key order.  The other one has records of all sizes, written in random order, so that leaf pages have different
numbers of records, and guesses about them are wrong.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

STRATEGIES = ["stock", "lmm", "lmm-dm", "lmm-dio", "lmm-dio-prov", "lmm-dio-prov-coal", "lmm-dio-prov-coal-stag", "full"]
RANKS = [1, 2, 4, 7, 8, 16]
FEWER = {True: [1, 7, 16], False: [2, 8]}  # key: leaf pages are equally full
JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "mpi", "mpi_job.py")


def make(directory, even):
    import lmdb
    rng = random.Random(1)
    n = 1500
    order = list(range(n))
    if not even:
        rng.shuffle(order)
    os.mkdir(directory)
    with lmdb.open(directory, map_size=1 << 28) as env:
        for at in range(0, n, 100):
            with env.begin(write=True) as txn:
                for i in order[at:at + 100]:
                    size = 3072 if even else rng.choice([0, 10, 300, 2100, 5000, 20000])
                    txn.put(b"%08d" % i, rng.randbytes(size))


def run(mpirun, ranks, *command):
    done = subprocess.run([sys.executable, "-B", JOB, mpirun, str(ranks), *command], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 77:
        print(done.stdout)
        sys.exit(77)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return done.returncode, json.loads(lines[0]) if lines else {}


def made_databases(mpirun, program, library, directory):
    """Reads databases of --make, and compares the records with the checksums.  A wrong record ends the job."""
    failed = 0
    for content, least, most in (("cifar10-like", 3072, 3072), ("imagenet-like", 112640, 112640), ("raw-imagenet-like", 196608, 196608),
                                 ("photographs", 50000, 200000), ("cosmoflow-like", 2700000, 2950000), ("resnet50-like", 114660, 114660),
                                 ("unet3d-like", 20e6, 400e6)):
        database, large = os.path.join(directory, content), content in ("cosmoflow-like", "unet3d-like")
        ranks = 1 if content == "unet3d-like" else 2
        status, told = run(mpirun, ranks, program, database, "--make", content, "--bytes", "4MiB", "--batch", "1" if large else "2",
                           "--strategy", "lmm-dio")
        if status == 0:
            size = os.stat(os.path.join(database, "data.mdb")).st_size
            average = told["epochs"][0]["bytes"] / told["epochs"][0]["records"]
            status = not (told["checked"] and 3.5e6 < size < max(7.5e6, 1.1 * most) and least <= average <= most)
        if status != 0:
            failed += 1
            print(f"{content}: {status}: {told}")
    # The last value of the file is empty.
    import lmdb
    with lmdb.open(os.path.join(directory, "empty")) as env, env.begin(write=True) as txn:
        txn.put(b"aa", b"")
    for strategy in STRATEGIES:
        status, told = run(mpirun, 1, program, os.path.join(directory, "empty"), "--batch", "1", "--strategy", strategy, "--library",
                           library)
        if status != 0 or not told["checked"]:
            failed += 1
            print(f"{strategy}, an empty value: {status}: {told}")
    sums = os.path.join(directory, "photographs.sums")
    with open(sums, "r+b") as file:
        file.seek(24)
        file.write(b"\0" * 8)
    if run(mpirun, 2, program, os.path.join(directory, "photographs"), "--batch", "2")[0] == 0:
        failed += 1
        print("a wrong checksum is not noticed")
    return failed


def main():
    mpirun, program, library, seed, *_ = [*sys.argv[1:], "2"]
    try:
        import lmdb  # noqa: F401
    except ImportError:
        print("no python3-lmdb")
        return 77
    failed, guesses = 0, {}
    rng = random.Random(int(seed))
    with tempfile.TemporaryDirectory(prefix="lmdbio_scale_") as directory:
        for even in (True, False):
            database, sums = os.path.join(directory, f"db{even:d}"), os.path.join(directory, f"sums{even:d}")
            make(database, even)
            if run(mpirun, 1, program, database, "--sums", sums, "--prepare")[0] != 0:
                return 1
            for ranks in RANKS if len(sys.argv) > 4 else FEWER[even]:
                for strategy in STRATEGIES:
                    batch, epochs = rng.randint(1, 20), 2
                    options = ["--strategy", strategy, "--batch", str(batch), "--epochs", str(epochs), "--sums", sums, "--library",
                               library, "--assignment", rng.choice(["strided", "contiguous"])]
                    if strategy in ("stock", "full"):
                        options += ["--order", rng.choice(["sequential", "shuffled"])]
                    if strategy == "stock":
                        options += ["--workers", rng.choice(["0", "1", "3", "9"])]
                    if strategy == "full":
                        options += ["--thread-level", rng.choice(["single", "multiple"])]
                    if strategy not in ("stock", "full") and rng.random() < 0.4:
                        options += ["--readers-per-node", str(rng.randint(1, 4))]
                    if strategy in ("lmm-dio", "lmm-dio-prov", "lmm-dio-prov-coal") and rng.random() < 0.4:
                        options += ["--overlap", "ahead"]
                    status, told = run(mpirun, ranks, program, database, *options)
                    expected = 1500 // (batch * ranks) * batch * ranks
                    right = (status == 0 and told["checked"] and told["ranks"] == ranks and
                             [e["records"] for e in told["epochs"]] == [expected] * epochs and
                             told["lmdbio_loaded"] == (strategy == "full") and
                             (told["requests"] != 0) == ("dio" in strategy))
                    if "prov" in strategy and right:
                        guesses[even] = guesses.get(even, 0) + told["wrong_guesses"]
                    if not right:
                        failed += 1
                        print(f"{ranks} ranks, even {even}: {' '.join(options)}: status {status}, expected {expected} records: {told}")
                    # By default there is one reader, because all ranks are on one node.
                    if right and "--readers-per-node" not in options:
                        failed += told["readers"] != (ranks if strategy == "stock" else 1)
        # Combinations that do not exist are refused.
        for options in (["lmm", "--overlap", "ahead"], ["stock", "--readers-per-node", "2"], ["full", "--request-bytes", "1000"],
                        ["lmm", "--exchange", "redistributed"], ["lmm-dio", "--later", "node-homes"],
                        ["lmm-dio-prov", "--order", "shuffled"], ["full", "--workers", "2"]):
            status, told = run(mpirun, 1, program, database, "--sums", sums, "--strategy", *options)
            if status != 2 or told != {}:
                failed += 1
                print(f"{options} is not refused: {status}")
        failed += made_databases(mpirun, program, library, directory)
    if guesses.get(True) != 0 or not guesses.get(False):
        print("wrong guesses, by whether leaf pages are equally full:", guesses)
        failed += 1
    print(f"{failed} failed")
    return 0 if failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
