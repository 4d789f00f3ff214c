"""Walks that use each k-th value, or none, of an unmodified program on a slow file system: right bytes, and how many of
them the file system was asked for.

    stride_test.py CONFIG [unittest arguments]

The program is cold.c (its commands stride, stride-back, use-at), which checks each byte that it uses.  What is read is
counted by the file system; nothing is timed.
"""
import os
import random
import subprocess

import cold_test
import confined
import shimtest
import slowfs

MIB = 1 << 20
PAGE = 4096
RECORDS, LARGE = 1200, 196608  # 225 MiB
SMALLER = 112640               # 110 KiB: not told apart
# Values, and in how many commits they were written again: 0 is in the order of keys.
OF_KEYS = (("known 20000 3000 0", 0), ("known 20000 3000 0", 20), ("known 1200 112640 0", 0), ("known 1200 112640 0", 30))

PYTHON = "/usr/bin/python3"
# Of all keys, how many there are and their digest.
KEYS = """
import hashlib, lmdb, sys
found, digest = 0, hashlib.sha256()
with lmdb.open(sys.argv[1], readonly=True).begin() as txn, txn.cursor() as cursor:
    if sys.argv[2] == "iternext":
        for key in cursor.iternext(values=False):
            found += 1
            digest.update(key)
    else:
        while cursor.next():
            found += 1
            digest.update(cursor.key())
print(found, digest.hexdigest())
"""


