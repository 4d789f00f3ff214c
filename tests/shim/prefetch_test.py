"""lmdbio_prefetch from a program that declares it weak, and from Python: the same answers with and without it."""
import os
import subprocess
import unittest

import shimtest

PYTHON = "/usr/bin/python3"


def counters(result):
    totals = {}
    for e in result.environments():
        for name, n in e.get("prefetch", {}).items():
            totals[name] = totals.get(name, 0) + n
    return totals


class Prefetch(shimtest.Case):
    def setUp(self):
        super().setUp()
        self.stock = {}
        self.path = os.path.join(self.dir, "prefetch.mdb")
        made = shimtest.run("stock", ["prefetching", "make", self.path])
        self.assertEqual(made.returncode, 0, made.err)
        with open(self.path, "rb") as f:
            os.fdatasync(f.fileno())

    def compare(self, mode, extra, program="read"):
        if program not in self.stock:
            self.stock[program] = shimtest.run("stock", ["prefetching", program, self.path])
        stock = self.stock[program]
        self.assertEqual(stock.returncode, 0, stock.err)
        got = shimtest.run(mode, ["prefetching", program, self.path], extra)
        self.check_same(stock, got)
        return counters(got)

    def test_every_way_of_loading(self):
        shimtest.skip_under_tsan(self, "dies in a child of a process with threads that makes threads")
        for mode in shimtest.modes():
            with self.subTest(mode=mode):
                n = self.compare(mode, {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "64M"})
                self.assertGreater(n["keys"], 10000)
                self.assertEqual(n["dropped"], 0)
        self.compare("disabled", {})

    def test_settings(self):
        shimtest.skip_under_tsan(self, "dies in a child of a process with threads that makes threads")
        mode = shimtest.modes()[0]
        for extra in ({}, {"LMDBIO_IO": "buffered"}, {"LMDBIO_IO": "mmap"}, {"LMDBIO_MEMORY": "0"},
                      {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "8M"},
                      {"LMDBIO_IO": "direct", "LMDBIO_ENGINE": "threads"},
                      {"LMDBIO_IO": "direct", "LMDBIO_ENGINE": "pread"}):
            with self.subTest(extra=extra):
                n = self.compare(mode, extra)
                if extra.get("LMDBIO_IO") == "mmap":
                    self.assertEqual(n, {})
                elif n["cached"] < n["found"]:  # the page cache let go of some
                    self.assertGreater(n["read"], 0)
                    if extra.get("LMDBIO_MEMORY") == "0" or extra.get("LMDBIO_IO") == "buffered":
                        self.assertEqual(n["arena"], 0)

    def test_write_transactions_and_what_is_not_served(self):
        for mode in shimtest.modes():
            with self.subTest(mode=mode):
                self.assertEqual(self.compare(mode, {}, "write"), {})

    def test_python(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("Python has no sanitizer's runtime")
        if subprocess.run([PYTHON, "-c", "import lmdb"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no python3-lmdb")
        argv = [PYTHON, os.path.join(shimtest.CONFIG["source"], "docs", "examples", "prefetch.py"), self.path, "3"]
        stock = shimtest.run("stock", argv)
        self.assertEqual(stock.returncode, 0, stock.err)
        self.assertIn("not prefetched", stock.err)
        for extra in ({"LMDBIO_IO": "direct"}, {}):
            got = shimtest.run("preload", argv, extra)
            self.assertEqual(got.returncode, 0, got.err)
            self.assertEqual(got.out, stock.out)
            self.assertEqual(got.err, "prefetched\n")
            self.assertGreater(counters(got)["keys"], 1000)


if __name__ == "__main__":
    shimtest.main()
