#!/usr/bin/python3 -B
"""caffe_patch/compare with a stand-in for Caffe: what is right passes, and a program that reads other records, or computes
other losses, is found.  usage: compare_test.py SOURCE_DIRECTORY

The stand-in is this file, started as `caffe train --solver=...`: it reads the labels of the database with py-lmdb, as Caffe
would, and prints what Caffe prints of them.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest


def label_of(datum):
    """The last field of what caffe_jobs.datum() makes: label, a varint."""
    at = len(datum) - 1
    while at > 0 and datum[at - 1] & 128:
        at -= 1
    return sum((b & 127) << (7 * i) for i, b in enumerate(datum[at:]))


def caffe(solver):
    import lmdb

    with open(solver, encoding="utf-8") as file:
        settings = file.read()
    with open(re.search(r'net: "(.*)"', settings)[1], encoding="utf-8") as file:
        net = file.read()
    path = re.search(r'source: "(.*?)"', net)[1]
    with lmdb.open(path, readonly=True, lock=False) as env, env.begin() as txn:
        labels = [label_of(value) for _, value in txn.cursor()]
    wrong = os.environ.get("WRONG") if "backend: LMDBIO" in net else None
    if "SoftmaxWithLoss" in net:
        for i in range(5):
            print(f"Iteration {i}, loss = {1 / (i + 1) + (0.5 if wrong == 'losses' else 0)}")
        return
    for i in range(int(re.search(r"max_iter: (\d+)", settings)[1])):
        label = labels[(i + (i == 7 and wrong == "ordinals")) % len(labels)]
        print(f"    Train net output #0: label = {label}")
        if i % 7 == 0:
            print(f"    Test net output #0: label = {label}")


class CompareTest(unittest.TestCase):
    def compare(self, wrong, rc):
        with tempfile.TemporaryDirectory() as at:
            program = os.path.join(at, "caffe")
            with open(program, "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\nexec /usr/bin/python3 -B {os.path.abspath(__file__)} "$@"\n')
            os.chmod(program, 0o755)
            done = subprocess.run([os.path.join(TOP, "caffe_patch", "compare"), program, program, "--parts", "ordinals,losses",
                                   "--out", at, "--library", program], env=os.environ | {"WRONG": wrong}, capture_output=True, text=True)
            self.assertEqual(done.returncode, rc, done.stdout + done.stderr)
            with open(os.path.join(at, "result.json"), encoding="utf-8") as file:
                return {(c["what"], c["way"]): c["same"] for c in json.load(file)["checks"]}

    def test_equal(self):
        checks = self.compare("", 0)
        self.assertEqual(len(checks), 12)
        self.assertTrue(all(checks.values()))

    def test_another_record(self):
        checks = self.compare("ordinals", 1)
        self.assertEqual([key for key, same in checks.items() if not same],
                         [("records", "backend"), ("records, shuffled", "backend")])

    def test_another_loss(self):
        checks = self.compare("losses", 1)
        self.assertEqual([key for key, same in checks.items() if not same], [("5 losses", "backend")])


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        caffe(sys.argv[2].removeprefix("--solver="))
    else:
        TOP = os.path.abspath(sys.argv.pop(1))
        unittest.main()
