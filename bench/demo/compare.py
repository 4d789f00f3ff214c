#!/usr/bin/python3
"""Runs the quickstart's programs in turns with stock LMDB and with liblmdbio.so preloaded, on slow storage and in memory.
Compares the bytes that they read.  Prints a table and a summary in words.  Writes JSON and a plot.

Exit status: 0; 1 if anything failed or if the programs did not read the same bytes.
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(HERE))
import cold_files  # noqa: E402
from measure import Skip, fail, interval, machine_facts, progress, round_order, spread  # noqa: E402

PYTHON = "/usr/bin/python3"
PROCESSES = 8


class Job:
    """Processes that run at the same time.  `own_time`: they measure the time of reading themselves, without the start of
    the interpreter.  Otherwise the time ends when the last process has ended."""
    def __init__(self, title, commands, own_time):
        self.title, self.commands, self.own_time = title, commands, own_time


def jobs(args, database, epochs, samples):
    consumer = os.path.join(args.build, "bin", "demo_consumer")
    strided = [[consumer, database, str(epochs), str(r), str(PROCESSES)] for r in range(PROCESSES)]
    return [
        Job("C++, all records in order", [[consumer, database, str(epochs)]], False),
        Job("Python, random order", [[PYTHON, os.path.join(HERE, "sampler.py"), database, "--samples", str(samples)]], True),
        Job(f"Python, random order, {PROCESSES} workers",
            [[PYTHON, os.path.join(HERE, "loader.py"), database, "--workers", str(PROCESSES), "--epochs", str(epochs)]], True),
        Job(f"C++, {PROCESSES} processes, 1/{PROCESSES} of the records each", strided, False),
    ]


def environment(args, backend):
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("LMDBIO_")}
    if backend == "ours":
        env["LD_PRELOAD"] = args.library
    return env


def run(args, job, backend):
    """Runs a job.  Returns the seconds, and a summary of the records that were read."""
    begin = time.perf_counter()
    running = [subprocess.Popen(c, env=environment(args, backend), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for c in job.commands]
    results = []
    for process, command in zip(running, job.commands):
        out, err = process.communicate()
        if process.returncode != 0 or err:
            fail(f"{' '.join(command)} ({backend}) ended with {process.returncode}: {out}{err}")
        results.append(json.loads(out))
    seconds = time.perf_counter() - begin
    if job.own_time:
        seconds = max(r["seconds"] for r in results)
    return seconds, [{k: r[k] for k in ("records", "bytes", "checksum")} for r in results]


def measure(args, where, state, title, database, epochs, samples, backends, rounds):
    """Returns the rows of one storage: runs each job with each backend, in turns."""
    rows = []
    make = cold_files.make_cold if state == "cold" else cold_files.make_warm
    for job in jobs(args, os.path.join(where.dir, database), epochs, samples):
        seconds, read = {b: [] for b in backends}, None
        for i in range(rounds):
            for n, backend in enumerate(backends[j] for j in round_order(len(backends), i)):
                progress(f"{title}: {job.title}: round {i + 1} of {rounds}, run {n + 1} of {len(backends)}")
                if state == "cold" or (i, n) == (0, 0):
                    where.prepare(database, make)
                took, got = run(args, job, backend)
                read = read or got
                if got != read:
                    fail(f"{title}, {job.title}, {backend}: not the same bytes: {got}, not {read}")
                seconds[backend].append(took)
        progress("")
        rows.append({"place": title, "state": state, "job": job.title, "seconds": seconds, "read": read,
                     **{b: ratio(seconds, b) for b in backends[1:]}})
    return rows


def ratio(seconds, backend):
    """Returns the speed-up: time of stock / time of the backend in the same round, with its interval (below six rounds: its range)."""
    ratios = [s / t for s, t in zip(seconds["stock"], seconds[backend])]
    return interval(ratios) if len(ratios) >= 6 else spread(ratios)


def shown(r):
    return f"{r['median']:5.2f} [{r['low']:.2f}, {r['high']:.2f}]"


def statistics_of(args, database):
    """Returns LMDBIO's statistics of the data loader."""
    command = [os.path.join(args.build, "bin", "lmdbio"), "run", "--stats", "--library", args.library, "--", PYTHON,
               os.path.join(HERE, "loader.py"), database, "--workers", str(PROCESSES)]
    done = subprocess.run(command, env=environment(args, "stock"), capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return done.stderr


def print_table(rows):
    print("\nSpeed-up: time of stock LMDB / time with liblmdbio.so preloaded, medians; brackets: 95 % interval (range, below 6\n"
          "rounds).  A/A: stock / stock, the variation by chance.\n")
    head = ["storage", "program", "stock s", "LMDBIO s", "speed-up", "A/A"]
    table = [[r["place"], r["job"], f"{spread(r['seconds']['stock'])['median']:.2f}", f"{spread(r['seconds']['ours'])['median']:.2f}",
              shown(r["ours"]), shown(r["control"]) if "control" in r else "-"] for r in rows]
    widths = [max(len(line[i]) for line in [head, *table]) for i in range(len(head))]
    for line in [head, ["-" * w for w in widths], *table]:
        print("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths)) + " |")


def in_words(rows, title):
    """Yields three sentences that summarise the results."""
    slow, memory = ([r for r in rows if r["state"] == state] for state in ("cold", "warm"))
    least, most = (pick(slow, key=lambda r: r["ours"]["median"]) for pick in (min, max))
    yield (f"{title}: with LMDBIO the programs were {least['ours']['median']:.1f} to {most['ours']['median']:.1f} times as fast as "
           f"with stock LMDB; the largest speed-up was for \"{most['job']}\".")
    low, high = (pick(r["ours"]["median"] for r in memory) for pick in (min, max))
    yield (f"File in memory: {low:.2f} to {high:.2f} times as fast; the goal there is only not to be slower. Two runs of stock LMDB "
           f"differed by factors of {min(r['control']['low'] for r in memory):.2f} to {max(r['control']['high'] for r in memory):.2f}.")
    yield (f"In all {sum(len(s) for r in rows for s in r['seconds'].values())} runs the programs read the same bytes with both "
           "libraries, and none of them was changed.")


def draw(rows, file, machine, date):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    places = list(dict.fromkeys(r["place"] for r in rows))
    figure, axes = plt.subplots(1, len(places), figsize=(10, 3.6), layout="constrained", sharey=True)
    kinds = []
    for axis, place, color in zip(axes, places, ("C0", "C2")):
        here = [r for r in rows if r["place"] == place][::-1]
        values = [r["ours"]["median"] for r in here]
        errors = [[v - r["ours"]["low"] for v, r in zip(values, here)], [r["ours"]["high"] - v for v, r in zip(values, here)]]
        axis.barh([r["job"] for r in here], values, xerr=errors, color=color, alpha=0.8, height=0.6,
                  error_kw={"ecolor": "black", "elinewidth": 1, "capsize": 3})
        reach = max(r["ours"]["high"] for r in here)
        for y, (v, r) in enumerate(zip(values, here)):
            axis.text(r["ours"]["high"] + 0.02 * reach, y, f"{v:.1f}x" if v >= 2 else f"{v:.2f}x", va="center", fontsize=9)
        axis.axvline(1, color="red", lw=1, ls="--", label="1x: as fast as stock LMDB")
        axis.set_xlim(0, 1.18 * max(reach, 1))
        axis.set_title(place, fontsize=10)
        axis.tick_params(labelsize=9)
        rounds = len(here[0]["seconds"]["ours"])
        kinds.append(f"{'95 % interval' if rounds >= 6 else 'range'} of {rounds} rounds")
    figure.suptitle("Speed-up: time with stock LMDB / time with LMDBIO", fontsize=11)
    axes[0].legend(loc="lower right", fontsize=8)
    figure.supxlabel(f"Error bars: {' (left), '.join(kinds)} (right).  Python: readahead=False.  {machine['cpus']} cores, Linux {machine['kernel'].split('-')[0]}, "
                     f"{date}", fontsize=8, x=0.01, ha="left")
    figure.savefig(file, dpi=110)


@contextlib.contextmanager
def slow_place(args):
    """Yields a title and a file system that takes 1 ms for each request; without FUSE, the local disk."""
    try:
        with cold_files.setup("slow-1ms", args) as where:
            yield "simulated storage, 1 ms per request, cold", where
        return
    except Skip as e:
        print(f"No slow file system can be made here ({e}): the local disk, cold, is measured instead.", flush=True)
    with cold_files.setup("local", args) as where:
        yield "local disk, cold", where


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database")
    parser.add_argument("--build", required=True, help="the build directory")
    parser.add_argument("--library", required=True, help="liblmdbio.so")
    parser.add_argument("--out", required=True, help="where JSON and plot go")
    parser.add_argument("--rounds", type=int, default=3, help="where I/O is slow (default: %(default)s)")
    parser.add_argument("--warm-rounds", type=int, default=9, help="in memory (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=100, help="records at random where I/O is slow (default: %(default)s)")
    parser.add_argument("--warm-samples", type=int, default=10000, help="in memory (default: %(default)s)")
    parser.add_argument("--warm-epochs", type=int, default=12, help="epochs in memory (default: %(default)s)")
    parser.add_argument("--control", action="store_true", help="A/A where I/O is slow, too")
    args = parser.parse_args()
    args.dir, database = os.path.split(os.path.abspath(args.database))
    args.local_bytes = args.slow_bytes = 0
    os.makedirs(args.out, exist_ok=True)
    machine, date = machine_facts(), time.strftime("%Y-%m-%d")
    with slow_place(args) as (title, where):
        rows = measure(args, where, "cold", title, database, 1, args.samples,
                       ["stock", "ours"] + ["control"] * args.control, args.rounds)
        where.prepare(database)
        told = statistics_of(args, os.path.join(where.dir, database))
    with cold_files.setup("local", args) as where:
        rows += measure(args, where, "warm", "local disk, file in the page cache", database, args.warm_epochs,
                        args.warm_samples, ["stock", "ours", "control"], args.warm_rounds)
    print_table(rows)
    words = list(in_words(rows, title[0].upper() + title[1:]))
    print("\n" + "\n".join(words))
    print(f"\nWhat \"lmdbio run --stats\" tells of the data loader ({title}):\n\n{told}", end="")
    result, plot = (os.path.join(args.out, name) for name in ("result.json", "result.png"))
    with open(result, "w", encoding="utf-8") as out:
        json.dump({"machine": machine, "date": date, "rows": rows, "words": words}, out, indent=1)
    draw(rows, plot, machine, date)
    print(f"\nResults: {result}\nPlot:    {plot}")


if __name__ == "__main__":
    main()
