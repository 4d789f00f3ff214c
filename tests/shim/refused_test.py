"""What stock refuses for want of its lock file, its locks or a reader slot, and what LMDBIO makes of it.

    refused_test.py CONFIG [--table] [unittest arguments]     --table: prints what was found
"""
import contextlib
import dataclasses
import errno
import fcntl
import os
import signal
import sys
import typing

import confined
import shimtest

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import slowfs  # noqa: E402

MDB_RDONLY, MDB_NOSUBDIR, MDB_NOTLS, MDB_NOLOCK = 0x20000, 0x4000, 0x200000, 0x400000
READERS_FULL = -30790
TABLE = False

# Ways to run one row: mode, variables.
WAYS = {"stock": ("disabled", {}), "ours": (None, {}), "strict": (None, {"LMDBIO_STRICT": "1"})}


@dataclasses.dataclass
class Row:
    """One condition.  make(case, name) sets it up and gives the path to open and the prefix to do it with."""
    name: str
    make: typing.Callable
    # Codes of mdb_env_open and of the first mdb_txn_begin; None: not reached.
    stock: typing.Tuple[object, object] = (0, 0)
    ours: typing.Tuple[object, object] = (0, 0)  # without LMDBIO_STRICT; with it: stock's
    why: typing.Optional[str] = None              # ours: one line on standard error, with these words
    words: str = ""
    slots: typing.Optional[str] = None            # of ours
    nolock: object = 0                            # of an open with MDB_NOLOCK
    kills_stock: bool = False                     # by SIGBUS


def read_only_directory(case, name, words=""):
    path, _, _ = case.database(name, words=words)
    os.chmod(os.path.dirname(path) if words else path, 0o555)
    return path, confined.as_nobody()


def somebody_elses_directory(case, name, words=""):
    if not confined.ROOT:
        raise confined.Missing("root: directories of another user")
    path, _, _ = case.database(name, words=words)
    return path, confined.as_nobody()


def somebody_elses_lock_file(case, name, words=""):
    path, _, lock = case.database(name, words=words)
    with open(lock, "wb"):
        pass
    os.chmod(lock, 0o644 if confined.ROOT else 0o444)
    return path, confined.as_nobody()


def data_not_writable(case, name):
    path, data, _ = case.database(name)
    os.chmod(data, 0o444)
    os.chmod(path, 0o777)
    return path, confined.as_nobody()


def data_not_readable(case, name, words=""):
    path, data, _ = case.database(name, words=words)
    os.chmod(data, 0o200)
    if not words:
        os.chmod(path, 0o777)
    return path, confined.as_nobody()


def lock_is_a_directory(case, name, words=""):
    path, _, lock = case.database(name, words=words)
    os.mkdir(lock)
    return path, []


def lock_is_a_loop(case, name):
    path, _, lock = case.database(name)
    os.symlink(os.path.basename(lock), lock)
    return path, []


def read_only_mount(case, name):
    path, _, _ = case.database(name)
    return path, confined.in_mounts(f"mount --bind {path} {path}; mount -o remount,bind,ro {path}")


def tmpfs(options, then):
    """The database in a small file system, after the commands `then` there."""
    def make(case, name):
        path, data, _ = case.database(name)
        kib = os.stat(data).st_size // 1024
        mount = f"mount -t tmpfs -o {options.format(kib=kib)} none {path}"
        return path, confined.in_mounts(f"cp {data} {path}.data; {mount}; cp {path}.data {data}; "
                                        f"cd {path}; {then}; cd /")
    return make


def locks_fail(error):
    return lambda case, name: (case.database(name)[0], confined.failing_locks(error))


def lock_file_cannot_be_mapped(case, name):
    rule = f"mmap/2&{confined.PROT_WRITE}/3&{confined.MAP_SHARED}=ENODEV"
    return case.database(name)[0], confined.failing(rule)


