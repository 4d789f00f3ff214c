#!/usr/bin/python3
"""Measures the cost of Python: the same loop over a reader's shuffled batches of 64 records in C++ (reader_loop.cc) and in Python.
The loop reads the first byte of each value.  The file is in the page cache, and the epochs after the first one are measured.
Records have 110 and 3 KiB.  Runs the loops in turns.  Prints a table, and JSON with --json.

    bench/loading/reader_loops.py --build build/dev
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

import lmdb

EPOCHS = 4  # of a run; the first one is not counted
LOOP = """
import sys, time, lmdbio
reader, how, sum = lmdbio.Reader(sys.argv[1]), sys.argv[3:], 0
for epoch in range(int(sys.argv[2])):
    begun = time.perf_counter()
    for batch in reader.stream(lmdbio.Order.shuffled(1, batch=64).resume(epoch), bytes_as="mapped" if "mapped" in how else "view"):
        for key, value in batch:
            sum += value[0]
        if "keep" not in how:
            del batch, key, value
    print(f"{time.perf_counter() - begun:.6f}")
print(sum, file=sys.stderr)
"""
# Name: the program, its arguments, and the loop with which its records/s are compared.
LOOPS = {"C++": ("c", [], None), "Python": ("python", [], "C++"), "Python, without del": ("python", ["keep"], "C++"),
         "C++, mapped": ("c", ["mapped"], None), "Python, mapped": ("python", ["mapped"], "C++, mapped")}


def write(path, count, value_bytes, record=lambda choose, value_bytes: choose.randbytes(value_bytes)):
    choose = random.Random(1)
    with lmdb.open(path, map_size=count * (value_bytes + 8192) + (1 << 20)) as env:
        for first in range(0, count, 1000):
            with env.begin(write=True) as txn:
                for i in range(first, min(count, first + 1000)):
                    txn.put(b"%08d" % i, record(choose, value_bytes), append=True)


def run(build, kind, *arguments):
    program = [os.path.join(build, "bin", "reader_loop")] if kind == "c" else [sys.executable, "-c", LOOP]
    done = subprocess.run([*program, *arguments], env={**os.environ, "PYTHONPATH": os.path.join(build, "python")}, check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return [float(line) for line in done.stdout.split()][1:], done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/dev")
    parser.add_argument("--mib", type=int, default=512, help="of records (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="file for the results")
    args = parser.parse_args()
    rows = []
    print("| record | loop | records/s [range] | of C++ [range] |\n|---|---|---|---|")
    for value_bytes in (112640, 3072):
        with tempfile.TemporaryDirectory(prefix="lmdbio-loops-") as path:
            count = (args.mib << 20) // value_bytes
            write(path, count, value_bytes)
            rates = {name: [] for name in LOOPS}
            for _ in range(args.rounds):
                sums = set()
                for name, (kind, more, _) in LOOPS.items():
                    seconds, total = run(os.path.abspath(args.build), kind, path, str(EPOCHS), *more)
                    rates[name].append(count / statistics.median(seconds))
                    sums.add(total)
                if len(sums) != 1:
                    sys.exit(f"the loops returned different records: {sums}")
        for name, (_, _, other) in LOOPS.items():
            ratios = [a / b for a, b in zip(rates[name], rates[other])] if other else []
            rows.append({"value_bytes": value_bytes, "loop": name, "records_per_s": rates[name], "of_c": ratios})
            shown = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]" if other else ""
            print(f"| {value_bytes / 1024:g} KiB | {name} | {statistics.median(rates[name]):,.0f} [{min(rates[name]):,.0f}, "
                  f"{max(rates[name]):,.0f}] | {shown} |", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
