"""Little address space, few descriptors, no threads, no /proc, system calls that containers refuse, maps of
terabytes, set-user-id programs and nonsense in LMDBIO_*: never worse than stock alone.

    TEST_OVERCOMMIT=1 limits_test.py CONFIG ...     also sets vm.overcommit_memory=2 for a moment
"""
import contextlib
import errno
import os
import shutil
import subprocess

import confined
import shimtest

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40
READ = ["begin", "check", "reset", "renew", "check", "abort"]
# Mappings of the data file where the engine serves it: stock's and the window.
MAPS = 2
READ_WELL = ["0", "right round 1", "0", "0", "right round 1", "0"]
# What Docker's default profile refuses, and what older libseccomp makes of clone3.
CONTAINER = ("io_uring_setup=EPERM", "io_uring_enter=EPERM", "userfaultfd=EPERM", "perf_event_open=EPERM",
             "process_vm_readv=EPERM", "clone3=ENOSYS")
# Of newer kernels only, or refused by some sandboxes.
BARE = ("preadv2=ENOSYS", "mincore=EPERM", "madvise=EPERM", "mremap=EPERM", "statfs=ENOSYS")


ONE_THREAD = ("refused", "program", "counted")


def missing_part(case, body):
    """Runs body(), or tells what it lacks."""
    try:
        return body()
    except confined.Missing as why:
        case.skipTest(str(why))


