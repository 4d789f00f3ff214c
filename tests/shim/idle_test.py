"""A process that preloads the library and has nothing to do with LMDB notices nothing."""
import os
import unittest

import shimtest


class Idle(shimtest.Case):
    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("needs a preload")

    def test_no_thread_no_descriptor_no_output(self):
        without = shimtest.run("stock", ["idle"])
        for extra in ({}, {"LMDBIO_LOG": "debug"}, {"LMDBIO_LOG": "nonsense"}, {"LMDBIO_DISABLE": "1"}):
            with self.subTest(extra=extra):
                self.check_same(without, shimtest.run("preload", ["idle"], extra, stats=False))

    def test_no_statistics_of_nothing(self):
        path = os.path.join(self.dir, "stats")
        got = shimtest.run("preload", ["idle"], {"LMDBIO_STATS": path})
        self.assertEqual(got.err, "")
        self.assertFalse(os.path.exists(path))
        got = shimtest.run("preload", ["idle"], {"LMDBIO_STATS": "1"})
        self.assertEqual(got.err, "")

    def test_asks_for_no_variable(self):
        path = os.path.join(self.dir, "asked")
        got = shimtest.run("preload", ["idle"], {"LD_PRELOAD": shimtest.CONFIG["spy"], "GETENV_SPY": path}, stats=False)
        self.assertEqual(got.returncode, 0, got.err)
        asked = set()
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                asked = set(f.read().split())
        self.assertLessEqual(asked, {"LMDBIO_DISABLE"})

    # The spy would see it if it asked.
    def test_the_spy_works(self):
        path = os.path.join(self.dir, "asked")
        got = shimtest.run("preload", ["program", self.fresh()],
                           {"LD_PRELOAD": shimtest.CONFIG["spy"], "GETENV_SPY": path})
        self.assertEqual(got.returncode, 0, got.err)
        with open(path, encoding="utf-8") as f:
            self.assertIn("LMDBIO_LOG", f.read().split())


if __name__ == "__main__":
    shimtest.main()
