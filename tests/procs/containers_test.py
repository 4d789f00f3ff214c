"""Unmodified programs in containers, which lack one thing or another: they read the right bytes, and make the requests that
they make outside, but for what is missing.

    containers_test.py CONFIG [unittest arguments]

The program is node.c, which checks each byte; requests are counted by the slow file system, which is mounted outside and
bound into the container.
"""
import errno
import os
import subprocess
import sys

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", folder) for folder in ("shim", "support")]
import confined  # noqa: E402
import containers  # noqa: E402
import shimtest  # noqa: E402
import slowfs  # noqa: E402

RECORDS, VALUE = 300, 192 << 10  # so large that it can be told which values a walk uses
URING = ("io_uring_setup", "io_uring_enter", "io_uring_register")


class Containers(confined.Case):
    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("the library is preloaded")
        self.db = self.fresh("db")
        os.chmod(self.db, 0o777)
        made = shimtest.run("stock", ["node", "make", self.db, str(RECORDS), str(VALUE)])
        self.assertEqual(made.returncode, 0, made.err)
        os.chmod(os.path.join(self.db, "lock.mdb"), 0o666)
        self.out = self.fresh("out")
        os.chmod(self.out, 0o777)

    def read(self, wrap, settings=None, stride=1, processes=1):
        """`io` of each process, and (requests, bytes) of the file system, which is mounted anew.  `wrap`: makes a command line
        out of one, an environment, and the paths to be bound.  Each process uses every stride-th record, from another one on."""
        stats = os.path.join(self.out, "stats")
        if os.path.exists(stats):
            os.remove(stats)
        try:
            with slowfs.SlowFs(shimtest.CONFIG["slowfs"], self.db, delay_us=200) as fs:
                walk = [shimtest.program("node"), "walk", fs.path, str(stride)]
                if processes == 1:
                    command = [*walk, "0", "1", "run"]
                else:
                    each = " ".join(f"'{walk[0]}' walk '{fs.path}' {stride} {i} 1 run &" for i in range(processes))
                    command = ["/bin/sh", "-c", f"{each} wait"]
                env = shimtest.environment("preload", {"LMDBIO_STATS": stats, **(settings or {})})
                line, env = wrap(command, env, [fs.path, self.out])
                done = subprocess.run(line, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual(sorted(done.stdout.splitlines()), [f"used {RECORDS // stride}"] * processes)
                self.assertLessEqual(len(done.stderr.splitlines()), 1, done.stderr)
                read = fs.counters()["read"]
        except slowfs.Missing as why:
            self.skipTest(str(why))
        ios = [e["io"] for line in shimtest.read_stats(stats) for e in line["environments"] if "io" in e]
        self.assertEqual(len(ios), processes)
        return ios, (read["numbered"], read["bytes"])

    @staticmethod
    def outside(command, env, _):
        return command, env

    def crun(self, **options):
        def wrap(command, env, binds):
            try:
                container = containers.Crun(command, env, binds, **options)
            except containers.Missing as why:
                self.skipTest(str(why))
            self.addCleanup(container.close)
            return container.line(), {"PATH": os.environ["PATH"]}

        try:
            works = containers.Crun(["/bin/true"], {}, **options)
            self.addCleanup(works.close)
            tried = subprocess.run(works.line(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        except containers.Missing as why:
            self.skipTest(str(why))
        if tried.returncode != 0:
            self.skipTest(f"crun: {tried.stderr.strip()}")
        return wrap

    def bwrap(self, **options):
        def wrap(command, env, binds):
            try:
                return containers.in_bwrap(command, binds, **options), env
            except containers.Missing as why:
                self.skipTest(str(why))

        return wrap

    def same_as_outside(self, wrap, settings=None):
        """Requests of a walk differ from run to run where reads ahead meet what has just been read."""
        outside, (requests, size) = self.read(self.outside, settings)
        inside, counted = self.read(wrap, settings)
        self.assertLessEqual(abs(counted[1] - size), size * 0.02)
        self.assertLessEqual(abs(counted[0] - requests), max(requests * 0.25, 8))
        return outside[0], inside[0]

    def test_usual(self):
        for io in ("buffered", "direct"):
            with self.subTest(io=io):
                outside, inside = self.same_as_outside(self.crun(), {"LMDBIO_IO": io})
                self.assertEqual(inside["engine"], outside["engine"])
                self.assertEqual(inside["read_path"], io)

    # Docker's and Podman's profiles refuse io_uring.
    def test_without_io_uring(self):
        for error in (errno.EPERM, errno.ENOSYS):
            with self.subTest(error=errno.errorcode[error]):
                _, inside = self.same_as_outside(self.crun(seccomp={name: error for name in URING}), {"LMDBIO_IO": "direct"})
                self.assertEqual(inside["engine"], "threads")

    def test_no_locked_memory(self):
        _, inside = self.same_as_outside(self.crun(memlock=0, uid=containers.NOBODY), {"LMDBIO_IO": "direct"})
        self.assertEqual(inside["engine"], "threads")  # the queues of io_uring would be locked

    def test_nobody(self):
        self.same_as_outside(self.crun(uid=containers.NOBODY))

    # The program is process 1 of its container.  Which values it uses cannot be told there, so all are read.
    def test_no_pagemap(self):
        file_bytes = os.path.getsize(os.path.join(self.db, "data.mdb"))
        masked = ["/proc/1/pagemap", "/proc/1/task/1/pagemap"]
        for wrap, least, most in ((self.outside, 0.2, 0.5), (self.crun(), 0.2, 0.5), (self.crun(masked=masked), 0.9, 1.1)):
            _, (_, size) = self.read(wrap, stride=4)
            self.assertGreater(size / file_bytes, least)
            self.assertLess(size / file_bytes, most)

    # Less than 256 MiB is left to the program: there each process reads for itself.
    def test_small_shm(self):
        settings = {"LMDBIO_NODE": "chunks", "LMDBIO_IO": "direct"}
        for mib in (512, 64):
            with self.subTest(shm_mib=mib):
                ios, _ = self.read(self.crun(shm_mib=mib), settings, stride=4, processes=4)
                self.assertEqual([io["read_failed"] for io in ios], [0] * 4)
                given = sum(io["chunks_given"] for io in ios)
                (self.assertGreater if mib == 512 else self.assertEqual)(given, 0)

    def test_bubblewrap(self):
        for uid in (0, containers.NOBODY):
            with self.subTest(uid=uid):
                outside, inside = self.same_as_outside(self.bwrap(uid=uid))
                self.assertEqual(inside["engine"], outside["engine"])


if __name__ == "__main__":
    shimtest.main()
