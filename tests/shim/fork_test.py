"""Programs that fork with an environment open: they go on, parent and child."""
import os
import unittest

import shimtest

# What careful and lucky programs do: works with stock too, and prints the same.
SCENARIOS = ["inherit", "inherit-exit", "reopen", "begin-after", "begin-after-first", "end-in-child", "busy"]

NOTLS = "0x200000"
NOTLS_NOLOCK = "0x600000"
FLAGS = ["0", NOTLS]
FILE = "inherited_file"


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

    # Each process's statistics are its own, and told once: those of a child that leaves by _exit, by its parent.
    def test_statistics_are_written_once(self):
        for scenario in ("inherit", "begin-after"):
            for mode in shimtest.modes():
                with self.subTest(scenario=scenario, mode=mode):
                    got = shimtest.run(mode, ["forking", self.fresh(), scenario])
                    self.assertEqual(len({line["pid"] for line in got.stats if "state" not in line}), 1)
                    children = [line["pid"] for line in got.stats if line.get("state") == "ended"]
                    self.assertEqual(len(children), len(set(children)))
                    self.assertEqual(len(children), {"inherit": 2, "begin-after": 6}[scenario])
        for mode in shimtest.modes():
            with self.subTest(scenario="inherit-exit", mode=mode):
                got = shimtest.run(mode, ["forking", self.fresh(), "inherit-exit"])
                pids = [line["pid"] for line in got.stats]
                self.assertTrue(pids, "no statistics")
                parent = max(set(pids), key=pids.count)
                for pid in set(pids) - {parent}:
                    self.assertEqual(pids.count(pid), 1)


class Inherited(shimtest.Case):
    """What stock does not promise.  The program checks itself; the lines that it causes are counted here."""

    def each(self, scenarios, check, program="inherited", extra=None, flags_of=FLAGS):
        for mode in shimtest.modes():
            for scenario in scenarios:
                for flags in flags_of:
                    with self.subTest(mode=mode, scenario=scenario, flags=flags):
                        if scenario == "thread-exit":
                            shimtest.skip_under_tsan(self, "dies where a child of a process with threads makes one")
                        directory = self.fresh()
                        got = shimtest.run(mode, [program, directory, scenario, flags], extra, stats=False)
                        self.assertEqual(got.returncode, 0, got.out + got.err)
                        check(got, directory)

    def silent(self, got, _directory):
        self.assertEqual(got.err, "")

    def one_line(self, *words):
        def check(got, directory):
            lines = got.err.splitlines()
            self.assertEqual(len(lines), 1, got.err)
            for word in ("lmdbio: " + directory, *words):
                self.assertIn(word, lines[0])
        return check

    def test_every_call_is_as_without_a_fork(self):
        for flags in FLAGS:
            stock = shimtest.run("stock", ["inherited", self.fresh(), "calls-here", flags])
            self.assertEqual(stock.returncode, 0, stock.out + stock.err)
            for mode in shimtest.modes():
                for scenario in ("calls-here", "calls"):
                    with self.subTest(mode=mode, scenario=scenario, flags=flags):
                        ours = shimtest.run(mode, ["inherited", self.fresh(), scenario, flags])
                        self.check_same(stock, ours)

    def test_reader_slots(self):
        self.each(["slots", "thread-exit", "threads"], self.silent)

    def test_parent_ends_first(self):
        self.each(["parent:ends", "parent:closes", "parent:exits"], self.silent)

    def test_overtaken_snapshot_is_told(self):
        def check(got, _directory):
            lines = got.err.splitlines()
            self.assertEqual(sum("changed by a writer" in line for line in lines), 1, got.err)
            self.assertLessEqual(len(lines), 2, got.err)  # the other: a page that was no longer what it was
        self.each(["overtaken"], check)

    def test_snapshot_that_the_parent_holds_is_not_overtaken(self):
        self.each(["overtaken-held"], self.silent)

    def test_abandoned_transactions(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("the sanitizers have heaps of their own")
        self.each(["abandoned:20000"], self.silent, flags_of=[NOTLS, NOTLS_NOLOCK])

    def test_abandoned_transactions_in_a_full_table(self):
        self.each(["abandoned-full"], self.silent, flags_of=[NOTLS])

    def test_abandoned_transactions_of_other_threads(self):
        shimtest.skip_under_tsan(self, "dies where a child of a process with threads makes one")
        self.each(["abandoned-handed"], self.silent, flags_of=[NOTLS, NOTLS_NOLOCK])

    def test_abandoned_transaction_keeps_its_snapshot(self):
        self.each(["abandoned-older"], self.silent, flags_of=[NOTLS_NOLOCK])

    def test_abandoned_transaction_is_overtaken(self):
        self.each(["abandoned-overtaken"], self.one_line("MDB_BAD_TXN"), flags_of=[NOTLS])

    def test_file_taken_away(self):
        kinds = ["removed", "renamed", "replaced", "zero-page-size", "garbage", "empty", "pipe", "directory"]
        self.each(["file:" + k for k in kinds], self.one_line("forked process", "without locks"), FILE)

    def test_relative_path(self):
        self.each(["moved"], self.silent, FILE)

    @unittest.skipUnless(os.geteuid() == 0, "needs root")
    def test_privileges_dropped(self):
        os.chmod(self.dir, 0o755)
        self.each(["user:none"], self.one_line("without locks", "Permission denied"), FILE)
        self.each(["user:data"], self.one_line("without locks", "Permission denied"), FILE)
        self.each(["user:both"], self.silent, FILE)

    def test_parent_without_locks(self):
        self.each(["lockless"], self.one_line("cannot be locked"), FILE)

    # Stock leaves the data file's descriptor open across exec.
    def test_exec(self):
        def check(got, _directory):
            self.assertEqual(got.out, "data 0, lock 0\n")
        self.each(["exec:unused", "exec:used"], check, FILE)
        stock = shimtest.run("stock", [FILE, self.fresh(), "exec:unused", "0"])
        self.assertEqual(stock.out, "data 1, lock 0\n")  # descriptors are found

    def test_descriptors_are_bounded(self):
        self.each(["descriptors"], self.silent, FILE)

    def test_fork_while_threads_open_and_begin(self):
        # Where a thread of the parent stores a new call stack at the fork, AddressSanitizer's store stays locked in the child,
        # for ever.  Stacks of one frame are few, and soon not new.
        extra = {}
        if shimtest.CONFIG["sanitize"].startswith("address"):
            extra["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":malloc_context_size=1"
        self.each(["busy:100"], self.silent, extra=extra)

    def test_fork_during_the_first_use(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("a child of a process with threads that reads is beyond the sanitizers' runtimes")
        for engine in ("uring", "threads"):
            with self.subTest(engine=engine):
                got = shimtest.run("preload", ["first_fork", self.fresh(), "200"],
                                   {"LMDBIO_IO": "direct", "LMDBIO_ENGINE": engine}, timeout=900)
                self.assertEqual((got.out, got.err),
                                 ("processes of which parent and child read right: 200 of 200\n", ""))

    def test_fork_while_a_thread_has_a_lock(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("a child of a process with threads that reads is beyond the sanitizers' runtimes")
        for engine in ("uring", "threads"):
            with self.subTest(engine=engine):
                got = shimtest.run("preload", ["fork_locks", self.fresh()],
                                   {"LMDBIO_IO": "direct", "LMDBIO_ENGINE": engine}, timeout=900)
                self.assertEqual((got.returncode, got.out), (0, "all children read right\n"), got.err)


if __name__ == "__main__":
    shimtest.ignore_leaks = True
    shimtest.main()
