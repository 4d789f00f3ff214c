"""lmdbio/follow.h beside a writer that is killed again and again, from C++: each way to have the library."""
import unittest

import shimtest


class Follow(shimtest.Case):
    def check(self, mode, seed, commits, kills, extra=None):
        done = shimtest.run(mode, ["following", self.fresh(f"{mode}{seed}"), str(seed), str(commits), str(kills)], extra)
        self.assertEqual((done.returncode, done.err), (0, ""), (mode, seed, done.out))
        self.assertRegex(done.out, r"^ok \d+\n$", (mode, seed))

    def test_each_way_to_load_it(self):
        for mode in shimtest.modes():
            with self.subTest(mode=mode):
                self.check(mode, 1, 200, 2)

    def test_each_buffer_beside_a_writer_that_is_killed(self):
        for seed in range(12):
            with self.subTest(seed=seed):
                self.check("linked", seed, 600, 10)

    def test_little_memory_or_none_of_its_own(self):
        for memory in ("0", "8M"):
            self.check("linked", 5, 200, 0, {"LMDBIO_MEMORY": memory})

    def test_runs_without_the_library(self):
        done = shimtest.run("stock", ["following", self.fresh(), "1", "10", "0"])
        self.assertEqual((done.returncode, done.out), (0, "without\n"), done.err)


if __name__ == "__main__":
    shimtest.main()
