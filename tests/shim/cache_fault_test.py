"""System calls on the files of the cache fail, or end the process: the bytes are right, and the cache recovers.

    cache_fault_test.py CONFIG [unittest arguments]     a short run, for ctest
    --points N --seed N   of the calls of a process, N are visited, 10; 0: all
    --rounds N            of jobs beside others, 3

The calls fail by cache_faults.c, or by a file system below the cache (slowfs).  Each walk compares each byte with what stock
has written.
"""
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys

import cache_test
import cold_test
import confined
import shimtest
from cold_test import SMALL

import slowfs

POINTS = shimtest.option("--points", 10)
ROUNDS = shimtest.option("--rounds", 3)
SEED = cold_test.SEED
SMALL_ALL = cache_test.SMALL_ALL
DIRECT = {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "8M"}
# Calls of cache_faults.c, and the numbers with which they may fail.
FAILING = [("pread", "EIO"), ("pwrite", "EIO"), ("pwrite", "ENOSPC"), ("pwrite", "EDQUOT"), ("open", "EACCES"),
           ("open", "EMFILE"), ("openat", "EIO"), ("openat", "EACCES"), ("openat", "EROFS"), ("openat", "ENFILE"),
           ("mkdir", "ENOSPC"), ("unlinkat", "EIO"), ("linkat", "EPERM"), ("linkat", "EMLINK"), ("ftruncate", "EFBIG"),
           ("fallocate", "EOPNOTSUPP"), ("fallocate", "EIO"), ("posix_fallocate", "ENOSPC"), ("posix_fallocate", "EOPNOTSUPP"),
           ("mmap", "ENODEV"), ("mmap", "ENOMEM"), ("fcntl", "ENOLCK"), ("fstat", "EIO"), ("statx", "EIO"),
           ("futimens", "EPERM"), ("any", "EIO")]


class Faults(cache_test.Cached):
    """A small database, and a cache on another file system."""

    place = cache_test.Faulty.place

    def setUp(self):
        super().setUp()
        self.path = self.db(SMALL)
        self.top = f"{self.cache}/lmdbio-{os.geteuid()}"

    def clear(self):
        shutil.rmtree(self.top, ignore_errors=True)

    def next_boot(self):
        for name in self.own(".map"):
            os.remove(name)

    def lmdbio(self, *words, status=0, codec="raw", size="1G"):
        done = subprocess.run([shimtest.CONFIG["command"], "cache", *words, "--cache", self.cache, "--json"],
                              env=shimtest.environment("stock", {"LMDBIO_CACHE_CODEC": codec, "LMDBIO_CACHE_SIZE": size}),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100)
        if status is not None:
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return json.loads(done.stdout) if done.stdout else {}

    def whole(self, codec):
        """An image of an earlier start of the machine."""
        self.clear()
        self.assertTrue(self.lmdbio("warm", self.path, codec=codec)["complete"])
        self.next_boot()

    def faulty(self, faults, extra=None):
        """The environment of a process with these faults."""
        return {"LMDBIO_CACHE_DIR": self.cache, "LMDBIO_CACHE_CODEC": "raw", "LD_PRELOAD": shimtest.CONFIG["cache_faults"],
                "CACHE_FAULTS_DIR": self.top, "CACHE_FAULTS": faults, **(extra or {})}

    def becomes_whole(self, codec):
        """What a fault leaves is no harm for the next job, nor for the next start of the machine; and warm makes it whole."""
        self.right(self.job(self.path, ("walk 0", "back 0"), {**DIRECT, "LMDBIO_CACHE_CODEC": codec}, SMALL), SMALL_ALL)
        self.assertTrue(self.lmdbio("warm", self.path, codec=codec)["complete"])
        verified = self.lmdbio("verify")
        self.assertEqual((verified["damaged"], verified["images"]), ([], 1))
        self.next_boot()
        got = self.job(self.path, ("walk 0", "back 0"), {**DIRECT, "LMDBIO_CACHE_CODEC": codec}, SMALL)
        self.right(got, SMALL_ALL)
        self.assertEqual(got.err, "")
        self.lmdbio("drop", "--all")
        self.assertEqual(os.listdir(self.top), [])  # with what was being made


