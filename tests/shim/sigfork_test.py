"""fork() in a signal handler, which interrupts whatever the program's one thread does in here.

Handlers run FORKS times; a hang is told by the program's own watcher.  SIGFORK_FORKS=5000: a campaign.
"""
import os

import shimtest

FORKS = os.environ.get("SIGFORK_FORKS", "100")
DIRECT = {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "16M"}


class Forks(shimtest.Case):
    def setUp(self):
        super().setUp()
        shimtest.skip_under_tsan(self, "runs handlers late, also where signals are blocked by then")
        self.path = os.path.join(self.dir, "forks.mdb")
        made = shimtest.run("stock", ["sigfork", self.path, "make", "0"])
        self.assertEqual(made.returncode, 0, made.err)

    def check(self, scenario, settings=({},), stock=True):
        runs = [("stock", {})] if stock else []
        runs += [(shimtest.modes()[0], {**DIRECT, **extra}) for extra in settings]
        for mode, extra in runs:
            with self.subTest(mode=mode, extra=extra):
                got = shimtest.run(mode, ["sigfork", self.path, scenario, FORKS], extra, timeout=900)
                self.assertEqual((got.returncode, got.out, got.err), (0, f"{scenario}: enough forks\n", ""))

    def test_walks(self):
        self.check("walk", ({}, {"LMDBIO_ENGINE": "threads"}, {"LMDBIO_IO": "buffered"}))

    def test_lookups(self):
        self.check("get", ({}, {"LMDBIO_IO": "auto"}))

    def test_prefetched_keys(self):
        self.check("prefetch", ({}, {"LMDBIO_ENGINE": "threads"}, {"LMDBIO_ENGINE": "pread"}))

    def test_environments(self):
        self.check("open")

    def test_transactions(self):
        self.check("begin")

    def test_readers(self):
        self.check("reader", ({}, {"LMDBIO_ENGINE": "threads"}), stock=False)

    def test_readers_opened_and_closed(self):
        self.check("reopen", stock=False)


if __name__ == "__main__":
    shimtest.main()
