"""Processes of a node that share a file, and what harms them: kills, other users, what is overwritten, namespaces.

    node_kill_test.py CONFIG [unittest arguments]     a short run, for ctest
    --node MODE          LMDBIO_NODE, auto
    --kills N --seed N   Kills.test_random: so many kills, 40, drawn from a seed
    --points N           EachPoint: of the points of a run, so many are visited, 30; 0: all
    --processes N --cycles N   Cycles: so many processes, 64, open and close so many times each, 32
    --rounds N           Damage.test_overwritten, 12
    --shm-huge MODE      /dev/shm is a tmpfs mounted with huge=MODE, never

Right bytes, counts and what is left are checked.  Times are bounded generously: a process that goes on does so in seconds.
"""
import ctypes
import errno
import json
import os
import random
import re
import select
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "shim"), os.path.join(HERE, "..", "support")]
import namespaces  # noqa: E402
import shimtest  # noqa: E402
import slowfs  # noqa: E402

NODE = shimtest.option("--node", "auto")
KILLS = shimtest.option("--kills", 40)
SEED = shimtest.option("--seed", 1)
POINTS = shimtest.option("--points", 30)
PROCESSES = shimtest.option("--processes", 64)
CYCLES = shimtest.option("--cycles", 32)
ROUNDS = shimtest.option("--rounds", 12)
SHM_HUGE = shimtest.option("--shm-huge", "never")

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.shmat.restype = ctypes.c_void_p
LIBC.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
LIBC.shmdt.argtypes = [ctypes.c_void_p]
LIBC.shmget.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
IPC_RMID = 0
SHARED = "/dev/shm"


# What processes share is counted, and any process of the user removes what the dead have left: nobody else is to be in
# these namespaces.
IS_SEPARATE = namespaces.own_ipc_and_shm(f"mode=1777,huge={SHM_HUGE}".encode())

RECORDS, VALUE = 300, 110 << 10  # 33 MiB: 9 chunks
FEW = 150  # 5 chunks
KEYS, KEY_MASK = 0x1db00000, 0xfff00000  # lmdbio/node/layout.h
ROWS_AT, ROW, ROWS = 4096, 128, 256
CLAIMS_AT, SIZE_MARK = ROWS_AT + ROWS * ROW, 0x1db
WAITS, TAKEN_OVER, PID = 80, 88, 96  # of a row
BEING_MADE = 10  # lmdbio/node/listing.cc
VERSION, PROBES = 3, 8  # lmdbio/node/table_members.cc
OTHER_USER = 65534
# A process that goes on after another one was killed does so within 2 s and a request; this much, with what a loaded machine
# takes, is a hang.
GOES_ON = 30
HANGS = 120


def mix(x):
    x = (x + 0x9e3779b97f4a7c15) % 2**64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9 % 2**64
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb % 2**64
    return x ^ (x >> 31)


def key_of(path, chunk_bytes, probe):
    """The key of the node table of that file, as lmdbio/node/table.cc has it."""
    st = os.stat(path)
    h = (mix(mix(mix((mix(VERSION) + os.geteuid()) % 2**64) + st.st_dev) + st.st_ino) + chunk_bytes) % 2**64
    h = mix(h) | 1 if h else 1
    return KEYS | (mix((h + probe) % 2**64) & ~KEY_MASK & 0xffffffff)


def table_bytes(chunks):
    return (CLAIMS_AT + chunks * 8 + 4095) // 4096 * 4096 + SIZE_MARK


class Shared:
    """A segment of shared memory, as /proc/sysvipc/shm has it."""

    def __init__(self, fields):
        (self.key, self.number, mode, self.size, _, _, self.attached, self.uid, _, _, _, self.attached_at, _,
         self.made_at) = (int(f, 8 if i == 2 else 10) for i, f in enumerate(fields[:14]))
        self.key &= 0xffffffff
        self.mode = mode & 0o777
        self.removed = mode & 0o1000 != 0

    def is_table(self):
        return self.key & KEY_MASK == KEYS and self.size % 4096 == SIZE_MARK

    def __repr__(self):
        return f"segment {self.number}: key {self.key:#x}, {self.size} bytes, attached {self.attached}, at {self.attached_at}"


def segments():
    with open("/proc/sysvipc/shm", encoding="ascii") as f:
        found = [Shared(line.split()) for line in f.read().splitlines()[1:]]
    return [s for s in found if s.uid == os.geteuid()]


