"""Readers of lmdbio.h, from C: each way to have the library, each engine and kind of reading, statistics."""
import errno
import os
import sys
import unittest

import confined
import shimtest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import slowfs  # noqa: E402


class Reader(shimtest.Case):
    def check(self, mode, extra=None):
        done = shimtest.run(mode, ["reader", self.fresh()], extra)
        self.assertEqual((done.returncode, done.out, done.err), (0, "ok\n", ""), (mode, extra))
        return done

    def test_each_way_to_load_it(self):
        for mode in shimtest.modes():
            with self.subTest(mode=mode):
                self.check(mode)

    def test_runs_without_the_library(self):
        done = shimtest.run("stock", ["reader", self.fresh()])
        self.assertEqual((done.returncode, done.out), (0, "without\n"), done.err)

    def test_each_engine_and_kind_of_reading(self):
        for engine in ("uring", "threads", "pread"):
            for io in ("auto", "direct", "buffered", "mmap"):
                with self.subTest(engine=engine, io=io):
                    if io == "direct":
                        shimtest.skip_under_tsan(
                            self, "dies where a forked child makes a thread at an address of its parent's")
                    self.check("linked", {"LMDBIO_ENGINE": engine, "LMDBIO_IO": io})

    def test_little_memory_or_none_of_its_own(self):
        self.check("linked", {"LMDBIO_MEMORY": "8M"})
        done = shimtest.run("linked", ["reader", self.fresh()], {"LMDBIO_MEMORY": "0"})
        self.assertIn(f"lmdbio_reader_open(dir, NULL, &reader) = {errno.ENOMEM}, giving up", done.out)

    def test_without_io_uring(self):
        try:
            prefix = confined.failing("io_uring_setup=EPERM")
        except confined.Missing as missing:
            self.skipTest(str(missing))
        done = shimtest.run("linked", [*prefix, shimtest.program("reader", "linked"), self.fresh()])
        self.assertEqual((done.returncode, done.out, done.err), (0, "ok\n", ""))

    def test_not_served_is_an_error(self):
        done = shimtest.run("disabled", ["reader", self.fresh()])
        self.assertIn(f"lmdbio_reader_open(dir, NULL, &reader) = {errno.ENOTSUP}, giving up", done.out)

    # Through the page cache.  With the kernel's read-ahead it would be half of the file.
    def test_reads_its_share_and_nothing_else(self):
        db = self.fresh()
        self.assertEqual(shimtest.run("stock", ["caffe_layers", "make", db, "400", "200000"]).returncode, 0)
        try:
            with slowfs.SlowFs(shimtest.CONFIG["slowfs"], db) as fs:
                done = shimtest.run("stock", ["epochs", fs.path, "0", "4", "1", "0"], {"LMDBIO_IO": "buffered"})
                self.assertEqual((done.returncode, done.err), (0, ""))
                read = fs.counters()["read"]["bytes"]
        except slowfs.Missing as why:
            self.skipTest(str(why))
        self.assertLess(read / os.path.getsize(os.path.join(db, "data.mdb")), 0.33)

    def test_statistics(self):
        done = self.check("linked")
        readers = [e["reader"] for e in done.environments() if "reader" in e]
        self.assertTrue(readers)
        total = {key: sum(r[key] for r in readers) for key in readers[0]}
        self.assertGreater(total["readers"], 5)
        self.assertEqual(total["index_built"] + total["index_read"], total["readers"])
        self.assertGreater(total["records"], 50000)
        self.assertGreater(total["batches"], 1000)
        self.assertGreaterEqual(total["fetches"], total["fetches_cached"])
        for key in ("bytes", "read", "requests", "leaf_hits", "most_memory"):
            self.assertGreater(total[key], 0, key)


if __name__ == "__main__":
    shimtest.main()
