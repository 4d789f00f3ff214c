"""lmdbio mount: a database as a file system, against a model in Python."""
import ctypes
import errno
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

import command_test
import files_test
import shimtest
from files_export_test import left_out
from files_test import INTEGERKEY, damage_leaf, datum, key_of

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))


class Case(files_test.Case):
    statuses = (0, -signal.SIGKILL)  # with which a server may end

    def setUp(self):
        super().setUp()
        if not os.path.exists(os.path.join(os.path.dirname(shimtest.CONFIG["command"]), "lmdbio-fuse")):
            self.skipTest("built without libfuse3")
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            self.skipTest("no /dev/fuse, or no permission to use it")
        if os.geteuid() != 0 and shutil.which("fusermount3") is None:
            self.skipTest("no fusermount3")

    def mount(self, path, *args, env=None):
        """Mounts, and returns the directory.  self.server is the process."""
        at = self.fresh(f"mount{len(os.listdir(self.dir))}")
        self.server = subprocess.Popen([shimtest.CONFIG["command"], "mount", "-f", path, at, *args],
                                       env=shimtest.environment("stock", env), stdin=subprocess.DEVNULL)
        self.addCleanup(self.unmount, at, self.server)
        while not os.path.ismount(at):
            if self.server.poll() is not None:
                raise AssertionError(f"mount has ended with {self.server.returncode}")
            time.sleep(0.001)
        return at

    def unmount(self, at, server):
        if server.poll() is None:
            server.terminate()
        status = server.wait(timeout=60)
        subprocess.run(["fusermount3", "-u", "-z", "-q", at], stderr=subprocess.DEVNULL)
        self.assertIn(status, self.statuses)

    def tree(self, root):
        root = os.fsencode(root)
        found = {}
        for at, dirs, files in os.walk(root, onerror=self.fail):
            for f in files:
                name = os.path.join(at, f)
                with open(name, "rb") as file:
                    found[name[len(root) + 1:]] = file.read()
                self.assertEqual(os.lstat(name).st_size, len(found[name[len(root) + 1:]]))
        return found

    def check_tree(self, at, expected):
        found = self.tree(at)
        self.assertEqual(sorted(found), sorted(expected))
        self.assertTrue(all(found[k] == v for k, v in expected.items()))

    def error_of(self, call, *args):
        with self.assertRaises(OSError) as caught:
            call(*args)
        return caught.exception.errno


