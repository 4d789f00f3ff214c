"""Databases larger than LMDBIO_MEMORY: every byte right, memory within the limit, children included.

    large_test.py CONFIG [--gib N] [--memory SIZE] [--records N] [--stream-memory SIZE] [--passes N] [--dir DIR]
                  [unittest arguments]

Campaigns:
    large_test.py CONFIG --gib 8 --memory 256M Large.test_shuffle Large.test_shuffle_children_walk
    large_test.py CONFIG --records 65000000 --stream-memory 64M Large.test_stream
--dir: where databases go, and stay: the next run uses them.
"""
import os
import shutil
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "shim"), os.path.join(HERE, "..", "support")]
import cgroup  # noqa: E402
import shimtest  # noqa: E402


MIB = 1 << 20
GIB = shimtest.option("--gib", 0.06)
MEMORY = shimtest.option("--memory", "16M")
RECORDS = shimtest.option("--records", 200_000)
STREAM_MEMORY = shimtest.option("--stream-memory", "16M")
PASSES = shimtest.option("--passes", 1)
DIR = shimtest.option("--dir", "")
VALUE = 110 << 10
# What a process has besides: the program's own tables, page tables, the library's heap, stacks.
CONSTANT = 32 * MIB
# Forks in a row: each child has page tables and a few pages of its own.
CHILD = 4 * MIB


def mib(size):
    return int(size[:-1]) * {"M": 1, "G": 1024}[size[-1]]


def said(out):
    words = out.split()
    return dict(zip(words[::2], map(int, words[1::2])))


class Large(shimtest.Case):
    def database(self, program, records, size):
        """The directory of a database that stock has written."""
        need = records * (size + 40 if size < 2000 else (size // 4096 + 1) * 4096) * 1.05
        where = os.path.join(DIR or self.dir, f"{program}-{records}-{size}")
        if os.path.exists(where + "/made"):
            return where
        if shutil.disk_usage(DIR or self.dir).free < need * 1.1 + (1 << 30):
            self.skipTest(f"{need / (1 << 30):.1f} GiB on disk")
        shutil.rmtree(where, ignore_errors=True)
        os.makedirs(where)
        begun = time.monotonic()
        made = shimtest.run("stock", [program, "make", where, str(records), str(size)], timeout=3600)
        self.assertEqual(made.returncode, 0, made.out)
        open(where + "/made", "w").close()
        if time.monotonic() - begun > 20:
            print(f"\nmade in {time.monotonic() - begun:.0f} s", file=sys.stderr)
        return where

    def measured(self, argv, extra, limit=None, timeout=60):
        """(exit status, output, statistics, most anonymous bytes of all its processes or None)"""
        stats = os.path.join(self.dir, "stats")
        if os.path.exists(stats):
            os.remove(stats)
        env = shimtest.environment("preload", {"LMDBIO_STATS": stats, "LMDBIO_IO": "direct", **extra})
        argv = [shimtest.program(argv[0]), *map(str, argv[1:])]
        most = [0]
        try:
            group = cgroup.Memory(limit).__enter__()
        except cgroup.Missing as why:
            print(f"  {self._testMethodName}: without {why}", flush=True)
            group = None
        try:
            # Statistics of memory are not to be had for the moment of the peak: looked at all the time.
            ended = threading.Event()

            def look():
                while not ended.is_set():
                    most[0] = max(most[0], group.anonymous())
                    time.sleep(0.002)
            watch = threading.Thread(target=look)
            if group:
                watch.start()
            try:
                done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, timeout=timeout,
                                      preexec_fn=group.enter if group else None)
            finally:
                ended.set()
                if group:
                    watch.join()
        finally:
            if group:
                group.__exit__()
        lines = shimtest.read_stats(stats) if os.path.exists(stats) else []
        # Of the process itself; its children end without telling.
        io = [e["io"] for line in lines if "state" not in line for e in line["environments"] if "io" in e]
        return done.returncode, done.stdout, io, most[0] if group else None

    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("no sanitizer: they have memory of their own, and cannot be preloaded")

    def shuffle(self, child_walk):
        records = max(64, int(GIB * (1 << 30) / (VALUE + 4096)))
        where = self.database("shuffle", records, VALUE)
        large = GIB >= 1
        begun = time.monotonic()
        status, out, io, most = self.measured(
            ["shuffle", "read", where, PASSES, 1000 if large else 20, 200, child_walk], {"LMDBIO_MEMORY": MEMORY},
            timeout=3000 if large else 200)
        self.assertEqual(status, 0, out)
        self.assertTrue(out.startswith("walked\n"), out)
        told = said(out.splitlines()[-1])
        self.assertEqual((told["records"], told["wrong"], told["failed"]), (records, 0, 0))
        self.assertGreaterEqual(told["forks"], 20)
        self.assertGreater(io[-1]["published"], records * VALUE / io[-1]["chunk_bytes"] * 0.8)
        limit = mib(MEMORY) * MIB
        self.assertLessEqual(io[-1]["most_resident"] * io[-1]["chunk_bytes"], limit)
        print(f"\nshuffle, child_walk {child_walk}: {time.monotonic() - begun:.0f} s, {out.splitlines()[-1]}, "
              f"anonymous at most {most and most // MIB} MiB with LMDBIO_MEMORY={MEMORY}, io {io[-1]}", file=sys.stderr)
        if most:
            # A child that walks has a limit of its own; two are alive at a time.
            self.assertLess(most, (3 if child_walk else 1) * limit + CONSTANT + 2 * CHILD)

    def test_shuffle(self):
        self.shuffle(0)

    def test_shuffle_children_walk(self):
        self.shuffle(300)

    def test_stream(self):
        where = self.database("stream", RECORDS, 200)
        limit = mib(STREAM_MEMORY) * MIB
        begun = time.monotonic()
        # The kernel holds it to that: with a limit of the cgroup, too much would be the program's end.
        status, out, io, most = self.measured(["stream", "read", where], {"LMDBIO_MEMORY": STREAM_MEMORY},
                                              limit=limit + 2 * CONSTANT, timeout=3000)
        self.assertEqual(status, 0, out)
        told = said(out)
        self.assertEqual((told["records"], told["bytes"]), (RECORDS, RECORDS * 200))
        self.assertGreater(io[-1]["published"], 5)
        self.assertLessEqual(io[-1]["most_resident"] * io[-1]["chunk_bytes"], limit)
        self.assertLess(told["anonymous_kib"] * 1024, limit + CONSTANT)
        self.assertLess(told["areas"] - told["vmas_before"], io[-1]["most_vmas"] + 64)
        if most:
            self.assertLess(most, limit + CONSTANT)
        size = os.path.getsize(where + "/data.mdb")
        self.assertLess(io[-1]["read"], size * 1.02 + 16 * MIB)
        print(f"\nstream: {size / (1 << 30):.2f} GiB in {time.monotonic() - begun:.1f} s, {out.strip()}, anonymous at most "
              f"{most and most // MIB} MiB with LMDBIO_MEMORY={STREAM_MEMORY}, io {io[-1]}", file=sys.stderr)


if __name__ == "__main__":
    shimtest.main()
