"""LMDBIO's threads may run where the process might when it loaded the library, not where the thread is bound that reads.

The program is bound.c.
"""
import shimtest

# Of each engine, what is seen at least: else nothing was tested.
SEEN = {"uring": {"lmdbio-io", "lmdbio-fd"}, "threads": {"lmdbio-io", "lmdbio-fd", "lmdbio-read"},
        "pread": {"lmdbio-io", "lmdbio-fd"}}


class Bound(shimtest.Case):
    def setUp(self):
        super().setUp()
        self.path = self.fresh()
        made = shimtest.run("stock", ["bound", "make", self.path])
        self.assertEqual(made.returncode, 0, made.out)

    def test_threads_are_not_bound(self):
        for mode in shimtest.modes():
            for engine, wanted in SEEN.items() if mode == shimtest.modes()[0] else (("auto", {"lmdbio-io"}),):
                with self.subTest(mode=mode, engine=engine):
                    got = shimtest.run(mode, ["bound", "read", self.path],
                                       {"LMDBIO_ENGINE": engine, "LMDBIO_IO": "direct", "LMDBIO_MEMORY": "16M"})
                    if got.returncode == 77:
                        self.skipTest("one CPU alone")
                    self.assertEqual((got.returncode, got.err), (0, ""), got.out[:2000])
                    self.assertLessEqual(wanted, {line.split()[1] for line in got.out.splitlines()})


if __name__ == "__main__":
    shimtest.main()