def no_lock_file_can_be_made(error):
    rule = f"openat/2&{confined.O_CREAT}={error}"
    return lambda case, name: (case.database(name)[0], confined.failing(rule))


def slots_taken(alive, dead, spectators=1):
    """All reader slots are held by other processes, some of which were killed; one more only has it open."""
    def make(case, name):
        path, _, _ = case.database(name)
        readers = [confined.Program(case) for _ in range(alive + dead + spectators)]
        for i, reader in enumerate(readers):
            case.assertEqual(reader.do(f"maxreaders {alive + dead}"), "0")
            case.assertEqual(reader.do(f"open {path}"), "0")
            if i < alive + dead:
                case.assertEqual(reader.do("begin"), "0")
        for reader in readers[alive:alive + dead]:
            reader.kill()
        return path, []
    return make


def slots_cannot_be_locked(error):
    """Only F_SETLK fails: the lock file is in use by others, so that an open does without."""
    def make(case, name):
        path, _, _ = case.database(name)
        case.assertEqual(confined.Program(case).do(f"open {path}"), "0")
        return path, confined.failing(f"fcntl/1:{fcntl.F_SETLK}={error}")
    return make


def same_process_id(case, name):
    """Another PID namespace's reader has this process's number, which is how stock locks its slot."""
    path, _, _ = case.database(name)
    inside = confined.in_pid_namespace()
    other = confined.Program(case, prefix=inside)
    case.assertEqual(other.do(f"open {path}"), "0")
    case.assertEqual(other.do("begin"), "0")
    return path, inside


def missing(case, name):
    path, data, _ = case.database(name)
    os.remove(data)
    return path, []


def missing_directory(case, name):
    return os.path.join(case.dir, name, "no such"), []


def healthy(case, name, words=""):
    return case.database(name, words=words)[0], []


def file_of(make):
    return lambda case, name: make(case, name, "nosubdir")


def user_fs(**options):
    """A file system of user space over the database."""
    def make(case, name):
        path, _, _ = case.database(name)
        try:
            fs = case.mounts.enter_context(slowfs.SlowFs(shimtest.CONFIG["slowfs"], path, **options))
        except slowfs.Missing as why:
            raise confined.Missing(str(why))
        return fs.path, []
    return make


def without_threads(make):
    def both(case, name):
        path, _ = make(case, name)
        return path, confined.without_threads()
    return both


FILL = "cat /dev/zero >fill 2>/dev/null || true"


def text(name):
    return os.strerror(getattr(errno, name))


def refused(name, make, error, **more):
    """Stock cannot open it, LMDBIO can."""
    image = ", as on a full disk or a read-only image" if error == "ENOSPC" else ""
    why = f"cannot be locked ({text(error)}{image})"
    return Row(name, make, (error, None), why=why, slots="no reader locks", **more)


def hopeless(name, make, error, **more):
    return Row(name, make, (error, None), (error, None), nolock=error, **more)


def full(name, make, **more):
    """Opened by both; stock then has no slot."""
    return Row(name, make, (0, READERS_FULL), why="no reader slot (MDB_READERS_FULL", **more)


