"""Programs that close all of their descriptors while they read; other files take the numbers.  And programs that may not
have a second table of descriptors.

The program is closing.c, which checks every byte, those of the other files too.  A hang ends it by SIGALRM.
"""
import os
import shutil
import subprocess
import sys
import tempfile

import confined
import shimtest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import slowfs  # noqa: E402

ENGINES = ("uring", "threads", "pread")
FILES = 96


class Database(shimtest.Case):
    @classmethod
    def setUpClass(cls):
        cls.db = tempfile.mkdtemp(prefix="shimtest-closing-")
        cls.addClassCleanup(shutil.rmtree, cls.db, ignore_errors=True)
        subprocess.run([shimtest.program("closing"), "make", cls.db], env=shimtest.environment("stock"), check=True)


class Closing(Database):
    def run_closing(self, mode, who, path, left=(), **extra):
        settings = {"LMDBIO_MEMORY": "16M", "LMDBIO_IO": "direct", **{f"LMDBIO_{k.upper()}": v for k, v in extra.items()}}
        got = shimtest.run(mode, ["closing", who, path, self.fresh("files"), *left], settings)
        self.assertEqual((got.returncode, got.err), (0, ""), got.out)
        lines = got.out.splitlines()
        self.assertEqual(lines[:3], ["values right"] + [f"files open: {FILES}"] * 2)
        self.assertEqual(lines[4:], ["parent: values right"] if who == "child" else [])
        return int(lines[3].split()[3])  # "after the close: N open"

    def check(self, path, left=(), engines=ENGINES, ios=("direct",), modes=None, whos=("self", "child")):
        # The address sanitizer's allocator may be locked by another thread at a fork.
        whos = [w for w in whos if w != "child" or not shimtest.CONFIG["sanitize"]]
        for who in whos:
            stock = self.run_closing("stock", who, path, left)
            for mode in modes or shimtest.modes()[:1]:
                for engine in engines:
                    for io in ios:
                        with self.subTest(who=who, mode=mode, engine=engine, io=io):
                            ours = self.run_closing(mode, who, path, left, engine=engine, io=io)
                            self.assertGreaterEqual(ours, stock)  # no number that stock leaves open is closed

    def test_engines(self):
        self.check(self.db)

    def test_ways_to_read(self):
        self.check(self.db, engines=("auto",), ios=("auto", "buffered"))

    def test_ways_to_load(self):
        self.check(self.db, engines=("auto",), modes=shimtest.modes()[1:], whos=("self",))

    def test_slow_file_system(self):
        try:
            fs = slowfs.SlowFs(shimtest.CONFIG["slowfs"], self.db, delay_us=200).__enter__()
        except slowfs.Missing as why:
            self.skipTest(str(why))
        self.addCleanup(fs.__exit__)
        self.check(fs.path, engines=("uring", "threads"), ios=("direct",))
        self.check(fs.path, engines=("auto",), ios=("auto",), whos=("self",))

    def test_few_areas_of_memory(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("no sanitizer: they need areas of their own")
        for left in ("40", "4"):
            self.check(self.db, (left,), engines=("auto",), whos=("self",))


class Confined(Database):
    """No second table, or not by each of the ways."""

    def read(self, prefix, **extra):
        settings = {"LMDBIO_MEMORY": "16M", **{f"LMDBIO_{k.upper()}": v for k, v in extra.items()}}
        mode = shimtest.modes()[0]
        # The prefix is stock's; env(1) gives the program the library.
        env = shimtest.environment(mode, settings)
        given = [f"{k}={v}" for k, v in env.items() if k.startswith("LD_")]
        env = {k: v for k, v in env.items() if not k.startswith("LD_")}
        done = subprocess.run([*prefix, "/usr/bin/env", *given, shimtest.program("closing", mode), "read", self.db], env=env,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100)
        self.assertEqual(done.stdout.splitlines()[:1], ["values right"], done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")
        return done

    def everywhere(self, prefix):
        for engine, io in (("uring", "direct"), ("threads", "direct"), ("pread", "direct"), ("auto", "buffered"), ("auto", "auto")):
            with self.subTest(engine=engine, io=io):
                yield self.read(prefix, engine=engine, io=io)

    def failing(self, *rules):
        try:
            return confined.failing(*rules)
        except confined.Missing as why:
            self.skipTest(str(why))

    # Values come by page faults; a reader answers an error, or reads.
    def test_no_second_table(self):
        for done in self.everywhere(self.failing("close_range=EPERM", "unshare=EPERM")):
            if done.returncode != 0:
                self.assertEqual(done.returncode, 1, done.stdout)
                lines = done.stdout.splitlines()
                self.assertRegex(lines[1], "^lmdbio_reader_attach, record 0: ")
                self.assertIn(self.db, lines[2])  # which file it was

    def test_other_ways_to_a_second_table(self):
        for rules in (("close_range=ENOSYS",), ("unshare=EPERM",), ("pidfd_getfd=EPERM",), ("pidfd_open=ENOSYS",)):
            with self.subTest(rules=rules):
                for done in self.everywhere(self.failing(*rules)):
                    self.assertEqual(done.returncode, 0, done.stdout)

    def test_no_proc(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("no sanitizer: their runtimes need /proc")
        try:
            prefix = confined.in_mounts("mount -t tmpfs none /proc")
        except confined.Missing as why:
            self.skipTest(str(why))
        for done in self.everywhere(prefix):
            self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    shimtest.main()