class Kills(Faults):
    # What a process does with the cache: a command that fills it, or a job that opens, fills and reads it.
    def victim(self, how, faults, codec):
        extra = self.faulty(faults, {**DIRECT, "LMDBIO_CACHE_CODEC": codec})
        if how == "warm":
            argv = [shimtest.CONFIG["command"], "cache", "warm", self.path, "--json"]
            env = shimtest.environment("stock", extra)
        else:
            argv = [shimtest.program("cold"), SMALL, f"evict {self.path}", f"open {self.path}", "begin 0", "walk 0", "back 0",
                    "end 0", "close 0"]
            env = shimtest.environment("preload", extra)
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=100)
        self.assertIn(done.returncode, (0, -signal.SIGKILL), done.stdout + done.stderr)
        for line in done.stdout.splitlines():
            if line.startswith(("walk", "back")) and " = " in line:
                self.assertIn(SMALL_ALL, line)
        return done.returncode != 0

    def visit(self, how, codec, prepare, kind="kill"):
        chance = random.Random(SEED)
        self.clear()
        prepare()
        self.assertFalse(self.victim(how, "count", codec))
        with open(self.cache + "/calls", encoding="ascii") as f:
            calls = int(f.read())
        self.assertGreater(calls, 0)
        every = range(1, calls + 1)
        killed = 0
        for n in every if POINTS == 0 or POINTS >= calls else sorted(chance.sample(every, POINTS)):
            with self.subTest(how=how, codec=codec, kind=kind, n=n, calls=calls, seed=SEED):
                self.clear()
                prepare()
                killed += self.victim(how, f"{kind} {n}", codec)
                if n % 2:
                    self.next_boot()
                self.becomes_whole(codec)
        self.assertGreater(killed, 0)
        print(f"{how} {codec}: {calls} calls, killed at {killed} of them ({kind})", file=sys.stderr)

    def nothing(self):
        pass

    def test_warm(self):
        for codec in ("raw", "zstd-1", "auto"):
            self.visit("warm", codec, self.nothing)
        self.visit("warm", "zstd-1", self.nothing, "torn")

    def test_job(self):
        for codec in ("raw", "zstd-1"):
            self.visit("job", codec, self.nothing)

    # A job that verifies an image of an earlier start of the machine, a chunk of which is damaged.
    def test_job_with_an_old_image(self):
        for codec in ("raw", "zstd-1"):
            def prepare():
                self.whole(codec)
                with open(self.own(".data")[0], "r+b") as f:
                    f.seek(5000)
                    f.write(b"damage")
            self.visit("job", codec, prepare)


