"""Unmodified programs with a cache on local disk: right bytes in any case, and hardly a read of the file once the cache has it.

    cache_test.py CONFIG [--kills N] [--seed N] [unittest arguments]

As cold_test.py: the program is cold.c, things are counted, nothing is timed.  The thread that fills the cache has the lowest
priority, so one job may fill only a part.
"""
import glob
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import cold_test
import confined
import shimtest
from cold_test import ALL, KNOWN, MIB, RECORDS, SMALL

import slowfs

KILLS = shimtest.option("--kills", 100)
SEED = cold_test.SEED
CHUNK = 4 * MIB
HEADER, ENTRY = 4096, 16  # of a table, in bytes
SAMPLE = 2 * MIB  # what the choice of a recipe reads, in bytes
WINDOW_CHUNK = 2 * MIB  # a walk may read one twice
OPEN = MIB // 2  # what LMDB's open, the first lookups and the kernel's read-ahead for them may read, in bytes
MOST_JOBS = 40
SMALL_ALL = "right 1600"

READER = """
import hashlib, sys, lmdbio
from lmdbio import Order
reader, digest = lmdbio.Reader(sys.argv[1]), hashlib.sha256()
order = Order.shuffled(5, batch=32) if sys.argv[2] == "shuffled" else Order.sequential(batch=32)
for batch in reader.stream(order):
    for record in batch:
        digest.update(bytes(record.key) + bytes(record.value))
print(len(reader), digest.hexdigest())
"""


