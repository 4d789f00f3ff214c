#!/usr/bin/python3
"""Tests of ../waits.py: the constants follow from tables of known costs.  The tables are computed, so they do not depend on a machine."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from scale import waits  # noqa: E402

CASES = [  # CPU s of a resident fault, of the read, of a process that was woken, of the server for each process and for the request
    {"fault_s": 2e-6, "major_fault_s": 33e-6, "woken_s": 6e-6, "wake_s": 1e-6, "server_s": 110e-6},
    {"fault_s": 1e-6, "major_fault_s": 0, "woken_s": 0, "wake_s": 0, "server_s": 0},
    {"fault_s": 3e-6, "major_fault_s": 5e-6, "woken_s": 40e-6, "wake_s": 9e-6, "server_s": 10e-6},
]


def rows_of(costs, processes, cores=(1, 2)):
    for n in processes:
        cpu_s = (n * (costs["fault_s"] + costs["woken_s"]) + costs["major_fault_s"]) / n
        for c in cores:
            yield {"case": "same", "cores": c, "processes": n, "cpu_s": cpu_s, "switches": 1.0, "span_s": 0.0,
                   "server_cpu_s": costs["server_s"] + n * costs["wake_s"]}
            yield {"case": "resident", "cores": c, "processes": n, "cpu_s": 1.0, "switches": 0.0, "span_s": 0.0, "server_cpu_s": 1.0}


def close(found, costs, by):
    return all(abs(found[name] - costs[name]) <= by * costs[name] + 1e-12 for name in ("major_fault_s", "wake_s", "woken_s"))


def main():
    for costs in CASES:
        other = list(rows_of({name: 3 * value for name, value in costs.items()}, [1, 2], [1]))  # with fewer CPUs
        for processes in (waits.PROCESSES, waits.FEW_PROCESSES, waits.PROCESSES[::-1]):
            rows = other + list(rows_of(costs, processes, [2]))
            found = waits.constants(rows, costs["fault_s"])
            assert close(found, costs, 1e-6), (costs, found)
    # One outlier of seven rows changes little.
    rows = list(rows_of(CASES[0], waits.PROCESSES, [2]))
    next(r for r in rows if r["case"] == "same" and r["processes"] == 8)["cpu_s"] *= 10
    assert abs(waits.constants(rows, CASES[0]["fault_s"])["woken_s"] / CASES[0]["woken_s"] - 1) < 0.3
    # Noise may make a time less than nothing, but no constant.
    rows = list(rows_of(CASES[1], waits.PROCESSES))
    assert all(value >= 0 for value in waits.constants(rows, 1.0).values())
    lines = list(waits.table(rows))
    assert len(lines) == 2 + len(rows) and len({line.count("|") for line in lines}) == 1, lines


if __name__ == "__main__":
    sys.exit(main())