ROWS = [
    Row("healthy", healthy),
    Row("healthy, one file", file_of(healthy), words="nosubdir"),
    refused("read-only directory", read_only_directory, "EACCES"),
    refused("read-only directory, one file", file_of(read_only_directory), "EACCES", words="nosubdir"),
    refused("somebody else's directory", somebody_elses_directory, "EACCES"),
    refused("somebody else's directory, one file", file_of(somebody_elses_directory), "EACCES",
            words="nosubdir"),
    refused("lock file not writable", somebody_elses_lock_file, "EACCES"),
    refused("lock file not writable, one file", file_of(somebody_elses_lock_file), "EACCES",
            words="nosubdir"),
    refused("lock file is a directory", lock_is_a_directory, "EISDIR"),
    refused("lock file is a directory, one file", file_of(lock_is_a_directory), "EISDIR", words="nosubdir"),
    refused("lock file is a loop of links", lock_is_a_loop, "ELOOP"),
    # Stock itself leaves the lock file out.
    Row("read-only mount", read_only_mount, slots="no reader locks"),
    refused("no inode left", tmpfs("size=8m,nr_inodes=3", "touch fill"), "ENOSPC"),
    # A lock file without blocks cannot be written to through its mapping.
    refused("no block left", tmpfs("size={kib}k", FILL), "ENOSPC", kills_stock=True),
    refused("no block left, lock file is a hole", tmpfs("size={kib}k", "truncate -s 8192 lock.mdb; " + FILL),
            "ENOSPC", kills_stock=True),
    Row("no block left but the lock file's", tmpfs("size=8m", "head -c 8192 /dev/zero >lock.mdb; " + FILL),
        slots="2 lines"),
    refused("lock file cannot be mapped", lock_file_cannot_be_mapped, "ENODEV"),
    *(refused(f"fcntl: {e}", locks_fail(e), e)
      for e in ("ENOLCK", "ENOSYS", "EOPNOTSUPP", "EINVAL", "EIO", "EPERM", "EACCES", "ETIMEDOUT")),
    # Another process's locks are in the way: they do work.
    Row("fcntl: EDEADLK", locks_fail("EDEADLK"), ("EDEADLK", None), ("EDEADLK", None)),
    *(refused(f"creating the lock file: {e}", no_lock_file_can_be_made(e), e)
      for e in ("EPERM", "EDQUOT", "ENOSPC", "EIO", "ENXIO")),
    *(full(f"{n} reader slots taken", slots_taken(n, 0), slots=f"{n + 1} lines") for n in (1, 2, 3)),
    # The dead ones' places are found again.
    *(Row(f"{alive} slots taken, {dead} by the dead", slots_taken(alive, dead), (0, READERS_FULL))
      for alive, dead in ((0, 1), (0, 3), (1, 1), (2, 1))),
    Row("lock of a slot: EACCES", slots_cannot_be_locked("EACCES"), (0, "EACCES"),
        why=f"no reader slot ({text('EACCES')})"),
    Row("the same process id in another namespace", same_process_id, (0, "EAGAIN"),
        why=f"no reader slot ({text('EAGAIN')})"),
    Row("data file not writable", data_not_writable),
    hopeless("data file not readable", data_not_readable, "EACCES"),
    hopeless("data file not readable, one file", file_of(data_not_readable), "EACCES", words="nosubdir"),
    hopeless("no data file", missing, "ENOENT"),
    hopeless("no directory", missing_directory, "ENOENT"),
    hopeless("no file", missing_directory, "ENOENT", words="nosubdir"),
    Row("user-space file system", user_fs()),
    Row("user-space file system, no threads", without_threads(user_fs())),
    refused("user-space file system: ENOLCK", user_fs(lock_errno="ENOLCK"), "ENOLCK"),
    refused("user-space file system: ENOSYS", user_fs(lock_errno="ENOSYS"), "ENOSYS"),
    refused("user-space file system: ENOLCK, no threads", without_threads(user_fs(lock_errno="ENOLCK")),
            "ENOLCK"),
]


def code(found):
    """As the table has it: an errno's name, an MDB code, 0."""
    if found is None or found == "none":
        return None
    number = int(found)
    aliases = {errno.EOPNOTSUPP: "EOPNOTSUPP", errno.EDEADLK: "EDEADLK"}
    return aliases.get(number, errno.errorcode.get(number, number))


