#!/usr/bin/python3
"""Tests bench/scale/run --workload: what ranks get, the table, the file and the plot.

    workloads_test.py emulated|simulated RUN BUILD PLATFORM             77: there are no emulated hosts here

Real jobs compare each sample with its checksum.  Times are those of simulated jobs only, which are always the same.
"""
import json
import os
import subprocess
import sys
import tempfile

KIND, RUN, BUILD, PLATFORM = sys.argv[1:5]
# Samples' mean bytes and their tolerance, seconds of computation and batch on an A100.
WORKLOADS = {"resnet50": (114660, 0, 0.435, 400), "cosmoflow": (2828486, 0.05, 0.00551, 1), "unet3d": (146600628, 0.3, 0.636, 7)}


def run(directory, *words):
    """Returns the status, the report, and the lines of tables."""
    job = subprocess.run([RUN, *words, "--build", BUILD, "--out", directory], stdout=subprocess.PIPE, text=True, check=False)
    print(job.stdout)
    if job.returncode != 0:
        return job.returncode, None, []
    with open(os.path.join(directory, "result.json"), encoding="utf-8") as file:
        return 0, json.load(file), [line for line in job.stdout.splitlines() if line.startswith("| a100")]


def check_needs(row, batch):
    mean, tolerance, compute, whole = WORKLOADS[row["workload"]]
    compute *= batch / whole
    assert abs(row["compute_s"] / compute - 1) < 1e-9, row
    assert row["records"] == row["ranks"] * batch * row["steps"], row
    assert abs(row["bytes"] / row["records"] / mean - 1) <= tolerance, row
    needs = row["ranks"] * batch * row["bytes"] / row["records"] / compute / 1e6
    assert abs(row["needs_MB_per_s"] / needs - 1) < 1e-9, row
    if row["raw_MB_per_s"]:
        assert abs(row["possible"] - min(1, row["raw_MB_per_s"] / row["needs_MB_per_s"])) < 1e-9, row


def emulated(directory):
    status, report, lines = run(directory, "--workload", "resnet50,cosmoflow", "--smoke")
    if status != 0:
        return status
    rows = report["rows"]
    # 2 workloads, 2 shapes, with and without a cap.
    ways = ["stock", "stock-alone", "preload", "preload-alone", "reader", "ranks"]
    assert len(lines) == 8 and [r["way"] for r in rows] == 8 * ways, lines
    for line, first in zip(lines, rows[::len(ways)]):
        assert line.split(" | ")[1:3] == [first["shape"], str(first["cap"] or "none")] and line.count("|") == 13, line
    for row in rows:
        check_needs(row, 2)
        assert row["ranks"] == {"1x1": 1, "2x2": 4}[row["shape"]] and row["steps"] >= 6 and row["checked"], row
        u = row["utilization"]
        assert 0 < u["low"] <= u["median"] <= u["high"] <= 1, row
        # What other ranks of the host use may come from its page cache; nothing else does.
        assert row["read_to_samples"] > 0.95, row
        assert row["storage_requests"] > 0 and row["memory_kib"] > 0, row
    status, again, _ = run(directory, "--workload", "resnet50,cosmoflow", "--smoke", "--ways", "tape")
    assert status == 2 and again is None
    return 0


def simulated(directory):
    words = ["--workload", "all", "--accelerators", "a100", "--simulate", PLATFORM, "--ranks", "1,16", "--steps", "16"]
    status, report, lines = run(directory, *words, "--batch", "1", "--fresh")
    assert status == 0 and len(lines) == 6, status
    for row in report["rows"]:
        check_needs(row, 1)
        assert row["nodes"] == (row["ranks"] + 7) // 8 and 15 <= row["steps"] <= 17, row
        # The first step, which does not count, may read ahead for the others.
        assert 0 < row["utilization"] < 1 + 1e-9 and row["utilization"] < 1.3 * row["possible"], row
    by_way = {(r["workload"], r["ranks"], r["way"]): r["utilization"] for r in report["rows"]}
    assert by_way["resnet50", 1, "ranks"] > 0.99, by_way  # 105 of 400 MB/s
    assert by_way["cosmoflow", 1, "stock-alone"] < 0.5, by_way  # reads and computes in turns
    assert all(used <= by_way[name, ranks, "ranks"] + 0.01 for (name, ranks, _), used in by_way.items()), by_way
    with open(os.path.join(directory, "jobs.jsonl"), encoding="utf-8") as file:
        before = file.read()
    status, again, _ = run(directory, *words, "--batch", "1")  # has run before
    with open(os.path.join(directory, "jobs.jsonl"), encoding="utf-8") as file:
        assert status == 0 and again["rows"] == report["rows"] and file.read() == before
    return 0


def main():
    with tempfile.TemporaryDirectory(prefix="lmdbio_workloads_test_") as directory:
        status = {"emulated": emulated, "simulated": simulated}[KIND](directory)
        if status == 0:
            try:
                import matplotlib  # noqa: F401
                assert os.path.getsize(os.path.join(directory, "utilization.png")) > 0
            except ImportError:
                pass
        return status


if __name__ == "__main__":
    sys.exit(main())
