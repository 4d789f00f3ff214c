"""Processes of a node that read one file: each chunk leaves storage once, and nobody is harmed by what becomes of others."""
import ctypes
import json
import os
import random
import signal
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "shim"), os.path.join(HERE, "..", "support")]
import shimtest  # noqa: E402
import slowfs  # noqa: E402

# Tables are counted, and any process of the user removes dead ones: nobody else is to be in the IPC namespace.  Where none
# of its own can be had (not root), these tests must run alone.
CLONE_NEWIPC = 0x08000000
ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWIPC)

RECORDS, VALUE = 600, 110 << 10
KEYS, KEY_MASK = 0x1db00000, 0xfff00000  # lmdbio/node/layout.h


def tables():
    """Node tables of this user: (segment, how often it is attached)."""
    with open("/proc/sysvipc/shm", encoding="ascii") as f:
        lines = [line.split() for line in f.read().splitlines()[1:]]
    return [(int(s[1]), int(s[6])) for s in lines
            if int(s[0]) & KEY_MASK == KEYS and int(s[7]) == os.geteuid()]


def lmdbio(*args):
    return subprocess.run([shimtest.CONFIG["command"], *args], env=shimtest.environment("stock"), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100, check=True).stdout


class Case(shimtest.Case):
    def setUp(self):
        super().setUp()
        self.mode = shimtest.modes()[0]
        self.processes = []

    def tearDown(self):
        for p in self.processes:
            if p.poll() is None:
                p.kill()
            p.communicate()
        super().tearDown()

    def database(self, records=RECORDS, value=VALUE):
        db = self.fresh()
        made = shimtest.run("stock", ["node", "make", db, str(records), str(value)])
        self.assertEqual(made.returncode, 0, made.err)
        return db

    def mount(self, db, **options):
        try:
            fs = slowfs.SlowFs(shimtest.CONFIG["slowfs"], db, max_background=256, **options)
            fs.__enter__()
        except slowfs.Missing as why:
            self.skipTest(str(why))
        self.addCleanup(fs.__exit__)
        return fs

    def start(self, db, how, stride, first, steps="run", turns=1, extra=None):
        stats = os.path.join(self.dir, f"stats.{len(self.processes)}")
        env = shimtest.environment(self.mode, {"LMDBIO_STATS": stats, **(extra or {})})
        p = subprocess.Popen([shimtest.program("node", self.mode), how, db, str(stride), str(first), str(turns), steps], env=env,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        p.stats = stats
        self.processes.append(p)
        return p

    def end(self, p, used, timeout=100):
        out, err = p.communicate(timeout=timeout)
        self.assertEqual(p.returncode, 0, out + err)
        self.assertEqual(err, "")
        self.assertEqual(out.splitlines()[-1], f"used {used}")
        return [e["io"] for line in shimtest.read_stats(p.stats) for e in line["environments"] if "io" in e]


class Node(Case):
    def storage(self, fs, db):
        return fs.counters()["read"]["bytes"] / os.path.getsize(os.path.join(db, "data.mdb"))

    def test_each_byte_once(self):
        db = self.database()
        for how, stride in (("walk", 4), ("walk", 1), ("get", 4)):
            with self.subTest(how=how, stride=stride):
                fs = self.mount(db, delay_us=2000)
                all_of_them = [self.start(fs.path, how, stride, i % stride) for i in range(4)]
                ios = [io for p in all_of_them for io in self.end(p, RECORDS // stride)]
                self.assertLessEqual(self.storage(fs, db), 1.05)
                if how == "walk":
                    self.assertGreater(sum(io["chunks_claimed"] for io in ios), 0)
        self.assertEqual([t for t in tables() if t[1] == 0], [], "what ended in order leaves nothing")

    # The workers of a data loader: the file is loaded once, and the next epoch's workers find it.
    def test_lookups_at_random(self):
        for records, value in ((RECORDS, VALUE), (12000, 3000)):
            db = self.database(records, value)
            with self.subTest(value=value):
                fs = self.mount(db, delay_us=2000)
                for epoch in range(2):
                    workers = [self.start(fs.path, "shuffled", 4, i) for i in range(4)]
                    for p in workers:
                        self.end(p, records // 4)
                    self.assertLessEqual(self.storage(fs, db), 1.1 if epoch == 0 else 0.01)
                    fs.set(reset=1)

    # One process, by mdb_get: as few requests as a walk makes.
    def test_lookups_in_order(self):
        for records, value in ((RECORDS, VALUE), (12000, 3000)):
            db = self.database(records, value)
            size = os.path.getsize(os.path.join(db, "data.mdb"))
            with self.subTest(value=value):
                fs = self.mount(db, delay_us=500)
                self.end(self.start(fs.path, "get", 1, 0), records)
                self.assertLessEqual(self.storage(fs, db), 1.05)
                self.assertLessEqual(fs.counters()["read"]["numbered"], size // (256 << 10) + 60)

    def test_setting_off(self):
        db = self.database()
        fs = self.mount(db, delay_us=2000)
        before = len(tables())
        all_of_them = [self.start(fs.path, "walk", 4, i, "steps", extra={"LMDBIO_NODE": "off"}) for i in range(4)]
        for p in all_of_them:
            self.assertTrue(p.stdout.readline().startswith("at "))
        self.assertEqual(len(tables()), before)
        for p in all_of_them:
            p.stdin.write("\n" * RECORDS)
            p.stdin.flush()
            ios = self.end(p, RECORDS // 4)
            self.assertEqual(sum(io["chunks_claimed"] for io in ios), 0)

    def test_one_is_killed(self):
        db = self.database()
        for sig in (signal.SIGKILL, signal.SIGSTOP):
            for at in (1, 40, 200, 420):
                with self.subTest(signal=sig, at=at):
                    fs = self.mount(db, delay_us=2000)
                    victim = self.start(fs.path, "walk", 1, 0, "steps")
                    others = [self.start(fs.path, "walk", 3, i) for i in range(3)]
                    for _ in range(at):
                        self.assertTrue(victim.stdout.readline().startswith("at "))
                        victim.stdin.write("\n")
                        victim.stdin.flush()
                    victim.send_signal(sig)
                    for p in others:
                        self.end(p, RECORDS // 3)
                    if sig == signal.SIGKILL:
                        victim.communicate()
                        continue
                    victim.send_signal(signal.SIGCONT)
                    victim.stdin.write("\n" * RECORDS)
                    victim.stdin.flush()
                    self.end(victim, RECORDS)

    def test_what_the_killed_leave_is_removed(self):
        db = self.database(200)
        fs = self.mount(db, delay_us=1000)
        victim = self.start(fs.path, "walk", 1, 0, "steps")
        self.assertTrue(victim.stdout.readline().startswith("at "))
        self.assertEqual(len([t for t in tables() if t[1] == 1]), 1)
        victim.kill()
        victim.communicate()
        self.assertNotEqual(tables(), [])
        self.end(self.start(fs.path, "walk", 1, 0), 200)
        self.assertEqual([t for t in tables() if t[1] == 0], [])


class Command(Case):
    """lmdbio ps"""

    def setUp(self):
        super().setUp()
        if not shimtest.CONFIG["command"]:
            self.skipTest("built without the command")

    def listed(self, db):
        """The table of that database, or None."""
        st = os.stat(os.path.join(db, "data.mdb"))
        return next((t for t in json.loads(lmdbio("ps", "--json"))["tables"]
                     if (t["device"], t["inode"]) == (st.st_dev, st.st_ino)), None)

    def walkers(self, db, n):
        """Processes in the middle of a walk."""
        started = [self.start(db, "walk", 1, 0, "steps") for _ in range(n)]
        for p in started:
            for _ in range(RECORDS // 2):
                self.assertTrue(p.stdout.readline().startswith("at "))
                p.stdin.write("\n")
                p.stdin.flush()
            self.assertTrue(p.stdout.readline().startswith("at "))
        return started

    def test_what_is_shared(self):
        db = self.database()
        fs = self.mount(db, delay_us=200)
        data = os.path.join(fs.path, "data.mdb")
        walkers = self.walkers(fs.path, 2)
        table = self.listed(fs.path)
        self.assertIsNotNone(table)
        self.assertEqual((table["path"], table["dead"], table["attached"]), (data, False, 2))
        self.assertIn(table["chunk_bytes"], (2 << 20, 4 << 20))
        processes = {p["pid"]: p for p in table["processes"]}
        self.assertEqual(sorted(processes), sorted(p.pid for p in walkers))
        chunks = os.path.getsize(data) // table["chunk_bytes"] + 1
        for p in processes.values():
            self.assertEqual(p["command"], os.path.basename(shimtest.program("node", self.mode))[:15])
            self.assertLess(p["walk"]["chunk"], chunks)
            self.assertTrue(0 < p["walk"]["share"] <= 1)
            self.assertTrue(0 <= p["walk"]["age_s"] < 100)
        self.assertGreater(sum(p["brought"] for p in processes.values()), 0)
        self.assertLessEqual(sum(p["brought"] for p in processes.values()), chunks)

        lines = lmdbio("ps").splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith(data + ": device "))
        self.assertIn(f", inode {table['inode']}, chunks of ", lines[at])
        self.assertEqual(lines[at + 1].split(), "pid command brought found waits taken over walk".split())
        for line in lines[at + 2:at + 4]:
            self.assertEqual(processes[int(line.split()[0])]["command"], line.split()[1])
            self.assertRegex(line, r"  chunk \d+, uses \d+\.\d %, \d+\.\d s ago$")

        lmdbio("ps", "--clean")
        self.assertIsNotNone(self.listed(fs.path), "a table that is in use stays")
        for p in walkers:
            p.stdin.write("\n" * RECORDS)
            p.stdin.flush()
            self.end(p, RECORDS)
        self.assertIsNone(self.listed(fs.path))

    def test_what_the_killed_leave(self):
        db = self.database()
        fs = self.mount(db, delay_us=200)
        victim, other = self.walkers(fs.path, 2)
        victim.kill()
        victim.communicate()
        self.assertEqual([p["pid"] for p in self.listed(fs.path)["processes"]], [other.pid])
        other.kill()
        other.communicate()
        table = self.listed(fs.path)
        self.assertEqual((table["dead"], table["attached"], table["path"], table["processes"]), (True, 0, None, []))
        self.assertIn(f"inode {table['inode']}, chunks of", lmdbio("ps"))
        self.assertIn("lmdbio ps --clean removes it", lmdbio("ps"))
        self.assertRegex(lmdbio("ps", "--clean"), r"^[1-9]\d* tables? removed\n$")
        self.assertIsNone(self.listed(fs.path))
        self.assertEqual(set(json.loads(lmdbio("ps", "--clean", "--json"))), {"removed"})

    def segment(self, key, size):
        """A new one, attached here until the test ends: (its number, its life word, its memory)."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_void_p
        libc.shmdt.argtypes = [ctypes.c_void_p]
        number = libc.shmget(key, ctypes.c_size_t(size), 0o3600)  # IPC_CREAT, IPC_EXCL
        self.assertGreaterEqual(number, 0)
        self.addCleanup(libc.shmctl, number, 0, None)  # IPC_RMID
        at = libc.shmat(number, None, 0)
        self.addCleanup(libc.shmdt, at)
        with open("/proc/sysvipc/shm", encoding="ascii") as f:
            made_at = next(int(s[13]) for s in map(str.split, f) if s[1] == str(number))
        return number, (number + 1) << 32 | made_at, (ctypes.c_char * size).from_address(at)

    def test_random_bytes(self):
        rng = random.Random(3)
        rows_at, row, rows = 4096, 128, 256  # lmdbio/node/layout.h
        life = self.segment(0, 1)[1]
        number, _, memory = self.segment(KEYS | random.SystemRandom().getrandbits(20), rows_at + rows * row + (8 << 14) + 0x1db)
        for living in (0, 1, rows):
            for pid in (None, 0, os.getpid()):
                memory[:] = rng.randbytes(len(memory))
                for at in range(rows_at, rows_at + living * row, row):
                    memory[at:at + 8] = struct.pack("<Q", life)
                    if pid is not None:
                        memory[at + 80:at + 84] = struct.pack("<I", pid)
                before = bytes(memory)
                table = next(t for t in json.loads(lmdbio("ps", "--json"))["tables"] if t["segment"] == number)
                self.assertEqual((table["path"], table["inode"], table["dead"]), (None, None, False))
                self.assertEqual(len(table["processes"]), living)
                if pid is not None:
                    with open("/proc/self/comm", encoding="ascii") as f:
                        own = f.read().strip()
                    self.assertEqual({(p["pid"], p["command"]) for p in table["processes"]},
                                     {(pid, own if pid else None)} if living else set())
                self.assertIn(f"unknown file (segment {number})\n", lmdbio("ps"))
                self.assertEqual(bytes(memory), before)

    # The pid that a process of another PID namespace writes is no process's here, or another one's.
    def test_another_pid_namespace(self):
        db = self.database()
        fs = self.mount(db, delay_us=200)
        unshare = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
        try:
            subprocess.run([*unshare, "true"], check=True, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no PID namespaces here")
        inside = subprocess.Popen([*unshare, shimtest.program("node", self.mode), "walk", fs.path, "1", "0", "1", "steps"],
                                  env=shimtest.environment(self.mode), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        self.processes.append(inside)
        self.assertTrue(inside.stdout.readline().startswith("at "))
        table = self.listed(fs.path)
        self.assertEqual([(p["pid"], p["command"]) for p in table["processes"]], [(1, None)])
        self.assertIsNone(table["path"])


if __name__ == "__main__":
    shimtest.main()
