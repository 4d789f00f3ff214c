"""Prints the table of bench/loaders: a row for each loader, number of workers, and storage."""
import statistics

from cold_files import COLD
from measure import MIB, device_line, shown_size, spread, text

COLUMNS = ["storage", "workers", "loader", "seconds", "samples/s [range]", "x lmdb [range]", "first batch", "waits", "CPU s",
           "read / data", "requests", "PSS", "files"]


def print_head(args, count, directory):
    print(f"""\
One epoch: {count} random records of {shown_size(args.value)}, medians and ranges of {args.rounds} rounds, turn by turn.  Cold: evicted
before each run (mincore: below {100 * COLD:g} % is left).  Warm: in memory before the process starts.  Later: the third epoch of a
process that began cold.  Slow: the data below the slow file system are in memory, and only read requests are delayed: opening a file
and listing a directory are not.
Seconds: with the start and the end of the workers; cold: with opening, too.  x lmdb: time of lmdb in the same round / this
time.  First batch: ms, median and range, from the start of the first worker.  Waits: ms that the program waited for each later
batch: half of them took at most that, 99 % of them, the longest; medians of the rounds.  CPU: seconds of the process and its
workers, without the file system's.  Read / data: bytes read from storage / bytes of all records.  PSS: most memory of the process and
its workers that was found, MiB; files: of it, what is mapped from files (programs, libraries, the database).  Short runs are looked at
only once or twice: memory may have been larger for a moment.
Local: {device_line(directory)}.""")
    print(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)


def row(storage, workers, loader, runs, stock, data_bytes):
    """Returns the row for the runs of a loader.  `stock`: the runs of lmdb, if there are any."""
    def median(what):
        return statistics.median(r[what] for r in runs)

    seconds = {r["round"]: r["seconds"] for r in stock}
    ratios = [seconds[r["round"]] / r["seconds"] for r in runs if r["round"] in seconds]
    most = max(runs, key=lambda r: r["pss"])
    waits = {k: median(k) for k in ("wait_p50_s", "wait_p99_s", "wait_longest_s")}
    return {"storage": storage, "workers": workers, "loader": loader, "seconds": spread([r["seconds"] for r in runs]),
            "samples_per_s": spread([r["samples"] / r["seconds"] for r in runs]), "speed_to_lmdb": spread(ratios) if ratios else None,
            "first_batch_ms": spread([1000 * r["first_batch_s"] for r in runs]), **waits,
            "cpu_s": median("cpu_s"), "storage_to_data": median("storage_bytes") / data_bytes,
            "requests": median("requests") if storage.startswith("slow") else None, "pss": most["pss"], "pss_files": most["pss_files"],
            "runs": runs}


def print_row(r):
    shown = [r["storage"], r["workers"], r["loader"], f"{r['seconds']['median']:.2f}", text(r["samples_per_s"], 0),
             text(r["speed_to_lmdb"], 2) if r["speed_to_lmdb"] else "-", text(r["first_batch_ms"], 0),
             " ".join(f"{1000 * r[k]:.0f}" for k in ("wait_p50_s", "wait_p99_s", "wait_longest_s")), f"{r['cpu_s']:.2f}",
             f"{r['storage_to_data']:.2f}", "-" if r["requests"] is None else f"{r['requests']:.0f}", f"{r['pss'] / MIB:.0f}",
             f"{r['pss_files'] / MIB:.0f}"]
    print(f"| {' | '.join(map(str, shown))} |", flush=True)
