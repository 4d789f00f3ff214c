"""Cold walks of an unmodified program: right bytes and right statistics, whatever the machine withholds.

    cold_test.py CONFIG [--rounds N] [--seed N] [unittest arguments]

The program is cold.c, the shim comes by preload.  Things are counted, nothing is timed.  --rounds 1000 Random: a
campaign of random programs.
"""
import contextlib
import ctypes
import mmap
import os
import random
import shutil
import struct
import subprocess
import sys
import time

import confined
import shimtest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import cgroup  # noqa: E402
import slowfs  # noqa: E402

RECORDS, BYTES, EVERY = 6000, 24000, 4  # 36 MiB
KNOWN = f"known {RECORDS} {BYTES} {EVERY}"
SMALL = "known 1600 24000 4"  # 10 MiB
LARGE_RECORDS = 12000
LARGE = f"known {LARGE_RECORDS} 24000 4"  # 72 MiB
MIB = 1 << 20
ENGINES = ("uring", "threads", "pread")
ALL = f"right {RECORDS}"


ROUNDS = shimtest.option("--rounds", 8)
SEED = shimtest.option("--seed", random.SystemRandom().randrange(1 << 30))


def missing_part(case, body):
    try:
        return body()
    except (confined.Missing, slowfs.Missing) as why:
        case.skipTest(str(why))


class Answers:
    def __init__(self, done, stats):
        self.returncode, self.out, self.err, self.stats = done.returncode, done.stdout, done.stderr, stats
        self.answers = [line.split(" = ", 1) for line in done.stdout.splitlines() if " = " in line]

    def __getitem__(self, name):
        """The answers of a command."""
        return [answer for command, answer in self.answers if command == name]

    def io(self):
        return [e["io"] for line in self.stats for e in line["environments"] if "io" in e]


