"""lmdbio info, check and diff on a cold file of a slow file system: what they read, how much of it at once, how they tell that
they are at work, and how they end early.

    command_cold_test.py CONFIG [unittest arguments]

Requests and bytes are counted, nothing is timed.
"""
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time

import command_test
import shimtest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import namespaces  # noqa: E402
import slowfs  # noqa: E402

PAGE = 4096
RECORDS = 1500


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("waited for in vain")
        time.sleep(0.01)


def read_all(terminal):
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 1 << 16)
        except OSError:  # EIO: nobody has it open any more
            return shown


class Cold(command_test.Case):
    def setUp(self):
        super().setUp()
        self.source = self.fresh("source")
        w = command_test.Writer(self.source)
        # Long keys: some 15 a page, three levels.
        w.put([(b"%0200d" % i, b"x" * 20000) for i in range(RECORDS)])
        w.close()

    def mount(self, **options):
        try:
            fs = slowfs.SlowFs(shimtest.CONFIG["slowfs"], self.source, max_background=256, **options)
            fs.__enter__()
        except slowfs.Missing as why:
            self.skipTest(str(why))
        self.addCleanup(fs.__exit__, None, None, None)
        return fs

    def tree_bytes(self, j):
        return (j["pages"]["branch"] + j["pages"]["leaf"]) * PAGE

    def test_info_reads_branch_and_leaf_pages_alone(self):
        fs = self.mount(delay_us=2000)
        j = self.json("info", fs.path)
        read = fs.counters()["read"]
        self.assertEqual(j["entries"], RECORDS)
        self.assertTrue(j["complete"])
        self.assertEqual(j["errors"], 0)
        self.assertGreater(j["pages"]["leaf"], 80)
        self.assertGreaterEqual(j["pages"]["branch"], 6)
        self.assertEqual(j["pages"]["overflow"], RECORDS * 5)
        # The metas, and what the kernel reads around them, besides.
        self.assertLessEqual(read["bytes"], 1.1 * self.tree_bytes(j) + 32 * 1024)
        self.assertGreaterEqual(read["bytes"], self.tree_bytes(j))
        self.assertGreaterEqual(read["in_flight_max"], 16)

    def test_info_tells_how_a_program_will_read(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("needs a preload")
        walk = ("import lmdb, sys\n"
                "with lmdb.open(sys.argv[1], readonly=True, lock=False) as env, env.begin(buffers=True) as txn:\n"
                "    sum(value[0] for _, value in txn.cursor())\n")
        for settings in ({}, {"IO": "mmap"}, {"IO": "buffered"}, {"IO": "direct"}, {"MEMORY": "0"}, {"IO": "direct", "MEMORY": "0"},
                         {"NODE": "chunks"}):
            with self.subTest(settings=settings):
                fs = self.mount(delay_us=100)
                env = {"LMDBIO_" + name: value for name, value in settings.items()}
                reads = self.json("info", "--fast", fs.path, env=env)["reads"]
                self.assertFalse(reads["local"])
                told = next(a for a in reads["accesses"] if a["access"] == "walk")
                done = self.lmdbio("run", "--json", "-", "--", "/usr/bin/python3", "-c", walk, fs.path, env=env)
                io = json.loads(done.stdout)["total"]["io"]
                self.assertEqual((told["read_path"], told["reason"]), (io["read_path"], io["reason"]))

    def test_check_reads_the_headers_of_overflow_runs_as_well(self):
        fs = self.mount(delay_us=2000)
        info = self.json("info", self.source)
        j = self.json("check", fs.path)
        read = fs.counters()["read"]
        self.assertTrue(j["clean"] and j["complete"])
        self.assertEqual(j["pages"], info["pages"])
        most = self.tree_bytes(info) + RECORDS * PAGE
        self.assertLessEqual(read["bytes"], 1.1 * most + 32 * 1024)
        self.assertGreaterEqual(read["bytes"], most)
        self.assertGreaterEqual(read["in_flight_max"], 32)

    def test_diff_reads_changed_pages_alone(self):
        w = command_test.Writer(self.source)
        w.put([(b"%0200d" % i, b"x") for i in range(0, RECORDS, 100)])
        w.close()
        fs = self.mount(delay_us=2000)
        j = self.json("diff", fs.path, status=1)
        read = fs.counters()["read"]
        self.assertEqual(j["replaced"], RECORDS // 100)
        # A leaf page for each record, and the branch pages: of both states.
        self.assertLessEqual(j["pages"], 2 * (RECORDS // 100 + 8))
        # The metas, and what the kernel reads around them, besides.
        self.assertLessEqual(read["bytes"], j["pages"] * PAGE + 64 * 1024)
        self.assertGreaterEqual(read["in_flight_max"], 6)  # about 20; less if the machine is busy, 1 or 2 without waves

    def test_diff_of_two_files_reads_all_leaf_pages_at_once(self):
        copy = self.fresh("copy")
        shutil.copy(self.source + "/data.mdb", copy)
        fs = self.mount(delay_us=2000)
        j = self.json("diff", fs.path, copy)
        read = fs.counters()["read"]
        self.assertEqual(j["pages"] * PAGE, 2 * self.tree_bytes(self.json("info", self.source)))
        # The values are in overflow pages and have one size, so all of them are compared.
        self.assertGreaterEqual(read["bytes"], RECORDS * 20000)
        self.assertGreaterEqual(read["in_flight_max"], 16)

    def test_what_is_in_memory_is_not_asked_for(self):
        fs = self.mount()
        self.json("check", fs.path)
        fs.set(reset=1)
        self.json("check", fs.path)
        self.assertLessEqual(fs.counters()["read"]["bytes"], 8 * PAGE)

    def test_engines(self):
        for engine in ("uring", "threads", "pread"):
            with self.subTest(engine=engine):
                fs = self.mount()
                self.assertTrue(self.json("check", fs.path, env={"LMDBIO_ENGINE": engine})["clean"])

    def test_interrupted(self):
        for name in ("info", "check"):
            for number in (signal.SIGINT, signal.SIGTERM):
                with self.subTest(command=name, signal=number):
                    fs = self.mount(delay_us=100000)
                    with subprocess.Popen([shimtest.CONFIG["command"], name, "--json", fs.path],
                                          env=shimtest.environment("stock", {"LMDBIO_ENGINE": "pread"}),
                                          stdout=subprocess.PIPE, text=True) as process:
                        # The metas, and a part of the tree.
                        until(lambda: fs.counters()["read"]["numbered"] > 12)
                        process.send_signal(number)
                        out = process.communicate()[0]
                    self.assertEqual(process.returncode, 128 + number)
                    j = json.loads(out)
                    self.assertFalse(j["complete"])
                    self.assertLess(j["entries"], RECORDS)
                    self.assertLess(fs.counters()["read"]["numbered"], 60)  # of about 110
                    if name == "check":
                        self.assertFalse(j["clean"])
                        self.assertEqual(j["errors"], 0)

    def test_interrupted_in_words(self):
        fs = self.mount(delay_us=100000)
        for name in ("info", "check"):
            before = fs.counters()["read"]["numbered"]
            with subprocess.Popen([shimtest.CONFIG["command"], name, fs.path],
                                  env=shimtest.environment("stock", {"LMDBIO_ENGINE": "pread"}),
                                  stdout=subprocess.PIPE, text=True) as process:
                until(lambda n=before: fs.counters()["read"]["numbered"] > n + 4)
                process.send_signal(signal.SIGINT)
                out = process.communicate()[0]
            self.assertEqual(process.returncode, 130)
            self.assertRegex(out, r"INTERRUPTED +after \d+ of \d+ pages")

    def test_diff_interrupted(self):
        fs = self.mount(delay_us=100000)
        with subprocess.Popen([shimtest.CONFIG["command"], "diff", self.source, fs.path],
                              env=shimtest.environment("stock", {"LMDBIO_ENGINE": "pread"}),
                              stdout=subprocess.PIPE, text=True) as process:
            until(lambda: fs.counters()["read"]["numbered"] > 12)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.communicate()[0], "")
        self.assertEqual(process.returncode, 130)

    def test_progress_on_a_terminal(self):
        for name, word, delay_us in (("info", b"reading", 30000), ("check", b"checking", 3000)):
            with self.subTest(command=name):
                try:
                    master, slave = pty.openpty()
                except OSError as why:  # before anything is mounted
                    if not namespaces.own_terminals():
                        self.skipTest(str(why))
                    master, slave = pty.openpty()
                fs = self.mount(delay_us=delay_us)
                try:
                    with subprocess.Popen([shimtest.CONFIG["command"], name, fs.path],
                                          env=shimtest.environment("stock", {"LMDBIO_ENGINE": "pread"}),
                                          stdout=subprocess.DEVNULL, stderr=slave) as process:
                        os.close(slave)
                        shown = read_all(master)
                finally:
                    os.close(master)
                self.assertEqual(process.returncode, 0)
                self.assertRegex(shown, word + rb" +\d+ % \[#* *\] 0:\d\d, 0:\d\d left")
                self.assertTrue(shown.endswith(b"\r\x1b[K"))

    def test_no_progress_elsewhere(self):
        fs = self.mount(delay_us=20000)
        self.assertEqual(self.lmdbio("info", fs.path, env={"LMDBIO_ENGINE": "pread"}).stderr, "")

    def test_pages_that_cannot_be_read(self):
        for args in (("info",), ("check",), ("diff", self.source)):
            fs = self.mount()
            fs.set(fail_from=20, fail_errno="EIO")
            done = command_test.command(*args, fs.path)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertRegex(done.stderr, r"data\.mdb: .*(unreadable|cannot be read)")


if __name__ == "__main__":
    shimtest.main()