def tables():
    return [s for s in segments() if s.is_table()]


def stored():
    """Files of this user that processes share."""
    found = []
    for top in os.listdir(SHARED):
        if re.fullmatch(rf"lmdbio-{os.geteuid()}.*", top):
            for where, _, names in os.walk(os.path.join(SHARED, top)):
                found += [os.path.join(where, name) for name in names]
    return found


class Attached:
    """The memory of a segment."""

    def __init__(self, segment):
        self.at = LIBC.shmat(segment.number, None, 0)
        if self.at in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "shmat")
        self.memory = (ctypes.c_char * segment.size).from_address(self.at)
        self.size = segment.size

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.memory = None
        LIBC.shmdt(self.at)

    def counter(self, row, at):
        at += ROWS_AT + row * ROW
        return int.from_bytes(self.memory[at:at + 8], "little")

    def words(self):
        """Of the first chunks."""
        raw = self.memory[CLAIMS_AT:CLAIMS_AT + 64 * 8]
        return [int.from_bytes(raw[i:i + 8], "little") for i in range(0, len(raw), 8)]


def look_into(what):
    """The sum of what(attached) over all tables."""
    total = 0
    for t in tables():
        try:
            with Attached(t) as a:
                total += what(a)
        except OSError:  # it has gone
            pass
    return total


def claims():
    return look_into(lambda a: sum(w & 3 == 1 for w in a.words()))


def claimers():
    """The process ids of those who have claims."""
    found = []
    look_into(lambda a: found.extend(a.counter(w >> 3 & 0xff, PID) & 0xffffffff for w in a.words() if w & 3 == 1) or 0)
    return found


def waits():
    """How often processes have waited for another one's claim, or have taken one over."""
    return look_into(lambda a: sum(a.counter(row, at) for row in range(8) for at in (WAITS, TAKEN_OVER)))


class Walker:
    """A process that reads, and when it says so."""

    def __init__(self, case, argv, env, steps=0, pass_fds=()):
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, pass_fds=pass_fds, start_new_session=True)
        self.lines, self.times, self.err = [], [], ""
        self.said, self.said_all = threading.Condition(), False
        self.started = time.monotonic()
        self.go_on(steps)
        self.threads = [threading.Thread(target=t, daemon=True) for t in (self._read, self._read_errors)]
        for t in self.threads:
            t.start()
        case.addCleanup(self.end)

    def go_on(self, steps):
        """Of one that says "steps"."""
        try:
            self.process.stdin.write("\n" * steps)
            self.process.stdin.flush()
        except BrokenPipeError:  # it was killed
            pass

    def is_at(self, step, timeout=HANGS):
        """It has said so much."""
        with self.said:
            self.said.wait_for(lambda: len(self.lines) > step or self.said_all, timeout)
            return len(self.lines) > step

    def _read(self):
        for line in self.process.stdout:
            with self.said:
                self.lines.append(line.strip())
                self.times.append(time.monotonic())
                self.said.notify_all()
        with self.said:
            self.said_all = True
            self.said.notify_all()

    def _read_errors(self):
        self.err = self.process.stderr.read()

    def wait(self, timeout=HANGS):
        self.process.wait(timeout)
        for t in self.threads:
            t.join(timeout)
        return self.process.returncode

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.stdout.close()
        self.process.stderr.close()

    def longest_pause(self, since):
        """Between one line and the next, or since that moment."""
        times = [since] + [t for t in self.times if t > since]
        return max((b - a for a, b in zip(times, times[1:])), default=0)


