#!/usr/bin/python3
"""Runs the quickstart's programs with stock LMDB, with stock again (A/A control) and with liblmdbio.so preloaded,
interleaved; compares what they read; prints a table and the engine's statistics, writes JSON and a plot.

Exit status: 0; 1 if anything failed or if the programs did not read the same bytes.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(HERE))
from measure import interval, machine_facts, round_order, text  # noqa: E402

PYTHON = "/usr/bin/python3"
BACKENDS = ("stock", "control", "ours")

# What is measured: which program, which of its results, how it is called in the table.
MEASURES = [
    ("c++", lambda r: r["wall"], "C++ like Caffe, whole process"),
    ("c++", lambda r: r["epochs"][0], "C++ like Caffe, first epoch"),
    ("c++", lambda r: statistics.median(r["epochs"][1:]), "C++ like Caffe, later epochs"),
    ("python", lambda r: r["random"], "Python, random samples, first"),
    ("python", lambda r: r["random_again"], "Python, random samples, again"),
    ("python", lambda r: r["sequential"], "Python, cursor over all"),
]


def fail(message):
    sys.exit(f"error: {message}")


class Runner:
    def __init__(self, args):
        self.args = args

    def command(self, program, database, full):
        if program == "c++":
            return [os.path.join(self.args.build, "bin", "demo_consumer"), database, str(self.args.epochs)]
        samples = ["--samples", str(self.args.samples)]
        return [PYTHON, os.path.join(HERE, "consumer.py"), database] + samples + (["--checksum"] if full else [])

    def run(self, program, database, backend, full=False, stats=None):
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("LMDBIO_")}
        if backend == "ours":
            env["LD_PRELOAD"] = self.args.library
        if stats:
            env["LMDBIO_STATS"] = stats
        command = self.command(program, database, full)
        start = time.perf_counter()
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        wall = time.perf_counter() - start
        if done.returncode != 0 or done.stderr:
            fail(f"{' '.join(command)} ({backend}) ended with {done.returncode}: {done.stdout}{done.stderr}")
        return {**json.loads(done.stdout), "wall": wall}


def progress(line):
    if sys.stderr.isatty():
        sys.stderr.write("\r" + line + "\033[K")


def read_through(path):
    """Brings the file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(4 << 20)
        while file.readinto(buffer):
            pass


def what_was_read(result):
    return {k: result[k] for k in ("records", "bytes", "checksum") if k in result}


def settled(database, program, results):
    """Whether every A/A interval of these runs lies within 0.97-1.03."""
    controls = [row["control"] for row in rows_of(database, program, results)]
    return all(c["low"] is not None and c["low"] >= 0.97 and c["high"] <= 1.03 for c in controls)


def measure(runner, database, program, rounds):
    """The runs of one program on one database: {backend: [result, ...]}; the same bytes in every run.  On a busy
    machine, up to twice as many rounds as asked for."""
    name = os.path.basename(database)
    first = {b: what_was_read(runner.run(program, database, b, full=True)) for b in BACKENDS}
    if any(first[b] != first["stock"] for b in BACKENDS):
        fail(f"{name}, {program}: not the same bytes: {first}")
    results = {b: [] for b in BACKENDS}
    for i in range(2 * rounds if rounds >= 6 else rounds):
        if i >= rounds and settled(database, program, results):
            break
        progress(f"{name}, {program}: round {i + 1} of {max(rounds, i + 1)}")
        for backend in (BACKENDS[b] for b in round_order(len(BACKENDS), i)):
            result = runner.run(program, database, backend)
            wanted = {k: v for k, v in first["stock"].items() if k in what_was_read(result)}
            if what_was_read(result) != wanted:
                fail(f"{name}, {program}, {backend}: not the same bytes: {what_was_read(result)}, not {wanted}")
            results[backend].append(result)
    progress("")
    return results, first["stock"]


def rows_of(database, program, results):
    for which, value, title in MEASURES:
        if which != program:
            continue
        seconds = {b: [value(r) for r in results[b]] for b in BACKENDS}
        ratio = [o / s for o, s in zip(seconds["ours"], seconds["stock"])]
        control = [c / s for c, s in zip(seconds["control"], seconds["stock"])]
        yield {"database": os.path.basename(database), "measure": title, "seconds": seconds,
               "ratio": interval(ratio), "control": interval(control)}


def print_table(rows):
    print("\nTime with liblmdbio.so / time with stock, median and its 95 % interval: below 1 is faster.  A/A is stock /\n"
          "stock: what chance alone makes of a ratio on this machine, now.\n")
    print(f"| {'database':10} | {'program':29} | {'stock s':>8} | {'ours s':>8} | {'ours/stock [95 %]':22} | "
          f"{'A/A [95 %]':22} |")
    print(f"|{'-' * 12}|{'-' * 31}|{'-' * 10}|{'-' * 10}|{'-' * 24}|{'-' * 24}|")
    for r in rows:
        stock, ours = (statistics.median(r["seconds"][b]) for b in ("stock", "ours"))
        print(f"| {r['database']:10} | {r['measure']:29} | {stock:8.4f} | {ours:8.4f} | {text(r['ratio']):22} | "
              f"{text(r['control']):22} |")
    if any(c["low"] is not None and (c["low"] < 0.9 or c["high"] > 1.1) for c in (r["control"] for r in rows)):
        print("\nThe A/A intervals are wide: this machine is busy with something else.")