class Contents(Case):
    def test_any_keys(self):
        for seed in (20, 21):
            keys = self.fuzzed(seed, 4000)
            path = self.write(keys, path=self.fresh(f"db{seed}"))
            names = self.output("ls", "-0", path).split(b"\0")[:-1]
            lost = left_out(names)
            expected = {n: keys[key_of(n)] for n in names if n not in lost}
            at = self.mount(path)
            # Lookups first, of names that no listing has shown.
            for name in random.Random(seed).sample(sorted(expected), 1000):
                self.assertEqual(os.stat(os.fsencode(at) + b"/" + name).st_size, len(expected[name]))
            for name in list(lost)[:100]:
                self.assertIn(self.error_of(os.stat, os.fsencode(at) + b"/" + name), (errno.ENOENT, errno.ENOTDIR))
            self.check_tree(at, expected)
            self.check_tree(at, expected)  # from the kernel's caches

    def test_tools(self):
        r = random.Random(22)
        files = {b"train/n%02d/%04d.jpg" % (i % 9, i): r.randbytes(r.choice([0, 1, 3000, 4096, 70000, 300000])) for i in range(900)}
        path = self.write(files)
        plain, at, copy = self.fresh("plain"), self.mount(path), os.path.join(self.dir, "copy")
        for k, v in files.items():
            os.makedirs(os.path.dirname(os.path.join(plain, k.decode())), exist_ok=True)
            with open(os.path.join(plain, k.decode()), "wb") as f:
                f.write(v)
        run = lambda *argv, **more: subprocess.run(argv, stdout=subprocess.PIPE, check=True, **more).stdout
        listed = lambda root: sorted(run("find", ".", "-type", "f", "-printf", "%p %s\\n", cwd=root).split(b"\n"))
        self.assertEqual(listed(at), listed(plain))
        self.assertEqual(run("du", "-sb", "--apparent-size", ".", cwd=at).split()[0], b"%d" % sum(map(len, files.values())))
        run("cp", "-r", at, copy)
        run("diff", "-r", copy, plain)
        if shutil.which("rsync"):
            self.assertEqual(run("rsync", "-rcni", "--delete", at + "/", plain + "/"), b"")
        name = max(files, key=lambda k: len(files[k]))
        whole = files[name]
        with open(os.fsencode(at) + b"/" + name, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
            self.assertEqual(m[:], whole)
            for _ in range(200):
                start, size = r.randrange(len(whole) + 10), r.randrange(9000)
                self.assertEqual(os.pread(f.fileno(), size, start), whole[start:start + size])
        self.assertEqual(run("dd", b"if=" + os.fsencode(at) + b"/" + name, "bs=777", "skip=11", "count=13", "status=none"),
                         whole[777 * 11:777 * 24])

    def test_two_readers(self):
        r = random.Random(23)
        files = {b"%d/%05d" % (i % 5, i): r.randbytes(r.randrange(20000)) for i in range(3000)}
        at = self.mount(self.write(files))
        text = ("import os, random, sys\nall = {}\n"
                "names = sorted(os.path.join(d, f) for d, _, fs in os.walk(sys.argv[1]) for f in fs)\n"
                "if sys.argv[2] == '1': random.Random(1).shuffle(names)\n"
                "print(sum(hash(open(n, 'rb').read()) for n in names))")
        readers = [subprocess.Popen([sys.executable, "-c", text, at, str(i)], stdout=subprocess.PIPE, env={"PYTHONHASHSEED": "0"})
                   for i in range(2)]
        sums = [p.communicate(timeout=200)[0] for p in readers]
        self.assertEqual(sums[0], sums[1])
        self.assertEqual([p.returncode for p in readers], [0, 0])
        self.check_tree(at, files)

    def test_what_is_no_name(self):
        at = self.mount(self.write({b"a": b"1", b"d/x": b"2", b"%2F": b"3"}))
        for name in ("b", "a/x", "d/y", "%2561", "%2F", "d/%2E", "%2E%2E", "x" * 255):
            self.assertIn(self.error_of(os.stat, f"{at}/{name}"), (errno.ENOENT, errno.ENOTDIR), name)
        self.assertEqual(os.listdir(at + "/d"), ["x"])
        self.assertEqual(sorted(os.listdir(at)), ["%252F", "a", "d"])
        for call, args in ((open, (at + "/new", "w")), (os.unlink, (at + "/a",)), (os.mkdir, (at + "/e",)),
                           (os.rename, (at + "/a", at + "/b")), (os.truncate, (at + "/a", 0)), (os.chmod, (at + "/a", 0))):
            self.assertIn(self.error_of(call, *args), (errno.EROFS, errno.EACCES))
        self.assertEqual(os.statvfs(at).f_files, 3)

    def test_options(self):
        names = lambda at: sorted(os.listdir(at))
        path = self.write({b"a": datum(b"JPEG"), b"b/c": datum(b"x" * 5000), b"d": b"\x0f"})
        at = self.mount(path, "--suffix", ".jpg", "--value", "datum")
        self.assertEqual(names(at), ["a.jpg", "b", "d.jpg"])
        with open(at + "/a.jpg", "rb") as f:
            self.assertEqual(f.read(), b"JPEG")
        self.assertEqual(os.path.getsize(at + "/b/c.jpg"), 5000)
        at = self.mount(path, "--names", "hex")
        self.assertEqual(names(at), ["61", "622f63", "64"])
        numbers = self.fresh("numbers")
        self.write([(struct.pack("<Q", i), b"%d" % i) for i in (5, 300, 70000)], flags=INTEGERKEY, path=numbers)
        at = self.mount(numbers, "--names", "number", "--suffix", ".txt")
        self.assertEqual(names(at), ["300.txt", "5.txt", "70000.txt"])
        with open(at + "/300.txt", "rb") as f:
            self.assertEqual(f.read(), b"300")
        self.assertEqual(self.error_of(os.stat, at + "/0300.txt"), errno.ENOENT)
        at = self.mount(numbers, "--names", "hex")
        self.assertEqual(sorted(names(at)), sorted(struct.pack("<Q", i).hex() for i in (5, 300, 70000)))
        for name in ("05000000", "05", "050000000000000000", "0500000000000000" * 2):
            self.assertEqual(self.error_of(os.stat, f"{at}/{name}"), errno.ENOENT)
        several = self.database("several")
        at = self.mount(several)
        self.assertEqual(names(at), ["beside"])
        at = self.mount(several, "--db", "plain")
        self.assertEqual(len(names(at)), 1000)
        at = self.mount(several, "--db", "dups")  # the first value of each key
        self.check_tree(at, {b"few": b"0", b"many": b"d0"})

    def test_permissions(self):
        path = self.write({b"d/a": b"1"})
        for mode, file, directory in ((0o600, 0o400, 0o500), (0o640, 0o440, 0o550), (0o644, 0o444, 0o555)):
            os.chmod(path + "/data.mdb", mode)
            at = self.mount(path, *["--allow-other"][:os.geteuid() == 0])
            self.assertEqual([os.stat(f"{at}/{n}").st_mode & 0o7777 for n in ("d/a", "d", "")], [file, directory, directory])
            if os.geteuid() == 0:
                os.chmod(self.dir, 0o755)
                done = subprocess.run(["cat", at + "/d/a"], user=65534, group=65534, extra_groups=[], stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL)
                self.assertEqual(done.stdout, b"1" if mode == 0o644 else b"")
                # Without the option, a database that its directory protects stays protected.
                done = subprocess.run(["cat", self.mount(path) + "/d/a"], user=65534, group=65534, extra_groups=[],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                self.assertEqual(done.stdout, b"")

    def test_errors(self):
        path, at = self.write({b"a": b"1"}), self.fresh("at")
        numbers = self.write([(struct.pack("<Q", 1), b"")], flags=INTEGERKEY, path=self.fresh("numbers"))
        for args, text in (((self.dir, at), "no data.mdb"), ((path, path + "/data.mdb"), "not a directory"), ((path, at + "/none"), "No such file"), ((path, at, "--names", "number"),
                           "not integers"), ((self.write({b"12345678": b""}, path=self.fresh("eight")), at, "--names", "number"), "not integers"), ((numbers, at), "no directories"), ((path, at, "--db", "x"), "database x"),
                           ((path, at, "--suffix", "a/b"), "no slash"), ((path,), "required")):
            self.assertIn(text, self.lmdbio("mount", *args, status=2).stderr)
        self.assertFalse(os.path.ismount(at))

    def test_directory_positions(self):
        files = {b"%05d" % i: b"" for i in range(3000)}
        at = self.mount(self.write(files))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
        libc.telldir.restype = ctypes.c_long
        d = ctypes.c_void_p(libc.opendir(at.encode()))

        def read():
            entry = libc.readdir(d)
            return ctypes.string_at(entry + 19) if entry else None
        positions, seen = [], []
        while True:
            positions.append(libc.telldir(d))
            seen.append(read())
            if seen[-1] is None:
                break
        self.assertEqual(sorted(seen[:-1]), [b".", b".."] + sorted(files))
        for i in random.Random(24).sample(range(len(seen)), 200):
            libc.seekdir(d, ctypes.c_long(positions[i]))
            self.assertEqual(read(), seen[i])
        libc.closedir(d)


class Life(Case):
    def test_background(self):
        path, at = self.write({b"a": b"1"}), self.fresh("at")
        self.lmdbio("mount", path, at)
        self.addCleanup(subprocess.run, ["fusermount3", "-u", "-z", "-q", at])
        with open(at + "/a", "rb") as f:
            self.assertEqual(f.read(), b"1")
        subprocess.run(["fusermount3", "-u", at], check=True)
        self.assertFalse(os.path.ismount(at))

    def test_signals(self):
        path = self.write({b"a": b"1"})
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            at = self.mount(path)
            self.server.send_signal(number)
            self.assertEqual(self.server.wait(timeout=60), 0)
            self.assertFalse(os.path.ismount(at))

    def in_background(self, path, at, **more):
        """Starts a mount.  Returns the process that starts it, and a descriptor that ends when the server does."""
        end, held = os.pipe()
        self.addCleanup(os.close, end)
        process = subprocess.Popen([shimtest.CONFIG["command"], "mount", path, at], pass_fds=[held], stdin=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, **more)
        os.close(held)
        return process, end

    def test_signals_during_the_start(self):
        path, r = self.write({b"a": b"1"}), random.Random(25)
        for i in range(60):
            at = self.fresh(f"at{i}")
            process, end = self.in_background(path, at, start_new_session=True)
            for _ in range(r.randrange(400000)):  # some moment
                pass
            if i % 3 == 0:
                process.kill()  # the server cannot tell that it is ready
            else:
                os.killpg(process.pid, (signal.SIGINT, signal.SIGTERM)[i % 3 - 1])
            process.wait(timeout=60)
            try:
                names = os.listdir(at)
            except OSError as e:  # it unmounts at this moment
                self.assertIn(e.errno, (errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV))
                names = []
            if names == ["a"]:
                subprocess.run(["fusermount3", "-u", "-z", "-q", at], stderr=subprocess.DEVNULL)
            self.assertEqual(os.read(end, 1), b"")
            self.assertEqual(os.listdir(at), [])
            self.assertFalse(os.path.ismount(at))

    def test_reader_slots(self):
        path = self.write({b"a": b"1"})
        self.mount(path)
        w, lines = command_test.Writer(path), []
        listed = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda text, _: lines.append(text) or 0)
        w.lib.mdb_reader_list(w.env, listed, None)
        w.close()
        self.assertEqual(sum(int(line.split()[0]) == self.server.pid for line in lines if line.split()[0].isdigit()), 9)

    def test_relative_settings(self):
        self.write({b"a": b"1"}, path=self.fresh("db"))
        os.mkdir(os.path.join(self.dir, "at"))
        env = shimtest.environment("stock", {"LMDBIO_STATS": "st.json"})
        process, end = self.in_background("db", "at", cwd=self.dir, env=env)
        self.assertEqual(process.wait(timeout=60), 0)
        subprocess.run(["fusermount3", "-u", self.dir + "/at"], check=True)
        self.assertEqual(os.read(end, 1), b"")
        self.assertGreater(os.path.getsize(self.dir + "/st.json"), 0)

    def test_killed(self):
        at = self.mount(self.write({b"a": b"1"}))
        self.server.kill()
        self.server.wait()
        self.assertEqual(self.error_of(os.stat, at + "/a"), errno.ENOTCONN)
        subprocess.run(["fusermount3", "-u", at], check=True)
        self.assertEqual(os.listdir(at), [])

    def test_the_snapshot_stays(self):
        path = self.write({b"%04d" % i: b"%d" % i * 100 for i in range(2000)})
        at = self.mount(path)
        w = command_test.Writer(path)
        for i in range(20):
            w.put([(b"%04d" % j, b"new") for j in range(i * 100, i * 100 + 100)] + [(b"more%d" % i, b"x" * 9000)])
        w.close()
        self.check_tree(at, {b"%04d" % i: b"%d" % i * 100 for i in range(2000)})
        later = self.mount(path)
        self.assertEqual(len(os.listdir(later)), 2020)

    def test_damaged(self):
        keys = {b"%d/%04d" % (i // 1000, i): b"%04d" % i * 100 for i in range(5000)}
        path = self.write(keys)
        lost = damage_leaf(self, path)
        self.assertGreater(len(lost), 3)
        at = self.mount(path)
        for key, value in keys.items():
            name = os.path.join(at, key.decode())
            if key in lost:
                self.assertEqual(self.error_of(os.stat, name), errno.EIO)
            else:
                with open(name, "rb") as f:
                    self.assertEqual(f.read(), value)
        folders = {k.split(b"/")[0].decode() for k in lost}
        for folder in os.listdir(at):
            if folder in folders:
                self.assertEqual(self.error_of(os.listdir, f"{at}/{folder}"), errno.EIO)
            else:
                self.assertEqual(len(os.listdir(f"{at}/{folder}")), 1000)

    def break_values(self, path, keys):
        """Overwrites the numbers of the pages at which values of these keys begin."""
        with open(path + "/data.mdb", "r+b") as f:
            pages = f.read()
            for key in keys:
                node = pages.index(struct.pack("<H", len(key)) + key) - 6
                while not struct.unpack_from("<H", pages, node + 4)[0] & 1:  # F_BIGDATA
                    node = pages.index(struct.pack("<H", len(key)) + key, node + 7) - 6
                f.seek(node + 8 + len(key))
                f.write(struct.pack("<Q", 1 << 40))

    def test_no_listing_leaves_out_a_damaged_record(self):
        keys = {b"d/%04d" % i: b"%04d" % i * 2000 for i in range(50)}
        path = self.write(keys)
        self.break_values(path, [b"d/0020"])
        at = self.mount(path)
        for _ in range(3):
            self.assertEqual(self.error_of(os.listdir, at + "/d"), errno.EIO)
        done = subprocess.run(["cp", "-r", at + "/d", self.fresh("copy")], stderr=subprocess.DEVNULL)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(self.error_of(os.stat, at + "/d/0020"), errno.EIO)
        for key in keys.keys() - {b"d/0020"}:
            with open(os.fsencode(at) + b"/" + key, "rb") as f:
                self.assertEqual(f.read(), keys[key])

    def test_damage_after_a_commit(self):
        keys = {b"%04d" % i: b"%04d" % i * 2000 for i in range(100)}
        path = self.write(keys)
        lost = [b"%04d" % i for i in range(20, 60)]
        self.break_values(path, lost)
        at = self.mount(path)
        w = command_test.Writer(path)
        w.put([(b"more", b"")])
        w.close()
        for _ in range(2):
            for key in lost:
                self.assertEqual(self.error_of(os.stat, os.fsencode(at) + b"/" + key), errno.EIO)
        for key in keys.keys() - set(lost):
            with open(os.fsencode(at) + b"/" + key, "rb") as f:
                self.assertEqual(f.read(), keys[key])

    def test_damaged_datum(self):
        path = self.write({b"%02d" % i: datum(b"x" * 9000) for i in range(40)})
        at = self.mount(path, "--value", "datum")
        with open(path + "/data.mdb", "r+b") as f:  # the map of the server follows
            f.truncate(os.path.getsize(path + "/data.mdb") - 3 * 4096)
        outcomes = set()
        for i in range(40):
            try:
                outcomes.add(os.path.getsize(f"{at}/{i:02}"))
            except OSError as e:
                outcomes.add(e.errno)
        self.assertIsNone(self.server.poll())
        self.assertEqual(outcomes, {9000, errno.EIO})

    def test_damaged_root(self):
        path, at = self.write({b"%04d" % i: b"x" * 100 for i in range(1000)}), self.fresh("at")
        with open(path + "/data.mdb", "r+b") as f:
            meta = f.read()
            f.seek(max((struct.unpack_from("<Q", meta, p + 16 + 24 + 96 + 8)[0], struct.unpack_from("<Q", meta, p + 16 + 24 + 48 + 40)[0])
                       for p in (0, 4096))[1] * 4096)
            f.write(b"\x55" * 4096)
        self.assertIn("MDB_CORRUPTED", self.lmdbio("mount", path, at, status=2).stderr)
        self.assertFalse(os.path.ismount(at))

    def test_truncated(self):
        """As with stock LMDB, the server may end if a page of the tree is gone; but no file has wrong bytes."""
        self.statuses = (0, shimtest.status_of_a_signal(signal.SIGBUS))
        path = self.write({b"%03d" % i: b"%03d" % i * 5000 for i in range(200)})
        at = self.mount(path)
        sizes = {n: os.path.getsize(f"{at}/{n}") for n in os.listdir(at)}
        os.truncate(path + "/data.mdb", os.path.getsize(path + "/data.mdb") // 2)
        outcomes = set()
        for name, size in sizes.items():
            try:
                with open(f"{at}/{name}", "rb") as f:
                    outcomes.add(f.read() == name.encode() * 5000)
            except OSError as e:
                outcomes.add(e.errno)
        self.assertLessEqual(outcomes, {True, errno.EIO, errno.ENOTCONN, errno.ECONNABORTED})

    def test_memory_of_names(self):
        count = 100000
        path = self.write([(b"%03d/image_%07d.jpg" % (i // 1000, i), b"") for i in range(count)])
        at = self.mount(path)

        def anonymous():
            with open(f"/proc/{self.server.pid}/status", encoding="ascii") as f:
                return next(int(line.split()[1]) for line in f if line.startswith("RssAnon")) << 10
        before = anonymous()
        self.assertEqual(sum(len(fs) for _, _, fs in os.walk(at)), count)
        if not shimtest.CONFIG["sanitize"]:
            self.assertLess((anonymous() - before) / count, 64)


class Cold(Case):
    """On a slow file system, whose requests are counted."""

    def slow(self, records, **options):
        source = self.write(records, path=self.fresh("source"))
        return self.slow_storage(source, **options), os.path.getsize(source + "/data.mdb")

    def test_reading_in_order_reads_ahead(self):
        records = [(b"%02d/%08d" % (i // 500, i), b"%08d" % i * 4000) for i in range(2000)]
        fs, size = self.slow(records)
        at = self.mount(fs.path)
        for folder in sorted(os.listdir(at)):
            for name in sorted(os.listdir(f"{at}/{folder}")):
                with open(f"{at}/{folder}/{name}", "rb") as f:
                    self.assertEqual(f.read(), name.encode() * 4000)
        read = fs.counters()["read"]
        self.assertLess(read["bytes"], 1.3 * size)
        self.assertLess(read["numbered"], len(records) / 4)


if __name__ == "__main__":
    shimtest.main()