class Refused(confined.Case):
    def setUp(self):
        super().setUp()
        self.mounts = contextlib.ExitStack()
        self.addCleanup(self.mounts.close)

    def look(self, way, path, prefix, words):
        mode, variables = WAYS[way]
        commands = [f"open {path} {words}", "begin", "check", "flags", "slots", "reset", "renew", "check",
                    "abort", "begin", "check", "abort", "close"]
        got = confined.run(mode or shimtest.modes()[0], ["refused", *commands], variables, prefix)
        self.assertEqual(got.returncode, 0, got.out + got.err)
        answers = [line.split(" = ", 1) for line in got.out.splitlines()]
        self.assertEqual(len(answers), len(commands), got.out)
        return answers, got.err.splitlines()

    def row(self, row, way, extra_words=""):
        name = f"{ROWS.index(row)}-{way}-{extra_words}"
        words = ",".join(filter(None, (row.words, extra_words)))
        path, prefix = row.make(self, name)
        if row.kills_stock and way != "ours" and extra_words != "nolock":
            got = confined.run(WAYS["stock"][0], ["refused", f"open {path} {words}"], {}, prefix)
            return self.assertEqual(got.returncode, shimtest.status_of_a_signal(signal.SIGBUS), got.err)
        answers, lines = self.look(way, path, prefix, words)
        if TABLE:
            values = [v for _, v in answers[:5]]
            print(f"{row.name:45} {way + ' ' + extra_words:14} {code(values[0])!s:11} {code(values[1])!s:7} "
                  f"{values[2]:15} {values[4]:16} {'; '.join(lines)}", flush=True)
        locked = extra_words != "nolock"
        want = row.ours if way == "ours" else row.stock
        if not locked:
            want = (row.nolock, None if row.nolock else 0)
        values = [v for _, v in answers]
        self.assertEqual((code(values[0]), code(values[1])), want)
        if want[0] == 0:
            asked = MDB_RDONLY | sum(flag for word, flag in (("nosubdir", MDB_NOSUBDIR), ("notls", MDB_NOTLS),
                                                             ("nolock", MDB_NOLOCK)) if word in words)
            self.assertEqual(int(values[3], 0), asked, "flags")
            if not locked or (way == "ours" and row.slots):
                self.assertEqual(values[4], row.slots if locked else "no reader locks")
        if want == (0, 0):
            for i in (2, 7, 10):
                self.assertEqual(values[i], "right round 1")
            self.assertEqual([values[i] for i in (5, 6, 8, 9, 11, 12)], ["0"] * 6)
        if way == "ours" and locked and row.why:
            self.assertEqual(len(lines), 1, lines)
            self.assertTrue(lines[0].startswith(f"lmdbio: {path}: {row.why}"), lines[0])
            self.assertIn("writers may change pages while they are being read", lines[0])
        else:
            self.assertEqual(lines, [])

    def rows(self, ways, extra_words):
        for row in ROWS:
            for way in ways:
                for more in extra_words:
                    with self.subTest(condition=row.name, way=way, words=more):
                        try:
                            self.row(row, way, more)
                        except confined.Missing as why:
                            self.absent(f"{row.name}: {why}")
                        finally:
                            self.mounts.close()

    # Sanitizers look at LMDBIO alone, and at each condition once.
    def test_table(self):
        if shimtest.CONFIG["sanitize"]:
            self.rows(["ours", "strict"], [""])
        else:
            self.rows(WAYS, ["", "notls"])

    # Programs that asked for no locks get what they had, in silence.
    def test_locks_not_wanted(self):
        self.rows(["ours"] if shimtest.CONFIG["sanitize"] else ["stock", "ours"], ["nolock"])

    # Each place of the reader table that becomes free is used again: the next transaction has a slot.
    def test_a_slot_becomes_free(self):
        for mode in shimtest.modes():
            with self.subTest(mode=mode):
                path, _, _ = self.database(mode)
                holder, other = confined.Program(self), confined.Program(self, mode)
                for command in ("maxreaders 1", f"open {path}", "begin"):
                    self.assertEqual(holder.do(command), "0")
                for command in (f"open {path}", "begin"):
                    self.assertEqual(other.do(command), "0")
                self.assertEqual(len(other.lines()), 1)
                self.assertEqual(holder.do("slots"), "2 lines")
                self.assertEqual(holder.do("close"), "0")
                self.assertEqual(other.do("check"), "right round 1")
                for command in ("reset", "renew"):
                    self.assertEqual(other.do(command), "0")
                self.assertEqual(other.do("slots"), "2 lines")  # its own now
                third = confined.Program(self)
                self.assertEqual(third.do(f"open {path}"), "0")
                self.assertEqual(third.do("begin"), str(READERS_FULL))
                self.assertEqual(other.do("check"), "right round 1")
                self.assertEqual(len(other.lines()), 1)

    # Threads with cursors and renewals, mostly more of them than slots (readers.c checks what it reads).
    def test_threads_beyond_the_table(self):
        full = f"= {READERS_FULL}\n"
        self.assertIn(full, shimtest.run("stock", ["readers", self.fresh()]).out)
        for mode in shimtest.modes():
            with self.subTest(mode=mode):
                got = shimtest.run(mode, ["readers", self.fresh()], {"LMDBIO_LOG": "warn"})
                self.assertEqual(got.returncode, 0, got.out[-2000:] + got.err)
                self.assertNotIn(full, got.out)
                self.assertEqual(got.err.count("no reader slot"), 1, got.err)

    # One line a process: the second environment's is for LMDBIO_LOG=info.
    def test_one_line_a_process(self):
        first, second = self.database("first")[0], self.database("second")[0]
        commands = [f"open {first}", "begin", "check", "env 1", f"open {second}", "begin", "check"]
        for level, lines in (("warn", [first]), ("info", [first, second]), ("error", [])):
            for mode in shimtest.modes():
                with self.subTest(level=level, mode=mode):
                    try:
                        prefix = confined.failing_locks("ENOLCK")
                    except confined.Missing as why:
                        self.skipTest(str(why))
                    got = confined.run(mode, ["refused", *commands], {"LMDBIO_LOG": level}, prefix)
                    self.assertEqual(got.out.count("right round 1"), 2, got.out + got.err)
                    told = [line for line in got.err.splitlines() if "cannot be locked" in line]
                    self.assertEqual([line.split(": ")[1] for line in told], lines, got.err)

    # An open that hangs in its locks comes back, and the program can close what it has.
    def test_locks_that_hang(self):
        path, _, _ = self.database()
        try:
            fs = slowfs.SlowFs(shimtest.CONFIG["slowfs"], path, lock_hang_ms="forever")
            self.mounts.enter_context(fs)
        except slowfs.Missing as why:
            self.skipTest(str(why))
        for mode in shimtest.modes():
            with self.subTest(mode=mode):
                fs.set(reset=1)
                program = confined.Program(self, mode, {"LMDBIO_LOCK_SECONDS": "1"})
                self.assertEqual(program.do(f"open {fs.path}"), "0")
                self.assertGreater(fs.counters()["faults"]["lock_hang"], 0)
                self.assertEqual(program.do("begin"), "0")
                self.assertEqual(program.do("check"), "right round 1")
                self.assertEqual(program.do("flags"), hex(MDB_RDONLY))
                self.assertEqual(program.do("slots"), "no reader locks")
                self.assertEqual(len(program.lines()), 1)
                self.assertIn("cannot be locked (the lock requests hang)", program.lines()[0])
                self.assertEqual(program.do("abort"), "0")
                self.assertEqual(program.do("close"), "0")
                self.assertEqual(program.do(f"open {fs.path}"), "0")
                self.assertEqual(program.do("begin"), "0")
                self.assertEqual(program.do("check"), "right round 1")
                self.assertEqual(program.end(), 0)
        # Stock, and LMDBIO that was asked to be like it, wait.
        for variables in ({"LMDBIO_STRICT": "1", "LMDBIO_LOCK_SECONDS": "1"}, {"LMDBIO_LOCK_SECONDS": "0"}):
            with self.subTest(variables=variables):
                fs.set(reset=1)
                program = confined.Program(self, shimtest.modes()[0], variables)
                program.process.stdin.write(f"open {fs.path}\n")
                fs.set(wait_hung=1)
                self.assertIsNone(program.process.poll())
                fs.set(lock_hang_ms=0, release=1)
                self.assertEqual(program.process.stdout.readline(), "open = 0\n")
                self.assertEqual(program.do("slots"), "1 lines")
                self.assertEqual(program.lines(), [])
                fs.set(lock_hang_ms="forever")
                program.kill()