class Limits(confined.Case):
    def ask(self, mode, commands, prefix=(), extra=None):
        """The answers of refused.c, and the result."""
        got = confined.run(mode, ["refused", *commands], extra, prefix)
        self.assertEqual(got.returncode, 0, got.out + got.err)
        return [line.split(" = ", 1)[1] for line in got.out.splitlines()], got

    def modes(self):
        return shimtest.modes()

    def not_with_sanitizers(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("no sanitizer: they map, open and read /proc themselves")

    # -- address space

    # A map of 1 GiB with room for two, for one (then ours is as long as the file) and for none.
    def test_address_space(self):
        self.not_with_sanitizers()
        path = self.database()[0]
        data = path + "/data.mdb"
        for room, mapped in ((3 * GIB, MAPS), (GIB + GIB // 2, MAPS), (GIB // 2, 0)):
            commands = [f"mapsize {GIB}", f"limit as {room}", f"open {path}", f"maps {data}", *READ, "close"]
            stock, _ = self.ask("stock", commands)
            self.assertEqual(stock[2], "0" if mapped else str(errno.ENOMEM))
            for mode in self.modes():
                with self.subTest(room=room, mode=mode):
                    ours, got = self.ask(mode, commands)
                    self.assertEqual(ours[3], str(mapped))
                    self.assertEqual(ours[:3] + ours[4:], stock[:3] + stock[4:])
                    self.assertEqual(got.err, "")
                    if mapped:
                        self.assertEqual(ours[4:10], READ_WELL)

    # The map grows to what has room once: the second mapping must not be in the way of the first.
    def test_address_space_of_a_map_that_grows(self):
        self.not_with_sanitizers()
        path = self.database()[0]
        for before, after, room in ((64 * MIB, GIB, GIB + GIB // 2), (GIB, 2 * GIB, 2 * GIB + GIB // 2)):
            commands = [f"mapsize {before}", f"limit as {room}", f"open {path}", *READ, f"resize {after}",
                        "info", *READ, f"resize {before}", *READ, "close"]
            stock, _ = self.ask("stock", commands)
            self.assertEqual([stock[i] for i in (2, 9)], ["0", "0"])
            for mode in self.modes():
                with self.subTest(before=before, mode=mode):
                    ours, got = self.ask(mode, commands)
                    self.assertEqual(ours, stock, got.err)

    # Few addresses and no locks at once.
    def test_address_space_without_locks(self):
        self.not_with_sanitizers()
        path = self.database()[0]
        locked = missing_part(self, lambda: confined.failing_locks("ENOLCK"))
        for room, mapped in ((3 * GIB, str(MAPS)), (GIB + GIB // 2, str(MAPS))):
            commands = [f"mapsize {GIB}", f"limit as {room}", f"open {path}", f"maps {path}/data.mdb", *READ,
                        "flags", "slots", f"resize {64 * MIB}", *READ, "close"]
            for mode in self.modes():
                with self.subTest(room=room, mode=mode):
                    ours, got = self.ask(mode, commands, locked)
                    self.assertEqual(ours, ["0", "0", "0", mapped, *READ_WELL, "0x20000", "no reader locks",
                                            "0", *READ_WELL, "0"])
                    self.assertEqual(len(got.err.splitlines()), 1, got.err)

    # What is left to the program is what stock leaves it, less the bytes in use and 64 MiB.  A window follows a
    # file that grows.
    def test_address_space_is_the_programs(self):
        self.not_with_sanitizers()
        grown = 200

        def answers(mode):
            path = self.database(f"db-{mode}")[0]
            return self.ask(mode, [f"mapsize {GIB}", f"limit as {3 * GIB}", f"open {path} nolock", *READ, "room",
                                   f"grow {grown * MIB} {path}", *READ, "room", "close"])

        stock, _ = answers("stock")
        self.assertEqual((stock[3:9], stock[11:17]), (READ_WELL, READ_WELL))
        for mode in self.modes():
            with self.subTest(mode=mode):
                ours, got = answers(mode)
                for room, used in ((9, 0), (17, grown)):
                    self.assertGreater(int(ours[room]), int(stock[room]) - used - 120)
                    ours[room] = stock[room]
                self.assertEqual(ours, stock, got.err)

    # Nothing that is mapped counts against the commit limit.
    def test_overcommit(self):
        path = self.database()[0]
        least = 100 * GIB
        commands = [f"mapsize {least}", f"open {path}", *READ, f"accounted {least}", f"maps {path}/data.mdb"]
        for mode in self.modes():
            with self.subTest(mode=mode):
                ours, _ = self.ask(mode, commands)
                self.assertEqual(ours[2:8], READ_WELL)
                self.assertEqual(ours[8:], ["0", str(MAPS)])
        knob = "/proc/sys/vm/overcommit_memory"
        if os.environ.get("TEST_OVERCOMMIT") != "1":
            return self.absent("vm.overcommit_memory=2, which all programs would have: "
                               "TEST_OVERCOMMIT=1 asks for it")
        try:
            with open(knob, "r+", encoding="ascii") as f:
                before = f.read()
                f.seek(0)
                f.write("2")
        except OSError as why:
            return self.absent(f"vm.overcommit_memory=2: {why}")
        try:
            results = [(mode, self.ask(mode, commands)) for mode in ["stock"] + self.modes()]
        finally:
            with open(knob, "w", encoding="ascii") as f:
                f.write(before)
        for mode, (answers, got) in results:
            with self.subTest(overcommit=2, mode=mode):
                self.assertEqual(answers[2:8], READ_WELL, got.err)
                self.assertEqual(answers[9], "1" if mode == "stock" else str(MAPS))

    # -- descriptors

    def test_descriptors_at_open(self):
        self.not_with_sanitizers()
        path = self.database()[0]
        seen = set()
        for left in range(6):
            # The real library may be looked for at the first call, which needs one.
            commands = [f"mapsize {GIB}", f"limit nofile {left}", f"open {path}", *READ, "close"]
            stock, _ = self.ask("stock", commands)
            seen.add(stock[2])
            for mode in self.modes():
                with self.subTest(left=left, mode=mode):
                    ours, got = self.ask(mode, commands)
                    self.assertEqual(ours, stock, got.err)
                    self.assertEqual(got.err, "")
        self.assertEqual(seen, {str(errno.EMFILE), "0"})

    def test_descriptors_at_begin(self):
        path = self.database()[0]
        for words in ("", "notls", "nolock"):
            commands = [f"open {path} {words}", "limit nofile 0", *READ, "begin", "check", "dead",
                        f"resize {GIB}", "abort", f"resize {GIB}", *READ, "close"]
            stock, _ = self.ask("stock", commands)
            self.assertEqual(stock[2:8], READ_WELL)
            for mode in self.modes():
                with self.subTest(words=words, mode=mode):
                    ours, got = self.ask(mode, commands)
                    self.assertEqual(ours, stock, got.err)
                    self.assertEqual(got.err, "")

    def test_descriptors_of_an_environment(self):
        self.not_with_sanitizers()
        paths = [self.database(f"db-{i}")[0] for i in range(4)]
        for words in ("", "nolock"):
            commands = []
            for i, path in enumerate(paths):
                commands += [f"env {i}", f"open {path} {words}", *READ]
            commands += ["fds"]
            stock, _ = self.ask("stock", commands)
            for mode in self.modes():
                with self.subTest(words=words, mode=mode):
                    ours, got = self.ask(mode, commands)
                    self.assertEqual(ours, stock, got.err)

    # System calls of an open and close: those of stock, and what the window, the check and the signal mask need.
    def test_calls_of_an_open(self):
        self.not_with_sanitizers()
        path, trace = self.database()[0], os.path.join(self.dir, "trace")
        strace = ("strace", "-f", "-qq", "-o", trace)
        try:
            subprocess.run([*strace, "true"], check=True, stderr=subprocess.DEVNULL)
        except (FileNotFoundError, subprocess.CalledProcessError):
            self.skipTest("no strace, or it is not allowed here")

        def calls(mode, words):
            lines = []
            for times in (50, 150):
                self.assertEqual(self.ask(mode, [f"opens {times} {path} {words}"], strace)[0], ["0"])
                with open(trace) as f:
                    lines.append(sum(1 for _ in f))
            return (lines[1] - lines[0]) / 100

        for words, most in (("", 22), ("nolock", 15)):
            stock = calls("stock", words)
            for mode in self.modes():
                with self.subTest(words=words, mode=mode):
                    self.assertLessEqual(calls(mode, words), stock + most)

    # No descriptor is kept that stock would not keep: environments come and go.
    def test_descriptors_come_back(self):
        path = self.database()[0]
        commands = [f"limit nofile {5}"] + [f"open {path}", *READ, "close"] * 20
        stock, _ = self.ask("stock", commands)
        for mode in self.modes():
            with self.subTest(mode=mode):
                self.assertEqual(self.ask(mode, commands)[0], stock)

    # -- what the kernel refuses

    def transcripts(self, prefix, names=("refused", "program", "readers", "counted")):
        """Each program under stock and ours, both confined: the same."""
        path = self.database(f"db-{len(os.listdir(self.dir))}")[0]
        for name in names:
            arguments = lambda: [f"open {path}", *READ, "close"] if name == "refused" else [self.fresh()]
            stock = confined.run("stock", [name, *arguments()], {}, prefix)
            self.assertEqual(stock.returncode, 0, stock.out[-2000:] + stock.err)
            for mode in self.modes():
                with self.subTest(program=name, mode=mode):
                    # readers.c fills the reader table, which LMDBIO would not mind.
                    ours = confined.run(mode, [name, *arguments()], {"LMDBIO_STRICT": "1"}, prefix)
                    self.check_same(stock, ours)

    def test_in_a_container(self):
        self.transcripts(missing_part(self, lambda: confined.failing(*CONTAINER)))

    def test_without_threads(self):
        self.transcripts(missing_part(self, confined.without_threads), ONE_THREAD)

    def test_bare_kernel(self):
        shimtest.skip_under_tsan(self, "does not start without madvise")
        self.transcripts(missing_part(self, lambda: confined.failing(*BARE)))

    def test_without_proc(self):
        self.not_with_sanitizers()
        self.transcripts(missing_part(self, lambda: confined.in_mounts("mount -t tmpfs none /proc")))

    def test_without_dev_and_sys(self):
        script = "mount -t tmpfs none /dev; mount -t tmpfs none /sys"
        self.transcripts(missing_part(self, lambda: confined.in_mounts(script)), ONE_THREAD)

    # -- maps of terabytes

    def sparse(self, name, size):
        """The database with its file made as long as the map, or as long as the file system has it."""
        path, data, _ = self.database(name)
        for length in (size, 8 * TIB, TIB, GIB):
            with contextlib.suppress(OSError):
                if length <= size:
                    os.truncate(data, length)
                    break
        return path

    def test_terabytes(self):
        self.not_with_sanitizers()
        for size in (TIB, 16 * TIB):
            path = self.sparse(f"db-{size}", size)
            commands = [f"mapsize {size}", f"open {path}", "info", f"maps {path}/data.mdb", *READ, "close"]
            stock, _ = self.ask("stock", commands)
            self.assertEqual(stock[4:10], READ_WELL)
            for mode in self.modes():
                with self.subTest(size=size, mode=mode):
                    ours, got = self.ask(mode, commands)
                    self.assertEqual(ours[3], str(MAPS), "not served by the engine")
                    self.assertEqual(ours[:3] + ours[4:], stock[:3] + stock[4:])
                    self.assertEqual(got.err, "")

    # 128 TiB of addresses: as many environments as stock can have, those that fit twice being ours.
    def test_until_addresses_run_out(self):
        self.not_with_sanitizers()
        size, most = 16 * TIB, 10
        paths = [self.sparse(f"db-{i}", size) for i in range(most)]
        commands = []
        for i, path in enumerate(paths):
            commands += [f"env {i}", f"mapsize {size}", f"open {path}"]
        for i, path in enumerate(paths):
            commands += [f"env {i}", f"maps {path}/data.mdb", *READ]
        for i in range(most):
            commands += [f"env {i}", "close"]
        commands += ["env 0", f"mapsize {size}", f"open {paths[0]}", f"maps {paths[0]}/data.mdb", *READ,
                     "close"]

        def facts(mode):
            answers, got = self.ask(mode, commands)
            codes = answers[2:3 * most:3]
            step = 2 + len(READ)
            second = [answers[3 * most + i * step:][1:step] for i in range(most)]
            for rc, (maps, *read) in zip(codes, second):
                if rc == "0":
                    self.assertEqual(read, READ_WELL, got.err)
                else:
                    self.assertEqual(rc, str(errno.ENOMEM))
            return codes.count("0"), [int(maps) for maps, *_ in second], answers[-len(READ) - 2:], got

        opened, maps, last, _ = facts("stock")
        self.assertGreater(opened, 4)
        self.assertEqual((last[0], last[1:-1]), ("1", READ_WELL))
        for mode in self.modes():
            with self.subTest(mode=mode):
                ours, maps, last, got = facts(mode)
                self.assertEqual((last[0], last[1:-1]), (str(MAPS), READ_WELL), "after all were closed")
                self.assertGreaterEqual(maps.count(MAPS), 3)
                self.assertEqual(got.err, "")
                self.assertEqual(ours, opened, "environments that stock can open")

    # Shards, opened with the map size that their writers had: as many as stock opens, all served by the engine.
    def test_shards_of_terabytes(self):
        self.not_with_sanitizers()
        for size, shards in ((2 * TIB, 60), (TIB, 120)):
            paths = [self.database(f"db-{size}-{i}")[0] for i in range(3)]
            commands = []
            for i in range(shards):
                commands += [f"env {i}", f"mapsize {size}", f"open {paths[i % 3]} nolock", "begin", "check"]
            commands += [f"maps {path}/data.mdb" for path in paths]
            stock, _ = self.ask("stock", commands)
            self.assertEqual(stock[2:5 * shards:5] + stock[3:5 * shards:5], ["0"] * 2 * shards)
            for mode in self.modes():
                with self.subTest(size=size, mode=mode):
                    ours, got = self.ask(mode, commands)
                    self.assertEqual(ours[:5 * shards], stock[:5 * shards], got.err)
                    self.assertGreater(sum(map(int, ours[-3:])), shards, "not served by the engine")

    # Addresses that windows had, and stock's map needs.
    def test_windows_make_room(self):
        self.not_with_sanitizers()
        paths = [self.database(f"db-{i}")[0] for i in range(2)]
        commands = ["env 0", f"mapsize {GIB}", f"open {paths[0]} nolock", "begin", f"limit as {GIB + GIB // 4}",
                    "env 1", f"mapsize {2 * GIB}", f"open {paths[1]} nolock", *READ, "env 0", "check", "abort", *READ]
        ours, got = self.ask("preload" if "preload" in self.modes() else "linked", commands)
        self.assertEqual(ours[7], "0", got.err)
        self.assertEqual(ours, ["0"] * 8 + READ_WELL + ["0", "right round 1", "0"] + READ_WELL)

    # -- variables

    # With another user's rights the variables are somebody else's.
    def test_set_user_id(self):
        if not confined.ROOT:
            self.skipTest("root: a set-user-id program")
        self.not_with_sanitizers()
        user = missing_part(self, confined.as_nobody)
        whoami = os.path.join(self.dir, "id")
        shutil.copy("/usr/bin/id", whoami)
        os.chmod(whoami, 0o4755)
        if subprocess.run([*user, whoami, "-u"], stdout=subprocess.PIPE, check=True).stdout != b"0\n":
            self.skipTest("set-user-id is ignored here")
        path, data, _ = self.database()
        writable = os.path.join(self.dir, "any")
        os.mkdir(writable)
        os.chmod(writable, 0o777)
        for name, said in (("copy", True), ("suid", False)):
            program = os.path.join(self.dir, name)
            shutil.copy(shimtest.program("refused", "linked"), program)
            os.chmod(program, 0o4755 if name == "suid" else 0o755)
            stats = os.path.join(writable, name)
            variables = {"LMDBIO_STATS": stats, "LMDBIO_LOG": "debug", "LMDBIO_STRICT": "nonsense",
                         "LMDBIO_STOCK_LIB": os.path.realpath(shimtest.CONFIG["lmdb"])}
            probe = [program, "write 1 /nonexistent"]
            if subprocess.run(user + probe, stdout=subprocess.PIPE, stderr=subprocess.PIPE).returncode != 0:
                self.skipTest("other users cannot reach the build directory")
            with self.subTest(program=name):
                commands = [f"open {path}", f"maps {data}", *READ, "close"]
                got = confined.run("linked", [program, *commands], variables, user)
                answers = [line.split(" = ", 1)[1] for line in got.out.splitlines()]
                self.assertEqual((answers[0], answers[2:8]), ("0", READ_WELL), got.err)
                self.assertEqual(os.path.exists(stats), said, got.err)
                self.assertEqual(got.err != "", said, got.err)
            with self.subTest(program=name, disabled=True):
                commands = [f"open {path}", f"maps {data}"]
                got = confined.run("linked", [program, *commands], {"LMDBIO_DISABLE": "1"}, user)
                maps = got.out.splitlines()[1].split(" = ")[1]
                self.assertEqual(maps, "0" if said else str(MAPS))  # stock cannot open it as that user

    # One line each; the default holds.
    def test_nonsense(self):
        path = self.database()[0]
        locked = missing_part(self, lambda: confined.failing_locks("ENOLCK"))
        nonsense = {"LMDBIO_STRICT": ["yes", "2", "-1", "1 ", "\xff\xfe"],
                    "LMDBIO_LOCK_SECONDS": ["-1", "3601", "99999999999999999999", "1.5", "ten", " 1", "0x10"],
                    "LMDBIO_DISABLE": ["true", "01"],
                    "LMDBIO_LOG": ["loud", "WARN", "7"],
                    "LMDBIO_STATS": ["%", "%q", "x" * 5000]}
        for mode in self.modes()[:1]:
            for name, values in nonsense.items():
                for value in values:
                    with self.subTest(mode=mode, name=name, value=value[:30]):
                        ours, got = self.ask(mode, [f"open {path}", *READ, "close"], locked, {name: value})
                        self.assertEqual(ours, ["0", *READ_WELL, "0"])
                        lines = got.err.splitlines()
                        self.assertEqual(len(lines), 2, got.err[:500])
                        self.assertTrue(lines[0].startswith(f"lmdbio: {name}="), lines[0][:100])
                        self.assertIn("cannot be locked", lines[1])
            everything = {name: values[0] for name, values in nonsense.items()}
            ours, got = self.ask(mode, [f"open {path}", *READ, "close"], locked, everything)
            self.assertEqual(ours, ["0", *READ_WELL, "0"])
            self.assertEqual(len(got.err.splitlines()), len(nonsense) + 1, got.err[:2000])
            # An empty value is none.
            _, got = self.ask(mode, [f"open {path}", "close"], (), {name: "" for name in nonsense})
            self.assertEqual(got.err, "")


if __name__ == "__main__":
    shimtest.main()