class Failing(Faults):
    def walks(self, faults, extra=None):
        got = self.job(self.path, ("walk 0", "back 0", "gets 0 300 7"), self.faulty(faults, extra), SMALL)
        self.right(got, SMALL_ALL)
        self.assertEqual(got["gets"], ["right 300"])
        self.assertLessEqual(got.err.count("\n"), 1, got.err)
        return got

    # From some time on, or for a while; with an empty cache, and with a full one of an earlier start of the machine.
    def test_calls(self):
        chance = random.Random(SEED)
        for codec in ("raw", "zstd-1"):
            for call, error in FAILING:
                for full in (False, True):
                    when = [(1, 1 << 30), (chance.randrange(2, 12), 1 << 30), (chance.randrange(1, 12), chance.randrange(1, 4))]
                    for first, times in when if POINTS == 0 else [chance.choice(when)]:
                        with self.subTest(codec=codec, call=call, error=error, full=full, first=first, times=times, seed=SEED):
                            if full:
                                self.whole(codec)
                            else:
                                self.clear()
                            self.walks(f"{call} {getattr(errno, error)} {first} {times}", {**DIRECT, "LMDBIO_CACHE_CODEC": codec})
            self.becomes_whole(codec)

    def test_short_reads(self):
        for codec in ("raw", "zstd-1"):
            self.whole(codec)
            for n in (1, 2, 7):
                for variables in (DIRECT, {"LMDBIO_IO": "auto"}, {"LMDBIO_IO": "buffered"}):
                    with self.subTest(codec=codec, n=n, **variables):
                        self.walks(f"short {n}", {**variables, "LMDBIO_CACHE_CODEC": codec})
                        self.next_boot()
            self.becomes_whole(codec)

    # The image is on a device that fails.  It has a part of the database (raw), or all of it (raw or compressed).  A whole raw
    # image is mapped.  Its branch pages come by page faults, so they stay in the page cache.
    def test_device(self):
        below = self.fresh("below")
        fs = cold_test.missing_part(self, lambda: slowfs.SlowFs(shimtest.CONFIG["slowfs"], below, files="*.data",
                                                                max_background=256).__enter__())
        self.mounts.append(fs)
        self.cache = fs.path
        self.top = f"{self.cache}/lmdbio-{os.geteuid()}"
        chance = random.Random(SEED)
        large = self.db()
        for codec, whole in (("raw", False), ("raw", True), ("zstd-1", True)):
            path, known, want = (self.path, SMALL, SMALL_ALL) if whole else (large, cold_test.KNOWN, cold_test.ALL)
            size = "1G" if whole else "16M"
            limit = {"LMDBIO_CACHE_CODEC": codec, "LMDBIO_CACHE_SIZE": size}
            self.clear()
            self.lmdbio("warm", path, codec=codec, size=size, status=0 if whole else 1)
            self.assertGreaterEqual(self.chunks()[0], 2)
            for variables in (DIRECT, {"LMDBIO_IO": "direct"}, {"LMDBIO_IO": "auto"}, {"LMDBIO_IO": "buffered"}):
                for fault in ({"fail_from": 1}, {"fail_from": chance.randrange(2, 20)}, {"fail_every": 5}):
                    for boot in ("same", "next"):
                        with self.subTest(codec=codec, whole=whole, boot=boot, **fault, **variables):
                            if boot == "next":
                                self.next_boot()
                            for name in self.own(".data"):
                                with open(name, "rb") as f:
                                    if whole and codec == "raw":
                                        cold_test.evict_values(name, f.read())
                                    else:
                                        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                            fs.set(reset=1, **fault)
                            try:
                                got = self.job(path, ("walk 0", "back 0", "gets 0 300 7"), {**variables, **limit}, known)
                            finally:
                                fs.set(fail_from=0, fail_every=0)
                            self.right(got, want)
                            self.assertEqual(got["gets"], ["right 300"])
                            self.assertLessEqual(got.err.count("\n"), 1, got.err)
            self.clear()

    # tmpfs in mounts of its own: full at different places.
    def test_full_disk(self):
        for size in (4, 5, 16, 64):
            prefix = cold_test.missing_part(
                self, lambda: confined.in_mounts(f"mount -t tmpfs -o size={size}m,mode=700 none {self.cache}"))
            for codec in ("raw", "zstd-1"):
                with self.subTest(size=size, codec=codec):
                    extra = {**DIRECT, "LMDBIO_CACHE_CODEC": codec, "LMDBIO_CACHE_SIZE": "1G"}
                    got = self.job(self.db(), ("walk 0", "back 0"), extra, prefix=prefix)
                    self.right(got)
                    self.assertEqual(got.err, "")