class Program:
    """cold.c at the other end of a pipe: one command, one answer."""

    def __init__(self, case, mode="preload", extra=None):
        self.process = subprocess.Popen([shimtest.program("cold"), "-"], env=shimtest.environment(mode, extra),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        case.addCleanup(self.end)

    def do(self, command):
        self.process.stdin.write(command + "\n")
        said = ""
        for line in self.process.stdout:
            said += line
            if " = " in line:
                return line.split(" = ", 1)[1].strip()
        raise AssertionError(f"{command}: ended with {self.process.wait()}: {said}")

    def end(self):
        if self.process.stdin.closed:
            return self.process.returncode
        self.process.stdin.close()
        status = self.process.wait(timeout=60)
        self.process.stdout.close()
        return status


def evict_values(path, data):
    """Evicts a database from the page cache, branch pages excepted: these come by page faults."""
    page, branch = 4096, 1
    start = 2  # behind the meta pages
    end = len(data) // page
    with open(path, "rb") as f:
        for n in range(start, end + 1):
            number, _, flags = struct.unpack_from("<QHH", data, n * page) if n < end else (n, 0, branch)
            if number == n and flags & branch:
                os.posix_fadvise(f.fileno(), start * page, (n - start) * page, os.POSIX_FADV_DONTNEED)
                start = n + 1


@contextlib.contextmanager
def kept_in_memory(path):
    """Keeps a file in the page cache.  Otherwise the kernel may drop it at any time; with DAMON it does so although memory is free.
    Without the right to lock as much, it has no effect."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mlock.argtypes = libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    with open(path, "rb") as f:
        size = os.fstat(f.fileno()).st_size
        at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, f.fileno(), 0)
    libc.mlock(at, size)
    try:
        yield
    finally:
        libc.munmap(at, size)


class Walks(confined.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.made = {}

    @classmethod
    def tearDownClass(cls):
        for path in cls.made.values():
            shutil.rmtree(path, ignore_errors=True)

    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("no sanitizer: the shim is preloaded")

    def db(self, known=KNOWN, name=""):
        """A database that stock has written; one for all tests, in a directory of the class."""
        if (known, name) not in self.made:
            path = os.path.join(os.path.dirname(self.dir), f"shimtest-cold-{os.getpid()}-{len(self.made)}")
            os.mkdir(path)
            os.chmod(path, 0o755)
            self.made[known, name] = path
            done = subprocess.run([shimtest.program("cold"), known, f"make {path}"], stdout=subprocess.PIPE, text=True,
                                  env=shimtest.environment("stock"))
            self.assertEqual(done.returncode, 0, done.stdout)
            os.chmod(path + "/data.mdb", 0o644)
        return self.made[known, name]

    def run_cold(self, commands, extra=None, prefix=(), known=KNOWN, status=0, timeout=100):
        stats = os.path.join(self.dir, "stats")
        if os.path.exists(stats):
            os.remove(stats)
        extra = {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "16M", "LMDBIO_STATS": stats, **(extra or {})}
        argv, env = confined.start("preload", ["cold", known, *commands], extra, prefix)
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=timeout)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return Answers(done, shimtest.read_stats(stats) if os.path.exists(stats) else [])

    def ended(self, n):
        """Environments of `n` processes that have ended, of the last run_cold.  Another process on this machine that uses LMDBIO
        may be about to write their lines."""
        for _ in range(200):
            lines = shimtest.read_stats(os.path.join(self.dir, "stats"))
            found = [e for line in lines if line.get("state") == "ended" for e in line["environments"]]
            if len(found) >= n:
                break
            time.sleep(0.05)
        return found

    def walked(self, extra=None, prefix=(), before=(), walk=("walk 0",), after=("end 0", "close 0"), path=None,
               reads=True):
        """A cold walk of the usual database, with commands between begin and walk: its answers and `io`."""
        path = path or self.db()
        got = self.run_cold([f"evict {path}", f"open {path}", "begin 0", *before, *walk, *after], extra, prefix)
        for command in walk:
            name = command.split()[0]
            want = {"walk": RECORDS, "back": RECORDS, "twice": 3 * RECORDS, "pair": 2 * RECORDS, "cancel": RECORDS}[name]
            self.assertEqual(got[name], [f"right {want}"] * sum(c.split()[0] == name for c in walk), got.out + got.err)
        io = got.io()[0] if got.io() else {}
        if reads:
            self.check_io(io, got)
        return got, io

    # What statistics must be where chunks were read directly.
    def check_io(self, io, got, size=None):
        size = size or os.path.getsize(self.db() + "/data.mdb")
        self.assertEqual(io["read_path"], "direct", got.out)
        self.assertGreaterEqual(io["read"], size * 0.95)
        self.assertEqual(io["chunks_read"], io["published"] + io["publish_failed"] + io["stale"] + io["read_failed"])
        self.assertGreater(io["published"], 0)
        self.assertLessEqual(io["most_resident"] * io["chunk_bytes"], io["memory_limit"])
        self.assertLessEqual(io["asked"], io["read"] * 30)


class Cold(Walks):
    # -- engines

    def test_engines(self):
        size = os.path.getsize(self.db() + "/data.mdb")
        for wanted, engine in (("uring", "io_uring"), ("threads", "threads"), ("pread", "pread")):
            with self.subTest(engine=wanted):
                got, io = self.walked({"LMDBIO_ENGINE": wanted}, walk=("walk 0", "back 0", "walk 0"))
                if wanted == "uring" and io["engine"] != engine:
                    self.absent("io_uring")
                    continue
                self.assertEqual(io["engine"], engine)
                self.assertEqual(got.err, "")
                self.assertGreaterEqual(io["asked"], size * 0.95)

    def test_ring_forbidden(self):
        prefix = missing_part(self, lambda: confined.failing("io_uring_setup=EPERM", "io_uring_enter=EPERM"))
        for wanted in ("auto", "uring"):
            got, io = self.walked({"LMDBIO_ENGINE": wanted}, prefix)
            self.assertIn(io["engine"], ("threads", "pread"))
            self.assertEqual(got.err, "")

    # Reads as containers and old kernels have them.
    def test_calls_forbidden(self):
        for rules in (["preadv2=ENOSYS"], ["mremap=ENOMEM"], ["mremap=EPERM"], ["madvise=EINVAL"],
                      ["mincore=EPERM", "preadv2=EOPNOTSUPP"]):
            with self.subTest(rules=rules):
                prefix = missing_part(self, lambda: confined.failing(*rules))
                for variables in ({}, {"LMDBIO_IO": "auto"}, {"LMDBIO_IO": "buffered"}):
                    got, _ = self.walked(variables, prefix, reads=False, walk=("walk 0", "back 0", "walk 0"))
                    self.assertEqual(got.err, "")

    def test_no_huge_pages(self):
        got, _ = self.walked({"COLD_NO_HUGE_PAGES": "1"}, walk=("walk 0", "back 0"))
        self.assertEqual(got.err, "")

    # -- less of everything

    def test_few_areas(self):
        for left in (64, 8, 2, 0):
            for walk in (("walk 0", "walk 0"), ("back 0",), ("pair 0",)):
                with self.subTest(left=left, walk=walk):
                    got, io = self.walked(before=(f"areas {left}",), walk=walk, after=("free", "end 0", "close 0"), reads=False)
                    self.assertLessEqual(io.get("most_vmas", 0), left)

    # They go while a walk is in the middle.
    def test_areas_that_go(self):
        for left in (64, 8, 0):
            with self.subTest(left=left):
                path = self.db()
                got = self.run_cold([f"evict {path}", f"open {path}", "begin 0", f"part 0 {RECORDS // 3}", f"areas {left}",
                                     "rest 0", "walk 0", "free", "walk 0", "end 0", "close 0"])
                self.assertEqual(got["walk"], [ALL, ALL], got.out)

    def test_address_space(self):
        for room in (600, 200, 40, 12, 4, 1):
            with self.subTest(room=room):
                self.walked(before=(f"room {room}",), walk=("walk 0", "back 0", "pair 0"), reads=room >= 600)

    def test_no_thread(self):
        prefix = missing_part(self, confined.without_threads)
        for variables in ({}, {"LMDBIO_ENGINE": "threads"}, {"LMDBIO_IO": "buffered"}):
            got, io = self.walked(variables, prefix, walk=("walk 0", "back 0"), reads=False)
            self.assertEqual((got.err, io.get("published", 0)), ("", 0))

    def test_few_descriptors(self):
        for left in range(1, 9):
            with self.subTest(left=left):
                # Statistics need one too.
                self.walked(before=(f"files {left}",), walk=("walk 0", "back 0", "walk 0"), reads=False)

    def test_no_locked_memory(self):
        self.walked(before=("memlock",))

    def test_no_proc(self):
        prefix = missing_part(self, lambda: confined.in_mounts("mount -t tmpfs none /proc"))
        for variables in ({}, {"LMDBIO_IO": "auto"}, {"LMDBIO_IO": "buffered"}):
            got, _ = self.walked(variables, prefix, walk=("walk 0", "back 0"), reads=False)
            self.assertEqual(got.err, "")

    def test_memory(self):
        for memory, way, resident in (("8M", "direct", 4), ("0", "buffered", 0), ("50%", "direct", 10), ("64M", "direct", 10)):
            with self.subTest(memory=memory):
                got, io = self.walked({"LMDBIO_MEMORY": memory}, walk=("walk 0", "back 0", "twice 0", "pair 0"), reads=False)
                self.assertEqual((io["read_path"], io["most_resident"]), (way, resident))
                if way == "direct":
                    self.check_io(io, got)
                # What fits is read once.
                if resident == 10:
                    self.assertLess(io["read"], os.path.getsize(self.db() + "/data.mdb") + 4 * MIB)
                    self.assertEqual(io["reclaimed"], 0)

    def test_as_another_user(self):
        if not confined.ROOT:
            self.skipTest("root, whose files they are")
        user = missing_part(self, confined.as_nobody)
        path = self.db()
        os.chmod(path + "/lock.mdb", 0o666)
        os.chmod(self.dir, 0o777)
        for variables in ({}, {"LMDBIO_ENGINE": "threads"}, {"LMDBIO_IO": "auto"}, {"LMDBIO_IO": "buffered"}):
            with self.subTest(**variables):
                got, io = self.walked(variables, user, walk=("walk 0", "back 0", "walk 0"), reads=not variables.get("LMDBIO_IO"))
                self.assertEqual(got.err, "")

    # -- many at once

    def test_many_environments(self):
        paths = [self.db(SMALL, str(i)) for i in range(20)]
        opens = [c for i, p in enumerate(paths) for c in (f"evict {p}", f"open {p}", f"begin {i}")]
        ends = [c for i in range(20) for c in (f"end {i}", f"close {i}")]
        for memory in ("8M", "64M"):
            for how in ("turns", "threads"):
                with self.subTest(how=how, memory=memory):
                    got = self.run_cold([*opens, how, *ends], {"LMDBIO_MEMORY": memory}, known=SMALL)
                    self.assertEqual(got[how], [f"right {20 * 1600}"], got.out)
                    self.assertEqual(len(got.io()), 20)
                    self.assertLessEqual(max(io["most_vmas"] for io in got.io()), 2 * int(memory[:-1]) // 2)

    def test_environments_share_chunks(self):
        path = self.db()
        size = os.path.getsize(path + "/data.mdb")
        opens = [f"evict {path}", *(c for i in range(3) for c in (f"open {path}", f"begin {i}"))]
        ends = [c for i in range(3) for c in (f"end {i}", f"close {i}")]
        for how in ("turns", "threads"):
            with self.subTest(how=how):
                got = self.run_cold([*opens, how, *ends], {"LMDBIO_MEMORY": "64M"})
                self.assertEqual(got[how], [f"right {3 * RECORDS}"], got.out)
                for io in got.io():
                    self.assertLess(io["read"], size + 4 * MIB)  # once for all three
                    chunks = -(-size // io["chunk_bytes"])  # an edge may have been read by itself
                    self.assertIn(io["published"], range(chunks - 2, chunks + 1))
            got = self.run_cold([*opens, how, *ends], {"LMDBIO_MEMORY": "8M"})
            self.assertEqual(got[how], [f"right {3 * RECORDS}"], got.out)

    # One is closed while another walks.
    def test_environment_goes_while_another_walks(self):
        path = self.db()
        got = self.run_cold([f"evict {path}", f"open {path}", "begin 0", f"open {path}", "begin 1", "part 0 2000", "part 1 500",
                             "end 1", "close 1", "rest 0", "walk 0", f"open {path}", "begin 2", "walk 2", "end 0", "close 0",
                             "walk 2", "end 2", "close 2"])
        self.assertEqual(got["walk"], [ALL] * 3, got.out)
        self.assertEqual(got["rest"], ["right 4000"])

    # -- snapshots

    def writer(self, name):
        path = self.fresh(name)
        write = Program(self, "stock")
        write.do(KNOWN)
        write.do(f"make {path}")
        write.do(f"writer {path}")
        write.do("commit")
        return path, write

    def test_writer_commits_during_walks(self):
        path, write = self.writer("written")
        stats = os.path.join(self.dir, "stats")
        read = Program(self, "preload", {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "16M", "LMDBIO_STATS": stats})
        for command in (KNOWN, "versions", f"evict {path}", f"open {path}", f"open {path}"):
            self.assertEqual(read.do(command), "0")
        for turn in range(14):  # more than a file's chunks are thrown away for
            self.assertEqual(read.do("begin 0"), "0")
            self.assertEqual(read.do("part 0 2500"), "right 2500")
            self.assertEqual(write.do("commit"), "0")
            if turn % 2 == 0:  # of the new snapshot, beside that of the old one
                self.assertEqual(read.do("begin 1"), "0")
                self.assertEqual(read.do("walk 1"), ALL)
            self.assertEqual(read.do("rest 0"), "right 3500")
            self.assertEqual(read.do("back 0"), ALL)
            if turn % 2 == 0:
                self.assertEqual(read.do("pair 1"), f"right {2 * RECORDS}")
                self.assertEqual(read.do("end 1"), "0")
            self.assertEqual(read.do("end 0"), "0")
        for slot in (0, 1):
            read.do(f"close {slot}")
        self.assertEqual(read.end(), 0)
        io = [e["io"] for line in shimtest.read_stats(stats) for e in line["environments"]][0]
        # A busy writer: from then on the mapping does it, nothing is thrown away any more.
        self.assertIn(io["snapshots"], range(8, 13))  # 8 a minute, of 14
        self.assertGreater(io["published"], 8)

    # Readers and a writer without any order between them.
    def test_writer_commits_meanwhile(self):
        path, write = self.writer("written")
        for rounds in range(3):
            read = subprocess.Popen([shimtest.program("cold"), KNOWN, "versions", f"evict {path}", f"open {path}"] +
                                    ["begin 0", "walk 0", "back 0", "end 0"] * 6 + ["close 0"], text=True,
                                    env=shimtest.environment("preload", {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "8M"}),
                                    stdout=subprocess.PIPE)
            while read.poll() is None:
                write.do("commit")
            out = read.communicate()[0]
            self.assertEqual(read.returncode, 0, out)
            self.assertEqual(out.count(f"= {ALL}\n"), 12, out)

    # -- ends and changes in mid-walk

    def test_close_in_mid_walk(self):
        path = self.db()
        for memory in ("8M", "64M"):
            got = self.run_cold([f"evict {path}", f"open {path}", "begin 0", "part 0 1500", "close 0", "cursor-close 0",
                                 f"open {path}", "begin 1", "walk 1", "end 1", "close 1"], {"LMDBIO_MEMORY": memory})
            self.assertEqual(got["walk"], [ALL])

    def test_map_size_changes_in_mid_walk(self):
        path = self.db()
        grow = ["end 0", "resize 0 2048", "begin 0", "part 0 2000", "end 0", "resize 0 100", "begin 0", "walk 0", "rest 0"]
        got = self.run_cold([f"evict {path}", f"open {path} 512", "begin 0", "part 0 1500", *grow * 3, "end 0", "close 0"])
        self.assertEqual(got["walk"], [ALL] * 3, got.out)
        got = self.run_cold([f"evict {path}", f"open {path}", f"open {path}", "begin 0", "begin 1", "part 0 1500", "part 1 700",
                             *grow, "rest 1", "walk 1", "end 0", "end 1", "close 0", "close 1"])
        self.assertEqual(got["walk"], [ALL] * 2, got.out)

    def test_fork_while_streaming(self):
        for memory in ("8M", "64M"):
            for variables in ({}, {"LMDBIO_ENGINE": "threads"}):
                with self.subTest(memory=memory, **variables):
                    path = self.db()
                    got = self.run_cold([f"evict {path}", f"open {path}", "begin 0", "fork 0 6", "walk 0", "end 0", "close 0"],
                                        {"LMDBIO_MEMORY": memory, **variables})
                    words = got["fork"][0].split()
                    self.assertEqual(words[:2], ["right", str(RECORDS)], got.out)
                    # What the parent has read is not the child's.
                    self.assertLess(int(words[3]), 2048)
                    self.assertEqual(got["walk"], [ALL])
                    # Each child's walk and what was read for it is told, though it ended by _exit.
                    children = self.ended(6)
                    self.assertEqual(len(children), 6, children)
                    for child in children:
                        self.assertGreater(child["calls"]["cursor_get"], 0)
                        self.assertEqual(child["io"]["read_path"], "direct", child)
                        self.assertGreater(child["io"]["read"], 0, child)
                        self.assertGreater(child["io"]["chunks_read"], 0, child)

    def test_cancelled_walk(self):
        for variables in ({}, {"LMDBIO_IO": "auto"}, {"LMDBIO_IO": "buffered"}, {"LMDBIO_ENGINE": "pread"}):
            self.walked(variables, walk=("cancel 0", "walk 0", "cancel 0"), reads=False)

    # A thread goes when the last file is closed, and comes again.
    def test_thread_goes(self):
        path = self.db()
        again = [f"open {path}", "begin {0}", "walk {0}", "tasks", "end {0}", "close {0}", "tasks"]
        got = self.run_cold([c.format(i) for i in range(3) for c in again], {"LMDBIO_ENGINE": "pread"})
        self.assertEqual(got["tasks"][1::2], ["1"] * 3, got.out)
        # The thread that reads, and those of the private table: two, or more where jobs met.
        self.assertTrue(all(2 < int(n) <= 6 for n in got["tasks"][::2]), got.out)


class Slow(Walks):
    """On a file system whose requests take 1 ms, and fail."""

    def mount(self, known=SMALL, **options):
        return missing_part(self, lambda: slowfs.SlowFs(shimtest.CONFIG["slowfs"], self.db(known), **options).__enter__())

    # Page faults are served from the page cache, so that only direct reads are faulty: a fault that fails is SIGBUS.
    def direct_on(self, fs, walk, extra=None, **faults):
        with open(fs.path + "/data.mdb", "rb") as f:
            while f.read(MIB):
                pass
        fs.set(reset=1, **faults)
        try:
            got = self.run_cold([f"open {fs.path}", "begin 0", *walk, "end 0", "close 0"],
                                {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "8M", **(extra or {})}, known=SMALL)
            counters = fs.counters()
        finally:
            fs.set(**{name: 0 for name in faults if name.endswith(("_at", "_every", "_from"))})
        self.assertEqual(counters["read"]["direct"], counters["read"]["numbered"])
        return got, got.io()[0], counters["faults"]

    def walk_on(self, fs, walk, extra=None):
        got = self.run_cold([f"evict {fs.path}", f"open {fs.path}", "begin 0", *walk, "end 0", "close 0"],
                            {"LMDBIO_IO": "auto", **(extra or {})}, known=SMALL)
        return got, got.io()[0]

    def setUp(self):
        super().setUp()
        self.stack = []
        self.addCleanup(lambda: [fs.__exit__() for fs in self.stack])

    def slow(self, **options):
        fs = self.mount(**options)
        self.stack.append(fs)
        return fs

    def test_walks(self):
        fs = self.slow(delay_us=1000)
        size = os.path.getsize(self.db(SMALL) + "/data.mdb")
        for memory in ("8M", "64M"):
            for walk, want in (("back 0", 1600), ("range 0 700", 900), ("pair 0", 3200), ("twice 0", 4800), ("walk 0", 1600)):
                with self.subTest(memory=memory, walk=walk):
                    fs.set(reset=1)
                    got, io = self.walk_on(fs, [walk], {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": memory})
                    self.assertEqual(got[walk.split()[0]], [f"right {want}"], got.out)
                    self.assertEqual((io["read_path"], got.err), ("direct", ""))
                    self.assertLessEqual(io["most_resident"] * io["chunk_bytes"], io["memory_limit"])
                    turns = -(-want // 1600)
                    if memory == "64M":  # once, though it is wanted more than once; on a busy machine, one chunk twice
                        self.assertLess(io["read"], size + 6 * MIB, io)
                    else:
                        self.assertLess(io["read"], turns * size * 1.3 + 4 * MIB, io)

    def walk_through_page_cache(self, fs, walk, extra=None, status=0):
        """A file that fits the memory that is free, as it is by default."""
        got = self.run_cold([f"open {fs.path}", "begin 0", *walk, "end 0", "close 0"], {"LMDBIO_IO": "auto", **(extra or {})},
                            known=SMALL, status=status)
        return got, got.io()[0]

    # Each byte is read from storage once, for all epochs, all runs and all processes; in large requests.
    def test_page_cache_serves_epochs_and_runs(self):
        fs = self.slow()
        size = os.path.getsize(self.db(SMALL) + "/data.mdb")
        self.run_cold([f"evict {fs.path}"], known=SMALL)
        fs.set(reset=1)
        got, io = self.walk_through_page_cache(fs, ["walk 0"])
        self.assertEqual((got["walk"], io["read_path"], io["reason"]), (["right 1600"], "buffered", "fits into the page cache"))
        self.assertEqual((io["published"], io["vanished"], io["went_direct"]), (0, 0, 0))
        first = fs.counters()["read"]
        self.assertLess(first["bytes"], 1.02 * size)
        self.assertGreater(first["bytes"], 0.95 * size)
        if io["requests"]["more"]:  # this kernel populates; without, requests are as large as its read-ahead
            self.assertLess(first["numbered"] - first["sizes"].get("4096", 0), size / MIB + 24, first)
        got, _ = self.walk_through_page_cache(fs, ["walk 0", "back 0", "twice 0", "pair 0"])
        self.assertEqual(got["walk"] + got["twice"], ["right 1600", "right 4800"])
        again = fs.counters()["read"]
        self.assertEqual(again["bytes"] - first["bytes"], 4096 * (again["direct"] - first["direct"]), again)
        for variables in ({"LMDBIO_ENGINE": "threads"}, {"LMDBIO_ENGINE": "pread"}):
            got = self.run_cold([f"evict {fs.path}", f"open {fs.path}", "begin 0", "walk 0", "walk 0", "end 0", "close 0"],
                                {"LMDBIO_IO": "auto", **variables}, known=SMALL)
            self.assertEqual(got["walk"], ["right 1600"] * 2)

    # A file that was written with MDB_WRITEMAP is as long as its map.  What counts is what the database uses of it.
    def test_sparse_file(self):
        data = os.path.join(self.db(LARGE), "data.mdb")
        size = os.path.getsize(data)
        os.truncate(data, 1 << 40)
        self.addCleanup(os.truncate, data, size)
        fs = self.slow(known=LARGE)
        self.run_cold([f"evict {fs.path}"], known=LARGE)
        walk = [f"open {fs.path}", "begin 0", "walk 0", "end 0", "close 0"]
        for most in (1.1 * size, MIB):
            fs.set(reset=1)
            got = self.run_cold(walk, {"LMDBIO_IO": "auto"}, known=LARGE)
            io, read = got.io()[0], fs.counters()["read"]
            self.assertEqual((got["walk"], io.get("went_direct", 0)), ([f"right {LARGE_RECORDS}"], 0), io)
            self.assertLess(read["bytes"], most, io)

    # What was filled is gone when the walk comes to it, again and again: direct reads from then on, and no fill a second
    # time.
    def test_filled_pages_that_vanish(self):
        fs = self.slow(known=LARGE)
        size = os.path.getsize(self.db(LARGE) + "/data.mdb")
        stats = os.path.join(self.dir, "stats")
        program = Program(self, "preload", {"LMDBIO_IO": "auto", "LMDBIO_MEMORY": "64M", "LMDBIO_STATS": stats})
        for command in (LARGE, f"evict {fs.path}", f"open {fs.path}", "begin 0"):
            self.assertEqual(program.do(command), "0")
        fs.set(reset=1)
        at = 20
        self.assertEqual(program.do(f"part 0 {at}"), f"right {at}")
        for ahead in (30, 60):
            while fs.counters()["read"]["bytes"] < ahead * MIB:  # as far as it is filled ahead
                pass
            self.assertEqual(program.do(f"evict {fs.path}"), "0")
            self.assertEqual(program.do("more 0 3500"), "right 3500")
            at += 3500
        self.assertEqual(program.do("rest 0"), f"right {LARGE_RECORDS - at}")
        self.assertEqual(program.do("walk 0"), f"right {LARGE_RECORDS}")
        self.assertEqual(program.do("end 0") + program.do("close 0"), "00")
        self.assertEqual(program.end(), 0)
        io = [e["io"] for line in shimtest.read_stats(stats) for e in line["environments"]][0]
        self.assertGreaterEqual(io["vanished"], 32 * MIB)
        self.assertEqual((io["read_path"], io["went_direct"]), ("direct", 1), io)
        self.assertLess(fs.counters()["read"]["bytes"], 3 * size)

    # An explicit setting wins.
    def test_settings_win(self):
        fs = self.slow()
        for setting, way in (("direct", "direct"), ("buffered", "buffered"), ("auto", "buffered")):
            got, io = self.walk_on(fs, ["walk 0"], {"LMDBIO_IO": setting})
            self.assertEqual((got["walk"], io["read_path"]), (["right 1600"], way))

    # A file of twice the memory that a group may use is read directly, as if there were no page cache.
    def test_larger_than_the_groups_memory(self):
        fs = self.slow(known=KNOWN)
        self.run_cold([f"evict {fs.path}"])
        stats = os.path.join(self.dir, "group")
        try:
            with cgroup.Memory(18 * MIB) as group:
                done = subprocess.run([shimtest.program("cold"), KNOWN, f"open {fs.path}", "begin 0", "walk 0", "end 0", "close 0"],
                                      env=shimtest.environment("preload", {"LMDBIO_STATS": stats, "LMDBIO_MEMORY": "8M"}),
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100,
                                      preexec_fn=group.enter)
        except cgroup.Missing as why:
            self.skipTest(str(why))
        self.assertIn(ALL, done.stdout, done.stderr)
        io = [e["io"] for line in shimtest.read_stats(stats) for e in line["environments"]][0]
        self.assertEqual((io["read_path"], io["reason"]), ("direct", "does not fit into free memory"))

    # Each open drops the page cache: it is filled all the same, and nothing is opened any more.
    def test_file_system_that_drops_the_page_cache_at_open(self):
        fs = self.slow(cold_open=1)
        size = os.path.getsize(self.db(SMALL) + "/data.mdb")
        fs.set(reset=1)
        got, io = self.walk_on(fs, ["walk 0", "back 0", "gets 0 500 77", "walk 0", "pair 0"])
        self.assertEqual((got["walk"], got["gets"], io["read_path"]), (["right 1600"] * 2, ["right 500"], "buffered"), io)
        self.assertLess(fs.counters()["read"]["bytes"], 1.1 * size)
        # Also not by environments that come later.
        got = self.run_cold([f"open {fs.path}", "begin 0", "walk 0", "end 0", "close 0", f"open {fs.path}", "begin 1", "walk 1",
                             "walk 1", "end 1", "close 1"], {"LMDBIO_IO": "auto"}, known=SMALL)
        self.assertEqual(got["walk"], ["right 1600"] * 3)
        self.assertEqual([i["vanished"] for i in got.io()], [0, 0])

    # No read succeeds: the calls say so, as for direct reads, and the next ones get the bytes.
    def test_fills_that_fail(self):
        fs = self.slow()
        for engine in ("auto", "threads"):
            with self.subTest(engine=engine):
                program = Program(self, "preload", {"LMDBIO_IO": "auto", "LMDBIO_ENGINE": engine})
                for command in (SMALL, f"evict {fs.path}", f"open {fs.path}", "begin 0"):
                    self.assertEqual(program.do(command), "0")
                self.assertEqual(program.do("part 0 1"), "right 1")
                program.do(f"evict {fs.path}")
                fs.set(reset=1, fail_at=2)
                self.assertRegex(program.do("rest 0"), r"^right 1599")
                fs.set(fail_at=0)
                self.assertEqual(program.do("walk 0"), "right 1600")
                self.assertEqual(program.do("end 0") + program.do("close 0"), "00")

    def test_signals(self):
        fs = self.slow(delay_us=1000)
        for variables in ({}, {"LMDBIO_ENGINE": "threads"}, {"LMDBIO_ENGINE": "pread"}, {"LMDBIO_IO": "buffered"}):
            with self.subTest(**variables):
                got, _ = self.walk_on(fs, ["storm", "walk 0", "back 0", "pair 0"], {"LMDBIO_MEMORY": "8M", **variables})
                self.assertEqual(got["walk"] + got["back"] + got["pair"], ["right 1600", "right 1600", "right 3200"], got.out)
                self.assertEqual(got.err, "")

    # A read fails: what a call needs of it is read by itself (the page cache has it here), and no call says anything.
    def test_failing_reads(self):
        fs = self.slow(raw_direct=1, files="data.mdb")
        for engine in ENGINES:
            k, faults = 0, {"read_error": 0}
            while True:
                k += 1
                with self.subTest(engine=engine, k=k):
                    got, io, faults = self.direct_on(fs, ["walk 0"], {"LMDBIO_ENGINE": engine}, fail_at=k)
                    self.assertEqual(got["walk"], ["right 1600"], got.out)
                    # The first request asks whether direct reads work at all; the last may outlive the walk.
                    self.assertLessEqual(io["read_failed"], faults["read_error"])
                    if k == 2:  # of what FIRST waits for
                        self.assertEqual(io["read_failed"], 1)
                    self.assertEqual(got.err, "")
                if faults["read_error"] == 0:
                    break
            self.assertGreater(k, 8)
            print(f"  {engine}: {k - 1} reads failed in turn", flush=True)

    # Each third read fails: it goes on all the same, in both directions.
    def test_many_failing_reads(self):
        fs = self.slow(raw_direct=1, files="data.mdb")
        for engine in ENGINES:
            with self.subTest(engine=engine):
                got, io, faults = self.direct_on(fs, ["walk 0", "back 0", "pair 0"], {"LMDBIO_ENGINE": engine}, fail_every=3)
                for name, n in (("walk", 1600), ("back", 1600), ("pair", 3200)):
                    self.assertEqual(got[name][0].split()[:2], ["right", str(n)], got.out)
                self.assertGreater(faults["read_error"], 2)

    # No read succeeds.  What is in the page cache is given all the same; a call that needs what is not there says so.  Then
    # the file system is well again, in mid-walk.
    def test_file_system_that_goes_away(self):
        fs = self.slow(raw_direct=1, files="data.mdb")
        for engine in ENGINES:
            with self.subTest(engine=engine):
                with open(fs.path + "/data.mdb", "rb") as f:
                    data = f.read()

                def begun():
                    p = Program(self, "preload", {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "8M", "LMDBIO_ENGINE": engine})
                    for command in (SMALL, f"open {fs.path}", "begin 0"):
                        self.assertEqual(p.do(command), "0")
                    self.assertEqual(p.do("part 0 300"), "right 300")
                    return p

                with kept_in_memory(fs.path + "/data.mdb"):
                    program = begun()
                    fs.set(reset=1, fail_from=1)
                    self.assertEqual(program.do("back 0"), "right 1600")
                    self.assertEqual(program.do("walk 0"), "right 1600")
                    self.assertGreater(fs.counters()["faults"]["read_error"], 0)
                    fs.set(fail_from=0)
                self.assertEqual(program.do("end 0") + program.do("close 0"), "00")
                self.assertEqual(program.end(), 0)

                evict_values(fs.path + "/data.mdb", data)
                program = begun()
                fs.set(reset=1, fail_from=1)
                # A thousand calls.
                self.assertEqual(program.do("back 0"), "wrong")
                self.assertEqual(program.do("walk 0"), "wrong")
                self.assertGreater(fs.counters()["faults"]["read_error"], 100)
                fs.set(fail_from=0)
                self.assertRegex(program.do("rest 0"), r"^right \d+$")
                self.assertEqual(program.do("walk 0"), "right 1600")
                self.assertEqual(program.do("end 0") + program.do("close 0"), "00")

    def test_short_reads(self):
        fs = self.slow(raw_direct=1, files="data.mdb")
        for engine in ENGINES:
            for rule in ({"short_every": 2, "short_bytes": 65536}, {"short_every": 3, "short_bytes": 4096},
                         {"short_at": 2, "short_bytes": 512}, {"short_every": 5, "short_bytes": 1}):
                with self.subTest(engine=engine, **rule):
                    got, io, faults = self.direct_on(fs, ["walk 0", "back 0"], {"LMDBIO_ENGINE": engine}, **rule)
                    self.assertGreater(faults["read_short"], 0)
                    if rule["short_bytes"] >= 4096:
                        self.assertEqual(got["walk"] + got["back"], ["right 1600"] * 2, got.out)
                        self.assertEqual(io["read_failed"], 0)
                    else:  # inside a block, where only the end of the file cuts a direct read: an error
                        for name in ("walk", "back"):
                            self.assertEqual(got[name][0].split()[:2], ["right", "1600"], got.out)

    # A hang is told of once, with file, offset and seconds; then the read comes back.
    def test_hanging_read(self):
        fs = self.slow(raw_direct=1, files="data.mdb")
        for seconds, hang, lines in ((1, 2500, 1), (0, 300, 0)):
            for k in (2, 5):
                got, io, _ = self.direct_on(fs, ["walk 0", "walk 0"], {"LMDBIO_STALL_SECONDS": str(seconds)}, hang_at=k,
                                            hang_ms=hang)
                self.assertEqual(got["walk"], ["right 1600"] * 2, got.out)
                self.assertEqual(len(got.err.splitlines()), lines, got.err)
                if lines:
                    self.assertRegex(got.err, rf"^lmdbio: {fs.path}: a read at offset \d+ has taken more than 1 s; "
                                              "still waiting\n$")
                    self.assertGreater(io["stall_us"], 1_000_000)


@contextlib.contextmanager
def slow_file_system(case, source):
    """None where there is none."""
    try:
        mount = slowfs.SlowFs(shimtest.CONFIG["slowfs"], source).__enter__()
    except slowfs.Missing as why:
        case.absent(str(why))
        yield None
        return
    try:
        yield mount
    finally:
        mount.__exit__()


class Random(Walks):
    """Commands in any order, on a few environments, some on the same file."""

    def program(self, rng, paths):
        commands, state = [], []  # of each slot: its path, whether a transaction is open, whether `more` makes sense
        for _ in range(rng.randrange(10, 50)):
            live = [i for i, s in enumerate(state) if s]
            begun = [i for i in live if state[i][1]]
            what = rng.choice(["open", "begin", "end", "close", "evict", "resize", "walk", "part", "part", "more", "more", "rest",
                               "back", "range", "pair", "fork", "cancel", "threads", "turns"])
            if what == "evict":
                commands.append(f"evict {rng.choice(paths)}")
            elif what == "open" and len(state) < 40:
                commands.append(f"open {rng.choice(paths)}" + rng.choice(["", "", " 64", " 1000"]))
                state.append([None, False, False])
                commands.append(f"begin {len(state) - 1}")
                state[-1] = [None, True, True]
            elif what in ("threads", "turns") and live and len(live) == len(state) == len(begun):
                commands.append(what)
                state = [[None, True, True] for _ in state]
            elif what in ("begin", "resize", "close") and set(live) - set(begun):
                i = rng.choice(sorted(set(live) - set(begun)))
                commands.append(f"{what} {i}" + (f" {rng.randrange(32, 2000)}" if what == "resize" else ""))
                state[i] = None if what == "close" else [None, what == "begin", what == "begin"]
            elif begun and what not in ("open", "begin", "resize", "close", "threads", "turns"):
                i = rng.choice(begun)
                if what in ("more", "rest") and not state[i][2]:
                    what = "part"
                argument = {"part": rng.randrange(1, 1600), "more": rng.randrange(1, 900), "range": rng.randrange(1600),
                            "fork": rng.randrange(1, 4)}.get(what)
                commands.append(f"{what} {i}" + ("" if argument is None else f" {argument}"))
                state[i] = [None, what != "end", what not in ("end", "back", "range")]
        for i, s in enumerate(state):
            if s and s[1] and rng.randrange(4):
                commands.append(f"end {i}")
                if rng.randrange(4):
                    commands.append(f"close {i}")
        return commands

    def test_random_programs(self):
        rng = random.Random(SEED)
        print(f"  --seed {SEED}", flush=True)
        local = [self.db(SMALL, str(i)) for i in range(3)]
        with slow_file_system(self, local[0]) as slow:
            for _ in range(ROUNDS):
                variables = {"LMDBIO_IO": rng.choice(["direct", "direct", "auto", "buffered"]),
                             "LMDBIO_MEMORY": rng.choice(["8M", "10M", "16M", "64M", "1G"]),
                             "LMDBIO_ENGINE": rng.choice(["auto", "uring", "threads", "pread"])}
                if rng.randrange(4) == 0:
                    variables["COLD_NO_HUGE_PAGES"] = "1"
                paths = local + ([slow.path] * 2 if slow else [])
                if slow:
                    slow.set(delay_us=rng.choice([0, 100, 1000]))
                commands = self.program(rng, paths)
                with self.subTest(variables=variables, commands=commands):
                    got = self.run_cold(commands, variables, known=SMALL)
                    self.assertNotIn("wrong", got.out)
                    self.assertEqual(len(got.answers), len(commands) + 1, got.out)
                    self.assertEqual(got.err, "")
                    self.assertNotIn("fork = parent", got.out)
                    for io in got.io():
                        self.assertLessEqual(io.get("most_resident", 0) * io.get("chunk_bytes", 0), io.get("memory_limit", 0))


if __name__ == "__main__":
    shimtest.main()