def chunks_of(table):
    """(chunks that the image has, chunks of the database)."""
    with open(table, "rb") as f:
        header = f.read(HEADER)
        chunks = -(-struct.unpack_from("<Q", header, 16)[0] // CHUNK)
        entries = f.read(ENTRY * chunks)
    there = sum(struct.unpack_from("<I", entries, at + 8)[0] != 0 for at in range(0, len(entries) // ENTRY * ENTRY, ENTRY))
    return there, chunks


class Cached(cold_test.Walks):
    def setUp(self):
        super().setUp()
        self.cache = tempfile.mkdtemp(prefix="shimtest-cache-", dir=self.place())
        self.addCleanup(shutil.rmtree, self.cache, ignore_errors=True)
        self.mounts = []
        self.addCleanup(lambda: [fs.__exit__() for fs in self.mounts])

    def place(self):
        return None

    def mount(self, known=KNOWN, name="", **options):
        """A database on a file system that counts what is read."""
        fs = cold_test.missing_part(
            self, lambda: slowfs.SlowFs(shimtest.CONFIG["slowfs"], self.db(known, name), **options).__enter__())
        self.mounts.append(fs)
        return fs

    def job(self, path, commands=("walk 0",), extra=None, known=KNOWN, prefix=(), before=()):
        return self.run_cold([*before, f"evict {path}", f"open {path}", "begin 0", *commands, "end 0", "close 0"],
                             {"LMDBIO_IO": "auto", "LMDBIO_CACHE_DIR": self.cache, "LMDBIO_CACHE_CODEC": "raw", **(extra or {})},
                             prefix, known=known)

    def right(self, got, want=ALL):
        for command, answer in got.answers:
            if command.split()[0] in ("walk", "back", "range", "part", "rest"):
                self.assertEqual(answer, want, got.out + got.err)

    def own(self, ending=""):
        return glob.glob(f"{self.cache}/lmdbio-{os.geteuid()}/*{ending}")

    def chunks(self):
        """(chunks there, chunks) of the only image."""
        tables = self.own(".table")
        self.assertLessEqual(len(tables), 1)
        return chunks_of(tables[0]) if tables else (0, None)

    def fill(self, path, known=KNOWN, want=ALL, extra=None, whole=True):
        """Jobs until the image has all chunks, or has not grown for a while."""
        last, same = -1, 0
        for turn in range(MOST_JOBS):
            self.right(self.job(path, ("walk 0", "back 0"), {"LMDBIO_IO": "direct", **(extra or {})}, known), want)
            there, chunks = self.chunks()
            if there == chunks:
                return there
            same = same + 1 if there == last else 0
            last = there
            if not whole and turn >= 5 and same >= 5:
                return there
        self.assertFalse(whole, f"{there} of {chunks} chunks after {MOST_JOBS} jobs")
        return last

    def read_of(self, fs, run):
        """Bytes that were read from the file while `run` ran."""
        fs.set(reset=1)
        run()
        return fs.counters()["read"]["bytes"]


class Counted(Cached):
    def test_second_job(self):
        fs = self.mount()
        size = os.path.getsize(self.db() + "/data.mdb")
        self.fill(fs.path)
        little = size * 0.002 + OPEN
        for variables in ({}, {"LMDBIO_IO": "direct"}, {"LMDBIO_IO": "buffered"}, {"LMDBIO_MEMORY": "64M"},
                          {"LMDBIO_IO": "direct", "LMDBIO_ENGINE": "threads"}, {"LMDBIO_NODE": "off"}, {"LMDBIO_NODE": "chunks"}):
            for commands in (["walk 0"], ["back 0"], ["walk 0", "back 0", "walk 0"], ["pair 0"], ["twice 0"], ["range 0 3000"],
                             ["keys 0"], ["stride 0 7 3"], ["gets 0 3000 7"], ["sets 0 3000 101"], ["gets 0 6000 1", "walk 0"]):
                with self.subTest(commands=commands, **variables):
                    got = []
                    read = self.read_of(fs, lambda: got.append(self.job(fs.path, commands, variables)))
                    for command in commands:
                        name = command.split()[0]
                        self.assertTrue(all(a.startswith("right") for a in got[0][name]), got[0].out)
                    self.assertLessEqual(read, little)
                    self.assertEqual(got[0].err, "")

    # The chunks are compressed: walks read them, and lookups as long as there is memory for all of them.
    def test_second_job_compressed(self):
        fs = self.mount()
        size = os.path.getsize(self.db() + "/data.mdb")
        for codec in ("lz4", "zstd-1", "zstd-3", "smallest"):
            shutil.rmtree(self.cache + f"/lmdbio-{os.geteuid()}", ignore_errors=True)
            self.fill(fs.path, extra={"LMDBIO_CACHE_CODEC": codec})
            lookups = [["gets 0 3000 7"], ["gets 0 3000 1001"], ["sets 0 3000 101"], ["gets 0 6000 1", "walk 0"]]
            for variables, more in (({}, []), ({"LMDBIO_IO": "direct"}, []), ({"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "8M"}, []),
                                    ({"LMDBIO_MEMORY": "256M"}, lookups)):
                for commands in (["walk 0"], ["back 0"], ["walk 0", "back 0"], ["range 0 3000"], *more):
                    with self.subTest(codec=codec, commands=commands, **variables):
                        got = []
                        read = self.read_of(fs, lambda: got.append(self.job(fs.path, commands, variables)))
                        for command in commands:
                            self.assertTrue(got[0][command.split()[0]][0].startswith("right"), got[0].out)
                        # Lookups, and the records of a walk until its first chunk is decompressed, are read from the
                        # database: on a busy machine, more of them.
                        self.assertLessEqual(read, size * 0.002 + 4 * OPEN)

    # What the first job reads more than without a cache is little.
    def test_first_job(self):
        for variables in ({}, {"LMDBIO_IO": "direct"}):
            for codec, more in (("raw", 0), ("auto", SAMPLE)):
                fs = self.mount(name=str((variables, codec)))
                size = os.path.getsize(fs.path + "/data.mdb")
                for turn in range(3):
                    with self.subTest(codec=codec, **variables):
                        shutil.rmtree(self.cache + f"/lmdbio-{os.geteuid()}", ignore_errors=True)
                        read = self.read_of(
                            fs, lambda: self.right(self.job(fs.path, extra={"LMDBIO_CACHE_CODEC": codec, **variables})))
                        self.assertLessEqual(read, size * 1.02 + OPEN + more + WINDOW_CHUNK)

    def test_python_readers(self):
        if not os.path.exists(shimtest.CONFIG["build"] + "/python/lmdbio/__init__.py"):
            self.skipTest("the Python module is not built")
        fs = self.mount()
        size = os.path.getsize(fs.path + "/data.mdb")

        def read(path, order, extra=None):
            env = {**shimtest.environment("stock", extra), "PYTHONPATH": shimtest.CONFIG["build"] + "/python",
                   "LMDBIO_INDEX_DIR": self.dir}
            done = subprocess.run([sys.executable, "-B", "-c", READER, path, order], env=env, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, timeout=100)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            return done.stdout

        want = {order: read(self.db(), order) for order in ("sequential", "shuffled")}
        for codec in ("raw", "zstd-1"):
            shutil.rmtree(self.cache + f"/lmdbio-{os.geteuid()}", ignore_errors=True)
            stats = os.path.join(self.dir, "stats-of-readers-" + codec)
            cached = {"LMDBIO_CACHE_DIR": self.cache, "LMDBIO_CACHE_CODEC": codec, "LMDBIO_STATS": stats}
            for order in ("shuffled", "sequential") * (MOST_JOBS // 2):
                subprocess.run([shimtest.program("cold"), f"evict {fs.path}"], env=shimtest.environment("stock"),
                               stdout=subprocess.DEVNULL)
                self.assertEqual(read(fs.path, order, cached), want[order])
                there, chunks = self.chunks()
                if there == chunks:
                    break
            self.assertEqual(there, chunks)
            added = [e["reader"]["cache_filled"] for line in shimtest.read_stats(stats) for e in line["environments"]]
            if codec == "raw":  # others may be compressed after the last count
                self.assertEqual(sum(added), chunks)
            for order in ("sequential", "shuffled"):
                for how in ("auto", "direct", "buffered"):
                    with self.subTest(codec=codec, order=order, how=how):
                        subprocess.run([shimtest.program("cold"), f"evict {fs.path}"], env=shimtest.environment("stock"),
                                       stdout=subprocess.DEVNULL)
                        bytes_read = self.read_of(
                            fs, lambda: self.assertEqual(read(fs.path, order, {**cached, "LMDBIO_IO": how}), want[order]))
                        self.assertLessEqual(bytes_read, size * 0.002 + OPEN)

    # The chunks that fit are the same in each epoch.
    def test_half_of_the_file(self):
        fs = self.mount()
        size = os.path.getsize(fs.path + "/data.mdb")
        limit = {"LMDBIO_CACHE_SIZE": str(size // 2)}
        there = self.fill(fs.path, extra=limit, whole=False)
        self.assertLessEqual(sum(os.stat(f).st_blocks * 512 for f in self.own()), size // 2 + CHUNK)
        self.assertIn(there, range(size // 2 // CHUNK - 1, size // 2 // CHUNK + 1))
        for commands in (["walk 0"], ["back 0"]):
            for variables in ({}, {"LMDBIO_IO": "direct"}):
                with self.subTest(commands=commands, **variables):
                    read = self.read_of(fs, lambda: self.right(self.job(fs.path, commands, {**limit, **variables})))
                    self.assertLessEqual(read, size * 1.03 - there * CHUNK + OPEN)
        self.assertEqual(self.chunks()[0], there)

    def test_processes_that_start_together(self):
        fs = self.mount()
        size = os.path.getsize(fs.path + "/data.mdb")
        env = shimtest.environment("preload", {"LMDBIO_CACHE_DIR": self.cache, "LMDBIO_CACHE_CODEC": "raw"})
        walk = [shimtest.program("cold"), KNOWN, f"open {fs.path}", "begin 0", "walk 0", "end 0", "close 0"]
        for turn in range(3):
            self.run_cold([f"evict {fs.path}"])
            fs.set(reset=1)
            started = [subprocess.Popen(walk, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                       for _ in range(8)]
            for process in started:
                out, err = process.communicate(timeout=100)
                self.assertEqual((process.returncode, err), (0, ""))
                self.assertIn(f"walk = {ALL}\n", out)
            self.assertLessEqual(fs.counters()["read"]["bytes"], size * 1.1 + 2 * CHUNK)
        self.assertLessEqual(len(self.own(".data")), 1)
        self.assertEqual(self.own(".new"), [])

    # Each of them looks up all records, twice.  Together they decompress each chunk about once, and in the end all have it.
    def test_processes_that_look_up(self):
        room = os.statvfs("/dev/shm")
        if room.f_blocks * room.f_frsize < 1 << 30:
            self.skipTest("/dev/shm is small")
        fs = self.mount()
        size = os.path.getsize(fs.path + "/data.mdb")
        self.fill(fs.path, extra={"LMDBIO_CACHE_CODEC": "lz4"})
        stats = os.path.join(self.dir, "stats-of-lookups")
        extra = {"LMDBIO_CACHE_DIR": self.cache, "LMDBIO_CACHE_CODEC": "lz4", "LMDBIO_MEMORY": "256M", "LMDBIO_STATS": stats}
        programs = [cold_test.Program(self, extra=extra) for _ in range(4)]
        self.run_cold([f"evict {fs.path}"])
        for program in programs:
            for command in (KNOWN, f"open {fs.path}", "begin 0"):
                self.assertEqual(program.do(command), "0")
        for most in (size * 0.05 + 4 * OPEN, size * 0.01):
            fs.set(reset=1)
            for program, step in zip(programs, (1237, 2731, 3571, 4463)):
                program.process.stdin.write(f"gets 0 {RECORDS} {step}\n")
            for program in programs:
                self.assertIn(f"= right {RECORDS}", program.process.stdout.readline())
            self.assertLessEqual(fs.counters()["read"]["bytes"], most)
        for program in programs:
            self.assertEqual(program.do("end 0"), "0")
        for program in programs:
            self.assertEqual((program.do("close 0"), program.end()), ("0", 0))
        files = [e["io"] for line in shimtest.read_stats(stats) for e in line["environments"]]
        self.assertEqual(len(files), 4)
        self.assertLessEqual(sum(f["cache_read"] for f in files), size * 1.5 + 4 * WINDOW_CHUNK)

    # Both read through the page cache, although the image has a part by then: what one has read, the other finds.
    def test_process_that_starts_while_the_image_is_filled(self):
        fs = self.mount()
        size = os.path.getsize(fs.path + "/data.mdb")
        variables = {"LMDBIO_CACHE_DIR": self.cache, "LMDBIO_CACHE_CODEC": "raw", "LMDBIO_CACHE_SIZE": str(size // 2)}
        first = cold_test.Program(self, extra=variables)
        for command in (KNOWN, f"evict {fs.path}", f"open {fs.path}", "begin 0"):
            self.assertEqual(first.do(command), "0")
        fs.set(reset=1)
        self.assertEqual(first.do("part 0 100"), "right 100")
        end = time.monotonic() + 60
        while self.chunks()[0] < 2 and time.monotonic() < end:
            time.sleep(0.01)
        there, chunks = self.chunks()
        self.assertIn(there, range(2, chunks))
        with open(fs.path + "/data.mdb", "rb") as f:  # it may have read ahead to the end
            os.posix_fadvise(f.fileno(), size // 4 * 3, 0, os.POSIX_FADV_DONTNEED)
        got = self.run_cold([f"open {fs.path}", "begin 0", "walk 0", "end 0", "close 0"], {"LMDBIO_IO": "auto", **variables})
        self.assertEqual((got["walk"], got.io()[0]["read_path"]), ([ALL], "buffered"))
        self.assertEqual(first.do("rest 0"), f"right {RECORDS - 100}")
        self.assertEqual(first.end(), 0)
        self.assertLessEqual(fs.counters()["read"]["bytes"], size * 5 / 4 + OPEN + 2 * WINDOW_CHUNK)

    def test_fork_while_an_image_is_used(self):
        fs = self.mount()
        self.fill(fs.path)
        for variables in ({}, {"LMDBIO_IO": "direct"}):
            read = self.read_of(fs, lambda: self.assertIn(
                f"right {RECORDS}", self.job(fs.path, ["part 0 1000", "fork 0 4", "walk 0"], variables).out))
            self.assertLessEqual(read, OPEN * 5)

    # Both have the same cache.
    def test_two_databases(self):
        one, other = self.mount(SMALL, "one"), self.mount(SMALL, "other")
        for turn in range(3):
            for fs in (one, other):
                self.right(self.job(fs.path, known=SMALL, extra={"LMDBIO_IO": "direct"}), SMALL_ALL)
        tables = self.own(".table")
        self.assertEqual(len(tables), 2)
        for fs in (one, other):
            self.right(self.job(fs.path, ("walk 0", "back 0"), known=SMALL), SMALL_ALL)


class Faulty(Cached):
    """The database and the cache are on different file systems without FUSE."""

    def place(self):
        if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat(self.dir).st_dev:
            self.skipTest("no other file system for the cache")
        return "/dev/shm"

    def writer(self, name="written"):
        path = self.fresh(name)
        write = cold_test.Program(self, "stock")
        for command in (KNOWN, f"make {path}", f"writer {path}", "commit"):
            self.assertEqual(write.do(command), "0", command)
        return path, write

    def reader(self, extra=None):
        return cold_test.Program(self, extra={"LMDBIO_CACHE_DIR": self.cache, **(extra or {})})

    # A job that uses the image of its snapshot, and then the next snapshot.
    def test_commit_during_a_job(self):
        for variables in ({"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "16M"}, {"LMDBIO_IO": "auto"}, {"LMDBIO_IO": "buffered"}):
            with self.subTest(**variables):
                # Not the same file again: after more commits, some chunks have free pages alone, which no walk reads.
                path, write = self.writer(variables["LMDBIO_IO"])
                shutil.rmtree(f"{self.cache}/lmdbio-{os.geteuid()}", ignore_errors=True)
                for turn in range(MOST_JOBS):
                    if turn and self.chunks()[0] == self.chunks()[1]:
                        break
                    got = self.run_cold(["versions", f"evict {path}", f"open {path}", "begin 0", "walk 0", "end 0", "close 0"],
                                        {"LMDBIO_IO": "direct", "LMDBIO_CACHE_DIR": self.cache, "LMDBIO_CACHE_CODEC": "raw"})
                    self.assertEqual(got["walk"], [ALL])
                self.assertEqual(*self.chunks())
                read = self.reader(variables)
                for command in (KNOWN, "versions", f"evict {path}", f"open {path}", f"open {path}", "begin 0"):
                    self.assertEqual(read.do(command), "0")
                self.assertEqual(read.do("part 0 2500"), "right 2500")
                for turn in range(4):
                    self.assertEqual(write.do("commit"), "0")
                    self.assertEqual(read.do("begin 1"), "0")
                    self.assertEqual(read.do("walk 1"), ALL)  # of the new snapshot, beside that of the old one
                    self.assertEqual(read.do("rest 0" if turn == 0 else "walk 0"), "right 3500" if turn == 0 else ALL)
                    self.assertEqual(read.do("back 0"), ALL)
                    self.assertEqual(read.do("end 1"), "0")
                    self.assertEqual(read.do("end 0"), "0")
                    self.assertEqual(read.do("begin 0"), "0")
                    self.assertEqual(read.do("walk 0"), ALL)
                for command in ("end 0", "close 0", "close 1"):
                    read.do(command)
                self.assertEqual(read.end(), 0)
                write.end()

    # Jobs and a writer without any order between them.
    def test_commits_meanwhile(self):
        path, write = self.writer()
        for variables in ({"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "8M"}, {"LMDBIO_IO": "auto"}):
            env = shimtest.environment("preload", {"LMDBIO_CACHE_DIR": self.cache, "LMDBIO_CACHE_SIZE": "100M",
                                                   "LMDBIO_CACHE_CODEC": "raw", **variables})
            jobs = [subprocess.Popen([shimtest.program("cold"), KNOWN, "versions", f"open {path}"] +
                                     ["begin 0", "walk 0", "back 0", "end 0", "close 0", f"open {path}", "begin 1", "walk 1",
                                      "end 1", "begin 1", "walk 1", "end 1", "close 1"], env=env, stdout=subprocess.PIPE, text=True)
                    for _ in range(3)]
            while any(job.poll() is None for job in jobs):
                write.do("commit")
                time.sleep(0.05)  # no page that an open snapshot has is used again: the file grows with each commit
            for job in jobs:
                out = job.communicate()[0]
                self.assertEqual(job.returncode, 0, out)
                self.assertEqual(out.count(f"= {ALL}\n"), 4, out)

    def test_killed_jobs(self):
        chance = random.Random(SEED)
        path = self.db(SMALL)
        env = shimtest.environment("preload", {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "8M", "LMDBIO_CACHE_DIR": self.cache})
        for turn in range(KILLS):
            with self.subTest(turn=turn, seed=SEED):
                env["LMDBIO_CACHE_CODEC"] = chance.choice(("raw", "zstd-1", "auto"))
                job = subprocess.Popen([shimtest.program("cold"), SMALL, f"evict {path}", f"open {path}", "begin 0"] +
                                       ["walk 0", "back 0"] * 1000, env=env, stdout=subprocess.PIPE, text=True)
                try:
                    job.wait(timeout=chance.uniform(0, 0.4))
                except subprocess.TimeoutExpired:
                    pass
                job.send_signal(signal.SIGKILL)
                out = job.communicate()[0]
                self.assertEqual([line for line in out.splitlines()[:-1] if line[:4] in ("walk", "back") and SMALL_ALL not in line],
                                 [])
                if chance.random() < 0.3:  # as after a start of the machine
                    for name in self.own(".map"):
                        os.remove(name)
                self.right(self.job(path, ("walk 0",), {"LMDBIO_IO": chance.choice(("auto", "direct"))}, SMALL), SMALL_ALL)
                if chance.random() < 0.4:
                    shutil.rmtree(f"{self.cache}/lmdbio-{os.geteuid()}", ignore_errors=True)
                elif chance.random() < 0.2:
                    for name in self.own(chance.choice((".data", ".table", ".map", ".part"))):
                        os.remove(name)
        self.assertLessEqual(len(self.own(".data")), 1)
        self.fill(path, SMALL, SMALL_ALL)

    # Of an earlier start of the machine, which verifies what it finds.
    def test_damaged_images(self):
        chance = random.Random(SEED)
        path = self.db(SMALL)
        for turn in range(40):
            with self.subTest(turn=turn, seed=SEED):
                if turn % 20 == 0:
                    shutil.rmtree(self.cache + f"/lmdbio-{os.geteuid()}", ignore_errors=True)
                    self.fill(path, SMALL, SMALL_ALL, {"LMDBIO_CACHE_CODEC": "zstd-1" if turn else "raw"})
                for name in self.own(".map"):
                    os.remove(name)
                name = self.own(chance.choice((".data", ".data", ".table")))[0]
                with open(name, "r+b") as f:
                    at = chance.randrange(os.path.getsize(name))
                    f.seek(at)
                    byte = f.read(1)[0]
                    f.seek(at)
                    f.write(bytes([byte ^ 1 << chance.randrange(8)]))
                way = {"LMDBIO_IO": chance.choice(("auto", "direct", "buffered"))}
                got = self.job(path, ("walk 0", "back 0", "gets 0 500 7"), way, SMALL)
                self.right(got, SMALL_ALL)
                self.assertEqual(got["gets"], ["right 500"])
                self.assertLessEqual(got.err.count("\n"), 1)

    def test_directories_that_cannot_be_used(self):
        path = self.db(SMALL)
        own = f"{self.cache}/lmdbio-{os.geteuid()}"

        def link():
            os.mkdir(self.dir + "/other", 0o700)
            os.symlink(self.dir + "/other", own)

        for make in (lambda: os.mkdir(own, 0o755), link, lambda: open(own, "w", encoding="ascii").close()):
            make()
            got = self.job(path, ("walk 0", "back 0"), {"LMDBIO_IO": "direct"}, SMALL)
            self.right(got, SMALL_ALL)
            self.assertEqual(got.err.count("no cache on local disk"), 1, got.err)
            if os.path.isdir(own) and not os.path.islink(own):
                os.rmdir(own)
            else:
                os.remove(own)
        for cache in (self.cache + "/none", "/proc", ""):
            self.right(self.job(path, known=SMALL, extra={"LMDBIO_CACHE_DIR": cache}), SMALL_ALL)
        self.right(self.job(path, known=SMALL, extra={"LMDBIO_CACHE_DIR": self.dir}), SMALL_ALL)
        self.assertEqual(glob.glob(self.dir + "/lmdbio-*/*"), [], "nothing in the database's own file system")

    def test_full_disk(self):
        prefix = cold_test.missing_part(self, lambda: confined.in_mounts(f"mount -t tmpfs -o size=8m,mode=700 none {self.cache}"))
        path = self.db()
        for variables in ({"LMDBIO_IO": "direct"}, {"LMDBIO_IO": "auto"}):
            got = self.job(path, ("walk 0", "back 0", "walk 0"), variables, prefix=prefix)
            self.right(got)
            self.assertEqual(got.err, "")

    def test_read_only(self):
        path = self.db(SMALL)
        self.fill(path, SMALL, SMALL_ALL)
        prefix = cold_test.missing_part(
            self, lambda: confined.in_mounts(f"mount --bind {self.cache} {self.cache}; mount -o remount,bind,ro {self.cache}"))
        for boot in ("same", "next"):
            self.right(self.job(path, ("walk 0", "back 0"), known=SMALL, prefix=prefix), SMALL_ALL)
            for name in self.own(".map"):
                os.remove(name)

    def test_removed_while_a_job_runs(self):
        path = self.db(SMALL)
        self.fill(path, SMALL, SMALL_ALL)
        for variables in ({"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "8M"}, {"LMDBIO_IO": "auto"}):
            read = self.reader(variables)
            for command in (SMALL, f"evict {path}", f"open {path}", "begin 0"):
                self.assertEqual(read.do(command), "0")
            self.assertEqual(read.do("part 0 500"), "right 500")
            shutil.rmtree(f"{self.cache}/lmdbio-{os.geteuid()}")
            for command in ("walk 0", "back 0"):
                self.assertEqual(read.do(command), SMALL_ALL)
            self.assertEqual(read.do("fork 0 2").split()[:2], ["right", "1600"])
            self.assertEqual(read.do("end 0"), "0")
            self.assertEqual(read.do("close 0"), "0")
            for command in (f"open {path}", "begin 1"):
                self.assertEqual(read.do(command), "0")
            self.assertEqual(read.do("walk 1"), SMALL_ALL)
            self.assertEqual(read.end(), 0)
            self.fill(path, SMALL, SMALL_ALL)

    # Another database under the same path, while a job has the first one open.
    def test_database_replaced(self):
        path = self.fresh("replaced")
        for turn in range(3):
            records = 1600 + turn
            known = f"known {records} 24000 4"
            new = self.fresh("new")
            self.run_cold([f"make {new}"], known=known)
            os.replace(new + "/data.mdb", path + "/data.mdb")
            for _ in range(3):
                self.right(self.job(path, ("walk 0", "back 0"), {"LMDBIO_IO": "direct"}, known), f"right {records}")


if __name__ == "__main__":
    shimtest.main()