class Directories(Faults):
    """What happens to the directory while jobs run."""

    def link(self):
        os.rename(self.top, self.top + "-moved")
        os.symlink(self.top + "-moved", self.top)

    def other(self):
        os.chown(self.top, confined.NOBODY, confined.NOBODY)

    def read_only(self):
        os.chmod(self.top, 0o500)

    def put_back(self):
        if os.path.islink(self.top):
            os.remove(self.top)
        for path in (self.top, self.top + "-moved"):
            if os.path.isdir(path):
                os.chown(path, os.geteuid(), os.getegid())
            shutil.rmtree(path, ignore_errors=True)

    def test_changed_while_jobs_run(self):
        changes = [self.clear, self.link, self.read_only] + ([self.other] if os.geteuid() == 0 else [])
        for codec in ("raw", "zstd-1"):
            for full in (False, True):
                for change in changes:
                    with self.subTest(codec=codec, full=full, change=change.__name__):
                        self.put_back()
                        if full:
                            self.whole(codec)
                        cached = {"LMDBIO_CACHE_DIR": self.cache, "LMDBIO_CACHE_CODEC": codec}
                        read = cold_test.Program(self, extra={**DIRECT, **cached})
                        for command in (SMALL, f"evict {self.path}", f"open {self.path}", "begin 0"):
                            self.assertEqual(read.do(command), "0")
                        self.assertEqual(read.do("part 0 300"), "right 300")
                        change()
                        for command in ("walk 0", "back 0"):
                            self.assertEqual(read.do(command), SMALL_ALL)
                        self.assertEqual(read.do("fork 0 2").split()[:2], ["right", "1600"])
                        for command in ("end 0", "close 0", f"open {self.path}", "begin 1"):
                            self.assertEqual(read.do(command), "0")
                        self.assertEqual(read.do("walk 1"), SMALL_ALL)
                        self.assertEqual(read.end(), 0)
                        if change == self.link:
                            self.assertTrue(os.path.islink(self.top))
        self.put_back()


class Beside(Faults):
    """Commands and writers beside eight readers."""

    def start(self, path, known, turns, extra=None):
        env = shimtest.environment("preload", {**DIRECT, "LMDBIO_CACHE_DIR": self.cache, "LMDBIO_CACHE_CODEC": "zstd-1",
                                               **(extra or {})})
        commands = [f"evict {path}"]
        for turn in range(turns):
            commands += [f"open {path}", f"begin {turn}", f"walk {turn}", f"back {turn}", f"end {turn}", f"close {turn}"]
        return subprocess.Popen([shimtest.program("cold"), known, *commands], env=env, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def ends_well(self, jobs, walks, want):
        for job in jobs:
            out, err = job.communicate(timeout=200)
            self.assertEqual(job.returncode, 0, out + err)
            self.assertEqual(out.count(f"= {want}\n"), walks, out)

    def test_drop_and_warm(self):
        for turn in range(ROUNDS):
            codec = {"LMDBIO_CACHE_CODEC": ("raw", "zstd-1")[turn % 2]}
            jobs = [self.start(self.path, SMALL, 4, codec) for _ in range(8)]
            while any(job.poll() is None for job in jobs):
                self.lmdbio("warm", self.path, status=None)
                self.lmdbio("verify", status=0)
                self.lmdbio("drop", self.path)
            self.ends_well(jobs, 8, SMALL_ALL)
        self.becomes_whole("zstd-1")

    # Another file under the same path.  A job that has opened the first one goes on reading that one.
    def test_database_replaced(self):
        path = self.fresh("replaced")
        for turn in range(ROUNDS):
            before, after = f"known {1600 + turn} 24000 4", f"known {1601 + turn} 24000 4"
            if turn == 0:
                self.run_cold([f"make {path}"], known=before)
            read = cold_test.Program(self, extra={"LMDBIO_CACHE_DIR": self.cache, **DIRECT})
            for command in (before, f"evict {path}", f"open {path}", "begin 0"):
                self.assertEqual(read.do(command), "0")
            self.assertEqual(read.do("part 0 400"), "right 400")
            new = self.fresh(f"new{turn}")
            self.run_cold([f"make {new}"], known=after)
            os.replace(new + "/data.mdb", path + "/data.mdb")
            jobs = [self.start(path, after, 2) for _ in range(4)]
            for command in ("rest 0", "walk 0", "back 0"):
                self.assertIn("right", read.do(command))
            self.ends_well(jobs, 4, f"right {1601 + turn}")
            self.assertEqual(read.do("walk 0"), f"right {1600 + turn}")
            self.assertEqual(read.do("end 0"), "0")
            self.assertEqual(read.end(), 0)


if __name__ == "__main__":
    shimtest.main()
