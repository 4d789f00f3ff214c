#!/usr/bin/python3
"""Compares a reader of several databases ("shards") with a reader of one database that has the same records.

The loop (reader_loop.cc) takes batches of 64 records and reads the first byte of each value, in order and shuffled.
Warm: the files are in the page cache, and the epochs after the first one of a process are measured.
Cold: one epoch of a process, with opening, from a file system that adds 1 or 5 ms to each read request (slow-1ms, slow-5ms).
Runs the loops in turns.  Prints a table, and JSON with --json.

    bench/loading/shards.py --build build/dev
"""
import argparse
import glob
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

import lmdb

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cold_files import make_warm, setup  # noqa: E402
from measure import Skip, fail, machine_facts, round_order, size, spread, text  # noqa: E402


def write(directory, count, value, files):
    """Writes the records to so many databases, and makes them warm."""
    choose = random.Random(1)
    for n in range(files):
        path = os.path.join(directory, f"{n:04}")
        os.makedirs(path)
        with lmdb.open(path, map_size=count * (value + 8192) + (1 << 20)) as env, env.begin(write=True) as txn:
            for i in range(count * n // files, count * (n + 1) // files):
                txn.put(b"%08d" % i, choose.randbytes(value), append=True)
        make_warm(os.path.join(path, "data.mdb"))


def run(args, path, epochs, order):
    """Returns the median seconds of an epoch, and the sum of the values' first bytes."""
    done = subprocess.run([os.path.join(args.build, "bin", "reader_loop"), path, str(epochs), args.how, "64", order],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        fail(done.stderr.strip())
    seconds = [float(line) for line in done.stdout.split()]
    return statistics.median(seconds[1:] or seconds), done.stderr


def measure(args, where, storage, value, count, order, numbers):
    """Returns a row for each number of files, and prints it."""
    rates, sums = {n: [] for n in numbers}, set()
    for i in range(args.rounds):
        for k in round_order(len(numbers), i):
            n = numbers[k]
            if storage != "warm":
                where.prepare_files(glob.glob(f"{n}/*/data.mdb", root_dir=args.dir))
            seconds, total = run(args, os.path.join(where.dir, str(n)), args.epochs if storage == "warm" else 1, order)
            rates[n].append(count / seconds)
            sums.add(total)
    if len(sums) != 1:
        fail(f"the readers returned different records: {sums}")
    rows = []
    for n in numbers:
        ratios = [a / b for a, b in zip(rates[n], rates[1])]
        rows.append({"value_bytes": value, "storage": storage, "order": order, "files": n, "records_per_s": spread(rates[n]),
                     "of_one": spread(ratios)})
        print(f"| {value} B | {storage} | {order} | {n} | {text(rows[-1]['records_per_s'], 0)} | "
              f"{text(rows[-1]['of_one'], 2) if n != 1 else '-'} |", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/dev")
    parser.add_argument("--size", type=size, default="512M", help="of all records (default: %(default)s)")
    parser.add_argument("--values", default="3072,8192,112640", help="sizes of records, bytes (default: %(default)s)")
    parser.add_argument("--shards", default="8,64,256", help="default: %(default)s")
    parser.add_argument("--storage", default="warm,slow-1ms", help="default: %(default)s")
    parser.add_argument("--orders", default="sequential,shuffled", help="default: %(default)s")
    parser.add_argument("--how", default="copied", choices=("copied", "mapped"), help="records (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help="of a run with warm files (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--dir", help="where the databases are written (default: the directory for temporary files)")
    parser.add_argument("--json", help="file for the results")
    args = parser.parse_args()
    args.build, top, rows = os.path.abspath(args.build), args.dir, []
    args.local_bytes = args.slow_bytes = args.size
    numbers = [1, *map(int, args.shards.split(","))]
    print("| records | storage | order | files | records/s [range] | of one file [range] |\n|---|---|---|---|---|---|")
    for value in map(int, args.values.split(",")):
        with tempfile.TemporaryDirectory(prefix="lmdbio-shards-", dir=top) as args.dir:
            count = args.size // value
            for n in numbers:
                write(os.path.join(args.dir, str(n)), count, value, n)
            for storage in args.storage.split(","):
                try:
                    with setup("local" if storage == "warm" else storage, args) as where:
                        for order in args.orders.split(","):
                            rows += measure(args, where, storage, value, count, order, numbers)
                except Skip as why:
                    print(f"{storage}: not measured: {why}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"bench": "shards", "machine": machine_facts(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
