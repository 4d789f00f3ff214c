"""Programs that fork with an environment open: they go on, parent and child."""
import unittest

import shimtest

SCENARIOS = ["inherit", "inherit-exit", "reopen", "begin-after", "begin-after-first", "end-in-child", "busy"]


class Fork(shimtest.Case):
    def test_scenarios(self):
        for scenario in SCENARIOS:
            stock = shimtest.run("stock", ["forking", self.fresh(), scenario])
            self.assertEqual(stock.returncode, 0, stock.out + stock.err)
            for mode in shimtest.modes():
                with self.subTest(scenario=scenario, mode=mode):
                    got = shimtest.run(mode, ["forking", self.fresh(), scenario])
                    self.check_same(stock, got)
                    self.assertGreater(got.calls_ours(), 300)

    # Statistics are the parent's: a child that leaves by _exit writes none, one that leaves by exit its own at most.
    def test_statistics_are_written_once(self):
        for scenario in ("inherit", "begin-after"):
            for mode in shimtest.modes():
                with self.subTest(scenario=scenario, mode=mode):
                    got = shimtest.run(mode, ["forking", self.fresh(), scenario])
                    self.assertEqual(len({line["pid"] for line in got.stats}), 1)
        for mode in shimtest.modes():
            with self.subTest(scenario="inherit-exit", mode=mode):
                got = shimtest.run(mode, ["forking", self.fresh(), "inherit-exit"])
                pids = [line["pid"] for line in got.stats]
                self.assertTrue(pids, "no statistics")
                parent = max(set(pids), key=pids.count)
                for pid in set(pids) - {parent}:
                    self.assertEqual(pids.count(pid), 1)


if __name__ == "__main__":
    shimtest.main()