class Case(shimtest.Case):
    made_at = 0  # the last segment that a killed process had not attached yet

    def setUp(self):
        super().setUp()
        if not IS_SEPARATE:
            self.skipTest("not root: no IPC namespace of its own")
        self.mode = shimtest.modes()[0]
        self.slowest = 0

    def database(self, records=RECORDS, value=VALUE, name="db"):
        db = self.fresh(name)
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

    def evict(self, fs):
        fd = os.open(os.path.join(fs.path, "data.mdb"), os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

    def environment(self, extra=None):
        return shimtest.environment(self.mode, {"LMDBIO_NODE": NODE, **(extra or {})})

    def program(self, fs, how, stride=1, first=0, steps=False):
        return [shimtest.program("node", self.mode), how, fs.path, str(stride), str(first), "1", "steps" if steps else "run"]

    def start(self, fs, how="walk", stride=1, first=0, steps=None, wrap=(), extra=None):
        """`steps`: it says where it is, and stops after so many records until it is told to go on."""
        return Walker(self, [*wrap, *self.program(fs, how, stride, first, steps is not None)], self.environment(extra),
                      steps or 0)

    def ends_well(self, w, used, timeout=HANGS, quiet=True):
        try:
            status = w.wait(timeout)
        except subprocess.TimeoutExpired:
            self.fail(f"hangs after {w.lines[-1:]}")
        self.assertEqual(status, 0, (w.lines[-1:], w.err))
        if quiet:
            self.assertEqual(w.err, "")
        self.assertEqual(w.lines[-1], f"used {used}")

    def storage(self, fs):
        return fs.counters()["read"]["bytes"] / os.path.getsize(os.path.join(fs.path, "data.mdb"))

    # -- what is left

    def open_next(self):
        """Another database, opened by this user."""
        if not hasattr(self, "another"):
            self.another = self.database(10, 100, "another")
        done = shimtest.run(self.mode, ["node", "get", self.another, "1", "0", "1", "run"], {"LMDBIO_NODE": NODE}, stats=False)
        self.assertEqual((done.returncode, done.err), (0, ""))

    def check_nothing_left(self):
        """With nobody reading.  A segment that nobody has attached yet may be one that is being made: it stays for a while, and
        is looked for at the end of all tests."""
        self.open_next()
        young = [s for s in segments() if s.attached == 0 and s.attached_at == 0 and time.time() - s.made_at <= BEING_MADE + 1]
        Case.made_at = max([Case.made_at, *(s.made_at for s in young)])
        self.assertEqual([s for s in segments() if s.number not in [y.number for y in young]], [])
        self.assertEqual(stored(), [])


def tearDownModule():
    if Case.made_at == 0:
        return
    time.sleep(max(0, Case.made_at + BEING_MADE + 1.5 - time.time()))
    last = Case()
    last.setUp()
    try:
        last.open_next()
        last.assertEqual(segments(), [])
    finally:
        last.doCleanups()


class Kills(Case):
    # Groups of four; one or two of them are killed at any moment, from their start to their end.
    def test_random(self):
        rng = random.Random(SEED)
        print(f"seed {SEED}", file=sys.stderr)
        db = self.database()
        fs = self.mount(db, delay_us=2000)
        kinds = [("walk", 1), ("walk", 4), ("get", 4), ("shuffled", 4), ("shuffled", 1)]
        usual = {}  # seconds
        kills = late = groups = cold = left = 0
        while kills < KILLS and late < KILLS + 20:
            how, stride = rng.choice(kinds)
            delay = rng.choice([500, 3000, 10000])
            kind = (how, stride, delay)
            wanted = min(rng.choice([1, 2]), KILLS - kills) if kind in usual else 0
            fs.set(delay_us=delay)
            if rng.random() < .5:  # else the table of the last group's file is found again
                fs.__exit__()
                fs.options["delay_us"] = delay
                fs.__enter__()
            else:
                self.evict(fs)
            fs.set(reset=1)
            begun = time.monotonic()
            group = [self.start(fs, how, stride, i % stride) for i in range(4)]
            victims = rng.sample(group, wanted)
            for moment, v in sorted(((rng.uniform(0, usual[kind]), v) for v in victims), key=lambda m: m[0]):
                time.sleep(max(0, begun + moment - time.monotonic()))
                v.process.kill()
            for w in group:
                if w in victims and w.wait() == -9:
                    kills += 1
                else:
                    late += w in victims
                    self.ends_well(w, RECORDS // stride)
            took = time.monotonic() - begun
            usual[kind] = min(took, usual.get(kind, took) * 1.1)
            self.slowest = max(self.slowest, took)
            cold += self.storage(fs) >= .9
            groups += 1
            left += any(t.attached == 0 for t in tables())
            if rng.random() < .3:
                self.check_nothing_left()
        self.check_nothing_left()
        print(f"{kills} killed, {late} had ended before; {groups} groups, {cold} on a cold file, {left} left something; "
              f"the slowest {self.slowest:.1f} s", file=sys.stderr)
        self.assertGreaterEqual(kills, KILLS)
        self.assertGreaterEqual(cold, groups * .8)


class Stopped:
    """A process that ends at a point of its own: node_stop.c."""

    def __init__(self, case, fs, options, hold=False, how="walk"):
        self.file = os.path.join(case.dir, "points")
        fds = []
        if hold:
            self.told, out = os.pipe()
            inn, self.tell = os.pipe()
            fds = [out, inn]
            options = [*options, "-h", str(out), str(inn)]
            case.addCleanup(os.close, self.told)
        env = case.environment()
        env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":detect_leaks=0"  # that needs to trace as well
        ours = [f"{k}={v}" for k, v in env.items() if k.startswith(("LD_", "LMDBIO_"))]
        argv = [shimtest.CONFIG["programs"]["node_stop"], "-o", self.file, *options, "/usr/bin/env", *ours,
                *case.program(fs, how)]
        self.walker = Walker(case, argv, {k: v for k, v in env.items() if not k.startswith("LD_")}, pass_fds=fds)
        for fd in fds:
            os.close(fd)

    def is_held(self, timeout=HANGS):
        """At its point, where it stays until kill()."""
        return bool(select.select([self.told], [], [], timeout)[0]) and os.read(self.told, 5) == b"held\n"

    def kill(self):
        os.close(self.tell)

    def go_on(self):
        os.write(self.tell, b"go\n")
        os.close(self.tell)

    def points(self):
        """After its end."""
        with open(self.file, encoding="ascii") as f:
            return f.read().split("\n")[:-1]


class Points(Case):
    """Of a process: see node_stop.c."""

    def setUp(self):
        super().setUp()
        shimtest.skip_under_tsan(self, "makes system calls of its own, which are points as well")
        self.db = self.database(FEW)
        probe = subprocess.run([shimtest.CONFIG["programs"]["node_stop"], "/bin/true"], stderr=subprocess.PIPE, check=False)
        if probe.returncode == 77:
            self.skipTest("processes cannot be traced here")

    def survive(self, survivors, since):
        for w in survivors:
            self.ends_well(w, FEW)
            pause = w.longest_pause(since)
            self.slowest = max(self.slowest, pause)
            self.assertLess(pause, GOES_ON)


class AtOnePoint(Points):
    """One that is known by what the process is doing."""

    def until(self, true, seconds=10):
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                return False
            time.sleep(.001)
        return True

    # The process stays at its point until others have come to depend on it.
    def at_point(self, options, claimed=False, waited_for=False):
        fs = self.mount(self.db, delay_us=2000)
        victim = Stopped(self, fs, options, hold=True)
        self.assertTrue(victim.is_held())
        if NODE == "auto":
            self.assertEqual(claims() > 0, claimed)
        survivors = [self.start(fs, steps=RECORDS) for _ in range(2)]
        if waited_for and NODE == "auto":
            self.assertTrue(self.until(lambda: waits() > 0), "nobody waits")
        else:
            self.assertTrue(all(w.is_at(0) for w in survivors))
        now = time.monotonic()
        victim.kill()
        self.survive(survivors, now)
        self.assertEqual(victim.walker.wait(), 0, victim.walker.err)
        self.assertEqual(victim.points()[-1], "killed")
        self.check_nothing_left()

    def test_right_after_a_claim(self):
        self.at_point(["-a", "shmget.make", "-p", "residency", "1", "entry"], claimed=True, waited_for=True)

    def test_while_its_read_is_in_flight(self):
        fs = self.mount(self.db, delay_us=1000000)
        group = {w.process.pid: w for w in (self.start(fs, steps=RECORDS) for _ in range(3))}
        found = []
        self.assertTrue(self.until(lambda: waits() > 0 and fs.counters()["read"]["in_flight"] > 0 and
                                   found.extend(claimers()) or found, HANGS), "nobody waits")
        now = time.monotonic()
        victim = group.pop(found[0])
        victim.process.kill()
        self.survive(group.values(), now)
        print(f"requests of 1 s; the longest pause of others {self.slowest:.2f} s", file=sys.stderr)
        self.assertEqual(victim.wait(), -9)
        self.check_nothing_left()

    def test_after_the_read_and_before_the_release(self):
        if NODE != "auto":
            self.skipTest("the point is one of reads into the page cache")
        self.at_point(["-a", "shmget.make", "-p", "populate", "2", "exit"], claimed=True)

    def test_between_making_the_table_and_taking_a_row(self):
        for point in (["shmget.make", "1", "exit"], ["shmat", "2", "exit"]):
            with self.subTest(point=point):
                self.at_point(["-p", *point])
        self.check_nothing_left()

    def test_while_making_the_segment_that_tells_who_lives(self):
        for point in (["shmget.unnamed", "1", "exit"], ["shmat", "1", "exit"], ["shmctl.remove", "1", "entry"]):
            with self.subTest(point=point):
                self.at_point(["-p", *point])
        self.check_nothing_left()

    def test_the_last_one_removes_it(self):
        for point in (["shmctl.remove", "1", "entry"], ["shmctl.remove", "1", "exit"], ["shmdt", "1", "entry"]):
            with self.subTest(point=point):
                self.at_point(["-a", "shmget.make", "-p", *point])

    # For one that stays at its claim meanwhile, and goes on then.
    def test_a_waiter_asleep(self):
        if NODE != "auto":
            self.skipTest("the point is one of reads into the page cache")
        fs = self.mount(self.db, delay_us=2000)
        bringer = Stopped(self, fs, ["-a", "shmget.make", "-p", "residency", "1", "entry"], hold=True)
        self.assertTrue(bringer.is_held())
        os.rename(bringer.file, bringer.file + ".bringer")
        victim = Stopped(self, fs, ["-p", "futex.wait", "1", "asleep"])
        self.assertEqual(victim.walker.wait(), 0, victim.walker.err)
        self.assertEqual(victim.points()[-2:], ["futex.wait entry", "killed"])
        now = time.monotonic()
        other = self.start(fs, steps=RECORDS)
        self.assertTrue(other.is_at(0))
        bringer.go_on()
        self.survive([other], now)
        self.assertEqual(bringer.walker.wait(), 1, bringer.walker.err)
        self.assertEqual(bringer.walker.lines, [f"used {FEW}"])
        self.check_nothing_left()


class EachPoint(Points):
    """One after the other."""

    def chosen(self, points):
        if POINTS == 0 or POINTS >= len(points):
            return range(1, len(points) + 1)
        return sorted(random.Random(SEED).sample(range(1, len(points) + 1), POINTS))

    # Each in turn.  The process is alone, or others read as well; its points are then not quite the same each time.
    def visit(self, others):
        fs = self.mount(self.db, delay_us=2000)
        alone = Stopped(self, fs, [])
        self.assertEqual(alone.walker.wait(), 0, alone.walker.err)
        points = alone.points()[:-1]
        for kind in ("shmget.make", "shmat", "shmdt", "shmctl.remove", "residency", "populate"):
            self.assertIn(f"{kind} entry", points)
        missed = 0
        seen = set()
        for n in self.chosen(points):
            with self.subTest(point=n, like=points[n - 1], others=others):
                self.evict(fs)
                victim = Stopped(self, fs, ["-n", str(n)])
                survivors = [self.start(fs, steps=RECORDS) for _ in range(others)]
                missed += victim.walker.wait() != 0
                now = time.monotonic()
                seen.add(victim.points()[-2])
                if not survivors:
                    self.evict(fs)
                    survivors = [self.start(fs, steps=RECORDS)]
                self.survive(survivors, now)
                self.check_nothing_left()
        self.check_nothing_left()
        print(f"{len(points)} points, {len(self.chosen(points))} visited, {missed} of them not reached, {len(seen)} kinds; "
              f"the longest pause of others {self.slowest:.2f} s", file=sys.stderr)
        if not others:
            self.assertLessEqual(missed, 1 + len(points) // 20)

    def test_each_alone(self):
        self.visit(0)

    def test_each_among_others(self):
        self.visit(2)


class Cycles(Case):
    def test_nothing_is_left(self):
        if self.mode != "preload":
            self.skipTest("the program is run by preload alone")
        db = self.database(2000, 3000)
        os.unlink(os.path.join(db, "lock.mdb"))  # made by the first process, for more readers
        fs = self.mount(db, cold_open=1)
        # A process's mappings are counted: malloc is to have no more of them with each thread.
        env = self.environment({"MALLOC_ARENA_MAX": "1"})
        threads, records, few = 2, 100, 24
        argv = [shimtest.CONFIG["programs"]["node_cycles"], fs.path, str(threads), str(CYCLES), str(records)]
        before = [t.number for t in segments()]
        walkers = [Walker(self, argv, env) for _ in range(PROCESSES)]
        joined = 0
        for w in walkers:
            self.assertEqual(w.wait(HANGS + CYCLES * PROCESSES / 20), 0, (w.lines, w.err))
            self.assertEqual(w.err, "")
            words = w.lines[-1].split()
            got = {words[i]: [int(x) for x in re.match(r"[\d ]+", " ".join(words[i + 1:])).group().split()]
                   for i in range(len(words)) if words[i].isalpha()}
            self.assertEqual(got["cycles"], [CYCLES])
            joined += got["joined"][0]
            self.assertEqual(got["descriptors"][0], got["descriptors"][1], w.lines)
            self.assertEqual(got["threads"][1], 1, w.lines)
            # The one that tells that this process lives.
            self.assertEqual(got["segments"][1], 1, w.lines)
            self.assertLessEqual(got["mappings"][1], got["mappings"][0] + few, w.lines)
        print(f"{PROCESSES * CYCLES} times, {joined} with a table", file=sys.stderr)
        self.assertGreater(joined, PROCESSES * CYCLES / 2)
        if NODE == "auto":
            self.assertEqual([t.number for t in segments() if t.number not in before], [], "what ended in order leaves nothing")
        self.check_nothing_left()


# What another user does.  Prints a JSON list: the errno of each attempt, 0: it succeeded.
ATTEMPTS = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.shmget.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
def code(result):
    return ctypes.get_errno() if result in (None, -1, ctypes.c_void_p(-1).value) else 0
key, number = int(sys.argv[1]), int(sys.argv[2])
facts = ctypes.create_string_buffer(512)
done = [code(libc.shmget(key, 0, 0o600)), code(libc.shmat(number, None, 0)), code(libc.shmat(number, None, 0o10000)),
        code(libc.shmctl(number, 2, facts)), code(libc.shmctl(number, 1, facts)), code(libc.shmctl(number, 0, None))]
print(json.dumps(done))
"""
# Makes segments: KEY:SIZE:MODE .. and prints their numbers.
SQUAT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.shmget.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
for a in sys.argv[1:]:
    key, size, mode = (int(x) for x in a.split(":"))
    print(libc.shmget(key, size, 0o3000 | mode), ctypes.get_errno())
"""


class OtherUsers(Case):
    def as_other(self, script, *args):
        return subprocess.run(["/usr/bin/python3", "-c", script, *args], user=OTHER_USER, group=OTHER_USER, extra_groups=[],
                              stdout=subprocess.PIPE, text=True, check=True, cwd="/").stdout

    # A group in the middle of its file.
    def four(self, fs, extra=None):
        self.evict(fs)
        fs.set(reset=1)
        group = [self.start(fs, "walk", 4, i, steps=RECORDS // 8, extra=extra) for i in range(4)]
        for w in group:
            self.assertTrue(w.is_at(RECORDS // 8), w.err)
        return group

    # What they share then, and who has said that nothing is.
    def read_by_four(self, fs):
        group = self.four(fs, {"LMDBIO_LOG": "info"})
        keys = {t.key for t in tables() if t.attached != 0}
        for w in group:
            w.go_on(RECORDS)
        for w in group:
            self.ends_well(w, RECORDS // 4, quiet=False)
            self.assertLessEqual(len([line for line in w.err.splitlines() if "shared" in line]), 1, w.err)
        return keys, [w.err.count("reads are not shared") for w in group]

    def test_they_cannot_look(self):
        fs = self.mount(self.database(), delay_us=2000)
        group = self.four(fs)
        there = tables()
        self.assertEqual([t.attached > 0 for t in there], [True])
        for t in there:
            self.assertEqual(t.mode, 0o600)
            got = json.loads(self.as_other(ATTEMPTS, str(t.key), str(t.number)))
            self.assertEqual(got, [errno.EACCES] * 4 + [errno.EPERM] * 2)
        self.assertEqual([(t.number, t.attached) for t in there], [(t.number, t.attached) for t in tables()])
        for w in group:
            w.go_on(RECORDS)
        for w in group:
            self.ends_well(w, RECORDS // 4)
        self.check_nothing_left()

    def squat(self, fs, by_us, probes, size, mode):
        data = os.path.join(fs.path, "data.mdb")
        wanted = [f"{key_of(data, chunk, probe)}:{size}:{mode}" for chunk in (2 << 20, 4 << 20) for probe in range(probes)]
        # What others have under one of the keys, a process that is about to end for one, may go.
        for tries_left in reversed(range(50)):
            if by_us:
                out = subprocess.run(["/usr/bin/python3", "-c", SQUAT, *wanted], stdout=subprocess.PIPE, text=True, check=True).stdout
            else:
                out = self.as_other(SQUAT, *wanted)
            made = [tuple(map(int, line.split())) for line in out.splitlines()]
            numbers = [number for number, _ in made]
            self.assertEqual(len(numbers), len(wanted))
            if -1 not in numbers:
                return numbers
            for number in numbers:
                if number >= 0:
                    LIBC.shmctl(number, IPC_RMID, None)
            if tries_left == 0:
                self.fail(f"a key is taken: (number, errno) {made}")
            time.sleep(0.1)

    def test_keys_that_are_taken(self):
        if NODE != "auto":
            self.skipTest("the keys are those of node tables")
        fs = self.mount(self.database(), delay_us=2000)
        data = os.path.join(fs.path, "data.mdb")
        keys = [{key_of(data, chunk, probe) for chunk in (2 << 20, 4 << 20)} for probe in range(PROBES)]
        found, alone = self.read_by_four(fs)
        self.assertTrue(found and found <= keys[0], "the keys are not what this test takes them for")
        right = table_bytes(1 << 14)
        # By this user, so much, and with that mode.
        ways = [(True, 4096, 0o600), (True, right, 0o666), (True, right - 1, 0o600),
                (False, right, 0o666), (False, right, 0o600), (False, 4096, 0o666)]
        for by_us, size, mode in ways:
            for probes in (1, 3, PROBES):
                with self.subTest(by_us=by_us, size=size, mode=oct(mode), probes=probes):
                    taken = self.squat(fs, by_us, probes, size, mode)
                    try:
                        found, alone = self.read_by_four(fs)
                    finally:
                        for number in taken:
                            self.assertEqual(LIBC.shmctl(number, IPC_RMID, None), 0)
                    if probes < PROBES:
                        self.assertTrue(found & keys[probes], (found, keys))
                        self.assertEqual(alone, [0] * 4)
                        self.assertLessEqual(self.storage(fs), 1.05)
                    else:
                        self.assertEqual(max(alone), 1)
        self.check_nothing_left()

    # A table that this user's own processes take for theirs, though somebody else made it.
    def test_tables_made_by_others_of_this_user(self):
        if NODE != "auto":
            self.skipTest("the keys are those of node tables")
        fs = self.mount(self.database(), delay_us=2000)
        for size in (table_bytes(0), table_bytes(1), table_bytes(1 << 14), table_bytes(1 << 20)):
            with self.subTest(size=size):
                self.squat(fs, True, 1, size, 0o600)
                self.read_by_four(fs)
                for s in tables():
                    LIBC.shmctl(s.number, IPC_RMID, None)
        self.check_nothing_left()


class Damage(Case):
    # Processes that have begun to read, and stay where they are.
    def begun(self, fs, steps):
        group = [self.start(fs, "walk", 2, i % 2, steps=steps) for i in range(4)]
        for w in group:
            self.assertTrue(w.is_at(steps), w.err)
        return group

    def finish(self, group):
        for w in group:
            self.ends_well(w, RECORDS // 2)

    def remove_tables(self):
        return sum(LIBC.shmctl(t.number, IPC_RMID, None) == 0 for t in tables())

    # ipcrm, again and again, while it is in use.
    def test_removed(self):
        fs = self.mount(self.database(), delay_us=5000)
        rng = random.Random(SEED)
        removed = 0
        for _ in range(3):
            self.evict(fs)
            group = self.begun(fs, 10)
            removed += self.remove_tables()
            later = self.begun(fs, RECORDS // 2 - 10)  # past what is there already
            if NODE == "auto":  # those who come then make another one
                self.assertEqual([t.attached > 0 for t in tables()], [True])
            removed += self.remove_tables()
            for w in group + later:
                w.go_on(RECORDS)
            while any(w.process.poll() is None for w in group + later):
                removed += self.remove_tables()
                time.sleep(rng.uniform(0, .02))
            self.finish(group + later)
        if NODE == "auto":
            self.assertGreaterEqual(removed, 6)
        self.check_nothing_left()

    def overwrite(self, rng, how, memory, size):
        if how == "all":
            memory[:] = rng.randbytes(size)
        elif how == "ones":
            memory[:] = b"\xff" * size
        elif how == "zeros":
            memory[:] = b"\0" * size
        elif how == "pieces":
            for _ in range(100):
                at = rng.randrange(size - 64)
                memory[at:at + 64] = rng.randbytes(64)
        elif how == "rows":
            memory[ROWS_AT:CLAIMS_AT] = rng.randbytes(CLAIMS_AT - ROWS_AT)
        elif how == "claims":  # all chunks are a living process's, which knows nothing of it
            words = [int.from_bytes(memory[i:i + 8], "little") for i in range(CLAIMS_AT, CLAIMS_AT + 64 * 8, 8)]
            used = [w for w in words if w]
            for i in range(0, 64 if used else 0):
                word = rng.choice(used) & ~3 | 1
                memory[CLAIMS_AT + i * 8:CLAIMS_AT + i * 8 + 8] = word.to_bytes(8, "little")

    def test_overwritten(self):
        fs = self.mount(self.database(), delay_us=50000)
        rng = random.Random(SEED)
        ways = ["all", "claims", "pieces", "rows", "ones", "zeros"]
        done = 0
        for i in range(ROUNDS):
            how = ways[i % len(ways)]
            with self.subTest(how=how, round=i):
                self.evict(fs)
                began = time.monotonic()
                group = self.begun(fs, rng.randrange(60))
                for w in group:
                    w.go_on(RECORDS)
                while time.monotonic() - began < HANGS:
                    for t in tables():
                        try:
                            with Attached(t) as a:
                                self.overwrite(rng, how, a.memory, a.size)
                            done += 1
                        except OSError:  # it has gone
                            pass
                    if all(w.process.poll() is not None for w in group):
                        break
                    time.sleep(rng.uniform(0, .02))
                self.finish(group)
                self.slowest = max(self.slowest, time.monotonic() - began)
        print(f"{done} times, the slowest group {self.slowest:.1f} s", file=sys.stderr)
        if NODE == "auto":
            self.assertGreaterEqual(done, ROUNDS)
        self.check_nothing_left()


class Namespaces(Case):
    def unshare(self, *what):
        wrap = ["unshare", *what]
        if "--pid" in what:
            wrap += ["--fork", "--kill-child"]
        try:
            subprocess.run([*wrap, "true"], check=True, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no such namespaces here")
        return wrap

    # Process ids mean nothing.
    def test_pid_namespaces(self):
        wrap = self.unshare("--pid")
        fs = self.mount(self.database(), delay_us=2000)
        group = [self.start(fs, "walk", 4, i, wrap=wrap if i % 2 else ()) for i in range(4)]
        for w in group:
            self.ends_well(w, RECORDS // 4, quiet=False)
            # LMDB's lock file knows readers by their process ids.
            self.assertRegex(w.err, r"\A(lmdbio: \S+: no reader slot .*\n)?\Z")
        # Who ends first takes what it keeps in chunk files along.
        self.assertLessEqual(self.storage(fs), 1.05 if NODE == "auto" else 2.1)
        self.check_nothing_left()

    def test_ipc_namespaces(self):
        fs = self.mount(self.database(), delay_us=2000)
        for what in (["--ipc"], ["--ipc", "--pid"]):
            wrap = self.unshare(*what)
            for kills in (0, 1):
                with self.subTest(what=what, kills=kills):
                    self.evict(fs)
                    group = [self.start(fs, "walk", 2, i % 2, wrap=wrap if i >= 2 else ()) for i in range(4)]
                    for w in group[::2] if kills else []:
                        time.sleep(.05)
                        os.killpg(w.process.pid, 9)
                    for i, w in enumerate(group):
                        if kills and i % 2 == 0:
                            w.wait()
                        else:
                            self.ends_well(w, RECORDS // 2, quiet=False)
                            self.assertRegex(w.err, r"\A(lmdbio: \S+: no reader slot .*\n)?\Z")
                    self.check_nothing_left()
        self.check_nothing_left()


if __name__ == "__main__":
    shimtest.main()
