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

import files_test
import shimtest
from files_export_test import left_out
from files_test import INTEGERKEY, datum, key_of

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
        name = max(files, key=lambda k: len(files[k]))
        whole = files[name]
        with open(os.fsencode(at) + b"/" + name, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
            self.assertEqual(m[:], whole)
            for _ in range(200):
                start, size = r.randrange(len(whole) + 10), r.randrange(9000)
                self.assertEqual(os.pread(f.fileno(), size, start), whole[start:start + size])
        self.assertEqual(run("dd", b"if=" + os.fsencode(at) + b"/" + name, "bs=777", "skip=11", "count=13", "status=none"),
                         whole[777 * 11:777 * 24])

    def test_rsync(self):
        """rsync -c compares all contents, so it finds a byte that differs where size and time are the same."""
        if shutil.which("rsync") is None:
            self.skipTest("no rsync")
        r = random.Random(26)
        files = {b"n%02d/%04d.jpg" % (i % 9, i): r.randbytes(r.choice([1, 3000, 4096, 70000])) for i in range(300)}
        at, copy = self.mount(self.write(files)), self.fresh("copy")

        def rsync(*args):
            return subprocess.run(["rsync", "-rtci", "--delete", *args, at + "/", copy + "/"], stdout=subprocess.PIPE, check=True).stdout
        self.assertEqual(rsync().count(b">f"), len(files))
        self.check_tree(copy, files)
        self.assertEqual(rsync("-n"), b"")
        name = sorted(files)[7]
        changed = os.fsencode(copy) + b"/" + name
        times = os.stat(changed)
        with open(changed, "r+b") as f:
            f.write(bytes([files[name][0] ^ 1]))
        os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
        self.assertEqual([line.split()[1] for line in rsync().splitlines()], [name])
        self.check_tree(copy, files)

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
