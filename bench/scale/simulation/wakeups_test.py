#!/usr/bin/python3
"""Tests that the validation detects a model in which wake-ups cost nothing, and accepts the model as it is. Simulated jobs stand for real
ones, so the test does not depend on the times of this machine.

    wakeups_test.py PROGRAM PLATFORM
"""
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))
import cold_files  # noqa: E402,F401  (puts tests/support on the path)
from scale.simulation import simulated_jobs  # noqa: E402
from scale.validate import Validation  # noqa: E402

PROGRAM, PLATFORM = sys.argv[1:3]
# Those of an emulated host with two CPUs.  The file system is fast, so that the CPUs limit the jobs.
COSTS = {"next_s": 5e-8, "fault_s": 2e-6, "major_fault_s": 4e-5, "wake_s": 1.7e-6, "woken_s": 1.4e-5, "copy_bytes_s": 8e9}
SHAPES, STRATEGIES, NOISE = ("1x4", "1x16", "1x64"), ("stock", "lmm"), (0.99, 1, 1.01)


def predict(directory, costs):
    with open(PLATFORM, encoding="utf-8") as file:
        platform = json.load(file)
    platform["cores"], platform["cpu"], platform["emulated"] = 2, costs, {"request_s": 1e-5, "bytes_s": 2e9}
    platform["storage"] |= {"latency_s": 1e-4, "server_bytes_s": 1e10}
    path = os.path.join(directory, "platform.json")
    with open(path, "w", encoding="utf-8") as out:
        json.dump(platform, out)
    for shape in SHAPES:
        hosts, each = map(int, shape.split("x"))
        for strategy in STRATEGIES:
            job = simulated_jobs.run(PROGRAM, path, hosts * each, [
                "db", "--make", "cifar10-like", "--bytes", "16MiB", "--multiple", "256", "--strategy", strategy, "--batch",
                str(256 // (hosts * each)), "--epochs", "2"], each)
            for part, facts in Validation.parts(job["epochs"]):
                yield {"content": "cifar10-like", "shape": shape, "compute": 0.0, "strategy": strategy, "part": part}, facts


def main():
    with tempfile.TemporaryDirectory(prefix="lmdbio_wakeups_") as directory:
        real = list(predict(directory, COSTS))
        wrong = list(predict(directory, COSTS | {"wake_s": 0, "woken_s": 0}))
    for name, predicted in (("the model", real), ("wake-ups cost nothing", wrong)):
        rows = [Validation.row(key, [facts | {"seconds": noise * facts["seconds"]} for noise in NOISE], guess)
                for (key, facts), (_, guess) in zip(real, predicted)]
        verdict = list(Validation.verdict(rows))
        print(f"{name}:", *(f"  {'holds' if holds else 'FAILS'}: {what}" for what, holds in verdict), sep="\n")
        errors = {(r["strategy"], r["part"], r["shape"]): r["error"] for r in rows}
        assert all(holds for _, holds in verdict) == (name == "the model"), errors
        # With more processes of a node, more is missing.  Later epochs read nothing, so they have no wake-ups.
        if name != "the model":
            first = [errors["stock", "first", shape] for shape in SHAPES]
            assert first == sorted(first, reverse=True) and first[-1] < 0, errors
            assert all(abs(error) < 1e-9 for (_, part, _), error in errors.items() if part == "later"), errors


if __name__ == "__main__":
    sys.exit(main())