class Strides(cold_test.Walks):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.mounts = {}

    @classmethod
    def tearDownClass(cls):
        for fs in cls.mounts.values():
            fs.__exit__()
        super().tearDownClass()

    def mount(self, known, parts=0):
        if (known, parts) not in self.mounts:
            source = self.db(known, f"{parts}")
            if parts:
                shimtest.run("stock", ["cold", known, f"scatter {source} {parts}"])
            self.mounts[known, parts] = cold_test.missing_part(
                self, lambda: slowfs.SlowFs(shimtest.CONFIG["slowfs"], source, delay_us=1000).__enter__())
        return self.mounts[known, parts]

    def used_on(self, commands, known=None, extra=None, prefix=(), after=("end 0", "close 0"), before=(), parts=0):
        """Answers, `io`, and the bytes that the file system was asked for."""
        known = known or f"known {RECORDS} {LARGE} 0"
        fs = self.mount(known, parts)
        got = None
        variables = {"LMDBIO_IO": "auto", "LMDBIO_MEMORY": "64M", **(extra or {})}
        # What opening reads is not the walk's.
        fs.set(reset=1)
        got = self.run_cold([f"evict {fs.path}", f"open {fs.path}", "begin 0", *before, *commands, *after], variables,
                            prefix, known=known)
        self.assertNotIn("wrong", got.out)
        io = got.io()
        return got, io[0] if io else {}, fs.counters()["read"]["bytes"]

    @staticmethod
    def pages(value):
        return (value + 16 + PAGE - 1) // PAGE

    def needed(self, used, records=RECORDS, value=LARGE):
        """Bytes of so many values, and of all leaf pages (an entry has 8 + 8 + 8 bytes and a slot, half a page is full)."""
        return used * self.pages(value) * PAGE + (records * 26 // (PAGE // 2) + 2) * PAGE

    def right(self, got, command, n):
        self.assertEqual(got[command], [f"right {n}"], got.out + got.err)

    # -- what it is for

    def test_each_eighth(self):
        for first in (0, 3, 7, 20):
            with self.subTest(first=first):
                got, io, read = self.used_on([f"stride 0 8 {first}"])
                used = -(-(RECORDS - first) // 8)
                self.right(got, "stride", used)
                self.assertLessEqual(read, 1.15 * self.needed(used), io)
                self.assertEqual(io["stride_walks"], 1)
                self.assertGreaterEqual(io["predicted"], used - 3)
                self.assertEqual((io["predicted_right"], io["predicted_wrong"]), (io["predicted"], 0))
                self.assertEqual(io["chunks_read"], 0)
                if io["engine"] == "threads":  # a wait for each of its 49 pages would be more
                    self.assertLessEqual(got.stats[0]["environments"][0]["voluntary_switches"], 15 * used)

    def test_other_periods(self):
        for period in (2, 3, 5, 16, 64, 300):
            with self.subTest(period=period):
                got, io, read = self.used_on([f"stride 0 {period} {period - 1}"])
                used = RECORDS // period
                self.right(got, "stride", used)
                # The first two used ones come by page faults, with read-ahead; four are read to see.
                self.assertLessEqual(read, 1.05 * self.needed(used) + 2 * MIB, io)
                self.assertEqual((io["stride_walks"], io["predicted_wrong"]), (1, 0))

    def test_backwards(self):
        got, io, read = self.used_on(["stride-back 0 8 5"])
        used = -(-(RECORDS - 5) // 8)
        self.right(got, "stride-back", used)
        self.assertLessEqual(read, 1.15 * self.needed(used), io)
        self.assertEqual((io["stride_walks"], io["predicted_wrong"]), (1, 0))

    # Intel-Caffe goes on from the first record after the last; the number of ranks need not divide that of records.
    def test_turn_after_turn(self):
        got, io, read = self.used_on([f"stride 0 7 2 {3 * RECORDS // 7}"])
        self.right(got, "stride", 3 * RECORDS // 7)
        self.assertEqual((io["stride_walks"], io["predicted_wrong"]), (1, 0))
        self.assertLessEqual(read, 1.15 * self.needed(3 * RECORDS // 7), io)
        got, io, read = self.used_on([f"stride 0 8 2 {RECORDS}"])
        self.right(got, "stride", RECORDS)
        self.assertLessEqual(read, 1.15 * self.needed(RECORDS // 8), io)  # each once: it is in the page cache

    def test_local_and_warm(self):
        path = self.db(f"known {RECORDS} {LARGE} 0")
        for evict in ([f"evict {path}"], []):
            got = self.run_cold([*evict, f"open {path}", "begin 0", "stride 0 8 3", "stride 0 8 3", "walk 0", "end 0", "close 0"],
                                {"LMDBIO_IO": "auto"}, known=f"known {RECORDS} {LARGE} 0")
            self.assertEqual(got["stride"], ["right 150"] * 2, got.out)
            self.right(got, "walk", RECORDS)

    # -- what is no stride

    def test_full_scan_loses_nothing(self):
        size = os.path.getsize(self.db(f"known {RECORDS} {LARGE} 0") + "/data.mdb")
        for walk in ("walk 0", "back 0", "range 0 600"):
            with self.subTest(walk=walk):
                got, io, read = self.used_on([walk])
                all_of_it = RECORDS - 600 if walk.startswith("range") else RECORDS
                self.right(got, walk.split()[0], all_of_it)
                self.assertEqual((io["stride_walks"], io["predicted"]), (0, 0))
                # Four values by themselves, the rest in chunks; what is read ahead over the end of the walk is wasted.
                self.assertLessEqual(read - io["wasted"], size * all_of_it // RECORDS + 20 * MIB, io)
                self.assertGreaterEqual(io["chunks_read"] * io["chunk_bytes"], 0.9 * size * all_of_it // RECORDS)
                self.assertLessEqual(io["extents"], 60)

    def test_not_told_apart(self):
        known = f"known {RECORDS} {SMALLER} 0"
        size = os.path.getsize(self.db(known) + "/data.mdb")
        for command in ("walk 0", "stride 0 8 3"):
            with self.subTest(command=command):
                got, io, read = self.used_on([command], known=known)
                self.assertEqual(len(got[command.split()[0]]), 1)
                self.assertEqual((io["stride_walks"], io["predicted"]), (0, 0))
                if command == "walk 0":
                    self.assertGreaterEqual(io["chunks_read"] * io["chunk_bytes"], 0.95 * size)
                    self.assertLessEqual(read - io["wasted"], size + 20 * MIB)

    # The first values can be told apart and are used, most others are too small.
    def test_mixed_sizes(self):
        known = "known 2000 300000 2"
        for command, n in (("walk 0", 2000), ("use-at 0 2000 u", 2000), ("use-at 0 2000 u---", 500)):
            with self.subTest(command=command):
                got, io, _ = self.used_on([command], known=known)
                self.right(got, command.split()[0], n)
                self.assertGreater(io["chunks_read"], 40, io)

    def test_keys_alone(self):
        got, io, read = self.used_on([f"use-at 0 {RECORDS} -"])
        self.right(got, "use-at", 0)
        self.assertLessEqual(read, self.needed(0) + 2 * MIB)
        self.assertEqual((io["key_walks"], io["chunks_read"]), (1, 0))

    # -- keys alone, of values that are not told apart

    def test_keys_alone_of_small_values(self):
        for known, parts in OF_KEYS:
            records = int(known.split()[1])
            # By MDB_NEXT without and with values that nobody reads, and by MDB_PREV; then the next turn.
            for walks in (["keys 0", "keys 0"], [f"use-at 0 {records} -"], [f"stride-back 0 1 {records}"]):
                with self.subTest(known=known, parts=parts, walks=walks):
                    got, io, read = self.used_on(walks, known=known, parts=parts)
                    self.assertNotIn("wrong", got.out)
                    self.assertEqual(len(got.answers), len(walks) + 6, got.out)
                    self.assertEqual(io["chunks_read"], 0)
                    self.assertLessEqual(read, self.needed(0, records) + MIB, io)

    # py-lmdb, stock and preloaded: iternext(values=False) and next() with key().
    def test_keys_alone_by_python(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("Python has no sanitizer's runtime")
        if shimtest.run("stock", [PYTHON, "-c", "import lmdb.cpython"]).returncode != 0:
            self.skipTest("no python3-lmdb")
        for known, parts in OF_KEYS:
            records = int(known.split()[1])
            fs = self.mount(known, parts)
            for how in ("iternext", "next"):
                keys = {}
                for mode in ("stock", "preload"):
                    with self.subTest(known=known, parts=parts, how=how, mode=mode):
                        self.assertEqual(self.run_cold([f"evict {fs.path}"], known=known)["evict"], ["0"])
                        fs.set(reset=1)
                        got = shimtest.run(mode, [PYTHON, "-c", KEYS, fs.path, how])
                        read = fs.counters()["read"]["bytes"]
                        self.assertEqual((got.returncode, got.err), (0, ""))
                        keys[mode] = got.out
                        self.assertEqual(got.out.split()[0], str(records))
                        if mode == "preload":
                            self.assertGreaterEqual(got.calls_ours(), records)
                            self.assertLessEqual(read, self.needed(0, records) + MIB)
                self.assertEqual(keys["stock"], keys["preload"])

    def test_keys_then_values(self):
        for known, parts in OF_KEYS:
            records = int(known.split()[1])
            half = records // 2
            with self.subTest(known=known, parts=parts):
                got, io, read = self.used_on([f"use-at 0 {half} -", f"use-at 0 {half} u"], known=known, parts=parts)
                self.assertEqual(got["use-at"], ["right 0", f"right {half}"], got.out)
                # No more than a few values come by page faults of the program.
                self.assertGreaterEqual(io["read"], 0.9 * half * self.pages(int(known.split()[2])) * PAGE, io)

    # The first value comes by a page fault; what follows is a stream as if nothing had been asked.
    def test_values_of_small_size(self):
        for known, parts in OF_KEYS:
            records = int(known.split()[1])
            size = os.path.getsize(self.mount(known, parts).path + "/data.mdb")
            with self.subTest(known=known, parts=parts):
                got, io, read = self.used_on(["walk 0"], known=known, parts=parts)
                self.right(got, "walk", records)
                self.assertLessEqual(read, size + 2 * MIB, io)
                self.assertGreaterEqual(io["read"], 0.97 * records * self.pages(int(known.split()[2])) * PAGE, io)

    def test_keys_in_processes(self):
        known, parts = OF_KEYS[1]
        fs = self.mount(known, parts)
        for processes in (2, 8):
            with self.subTest(processes=processes):
                self.assertEqual(self.run_cold([f"evict {fs.path}"], known=known)["evict"], ["0"])
                fs.set(reset=1)
                argv = [shimtest.program("cold"), known, f"open {fs.path}", "begin 0", "use-at 0 20000 -", "end 0", "close 0"]
                env = shimtest.environment("preload")
                all_of_them = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
                for process in all_of_them:
                    self.assertIn("use-at = right 0", process.communicate()[0])
                self.assertLessEqual(fs.counters()["read"]["bytes"], self.needed(0, 20000) + MIB)

    def test_keys_and_failing_reads(self):
        known, parts = OF_KEYS[1]
        fs = self.mount(known, parts)
        program = cold_test.Program(self, "preload")
        for command in (known, f"evict {fs.path}", f"open {fs.path}", "begin 0"):
            self.assertEqual(program.do(command), "0")
        self.assertEqual(program.do("use-at 0 3000 -"), "right 0")
        fs.set(reset=1, fail_from=1)
        try:
            self.assertEqual(program.do("use-at 0 17000 -"), "wrong")
        finally:
            fs.set(fail_from=0)
        self.assertRegex(program.do("keys 0"), r"^right 20000( errors \d+)?$")
        self.assertRegex(program.do("walk 0"), r"^right 20000( errors \d+)?$")
        self.assertEqual(program.do("end 0") + program.do("close 0"), "00")

    # What is read of each value does not reach its middle: that it is read shows in the page faults.
    def test_heads_alone(self):
        got, io, _ = self.used_on([f"use-at 0 {RECORDS} h"])
        self.right(got, "use-at", 0)
        self.assertEqual(io["stride_walks"], 0)
        self.assertGreater(io["chunks_read"], 40, io)

    def test_no_rule(self):
        for what in ("uu------", "u-u-----", "u-----u---", "uuu-", "uuuuuuu-", "u--u-u---u"):
            with self.subTest(what=what):
                got, io, _ = self.used_on([f"use-at 0 {RECORDS} {what}"])
                self.right(got, "use-at", RECORDS // len(what) * what.count("u"))
                self.assertEqual(io["stride_walks"], 0)
                self.assertGreater(io["chunks_read"], 40, "streamed, as if nothing were known")

    # -- changes

    def test_scan_after_a_stride(self):
        for then in ("walk 0", "rest 0"):
            with self.subTest(then=then):
                got, io, read = self.used_on(["use-at 0 400 u-------", then])
                n = RECORDS - (400 if then == "rest 0" else 0)
                self.right(got, then.split()[0], n)
                self.assertEqual(io["stride_walks"], 1)
                # The scan is streamed but for its first few values; a stream reads ahead over the end of the walk.
                self.assertGreaterEqual(io["chunks_read"] * io["chunk_bytes"], 0.9 * n * LARGE - 16 * MIB)
                self.assertLessEqual(read - io["wasted"], self.needed(50) + 1.02 * self.needed(n) + 48 * MIB, io)

    def test_stride_after_a_scan(self):
        got, io, read = self.used_on(["walk 0", "stride 0 8 3"])
        self.right(got, "stride", 150)
        self.assertLessEqual(read, 1.02 * self.needed(RECORDS))  # the scan has left it in the page cache

    def test_another_period(self):
        got, io, read = self.used_on(["use-at 0 400 u-------", "use-at 0 400 u---------------", "use-at 0 400 u--"])
        self.assertEqual(got["use-at"], ["right 50", "right 25", "right 134"])
        # What had been fetched ahead when it changed is not all used.
        self.assertLessEqual(read, 1.05 * self.needed(209 + 32) + 2 * MIB, io)

    # -- others beside it

    def test_two_cursors(self):
        known = f"known {RECORDS} {LARGE} 0"
        fs = self.mount(known)
        for how in ("turns", "threads", "pair 0"):
            with self.subTest(how=how):
                got = self.run_cold([f"evict {fs.path}", f"open {fs.path}", "begin 0", "use-at 0 200 u-------",
                                     f"open {fs.path}", "begin 1", how, "stride 0 8 1", "stride 1 5 4", "end 0", "end 1",
                                     "close 0", "close 1"], {"LMDBIO_IO": "auto", "LMDBIO_MEMORY": "64M"}, known=known)
                self.assertNotIn("wrong", got.out)
                self.assertEqual(got["stride"], ["right 150", "right 240"], got.out)
                self.assertEqual(got.err, "")

    def test_fork(self):
        got, _, _ = self.used_on(["use-at 0 300 u-------", "fork 0 3", "stride 0 8 0"])
        self.assertEqual(got["fork"][0].split()[:2], ["right", str(RECORDS)], got.out)
        self.right(got, "stride", 150)

    def test_memory(self):
        for memory in ("0", "8M", "1G"):
            with self.subTest(memory=memory):
                got, io, read = self.used_on(["stride 0 8 3", "walk 0"], extra={"LMDBIO_MEMORY": memory})
                self.assertEqual((got["stride"], got["walk"]), (["right 150"], [f"right {RECORDS}"]))
                self.assertEqual(io["stride_walks"], 0 if memory == "0" else 1)

    # Reads fail in the middle of a stride: calls say so, and go on when they can.
    def test_failing_reads(self):
        known = f"known {RECORDS} {LARGE} 0"
        fs = self.mount(known)
        program = cold_test.Program(self, "preload", {"LMDBIO_IO": "auto", "LMDBIO_MEMORY": "64M"})
        for command in (known, f"evict {fs.path}", f"open {fs.path}", "begin 0"):
            self.assertEqual(program.do(command), "0")
        self.assertEqual(program.do("use-at 0 400 u-------"), "right 50")
        fs.set(reset=1, fail_from=1)
        try:
            # What was read ahead is used up first; the values between are known by their leaf page.
            self.assertEqual(program.do("use-at 0 700 u-------"), "wrong")
            self.assertGreater(fs.counters()["faults"]["read_error"], 100)
        finally:
            fs.set(fail_from=0)
        self.assertRegex(program.do("use-at 0 1 u"), r"^right 1( errors \d+)?$")
        self.assertRegex(program.do("stride 0 8 3"), r"^right 150( errors \d+)?$")
        self.assertEqual(program.do("end 0") + program.do("close 0"), "00")

    # Anything in any order: every byte is checked by the program.
    def test_random_programs(self):
        rng = random.Random(cold_test.SEED)
        print(f"  --seed {cold_test.SEED}", flush=True)
        for turn in range(cold_test.ROUNDS):
            known, parts = [(f"known {RECORDS} {LARGE} 0", 0), OF_KEYS[3], ("known 1200 9000 0", 10)][turn % 3]
            fs = self.mount(known, parts)
            commands = [f"evict {fs.path}"] * rng.randrange(2)
            for i in range(2):
                commands += [f"open {fs.path}", f"begin {i}"]
            for _ in range(rng.randrange(4, 12)):
                i, k = rng.randrange(2), rng.choice([1, 2, 3, 8, 9, 30, 64, 299])
                pattern = "".join(rng.choice("u---") for _ in range(rng.randrange(1, 20)))
                commands.append(rng.choice([
                    f"stride {i} {k} {rng.randrange(2 * k)}", f"stride-back {i} {k} {rng.randrange(2 * k)}", f"part {i} {rng.randrange(1, 300)}",
                    f"keys {i}", f"use-at {i} {rng.randrange(1, 500)} u{'-' * (k - 1)}", f"use-at {i} {rng.randrange(1, 500)} {pattern}",
                    f"more {i} {rng.randrange(1, 200)}", f"stride {i} {k} 0 {rng.randrange(1, 2 * RECORDS // k)}",
                    f"pair {i}", f"fork {i} 1", f"evict {fs.path}", "turns"]))
            commands += ["end 0", "close 0", "end 1", "close 1"]
            variables = {"LMDBIO_IO": rng.choice(["auto", "auto", "auto", "buffered"]),
                         "LMDBIO_MEMORY": rng.choice(["0", "8M", "64M", "1G"])}
            fs.set(delay_us=rng.choice([0, 200]))
            try:
                with self.subTest(variables=variables, commands=commands):
                    got = self.run_cold(commands, variables, known=known)
                    self.assertNotIn("wrong", got.out)
                    self.assertNotIn("fork = parent", got.out)
                    self.assertEqual((len(got.answers), got.err), (len(commands) + 1, ""))
            finally:
                fs.set(delay_us=1000)

    # -- where nothing tells

    def test_settings(self):
        for way in ("direct", "buffered"):
            got, io, _ = self.used_on(["stride 0 8 3"], extra={"LMDBIO_IO": way})
            self.right(got, "stride", 150)
            self.assertEqual((io["stride_walks"], io["predicted"]), (0, 0))

    def test_no_proc(self):
        prefix = cold_test.missing_part(self, lambda: confined.in_mounts("mount -t tmpfs none /proc"))
        path = self.db(f"known {RECORDS} {LARGE} 0")
        got = self.run_cold([f"evict {path}", f"open {path}", "begin 0", "stride 0 8 3", "walk 0", "end 0", "close 0"],
                            {"LMDBIO_IO": "auto"}, prefix, known=f"known {RECORDS} {LARGE} 0")
        self.assertEqual((got["stride"], got["walk"]), (["right 150"], [f"right {RECORDS}"]))

    def test_few_descriptors(self):
        for left in range(0, 12):
            with self.subTest(left=left):
                got, _, _ = self.used_on(["stride 0 8 3"], before=(f"files {left}",))
                self.right(got, "stride", 150)

    def test_statistics_in_words(self):
        fs = self.mount(f"known {RECORDS} {LARGE} 0")
        if not shimtest.CONFIG["command"]:
            self.skipTest("the command is not built")
        said = self.run_command(fs)
        self.assertIn("cursors that used every k-th value: ", said)

    def run_command(self, fs):
        argv = [shimtest.CONFIG["command"], "run", "--stats", "--", shimtest.program("cold"), f"known {RECORDS} {LARGE} 0",
                f"evict {fs.path}", f"open {fs.path}", "begin 0", "stride 0 8 3", "end 0", "close 0"]
        done = subprocess.run(argv, env=shimtest.environment("stock", {"LMDBIO_LIB": shimtest.CONFIG["lib"]}),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr




if __name__ == "__main__":
    shimtest.main()
