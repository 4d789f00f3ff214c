"""One C program, built once, run in every way that LMDBIO can be put underneath it: the same output each time."""
import os
import unittest

import shimtest


STRICT = {"LMDBIO_STRICT": "1"}  # a full reader table is refused as by stock


class Modes(shimtest.Case):
    # The rows of one table: program, what it needs of the statistics to prove that the engine did the work.
    def compare(self, name, ours, extra=None):
        stock = shimtest.run("stock", [name, self.fresh()])
        self.assertEqual(stock.returncode, 0, stock.out[-2000:] + stock.err)
        for mode in shimtest.modes() + ["disabled"]:
            with self.subTest(program=name, mode=mode):
                got = shimtest.run(mode, [name, self.fresh()], extra)
                self.check_same(stock, got)
                if mode == "disabled":
                    self.assertEqual(got.calls_ours(), 0)
                else:
                    self.assertGreaterEqual(got.calls_ours(), ours, "was it ours at all?")
                    self.assertTrue(got.environments(), "no statistics")

    def test_everything(self):
        self.compare("program", 10000)

    def test_passthrough(self):
        self.compare("passthrough", 0)
        for mode in shimtest.modes():
            got = shimtest.run(mode, ["passthrough", self.fresh()])
            for e in got.environments():
                self.assertFalse(e.get("ours"), "a writable environment")
                self.assertTrue(e.get("reason"), "passed through without a reason")

    def test_threads_and_reader_slots(self):
        self.compare("readers", 10000, STRICT)

    # A liblmdb built as upstream builds it calls its own exports through the PLT: they come back to us.
    def test_liblmdb_that_calls_its_own_exports(self):
        library = shimtest.CONFIG["reentrant"]
        extra = {"LD_LIBRARY_PATH": os.path.dirname(library)}
        for name in ("program", "passthrough", "readers"):
            stock = shimtest.run("stock", [name, self.fresh()], extra)
            self.assertEqual(stock.returncode, 0, stock.out[-2000:] + stock.err)
            for mode in shimtest.modes():
                with self.subTest(program=name, mode=mode):
                    more = {"LMDBIO_STOCK_LIB": library} if mode in ("soname", "asneeded") else dict(extra)
                    more.update(STRICT)
                    got = shimtest.run(mode, [name, self.fresh()], more)
                    self.check_same(stock, got)
                    if name != "passthrough":
                        self.assertGreater(got.calls_ours(), 10000)

    def test_it_does_call_its_own_exports(self):
        library = shimtest.CONFIG["reentrant"]
        relocations = shimtest.run("stock", ["/usr/bin/readelf", "-rW", library]).out
        for name in ("mdb_cursor_get", "mdb_cursor_put", "mdb_cursor_open", "mdb_cursor_close", "mdb_txn_begin",
                     "mdb_txn_abort", "mdb_env_sync", "mdb_env_copyfd2"):
            self.assertRegex(relocations, r"(JUMP_SLO|GLOB_DAT).*\b" + name + r"\b")

    def test_stock_lib_by_name(self):
        library = os.path.realpath(shimtest.CONFIG["lmdb"])
        stock = shimtest.run("stock", ["program", self.fresh()])
        for mode in shimtest.modes():
            with self.subTest(mode=mode):
                got = shimtest.run(mode, ["program", self.fresh()], {"LMDBIO_STOCK_LIB": library})
                self.check_same(stock, got)
                self.assertGreater(got.calls_ours(), 10000)

    # Never ourselves, by whatever name: no endless loop, and a plain answer or the rule's library instead.
    def test_stock_lib_that_is_us(self):
        for mode in shimtest.modes():
            for library in (shimtest.CONFIG["lib"], shimtest.CONFIG["soname"], "/nonexistent/liblmdb.so"):
                with self.subTest(mode=mode, library=library):
                    got = shimtest.run(mode, ["program", self.fresh()], {"LMDBIO_STOCK_LIB": library}, timeout=60)
                    self.assertGreaterEqual(got.returncode, 0, "killed by a signal")
                    self.assertLessEqual(len(shimtest.GARBAGE.sub("", got.err).splitlines()), 1, got.err)


if __name__ == "__main__":
    shimtest.main()