def print_environment(environment):
    """One environment of the statistics: what the engine answered, what it passed on to stock and why."""
    def counted(name):
        return {k: v for k, v in environment.get(name, {}).items() if v}

    ours, passed = counted("calls"), counted("forwarded")
    reads = [sum(c.get(k, 0) for k in ("get", "cursor_get")) for c in (ours, passed)]
    print(f"  read by LMDBIO: {'yes' if environment.get('ours') else 'no, ' + str(environment.get('reason'))}; "
          f"lookups and steps: {reads[0]:,} its own, {reads[1]:,} passed on to stock")
    for title, values in (("calls", ours), ("cursor operations", counted("cursor_ops")), ("passed on", passed),
                          ("process", {k: v for k, v in environment.items() if isinstance(v, int) and k != "ours"})):
        if values:
            print(f"  {title + ':':19} " + ", ".join(f"{k} {v:,}" for k, v in values.items()))


def print_statistics(runner, databases, out):
    """One more run of each program, not timed, with the engine's statistics switched on."""
    file = os.path.join(out, "statistics.jsonl")
    if os.path.exists(file):
        os.remove(file)
    for database in databases:
        for program in ("c++", "python"):
            before = os.path.getsize(file) if os.path.exists(file) else 0
            runner.run(program, database, "ours", stats=file)
            print(f"\nThe engine's statistics (LMDBIO_STATS): {os.path.basename(database)}, {program}")
            if not os.path.exists(file) or os.path.getsize(file) == before:
                fail("liblmdbio.so wrote no statistics: was it loaded?")
            with open(file, encoding="utf-8") as lines:
                lines.seek(before)
                for line in lines:
                    for environment in json.loads(line)["environments"]:
                        print_environment(environment)
    return file


def draw(rows, file, machine):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 0.45 * len(rows) + 1.6), layout="constrained")
    for y, row in enumerate(reversed(rows)):
        for key, color, offset, label in (("ratio", "C0", 0.12, "liblmdbio.so / stock"),
                                          ("control", "grey", -0.12, "stock / stock (A/A)")):
            i = row[key]
            error = [[i["median"] - (i["low"] or i["median"])], [(i["high"] or i["median"]) - i["median"]]]
            axis.errorbar(i["median"], y + offset, xerr=error, fmt="o", color=color, capsize=3,
                          label=label if y == 0 else None)
    axis.axvline(1, color="black", lw=0.8)
    axis.set_yticks(range(len(rows)), [f"{r['measure']}\n{r['database']}" for r in reversed(rows)], fontsize=8)
    axis.set_xlabel("time / time of stock, median and 95 % interval")
    axis.set_title(f"{machine['cpu']}, {machine['cpus']} cores, Linux {machine['kernel']}", fontsize=9)
    axis.legend(fontsize=8)
    figure.savefig(file, dpi=110)


def facts(library):
    version = subprocess.run([PYTHON, "-c", "import lmdb; print(lmdb.__version__, lmdb.version())"],
                             capture_output=True, text=True).stdout.strip()
    return {**machine_facts(), "python_lmdb": version, "library": os.path.basename(library)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("databases", nargs="+")
    parser.add_argument("--build", required=True, help="the build directory")
    parser.add_argument("--library", required=True, help="liblmdbio.so")
    parser.add_argument("--out", required=True, help="where JSON, plot and statistics go")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=20000)
    args = parser.parse_args()
    runner = Runner(args)
    os.makedirs(args.out, exist_ok=True)
    machine = facts(args.library)
    rows, read = [], {}
    for database in args.databases:
        read_through(os.path.join(database, "data.mdb"))
        for program in ("c++", "python"):
            results, bytes_read = measure(runner, database, program, args.rounds)
            read[f"{os.path.basename(database)}, {program}"] = bytes_read
            rows += rows_of(database, program, results)
    print("\nSame bytes with stock and with liblmdbio.so, in every run:")
    for name, what in read.items():
        print(f"  {name}: {what['records']} records, checksum {what['checksum']}")
    print_table(rows)
    statistics_file = print_statistics(runner, args.databases, args.out)
    result_file, plot_file = (os.path.join(args.out, name) for name in ("result.json", "result.png"))
    with open(result_file, "w", encoding="utf-8") as out:
        json.dump({"machine": machine, "rounds": args.rounds, "read": read, "rows": rows}, out, indent=1)
    draw(rows, plot_file, machine)
    print(f"\nResults: {result_file}\nPlot:    {plot_file}\nStatistics: {statistics_file}")


if __name__ == "__main__":
    main()
