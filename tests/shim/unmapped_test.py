"""Files that cannot be mapped (a FUSE mount that refuses mmap): where stock cannot open them, LMDBIO reads them.

The program is cold.c, which checks every byte; the shim comes by preload.
"""
import errno
import os
import subprocess
import sys

import cold_test
import shimtest
from cold_test import MIB, SMALL, Program, Walks, missing_part

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import slowfs  # noqa: E402

RIGHT = "right 1600"


class Unmapped(Walks):
    def mount(self, source, **options):
        fs = missing_part(self, lambda: slowfs.SlowFs(shimtest.CONFIG["slowfs"], source, no_mmap=1,
                                                      **options).__enter__())
        self.addCleanup(fs.__exit__)
        return fs

    def cold(self, fs, commands, extra=None):
        return self.run_cold([f"open {fs.path}", "begin 0", *commands, "end 0", "close 0"],
                             {"LMDBIO_IO": "auto", **(extra or {})}, known=SMALL)

    def test_stock_refuses_and_so_do_we_if_asked(self):
        fs = self.mount(self.db(SMALL))
        for mode, extra in (("stock", {}), ("preload", {"LMDBIO_STRICT": "1"})):
            done = subprocess.run([shimtest.program("cold"), SMALL, f"open {fs.path}"], stdout=subprocess.PIPE, text=True,
                                  env=shimtest.environment(mode, extra))
            self.assertIn(f"= {errno.ENODEV}, giving up", done.stdout)

    def test_walks_and_threads(self):
        fs = self.mount(self.db(SMALL))
        size = os.path.getsize(self.db(SMALL) + "/data.mdb")
        for memory in ("8M", "64M"):
            for engine in cold_test.ENGINES:
                with self.subTest(memory=memory, engine=engine):
                    got = self.cold(fs, ["walk 0", "back 0", "range 0 700", "pair 0", "twice 0"],
                                    {"LMDBIO_MEMORY": memory, "LMDBIO_ENGINE": engine})
                    self.assertEqual([a for c, a in got.answers if c.split()[0] in ("walk", "back", "range", "pair", "twice")],
                                     [RIGHT, RIGHT, "right 900", "right 3200", "right 4800"], got.out)
                    lines = got.err.splitlines()
                    self.assertIn("the file system cannot map this file: reading it into memory", lines[0])
                    self.assertEqual(len(lines), 1 if memory == "64M" else 2, got.err)  # it says when that is too much
                    io = got.io()[0]
                    self.assertEqual(io["reason"], "the file cannot be mapped")
                    self.assertEqual(io["reclaimed"], 0)  # what was handed out stays
                    self.assertLess(io["read"], size + 4 * MIB)  # each chunk once
        got = self.run_cold([*[f"open {fs.path}", "begin 0"], f"open {fs.path}", "begin 1", "threads", "turns"],
                            {"LMDBIO_IO": "auto"}, known=SMALL)
        self.assertEqual(got["threads"] + got["turns"], ["right 3200", "right 3200"], got.out)

    def test_forked_children(self):
        fs = self.mount(self.db(SMALL))
        got = self.cold(fs, ["part 0 400", "fork 0 4", "walk 0"])
        self.assertEqual((got["part"], got["walk"]), (["right 400"], [RIGHT]), got.out + got.err)
        self.assertTrue(got["fork"][0].startswith(RIGHT), got.out)

    def test_map_size(self):
        fs = self.mount(self.db(SMALL))
        got = self.run_cold([f"open {fs.path}", "begin 0", "walk 0", "end 0", "resize 0 512", "begin 0", "walk 0", "end 0",
                             "resize 0 1", "begin 0", "walk 0", "end 0", "close 0"], {"LMDBIO_IO": "auto"}, known=SMALL)
        self.assertEqual((got["walk"], got["resize"]), ([RIGHT] * 3, ["0", "0"]), got.out)

    def test_a_writer_elsewhere_commits(self):
        path = self.fresh("written")
        write = Program(self, "stock")
        for command in (SMALL, f"make {path}", f"writer {path}", "commit"):
            self.assertEqual(write.do(command), "0")
        fs = self.mount(path, remote_changes=True)
        read = Program(self, "preload", {"LMDBIO_MEMORY": "64M"})
        for command in (SMALL, "versions", f"open {fs.path}"):
            self.assertEqual(read.do(command), "0")
        for _ in range(4):
            self.assertEqual(read.do("begin 0"), "0")
            self.assertEqual(read.do("part 0 700"), "right 700")
            self.assertEqual(write.do("commit"), "0")  # one: its pages are not written over before the second
            self.assertEqual(read.do("rest 0"), "right 900")
            self.assertEqual(read.do("end 0"), "0")
        self.assertEqual(read.do("close 0"), "0")
        self.assertEqual(read.end(), 0)

    # An asynchronous read of such a file ends at the length that the kernel remembers.
    def test_engines_read_what_was_added_elsewhere(self):
        source = self.fresh("grows")
        with open(source + "/data.mdb", "wb") as f:
            f.write(bytes(4096))
        fs = self.mount(source)
        done = subprocess.run([shimtest.program("growing_reads"), fs.path + "/data.mdb", source + "/data.mdb"],
                              stdout=subprocess.PIPE, text=True, env=shimtest.environment("stock"))
        ends = f"right, then {errno.EIO}"
        self.assertEqual(done.returncode, 0)
        self.assertIn(done.stdout.splitlines(), [[f"{e}: {ends}" for e in engines] for engines in (
            ("io_uring", "threads", "pread"), ("threads", "threads", "pread"))])  # the second: without io_uring

    def writer_and_reader(self, name, memory="64M"):
        """A database that a writer elsewhere goes on with, and a reader that cannot map it."""
        path = self.fresh(name)
        write = Program(self, "stock")
        for command in (SMALL, f"make {path}", f"writer {path}", "commit"):
            self.assertEqual(write.do(command), "0")
        fs = self.mount(path, remote_changes=True)
        read = Program(self, "preload", {"LMDBIO_MEMORY": memory})
        for command in (SMALL, "versions", f"open {fs.path}"):
            self.assertEqual(read.do(command), "0")
        return write, read

    def right(self, program, command, n):
        self.assertEqual(program.do(command), f"right {n}", command)

    # What a transaction was given stays, and what it has not read yet is its own snapshot's, whatever others of
    # the process begin.
    def test_a_transaction_keeps_its_snapshot(self):
        for memory in ("8M", "64M"):
            with self.subTest(memory=memory):
                write, read = self.writer_and_reader("kept" + memory, memory)
                for _ in range(3):
                    self.assertEqual(read.do("same 0"), "0")
                for _ in range(3):
                    self.assertEqual(read.do("begin 0"), "0")
                    self.right(read, "hold 0 64 25", 64)
                    self.right(read, "part 0 700", 700)
                    self.assertEqual(write.do("commit"), "0")  # one: pages of the older are written over by the second
                    for slot in (1, 2):
                        self.assertEqual(read.do(f"begin {slot}"), "0")
                    self.right(read, "held 0", 64)
                    self.right(read, "walk 1", 1600)
                    self.right(read, "hold 2 64 25", 64)
                    self.right(read, "held 0", 64)
                    self.right(read, "rest 0", 900)
                    self.right(read, "back 0", 1600)
                    for slot, others in ((0, (2,)), (1, (2,)), (2, ())):
                        self.assertEqual(read.do(f"end {slot}"), "0")
                        self.right(read, f"forget {slot}", 0 if slot == 1 else 64)
                        for other in others:
                            self.right(read, f"held {other}", 64)
                self.assertEqual(read.do("close 0"), "0")
                self.assertEqual(read.end(), 0)

    # Transactions under snapshots of which each is held: two commits on, a writer may write over pages of the
    # oldest, so values of it are compared that were read before.
    def test_many_snapshots_at_once(self):
        write, read = self.writer_and_reader("many")
        most = 8
        for _ in range(1, most):
            self.assertEqual(read.do("same 0"), "0")
        for slot in range(most):
            self.assertEqual(read.do(f"begin {slot}"), "0")
            self.right(read, f"hold {slot} 400 7", 400)
            self.assertEqual(write.do("commit"), "0")
        for slot in range(most):
            self.right(read, f"held {slot}", 400)
        for slot in (3, 7, 0, 5, 1, 2, 6, 4):  # in an order of their own
            self.assertEqual(read.do(f"end {slot}"), "0")
            self.right(read, f"forget {slot}", 400)
            for other in range(most):
                self.assertIn(read.do(f"held {other}"), ("right 400", "right 0"))
        self.assertEqual(read.do("begin 0"), "0")
        self.right(read, "walk 0", 1600)
        self.assertEqual(read.do("end 0"), "0")
        self.assertEqual(read.do("close 0"), "0")
        self.assertEqual(read.end(), 0)

    # What was read is more than LMDBIO_MEMORY, so it goes whenever no transaction runs.
    def test_short_transactions_of_threads(self):
        fs = self.mount(self.db(SMALL))
        got = self.run_cold([f"open {fs.path}", "begin 0", "end 0", *["short 0 4 3000"] * 3, "close 0"],
                            {"LMDBIO_IO": "auto", "LMDBIO_MEMORY": "8M"}, known=SMALL)
        self.assertEqual(got["short"], ["right 12000"] * 3, got.out)

    # A walk looks into the next leaf before it comes to it: not where that may lie in a chunk that is not read yet.
    def test_walks_over_the_border_of_a_chunk(self):
        records, chunk_pages = 60000, 512  # LMDBIO_MEMORY is small, and so are chunks
        known = f"known {records} 200 0"
        path = self.db(known)
        fs = self.mount(path)
        pages = os.path.getsize(path + "/data.mdb") // 4096
        for page in range(chunk_pages - 44, chunk_pages, 4):
            start = records * page // pages
            with self.subTest(start=start):
                got = self.run_cold([f"open {fs.path}", "begin 0", f"range 0 {start}", "end 0", "close 0"],
                                    {"LMDBIO_IO": "auto", "LMDBIO_MEMORY": "8M"}, known=known)
                self.assertEqual(got["range"], [f"right {records - start}"], got.out)

    # A window that was emptied between two transactions of one snapshot is another one for what is remembered of it.
    def test_a_window_emptied_between_transactions(self):
        known = "known 60000 200 0"
        fs = self.mount(self.db(known))
        got = self.run_cold([f"open {fs.path}", *["begin 0", "walk 0", "gets 0 59000 500", "end 0", "begin 0",
                                                  "gets 0 100 500", "end 0"] * 2, "close 0"],
                            {"LMDBIO_IO": "auto", "LMDBIO_MEMORY": "8M"}, known=known)
        self.assertEqual(got["gets"], ["right 59000", "right 100"] * 2, got.out)

    # An errno, and the same call again gives the record: also where a page is looked up.
    def test_failing_reads(self):
        fs = self.mount(self.db(SMALL), raw_direct=1)
        for k in (1, 2, 5, 9):
            with self.subTest(k=k):
                fs.set(reset=1, fail_at=0)
                read = Program(self, "preload")
                for command in (SMALL, f"open {fs.path}", "begin 0"):
                    self.assertEqual(read.do(command), "0")
                fs.set(reset=1, fail_at=k)
                self.assertEqual(read.do("walk 0").split(" errors")[0], RIGHT)
                self.assertEqual(fs.counters()["faults"]["read_error"], 1)
                self.right(read, "walk 0", 1600)
                self.assertEqual(read.do("end 0"), "0")
                self.assertEqual(read.end(), 0)

    # A cursor that a lookup could not move is as new: the pages on its way belong to no place.
    def test_failing_reads_of_lookups(self):
        known = "known 60000 200 0"
        fs = self.mount(self.db(known), raw_direct=1)
        failed = 0
        for seed in range(1, 13):
            with self.subTest(seed=seed):
                fs.set(reset=1, fail_every=0)
                read = Program(self, "preload", {"LMDBIO_MEMORY": "8M"})
                for command in (known, f"open {fs.path}", "begin 0"):
                    self.assertEqual(read.do(command), "0")
                fs.set(reset=1, fail_every=2 + seed % 2)
                self.assertEqual(read.do(f"wander 0 3000 {seed}").split(" errors")[0], "right 3000")
                failed += fs.counters()["faults"]["read_error"]
                fs.set(reset=1, fail_every=0)
                self.assertEqual(read.do("end 0"), "0")
                self.assertEqual(read.end(), 0)
        self.assertGreater(failed, 24)


if __name__ == "__main__":
    shimtest.main()
