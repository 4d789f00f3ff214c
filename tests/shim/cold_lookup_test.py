"""Lookups by key of data that is not in memory: right values, and how often storage is asked for them.

    cold_lookup_test.py CONFIG [--rounds N] [--seed N] [unittest arguments]

As cold_test.py: the program is cold.c, things are counted, nothing is timed.
"""
import os
import random
import sys

import cold_test
import confined
import shimtest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import slowfs  # noqa: E402

MIB = 1 << 20
PAGE = 4096
LARGE = "known 300 112000 0"  # 33 MiB, each value 28 pages
SMALL = "known 9000 3000 0"  # 38 MiB, each value a page; 61 leaf pages
ROUNDS, SEED = cold_test.ROUNDS, cold_test.SEED


class Lookups(cold_test.Walks):
    def looked_up(self, path, known, commands, extra=None, prefix=()):
        """A cold run with these commands between begin and end: its answers and `io`."""
        got = self.run_cold([f"evict {path}", f"open {path}", "begin 0", *commands, "end 0", "close 0"], extra, prefix,
                            known=known)
        self.assertNotIn("wrong", got.out)
        if not prefix:
            self.assertEqual(got.err, "")
        return got, (got.io() or [{}])[0]

    def test_right_values(self):
        for known, n, step in ((LARGE, 600, 77), (SMALL, 4000, 1234 + 1), ("known 1600 24000 4", 3000, 777)):
            path = self.db(known)
            for io, memory in (("direct", "64M"), ("direct", "16M"), ("buffered", "16M"), ("auto", "64M"), ("mmap", "16M")):
                with self.subTest(known=known, io=io, memory=memory):
                    got, stats = self.looked_up(path, known, [f"gets 0 {n} {step}", f"sets 0 {n} {step + 2}", "walk 0"],
                                                {"LMDBIO_IO": io, "LMDBIO_MEMORY": memory})
                    self.assertEqual(got["gets"] + got["sets"], [f"right {n}"] * 2, got.out)
                    self.assertLessEqual(stats.get("most_resident", 0) * stats.get("chunk_bytes", 0),
                                         stats.get("memory_limit", 0))
                    self.assertEqual(io != "mmap", stats.get("lookups_missed", 0) > 0, stats)

    def test_warm_lookups_ask_for_nothing(self):
        path = self.db(SMALL)
        with open(path + "/data.mdb", "rb") as f:
            while f.read(MIB):
                pass
        got = self.run_cold([f"open {path}", "begin 0", "gets 0 9000 1235", "end 0", "close 0"], {"LMDBIO_IO": "auto"},
                            known=SMALL)
        self.assertEqual(got["gets"], ["right 9000"])
        self.assertEqual(got.io()[0]["reason"], "no walk or lookup found data missing in memory")

    # In the order of the file the kernel's read-ahead does better: nothing is read for them but a first few.
    def test_lookups_in_order(self):
        path = self.db(SMALL)
        got, io = self.looked_up(path, SMALL, ["gets 0 9000 1"], {"LMDBIO_IO": "auto"})
        self.assertEqual(got["gets"], ["right 9000"])
        self.assertLessEqual(io.get("exact_reads", 0), 90, io)
        self.assertEqual(io.get("loads_begun", 0), 0, io)

    # Read ahead as a walk, up and down, of each record or each third: a few requests for each chunk.  Lookups of keys
    # that are not there go to the end of the tree in between.
    def test_lookups_in_order_are_a_walk(self):
        for known, n in ((LARGE, 300), (SMALL, 9000)):
            path = self.db(known)
            size = os.path.getsize(path + "/data.mdb")
            for step, memory in ((1, "64M"), (1, "16M"), (3, "16M"), (n - 1, "64M"), (n - 1, "16M"), (n - 3, "16M")):
                if known == LARGE and step in (3, n - 3):
                    continue  # what lies between is not read: see below
                with self.subTest(known=known, step=step, memory=memory):
                    lookups = n // min(step, n - step)
                    got, stats = self.looked_up(path, known, [f"gets 0 {lookups} {step}"],
                                                {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": memory})
                    self.assertEqual(got["gets"], [f"right {lookups}"], got.out)
                    self.assertLessEqual(stats["exact_reads"], 40, stats)
                    self.assertGreaterEqual(stats["chunks_read"], size * 0.8 / stats["chunk_bytes"], stats)
                    self.assertLessEqual(stats["read"], size * 1.1 + 4 * stats["chunk_bytes"], stats)
                    self.assertLessEqual(sum(stats["requests"].values()), size // (512 << 10) + 60, stats)

    # Each third large value: what lies between is not read, but for the kernel's read-ahead.
    def test_each_third_large_value(self):
        path = self.db(LARGE)
        got, stats = self.looked_up(path, LARGE, ["gets 0 99 3"], {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "16M"})
        self.assertEqual(got["gets"], ["right 99"])
        self.assertEqual(stats["chunks_read"], 0, stats)

    # A data loader's share: runs of 32 keys.
    def test_runs_of_lookups_in_order(self):
        path = self.db(SMALL)
        runs = ["gets 0 32 1"] * 30
        got, stats = self.looked_up(path, SMALL, [c for r in runs for c in (r, "gets 0 1 225")],
                                    {"LMDBIO_IO": "buffered", "LMDBIO_MEMORY": "16M"})
        self.assertEqual(got["gets"], ["right 32", "right 1"] * 30)
        self.assertLessEqual(stats["exact_reads"], 20, stats)

    def test_as_another_user(self):
        path = self.db(LARGE)
        prefix = cold_test.missing_part(self, confined.as_nobody)
        for io in ("direct", "auto"):
            got, stats = self.looked_up(path, LARGE, ["gets 0 600 77"], {"LMDBIO_IO": io, "LMDBIO_MEMORY": "64M"}, prefix)
            self.assertEqual(got["gets"], ["right 600"])
            self.assertNotEqual(stats.get("residency"), "mincore")

    # No descriptor of one's own without /proc: as if there were no such reads.
    def test_no_proc(self):
        prefix = cold_test.missing_part(self, lambda: confined.in_mounts("umount -l /proc"))
        got, io = self.looked_up(self.db(LARGE), LARGE, ["gets 0 600 77"], {"LMDBIO_IO": "auto"}, prefix)
        self.assertEqual(got["gets"], ["right 600"])
        self.assertGreater(io["exact_reads"], 0)  # the file is opened by its path

    def test_fork(self):
        path = self.db(LARGE)
        for io in ("direct", "auto"):
            got, _ = self.looked_up(path, LARGE, ["gets 0 100 77", "fork 0 3", "gets 0 600 77"],
                                    {"LMDBIO_IO": io, "LMDBIO_MEMORY": "64M"})
            self.assertEqual(got["gets"], ["right 100", "right 600"])
            self.assertTrue(got["fork"][0].startswith("right 300"), got.out)

    # The environment goes while the file is being loaded: so does the thread.
    def test_close_during_the_load(self):
        path = self.db(LARGE)
        for engine in cold_test.ENGINES:
            once = [f"evict {path}", f"open {path}", "begin {0}", "gets {0} 40 77", "end {0}", "close {0}", "tasks"]
            got = self.run_cold([c.format(i) for i in range(4) for c in once],
                                {"LMDBIO_ENGINE": engine, "LMDBIO_MEMORY": "64M"}, known=LARGE)
            self.assertEqual(got["gets"], ["right 40"] * 4, got.out)
            self.assertEqual(got["tasks"], ["1"] * 4, got.out)

    # A third of the records is rewritten again and again: each transaction reads its own snapshot.
    def test_writer(self):
        known = "known 2000 12000 0"
        path = self.db(known, "written")
        for io, memory in (("direct", "64M"), ("auto", "64M"), ("buffered", "16M")):
            with self.subTest(io=io):
                commands = ["versions", f"writer {path}", "commit"]
                for _ in range(6):
                    commands += [f"evict {path}", "begin 0", "gets 0 300 777", "commit", "gets 0 300 779", "sets 0 300 5", "end 0"]
                # Each program counts its versions from the first: the file is made anew.
                cold_test.shutil.rmtree(path)
                self.made.pop((known, "written"))
                path = self.db(known, "written")
                commands = [c.replace(commands[1].split()[1], path) if c.startswith(("writer", "evict")) else c
                            for c in commands]
                got = self.run_cold([*commands[:3], f"open {path} 1024", *commands[3:]],
                                    {"LMDBIO_IO": io, "LMDBIO_MEMORY": memory}, known=known)
                self.assertEqual(got["gets"], ["right 300"] * 12, got.out)
                self.assertEqual(got["sets"], ["right 300"] * 6, got.out)
                for stats in got.io():
                    self.assertLessEqual(stats.get("loads_begun", 0), 8)


class SlowLookups(Lookups):
    """On a file system that counts its requests."""

    def setUp(self):
        super().setUp()
        self.mounts = []
        self.addCleanup(lambda: [fs.__exit__() for fs in self.mounts])

    def slow(self, known, **options):
        fs = cold_test.missing_part(
            self, lambda: slowfs.SlowFs(shimtest.CONFIG["slowfs"], self.db(known), **options).__enter__())
        self.mounts.append(fs)
        return fs

    def requests(self, fs, known, command, extra=None):
        """What `command` of a program that has begun makes of requests, and its answer."""
        program = cold_test.Program(self, extra={"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "8M", **(extra or {})})
        for before in (known, f"evict {fs.path}", f"open {fs.path}", "begin 0"):
            program.do(before)
        fs.set(reset=1)
        answer = program.do(command)
        read = fs.counters()["read"]
        for after in ("end 0", "close 0"):
            program.do(after)
        return answer, read

    # A value of 28 pages: one request.  Stock makes about two, and reads twice as much.
    def test_one_request_a_value(self):
        fs = self.slow(LARGE)
        pages = 28 * PAGE
        for n in (1, 5, 12):
            answer, read = self.requests(fs, LARGE, f"gets 0 {n} 77")
            self.assertEqual(answer, f"right {n}")
            # Leaf pages, all of the three; the root is one of those that were read by then.
            self.assertLessEqual(read["numbered"], n + 4, read)
            self.assertLessEqual(read["bytes"], n * pages + 4 * PAGE, read)
            self.assertEqual(read["sizes"].get("131072", 0), n, read)

    # All leaf pages come with the first lookups, each once; then a lookup is one request.  With those of absent keys
    # they are fewer than make a load of all.
    def test_leaf_pages_at_once(self):
        fs = self.slow(SMALL)
        answer, read = self.requests(fs, SMALL, "gets 0 12 599")
        self.assertEqual(answer, "right 12")
        self.assertLessEqual(read["numbered"], 12 + 2 + 62 + 3, read)
        # Stock's own read of the metas makes the kernel read ahead at the start of the file.
        self.assertGreaterEqual(read["sizes"].get("4096", 0), read["numbered"] - 3, read)

    # What fits is read once, by chunks, whoever comes to them first.
    def test_load_once(self):
        fs = self.slow(LARGE, delay_us=300)
        size = os.path.getsize(self.db(LARGE) + "/data.mdb")
        for engine in cold_test.ENGINES:
            fs.set(reset=1)
            got, io = self.looked_up(fs.path, LARGE, ["gets 0 600 77", "walk 0", "gets 0 600 77"],
                                     {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "64M", "LMDBIO_ENGINE": engine})
            self.assertEqual(got["gets"] + got["walk"], ["right 600", "right 600", "right 300"], got.out)
            self.assertEqual(io["loads_begun"], 1, io)
            self.assertEqual(io["chunks_read"], -(-size // io["chunk_bytes"]), io)
            self.assertEqual(io["published"], io["chunks_read"], io)
            self.assertLessEqual(io["exact_bytes"], size, io)
            # Before the load began, and while it went on: no value twice.
            self.assertLessEqual(io["exact_reads"], 300 + 4, io)

    # What the first lookups need is in memory, and the kernel reads ahead of those that follow: they are a walk all the
    # same.
    def test_lookups_in_order_that_find_the_first_data_in_memory(self):
        fs = self.slow(SMALL)
        size = os.path.getsize(self.db(SMALL) + "/data.mdb")
        first = 16 * MIB
        program = cold_test.Program(self, extra={"LMDBIO_IO": "auto"})
        for before in (SMALL, f"evict {fs.path}", f"open {fs.path}", "begin 0"):
            program.do(before)
        with open(fs.path + "/data.mdb", "rb", buffering=0) as f:
            self.assertEqual(len(f.read(first)), first)
        fs.set(reset=1)
        self.assertEqual(program.do("gets 0 9000 1"), "right 9000")
        read = fs.counters()["read"]
        for after in ("end 0", "close 0"):
            program.do(after)
        self.assertLessEqual(read["numbered"], size // MIB + 60, read)
        self.assertLessEqual(read["bytes"], 1.1 * size, read)

    # A load that does not fit direct reads' memory, but the page cache.
    def test_load_into_the_page_cache(self):
        fs = self.slow(LARGE)
        got, io = self.looked_up(fs.path, LARGE, ["gets 0 6000 77"], {"LMDBIO_IO": "auto", "LMDBIO_MEMORY": "8M"})
        self.assertEqual(got["gets"], ["right 6000"])
        self.assertEqual((io["loads_begun"], io["published"]), (1, 0), io)

    # Where nothing tells this user what is in memory, the time of a read does: still one request a value (stock makes three).
    def test_where_nothing_tells(self):
        prefix = cold_test.missing_part(self, confined.as_nobody)
        fs = self.slow(LARGE, delay_us=1000, uid=0, file_mode="0644")
        for n in (5, 12):
            fs.set(reset=1)
            got, _ = self.looked_up(fs.path, LARGE, [f"gets 0 {n} 77"], {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "8M"}, prefix)
            self.assertEqual(got["gets"], [f"right {n}"])
            self.assertLessEqual(fs.counters()["read"]["numbered"], n + 8)
            self.assertLessEqual(fs.counters()["read"]["bytes"], n * 28 * PAGE + 32 * PAGE)

    # A read for a lookup hangs: one line says so, with file, offset and seconds; then the read comes back.
    def test_hanging_read(self):
        fs = self.slow(LARGE)
        for seconds, hang, lines in ((1, 2500, 1), (0, 300, 0)):
            for k in (10, 12):
                fs.set(reset=1, hang_at=k, hang_ms=hang)
                got = self.run_cold([f"evict {fs.path}", f"open {fs.path}", "begin 0", "gets 0 12 77", "end 0", "close 0"],
                                    {"LMDBIO_MEMORY": "8M", "LMDBIO_STALL_SECONDS": str(seconds)}, known=LARGE)
                fs.set(hang_at=0)
                self.assertEqual(got["gets"], ["right 12"], got.out)
                self.assertEqual(len(got.err.splitlines()), lines, got.err)
                if lines:
                    self.assertRegex(got.err, rf"^lmdbio: {fs.path}: a read at offset \d+ has taken more than 1 s; "
                                              "still waiting\n$")

    # A read for a lookup fails: the page fault that follows is as good as ever.
    def test_failing_reads(self):
        fs = self.slow(LARGE)
        seen = 0
        for k in range(1, 40):
            program = cold_test.Program(self, extra={"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "8M"})
            for before in (LARGE, f"evict {fs.path}", f"open {fs.path}", "begin 0", "gets 0 1 1"):
                program.do(before)
            fs.set(reset=1, fail_at=k)
            self.assertEqual(program.do("gets 0 12 77"), "right 12")
            failed = fs.counters()["faults"]["read_error"]
            fs.set(fail_at=0)
            for after in ("end 0", "close 0"):
                program.do(after)
            seen += failed
            if failed == 0:
                break
        self.assertGreater(seen, 8)

    # A read fails once the load is near: of a lookup's or of the load, which ends then.
    def test_failing_load(self):
        fs = self.slow(LARGE, raw_direct=1, files="data.mdb")
        for engine in cold_test.ENGINES:
            for k in (1, 3, 4, 5, 8):
                program = cold_test.Program(self, extra={"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "64M", "LMDBIO_ENGINE": engine})
                for before in (LARGE, f"evict {fs.path}", f"open {fs.path}", "begin 0"):
                    program.do(before)
                self.assertEqual(program.do("gets 0 14 77"), "right 14")
                fs.set(reset=1, fail_at=k)
                self.assertEqual(program.do("gets 0 300 77"), "right 300")
                self.assertEqual(fs.counters()["faults"]["read_error"], 1)
                fs.set(fail_at=0)
                for after in ("end 0", "close 0"):
                    program.do(after)

    def test_random_lookups(self):
        rng = random.Random(SEED)
        print(f"  --seed {SEED}", flush=True)
        known = "known 1600 24000 4"
        fs = self.slow(known)
        local = self.db(known)
        for _ in range(ROUNDS):
            variables = {"LMDBIO_IO": rng.choice(["direct", "auto", "buffered"]),
                         "LMDBIO_MEMORY": rng.choice(["8M", "16M", "64M"]),
                         "LMDBIO_ENGINE": rng.choice(["auto", "uring", "threads", "pread"])}
            commands, wanted = [], []
            path = rng.choice([fs.path, local])
            for _ in range(rng.randrange(3, 20)):
                what = rng.choice(["gets", "gets", "sets", "walk", "back", "evict", "renewed", "fork"])
                n = rng.randrange(1, 900)
                if what in ("gets", "sets"):
                    commands.append(f"{what} 0 {n} {rng.randrange(1, 1600)}")
                    wanted.append((what, f"right {n}"))
                elif what in ("walk", "back"):
                    commands.append(f"{what} 0")
                    wanted.append((what, "right 1600"))
                elif what == "evict":
                    commands.append(f"evict {path}")
                elif what == "fork":
                    commands.append("fork 0 2")
                else:
                    commands += ["end 0", "begin 0"]
            with self.subTest(variables=variables, commands=commands, path=path):
                got, io = self.looked_up(path, known, commands, variables)
                for what in ("gets", "sets", "walk", "back"):
                    self.assertEqual(got[what], [a for w, a in wanted if w == what], got.out)
                self.assertNotIn("fork = parent", got.out)
                self.assertLessEqual(io.get("most_resident", 0) * io.get("chunk_bytes", 0), io.get("memory_limit", 0))


# What a local file system is tested for is not tested again.
for name in [n for n in dir(Lookups) if n.startswith("test_")]:
    setattr(SlowLookups, name, None)


if __name__ == "__main__":
    shimtest.main()
