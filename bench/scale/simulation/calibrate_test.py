#!/usr/bin/python3
"""Tests that the measured constants of this machine follow the settings of the slow file system, and can be simulated.  Compares
simulated jobs with real ones, and checks that wrong constants make wrong predictions.

    calibrate_test.py RUN BUILD                     77: there are no emulated hosts here
"""
import json
import os
import subprocess
import sys
import tempfile

RUN, BUILD = sys.argv[1:3]
JOB = ["db", "--ranks", "4", "--make", "cifar10-like", "--bytes", "4MiB", "--batch", "8", "--strategy", "lmm"]


def numbers(part):
    for value in part.values():
        if isinstance(value, dict):
            yield from numbers(value)
        elif not isinstance(value, str):
            yield value


def main():
    with tempfile.TemporaryDirectory(prefix="lmdbio_calibrate_test_") as directory:
        platforms = []
        for delay_us, cap in ((500, 100), (20000, 0)):
            file = os.path.join(directory, f"{delay_us}.json")
            job = subprocess.run([RUN, "--calibrate", file, "--delay-us", str(delay_us), "--cap", str(cap), "--quick", "--build", BUILD],
                                 check=False)
            if job.returncode == 77:
                return 77
            assert job.returncode == 0, job.returncode
            with open(file, encoding="utf-8") as read:
                platforms.append(json.load(read))
            subprocess.run([RUN, "--simulate", file, *JOB, "--build", BUILD, "--out", directory], check=True)
    quick, slow = platforms
    for platform in platforms:
        assert all(number >= 0 for number in numbers(platform)), platform
    # On a busy machine, a delay is still a lower bound of the latency, and a cap gives a lower bound of the
    # time of a transfer.
    assert quick["storage"]["latency_s"] > 0.0004 and slow["storage"]["latency_s"] > 0.019, platforms
    assert quick["storage"]["server_bytes_s"] <= 1e8 and slow["storage"]["server_bytes_s"] != 1e8, platforms
    assert slow["storage"]["latency_s"] > quick["storage"]["latency_s"], platforms
    return compares_with_real_jobs()


def compares_with_real_jobs():
    """Checks only predicted times, because the times of real jobs depend on the load of the machine."""
    with tempfile.TemporaryDirectory(prefix="lmdbio_calibrate_test_") as directory:
        command = [RUN, "--validate", "--contents", "imagenet-like", "--shapes", "1x1,2x1", "--strategies", "stock,lmm-dio",
                   "--rounds", "2", "--bytes", "8M", "--batch", "4", "--delay-us", "5000", "--quick", "--build", BUILD, "--out", directory]
        rows = []
        for more in ([], ["--reuse", "--multiply", "storage.latency_s=10"]):
            assert subprocess.run([*command, *more], check=False).returncode in (0, 1)  # 1: a bound does not hold
            with open(os.path.join(directory, "result.json"), encoding="utf-8") as read:
                rows.append(json.load(read)["rows"])
        right, wrong = rows
        assert len(right) == len(wrong) == 4 and all(row["runs"] == 2 for row in right), rows
        assert right[0]["bytes"]["measured"][0] == right[0]["bytes"]["predicted"], right[0]
        for a, b in zip(right, wrong):
            assert a["seconds"] == b["seconds"] and b["predicted_s"] > 3 * a["predicted_s"], (a, b)
        misspelt = [*command, "--reuse", "--multiply", "storage.latency=2"]
        assert subprocess.run(misspelt, check=False, stderr=subprocess.DEVNULL).returncode == 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
