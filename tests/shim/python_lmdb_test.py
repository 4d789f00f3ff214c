"""Debian's python3-lmdb, which loads the system's liblmdb with RTLD_LOCAL, with and without LMDBIO underneath."""
import os
import unittest

import shimtest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python_lmdb_script.py")
PYTHON = "/usr/bin/python3"


class PythonLmdb(shimtest.Case):
    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("Python has no sanitizer's runtime")
        if shimtest.run("stock", [PYTHON, "-c", "import lmdb.cpython"]).returncode != 0:
            self.skipTest("no python3-lmdb")

    def test_transcript(self):
        # The same path each time: messages name it.
        argv = [PYTHON, SCRIPT, self.fresh()]
        stock = shimtest.run("stock", argv)
        self.assertEqual(stock.returncode, 0, stock.err)
        for mode in ("preload", "soname", "disabled"):
            with self.subTest(mode=mode):
                self.fresh()
                got = shimtest.run(mode, argv)
                self.check_same(stock, got)
                if mode == "disabled":
                    self.assertEqual(got.calls_ours(), 0)
                else:
                    self.assertGreater(got.calls_ours(), 10000)


if __name__ == "__main__":
    shimtest.main()
