"""Statistics of process trees: every call of every process is told, however the process ended.

    process_stats_test.py CONFIG [unittest arguments]
"""
import json
import os
import signal
import subprocess
import sys
import unittest

import shimtest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import namespaces  # noqa: E402

# What other programs have left is not to be found.
shimtest.ignore_leaks = True  # stock's, of a child that ends by exit()
ALONE = namespaces.own_ipc_and_shm()
PYTHON = "/usr/bin/python3"
WORKERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "process_stats_workers.py")


def segments():
    """Of shared memory, with the size that a board has: 16 pages and a mark."""
    with open("/proc/sysvipc/shm", encoding="ascii") as f:
        rows = [line.split() for line in f.read().splitlines()[1:]]
    return {int(r[1]) for r in rows if int(r[3]) == (16 << 12) + 0x2ba}


class Case(shimtest.Case):
    def setUp(self):
        super().setUp()
        self.mode = shimtest.modes()[0]
        self.stats = os.path.join(self.fresh("stats"), "stats.%p")

    def lmdbio(self, *args, **more):
        done = subprocess.run([shimtest.CONFIG["command"], *args], env=shimtest.environment("stock"), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100, check=False, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def lines(self):
        """What has been written, by process."""
        told = {}
        folder = os.path.dirname(self.stats)
        for name in os.listdir(folder):
            for line in shimtest.read_stats(os.path.join(folder, name)):
                told.setdefault(line["pid"], []).append(line)
        return told


class Programs(Case):
    """stats.c: COMMANDS in one process, and in children of it."""

    def run_it(self, *commands, status=0, stats=None):
        env = shimtest.environment(self.mode, {"LMDBIO_STATS": stats or self.stats})
        done = subprocess.run([shimtest.program("stats", self.mode), self.db, *commands], env=env, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100, check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def setUp(self):
        super().setUp()
        self.db = self.fresh()
        done = subprocess.run([shimtest.program("stats"), self.db, "make"], env=shimtest.environment("stock"), check=True)
        self.assertEqual(done.returncode, 0)

    def calls(self):
        return [(e["calls"]["get"] + e["forwarded"]["get"], e["calls"]["cursor_get"], p.get("state"))
                for lines in self.lines().values() for p in lines for e in p["environments"]]

    def test_who_tells_itself(self):
        self.run_it("open", "begin", "get 10", "next 20", "end", "close")
        self.assertEqual(self.calls(), [(10, 20, None)])

    # The counters of a process are removed by the process that reports them.
    def tearDown(self):
        if ALONE:
            self.assertEqual(segments(), set())
        super().tearDown()

    # The next process with the same LMDBIO_STATS that ends tells of it, once.
    def test_killed(self):
        for how in ("kill", "_exit"):
            for commands in (("open", "begin", "get 1234", "next 20"), ("open", "begin", "get 1234", "next 20", "end"),
                             ("open", "begin", "get 1000", "end", "begin", "get 234", "next 20", "end", "close")):
                with self.subTest(how=how, commands=commands):
                    for name in os.listdir(os.path.dirname(self.stats)):
                        os.unlink(os.path.join(os.path.dirname(self.stats), name))
                    self.run_it(*commands, how, status=-signal.SIGKILL if how == "kill" else 3)
                    told = "close" in commands
                    self.assertEqual(self.calls(), [(1234, 20, None)] if told else [])
                    for _ in range(2):
                        self.run_it("open", "close")
                    self.assertIn((1234, 20, None if told else "ended"), self.calls())
                    # The two others opened the database and closed it.
                    self.assertEqual(sum(get for get, _, _ in self.calls()), 1234)
                    self.assertEqual(sum(step for _, step, _ in self.calls()), 20)

    # Closed while another environment is open: told at the end, or by another process.
    def test_killed_after_a_close(self):
        self.run_it("open", "begin", "get 7", "end", "open2", "close", "kill", status=-signal.SIGKILL)
        self.assertEqual(self.calls(), [])
        self.run_it("open", "close")
        self.assertEqual(sorted(c for c in self.calls() if c[2])[-1], (7, 0, "ended"))

    # Calls to the real library are counted 256 at a time.
    def test_killed_writer(self):
        for commands in (("openw", "begin", "get 2000"), ("openw", "beginw", "get 2000")):
            with self.subTest(commands=commands):
                before = sum(get for get, _, _ in self.calls())
                self.run_it(*commands, "kill", status=-signal.SIGKILL)
                self.run_it("open", "close")
                got = sum(get for get, _, _ in self.calls()) - before
                self.assertGreater(got, 1700)
                self.assertLessEqual(got, 2000)

    # What a child does is its own, with a transaction of its parent's too; what it did not do is not told.
    def test_children(self):
        for how in ("_exit", "kill", "exit"):
            with self.subTest(how=how):
                told = set(self.lines())
                self.run_it("open", "begin", "get 5", "fork", "get 300", how, "parent", "get 6", "fork", how, "parent",
                            "end", "fork", "begin", "get 40", "end", how, "parent", "close")
                found = sorted(e["calls"]["get"] for pid, lines in self.lines().items() if pid not in told
                               for p in lines for e in p["environments"])
                self.assertEqual(found, [11, 40, 300])

    def test_children_of_children(self):
        self.run_it("open", "begin", "get 5", "fork", "get 10", "fork", "get 20", "kill", "parent", "get 1", "kill",
                    "parent", "end", "close")
        self.assertEqual(sorted(get for get, _, _ in self.calls()), [5, 11, 20])

    # Another program in the same process: what the first did is told.
    def test_exec(self):
        self.run_it("open", "begin", "get 5", "exec", "open", "begin", "get 6", "end", "close")
        self.assertEqual(sorted(get for get, _, _ in self.calls()), [5, 6])

    # Another process reports the counters as they are.
    def test_of_a_process_that_runs(self):
        env = shimtest.environment(self.mode, {"LMDBIO_STATS": self.stats})
        with subprocess.Popen([shimtest.program("stats", self.mode), self.db, "open", "begin", "get 50", "wait", "get 50", "wait",
                               "kill"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
            file = self.stats.replace("%p", str(p.pid))
            for gets in (50, 100):
                self.assertEqual(p.stdout.readline(), "waits\n")
                total = json.loads(self.lmdbio("stats", "--json", file).stdout)["total"]
                self.assertEqual((total["calls"]["get"], total["running"], total["ended_without_telling"]), (gets, 1, 0))
                self.assertFalse(os.path.exists(file))
                p.stdin.write("\n")
                p.stdin.flush()
            self.assertEqual(p.wait(), -signal.SIGKILL)
            for _ in range(2):  # the first writes the line
                done = self.lmdbio("stats", "--processes", file).stdout
                self.assertIn("100 lookups, ", done)
                self.assertIn("1 process (1 of them counted from shared memory)", done)
                self.assertIn(f"process {p.pid} (counted from shared memory): {self.db}: served by LMDBIO", done)
        done = subprocess.run([shimtest.CONFIG["command"], "stats", file + ".none"], text=True, stderr=subprocess.PIPE,
                              env=shimtest.environment("stock"), check=False)
        self.assertEqual((done.returncode, done.stderr), (2, f"lmdbio: {file}.none: No such file or directory\n"))

    # Environments that are open at the same time report the same faults of their process.
    def test_figures_of_a_process_count_once(self):
        file = os.path.join(self.dir, "line")
        def environment(name, faults, storage):
            return {"path": name, "ours": True, "records": 1, "bytes": 10, "major_faults": faults, "storage_bytes": storage}
        with open(file, "w", encoding="ascii") as f:
            for pid, environments in [(1, [environment("/a", 5, 4 << 20), environment("/b", 3, 1 << 20)]),
                                      (1, [environment("/a", 2, 1 << 20)]), (2, [environment("/a", 10, 16 << 20)])]:
                print(json.dumps({"pid": pid, "environments": environments}), file=f)
        total = json.loads(self.lmdbio("stats", "--json", file).stdout)["total"]
        self.assertEqual((total["major_faults"], total["storage_bytes"], total["records"]), (17, 21 << 20, 4))
        said = self.lmdbio("stats", file).stdout
        self.assertIn("read from storage: 0 B by LMDBIO in 0 requests, 21.0 MiB by the kernel for page faults and other files; ", said)
        self.assertIn("waits for the kernel's reads are not measured (17 major page faults)", said)

    # Texts may be empty: if nothing of a file was read ahead, it has no engine.
    def test_an_empty_text(self):
        file = os.path.join(self.dir, "line")
        io = {"read_path": "mmap", "reason": "because", "engine": "", "residency": "", "asked": 0, "read": 0}
        with open(file, "w", encoding="ascii") as f:
            print(json.dumps({"pid": 1, "environments": [{"path": "/db", "ours": True, "records": 1, "bytes": 10, "io": io}]}), file=f)
        self.assertEqual(json.loads(self.lmdbio("stats", "--json", file).stdout)["total"]["io"], io)
        self.assertIn("records in key order that are not in memory: page faults (because)\n", self.lmdbio("stats", file).stdout)

    # Nothing is said that says nothing: no zeros, and no walks in a program of lookups.
    def test_words(self):
        file = os.path.join(self.dir, "line")
        io = {"read_path": "direct", "reason": "because", "engine": "io_uring", "residency": "", "asked": 0, "read": 8192, "requests": {"4K": 2},
              "lookups_missed": 2, "exact_reads": 2, "exact_bytes": 8192, "exact_us": 3000, "stalls": 0, "stall_us": 0, "wasted": 0,
              "chunk_bytes": 4 << 20, "memory_limit": 1 << 30, "most_resident": 0, "snapshots": 0}
        environment = {"path": "/db", "ours": True, "records": 2, "bytes": 10, "calls": {"get": 2, "cursor_get": 0, "txn_begin": 1},
                       "forwarded": {"get": 0, "cursor_get": 0, "write": 0}, "io": io}
        def said():
            with open(file, "w", encoding="ascii") as f:
                print(json.dumps({"pid": 1, "environments": [environment]}), file=f)
            return self.lmdbio("stats", file).stdout.splitlines()[2:]
        self.assertEqual(said(), ["calls served: 2 lookups, 1 transaction",
                                  "read for cursors and lookups: 8.0 KiB (by io_uring); requests by size: 2 up to 4 KiB",
                                  "lookups of data not in memory: 2; LMDBIO read 8.0 KiB for them in 2 requests, and they waited 0.003 s in total"])
        environment["calls"]["cursor_get"], environment["forwarded"]["write"], io["lookups_missed"] = 7, 1, 0
        io.update(asked=4096, stalls=1, stall_us=2000, wasted=4096, most_resident=3, snapshots=2)
        self.assertEqual(said(), ["calls served: 2 lookups, 7 cursor moves, 1 transaction; passed through to stock LMDB: 1 write",
                                  "records in key order that are not in memory: direct I/O (because)",
                                  "read for cursors and lookups: 8.0 KiB (by io_uring); requests by size: 2 up to 4 KiB",
                                  "read ahead of the program: it reached 4.0 KiB and waited 1 time, 0.002 s in total; evicted before it came: 4.0 KiB",
                                  "private memory of a process: at most 12.0 MiB at a time (limit LMDBIO_MEMORY: 1.0 GiB); "
                                  "discarded after 2 commits"])
        # A program of readers makes no calls.
        environment.update(calls={"get": 0, "cursor_get": 0, "txn_begin": 2}, forwarded={}, io={"read_path": "mmap", "reason": "because", "read": 0},
                           reader={"batches": 1, "records": 2, "bytes": 10, "read": 8192, "requests": 1, "copied": 0, "wait_us": 0})
        self.assertEqual(said(), ["readers: 2 records in 1 batch, 10 B; 8.0 KiB read in 1 request, 0 B taken from the page cache; "
                                  "waits: 0.000 s in total"])

    # Many processes look for counters that others have left at the same time.  Each is reported once.
    def test_many(self):
        self.run_it("open", *[w for _ in range(40) for w in ("fork&", "begin", "get 100", "kill", "parent")],
                    *[w for _ in range(40) for w in ("fork&", "begin", "get 100", "end", "close", "exit", "parent")],
                    "children", "close")
        self.assertEqual(sum(get for get, _, _ in self.calls()), 8000)
        self.assertEqual(len([c for c in self.calls() if c[0]]), 80)

    # Generation after generation, as workers of a data loader: what they leave is told before it is too much.
    def test_generations(self):
        env = shimtest.environment(self.mode, {"LMDBIO_STATS": self.stats})
        words = [w for _ in range(200) for w in ("fork", "begin", "get 10", "kill", "parent")]
        with subprocess.Popen([shimtest.program("stats", self.mode), self.db, "open", *words, "wait", "close"], env=env,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
            self.assertEqual(p.stdout.readline(), "waits\n")
            told = sum(get for get, _, _ in self.calls())
            self.assertGreaterEqual(told, 10 * (200 - 65))
            if ALONE:
                self.assertEqual(len(segments()), 1 + 200 - told // 10)  # and its own
            p.stdin.write("\n")
        self.assertEqual(p.returncode, 0)
        self.assertEqual(sum(get for get, _, _ in self.calls()), 2000)

    # Counters of other jobs are reported as well.  Those that have no room are dropped.
    @unittest.skipUnless(ALONE, "others may have left more")
    def test_left_by_others(self):
        gone = os.path.join(self.fresh("gone"), "stats.%p")
        for stats, children in ((self.stats, 33), (gone, 30)):  # and a parent each: 65
            self.run_it("open", *[w for _ in range(children) for w in ("fork&", "begin", "get 10", "kill", "parent")], "children",
                        "kill", stats=stats, status=-signal.SIGKILL)
        self.assertEqual(self.calls(), [])
        os.rmdir(os.path.dirname(gone))
        done = self.run_it("open", "begin", "get 1", "close", stats=os.path.join(self.fresh("third"), "stats"))
        self.assertEqual(done.stderr, "")
        self.assertEqual(sum(get for get, _, _ in self.calls()), 330)
        self.assertFalse(os.path.exists(os.path.dirname(gone)))

    # Where there is no shared memory of this kind: told at the end, as far as it is.
    def test_no_shared_memory(self):
        refused = ["unshare", "--ipc", "sh", "-c", "echo 0 > /proc/sys/kernel/shmmni && exec \"$@\"", "sh"]
        if subprocess.run([*refused, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("no IPC namespaces here")
        env = shimtest.environment(self.mode, {"LMDBIO_STATS": self.stats})
        commands = ("open", "begin", "get 9", "fork", "get 300", "exit", "parent", "end", "close")
        subprocess.run([*refused, shimtest.program("stats", self.mode), self.db, *commands], env=env, check=True)
        self.assertEqual(sorted(c[0] for c in self.calls()), [9, 300])


class Workers(Case):
    """Python's own processes, over python3-lmdb."""

    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("a sanitizer's runtime cannot be loaded into an interpreter")
        if subprocess.run([PYTHON, "-c", "import lmdb"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("no python3-lmdb")
        self.db = self.fresh()
        subprocess.run([PYTHON, WORKERS, self.db, "make"], env=shimtest.environment("stock"), check=True)

    def test_every_lookup_of_every_worker(self):
        for start in ("fork", "spawn"):
            for workers in (2, 8):
                for how in ("closed", "open", "terminated", "killed", "kept"):
                    if (start, how) == ("spawn", "kept"):
                        continue  # a transaction cannot be pickled
                    with self.subTest(start=start, workers=workers, how=how):
                        done = self.lmdbio("run", "--json", "-", "--", PYTHON, "-B", WORKERS, self.db, start, str(workers), how)
                        counted, told = done.stdout.split("\n", 1)
                        total = json.loads(told)["total"]
                        self.assertEqual(total["calls"]["get"], int(counted))
                        self.assertEqual(total["processes"], workers + (how == "kept"))
                        self.assertEqual(total["records"], int(counted))


if __name__ == "__main__":
    shimtest.main()
