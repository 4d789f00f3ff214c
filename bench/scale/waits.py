"""What page faults cost if processes of a node wait for the same pages: constants of a platform from the rows that
simulation/measure_faults.cc prints."""
import itertools
import statistics

# Numbers of processes that --calibrate measures, and those of quick runs.
PROCESSES, FEW_PROCESSES = [1, 2, 4, 8, 16, 32, 64], [1, 8]
COLUMNS = {"cpu_s": "CPU us of a fault", "switches": "switches", "span_s": "first to last, us", "server_cpu_s": "CPU us of the server"}


def slope(points):
    """Returns the median slope between each two of the points (x, y), an estimate that outliers do not change (Theil and Sen)."""
    return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2) if a[0] != b[0])


def constants(rows, fault_s):
    """Returns `major_fault_s`, `wake_s` and `woken_s`, from the rows with the most CPUs.  `rows`: cases with at least two numbers of
    processes.  `fault_s`: seconds of a fault of a resident page.

    One process reads the page, and all others wait for it, so the CPU time of all processes together grows with their number by what a
    process that waits takes: a fault, and woken_s.  The server wakes them, so its CPU time grows by wake_s for each."""
    most = max(row["cores"] for row in rows)
    same = [row for row in rows if row["case"] == "same" and row["cores"] == most]
    waits_s = slope([(r["processes"], r["processes"] * r["cpu_s"]) for r in same])
    reads = min(same, key=lambda r: r["processes"])
    found = {"major_fault_s": reads["processes"] * (reads["cpu_s"] - waits_s), "woken_s": waits_s - fault_s,
             "wake_s": slope([(r["processes"], r["server_cpu_s"]) for r in same])}
    return {name: max(value, 0) for name, value in found.items()}


def table(rows):
    """Returns lines of Markdown."""
    yield f"| case | CPUs | processes | {' | '.join(COLUMNS.values())} |"
    yield "|---" * (len(COLUMNS) + 3) + "|"
    for r in sorted(rows, key=lambda r: (r["case"], r["cores"], r["processes"])):
        shown = [f"{r[name]:.2f}" if name == "switches" else f"{1e6 * r[name]:.1f}" for name in COLUMNS]
        yield f"| {r['case']} | {r['cores']} | {r['processes']} | {' | '.join(shown)} |"