class Overtaken(confined.Case):
    """Writers commit while a transaction reads without locks."""

    def write(self, path, number):
        self.assertEqual(shimtest.run("stock", ["refused", f"write {number} {path}"]).out, "write = 0\n")

    def without_locks(self, mode):
        try:
            return confined.Program(self, mode, prefix=confined.failing_locks("ENOLCK"))
        except confined.Missing as why:
            self.skipTest(str(why))

    # How the transaction ends and the next one starts.
    ENDS = (("reset", "renew"), ("abort", "begin"))

    def follow(self, path, program, end, again, told, after=lambda: None):
        """Round 1 is there and `told` lines have been written; `program` has begun.  after() each commit."""
        self.assertEqual(program.do("check"), "right round 1")
        self.write(path, 2)
        after()
        self.assertEqual(program.do("check"), "right round 1", "one commit changes nothing that it reads")
        self.assertEqual(program.do(end), "0")
        self.assertEqual(len(program.lines()), told, program.lines())
        self.assertEqual(program.do(again), "0")
        self.assertEqual(program.do("check"), "right round 2")
        self.write(path, 3)
        after()
        self.write(path, 4)
        after()
        self.assertEqual(len(program.lines()), told, program.lines())
        self.assertEqual(program.do(end), "0")
        self.assertEqual(len(program.lines()), told + 1, program.lines())
        self.assertIn("changed by a writer while it was being read without locks: "
                      "transaction 2 was read, but the newest is 4", program.lines()[-1])
        self.assertTrue(program.lines()[-1].startswith(f"lmdbio: {path}"), program.lines()[-1])
        self.assertEqual(program.do(again), "0")
        self.assertEqual(program.do("check"), "right round 4")
        for number in (5, 6, 7):
            self.write(path, number)
            after()
        self.assertEqual(program.do(end), "0")
        self.assertEqual(len(program.lines()), told + 1, "once an environment")
        self.assertEqual(program.do(again), "0")
        self.assertEqual(program.do("check"), "right round 7")

    def test_without_locks(self):
        for mode in shimtest.modes():
            for end, again in self.ENDS:
                with self.subTest(mode=mode, end=end):
                    path = self.database(f"{mode}-{end}")[0]
                    program = self.without_locks(mode)
                    self.assertEqual(program.do(f"open {path}"), "0")
                    self.assertEqual(program.do("begin"), "0")
                    self.follow(path, program, end, again, 1)
                    # Another environment tells for itself.
                    other = self.database(f"{mode}-{end}-other")[0]
                    self.assertEqual(program.do("env 1"), "0")
                    self.assertEqual(program.do(f"open {other}"), "0")
                    self.assertEqual(program.do("begin"), "0")
                    self.follow(other, program, end, again, 2)

    # Transactions that ended in time, and one that its environment's end ends.
    def test_close_and_commits_between_transactions(self):
        path = self.database()[0]
        program = self.without_locks(shimtest.modes()[0])
        self.assertEqual(program.do(f"open {path}"), "0")
        for number in (2, 3, 4, 5):
            self.assertEqual(program.do("begin"), "0")
            self.assertEqual(program.do("abort"), "0")
            self.write(path, number)
            self.write(path, number)
        self.assertEqual(program.do("begin"), "0")
        self.assertEqual(program.do("check"), "right round 5")
        self.assertEqual(len(program.lines()), 1, program.lines())
        for number in (6, 7):
            self.write(path, number)
        self.assertEqual(program.do("close"), "0")
        self.assertEqual(len(program.lines()), 2, program.lines())

    def table_full(self, path):
        """(who holds the only slot, who reads without one)"""
        holder, program = confined.Program(self), confined.Program(self, shimtest.modes()[0])
        for command in ("maxreaders 1", f"open {path}", "begin"):
            self.assertEqual(holder.do(command), "0")
        for command in (f"open {path}", "begin"):
            self.assertEqual(program.do(command), "0")
        return holder, program

    def test_without_a_slot(self):
        for end, again in self.ENDS:
            with self.subTest(end=end):
                path = self.database(end)[0]
                holder, program = self.table_full(path)

                def renew():
                    self.assertEqual(holder.do("reset"), "0")
                    self.assertEqual(holder.do("renew"), "0")
                self.follow(path, program, end, again, 1, renew)

    # Another's slot holds the snapshot, or an older one: nothing that is read can be written over.
    def test_without_a_slot_of_ones_own(self):
        path = self.database()[0]
        holder, program = self.table_full(path)
        self.write(path, 2)
        self.assertEqual(program.do("reset"), "0")
        self.assertEqual(program.do("renew"), "0")
        for number in (3, 4, 5, 6):
            self.write(path, number)
            self.assertEqual(program.do("check"), "right round 2")
        self.assertEqual(program.do("reset"), "0")
        self.assertEqual(len(program.lines()), 1, program.lines())
        self.assertEqual(program.do("renew"), "0")
        self.assertEqual(program.do("check"), "right round 6")
        self.assertEqual(holder.do("check"), "right round 1")

    def test_with_locks(self):
        for words in ("", "notls"):
            path = self.database("locks" + words)[0]
            program = confined.Program(self, shimtest.modes()[0])
            self.assertEqual(program.do(f"open {path} {words}"), "0")
            self.assertEqual(program.do("begin"), "0")
            for number in (2, 3, 4):
                self.write(path, number)
            self.assertEqual(program.do("check"), "right round 1")
            self.assertEqual(program.do("reset"), "0")
            self.assertEqual(program.do("renew"), "0")
            self.assertEqual(program.do("check"), "right round 4")
            self.assertEqual(program.lines(), [])

    def test_locks_not_wanted(self):
        path = self.database()[0]
        program = confined.Program(self, shimtest.modes()[0])
        self.assertEqual(program.do(f"open {path} nolock"), "0")
        self.assertEqual(program.do("begin"), "0")
        for number in (2, 3, 4):
            self.write(path, number)
        self.assertEqual(program.do("reset"), "0")
        self.assertEqual(program.do("renew"), "0")
        self.assertEqual(program.do("check"), "right round 4")
        self.assertEqual(program.lines(), [])

    # Read-only here, written there: stock leaves out the locks, and nobody is told before it matters.
    def test_read_only_mount(self):
        path = self.database()[0]
        view = os.path.join(self.dir, "view")
        os.mkdir(view)
        try:
            prefix = confined.in_mounts(f"mount --bind {path} {view}; mount -o remount,bind,ro {view}")
        except confined.Missing as why:
            self.skipTest(str(why))
        program = confined.Program(self, shimtest.modes()[0], prefix=prefix)
        self.assertEqual(program.do(f"open {view}"), "0")
        self.assertEqual(program.do("begin"), "0")
        self.write(path, 2)
        self.assertEqual(program.do("check"), "right round 1")
        self.write(path, 3)
        self.assertEqual(program.lines(), [])
        self.assertEqual(program.do("reset"), "0")
        self.assertEqual(len(program.lines()), 1)
        self.assertIn("changed by a writer while it was being read without locks", program.lines()[0])
        self.assertEqual(program.do("renew"), "0")
        self.assertEqual(program.do("check"), "right round 3")


if __name__ == "__main__":
    if "--table" in sys.argv:
        sys.argv.remove("--table")
        TABLE = True
    shimtest.main()
