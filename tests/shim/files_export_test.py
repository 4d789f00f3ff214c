"""lmdbio export: records as files and as tar archives, against a model in Python and against tar(1)."""
import hashlib
import io
import os
import random
import signal
import stat
import subprocess
import sys
import tarfile

import command_test
import files_test
import shimtest
from files_test import FLOATS, damage_leaf, datum, key_of

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))


def left_out(names):
    """The names below a directory that is the name of another record."""
    have = set(names)
    return {n for n in names if any(n[:i] in have for i in range(len(n)) if n[i:i + 1] == b"/")}


class Tar(files_test.Case):
    def members(self, archive):
        with tarfile.open(fileobj=io.BytesIO(archive), encoding="utf-8", errors="surrogateescape") as tar:
            return {m.name.encode("utf-8", "surrogateescape"): tar.extractfile(m).read() for m in tar}

    def test_fuzzed(self):
        for seed in (10, 11):
            with self.subTest(seed=seed):
                keys = self.fuzzed(seed, 3000)
                path = self.write(keys)
                names = self.output("ls", "-0", path).split(b"\0")[:-1]
                lost = left_out(names)
                self.assertTrue(lost)
                archive = self.output("export", "--tar", path, status=1)
                self.assertIn(f"left out: {len(lost)}\n", self.errors)
                self.assertLessEqual(self.errors.count("\n"), 21)
                found = self.members(archive)
                self.assertEqual(list(found), [n for n in names if n not in lost])
                self.assertEqual({key_of(n): v for n, v in found.items()}, {k: v for k, v in keys.items()
                                                                            if k not in {key_of(n) for n in lost}})
                self.assertEqual(self.output("export", "--tar", path, status=1), archive)
                # tar(1) makes the same files.
                out = self.fresh("out")
                subprocess.run(["tar", "-x", "-C", out], input=archive, check=True)
                self.assertEqual(self.tree(out), found)
                # A directory, too.
                other = os.path.join(self.dir, f"other{seed}")
                self.output("export", path, other, status=1)
                self.assertIn(f"left out: {len(lost)}\n", self.errors)
                self.assertEqual(self.tree(other), found)
                subprocess.run(["chmod", "-R", "u+rwX", out, other], check=True)

    def tree(self, root):
        root = os.fsencode(root)
        found = {}
        for at, dirs, files in os.walk(root):
            for f in files:
                name = os.path.join(at, f)
                self.assertTrue(stat.S_ISREG(os.lstat(name).st_mode))
                with open(name, "rb") as file:
                    found[name[len(root) + 1:]] = file.read()
        return found

    def test_checksums(self):
        r = random.Random(5)
        keys = {b"train/n%03d/%d.jpg" % (i % 7, i): r.randbytes(r.randint(0, 20000)) for i in range(2000)}
        keys[b"train/" + b"deep/" * 40 + b"x" * 120] = b"a name for a pax header"
        keys[b"train/" + b"d" * 90 + b"/" + b"x" * 90] = b"a name in two parts"
        path = self.write(keys)
        sums = os.path.join(self.dir, "sums")
        with open(sums, "wb") as f:
            f.writelines(hashlib.sha256(v).hexdigest().encode() + b"  " + k + b"\n" for k, v in keys.items())
        out = self.fresh("out")
        subprocess.run(["tar", "-x", "-C", out], input=self.output("export", "--tar", path), check=True)
        subprocess.run(["sha256sum", "-c", "--quiet", sums], cwd=out, check=True)
        self.output("export", path, self.dir + "/out2")
        subprocess.run(["sha256sum", "-c", "--quiet", sums], cwd=self.dir + "/out2", check=True)

    def test_choice(self):
        keys = {b"a/%03d" % i: b"%d" % i for i in range(500)} | {b"b": b"1", b"c/d": b"2"}
        path = self.write(keys)
        chosen = lambda *args: self.members(self.output("export", "--tar", path, *args))
        self.assertEqual(chosen("--prefix", "a/00"), {k: v for k, v in keys.items() if k.startswith(b"a/00")})
        self.assertEqual(chosen("--range", "a/400:c"), {k: v for k, v in keys.items() if b"a/400" <= k < b"c"})
        self.assertEqual(chosen("--range", "b:"), {b"b": b"1", b"c/d": b"2"})
        self.assertEqual(chosen("--prefix", "zz"), {})
        self.assertEqual(chosen("--suffix", ".txt"), {k + b".txt": v for k, v in keys.items()})
        self.lmdbio("export", "--tar", "--suffix", "a/b", path, status=2)

    def test_suffix_that_is_a_directory(self):
        path = self.write({b"a": b"1", b"a.x/b": b"2", b"c": b"3", b"c/d": b"4"})
        self.assertEqual(list(self.members(self.output("export", "--tar", path, "--suffix", ".x", status=1))),
                         [b"a.x", b"c.x", b"c/d.x"])
        self.assertIn("a.x/b.x: a.x is a file", self.errors)
        # Outside the range, there is no such file.
        self.assertEqual(list(self.members(self.output("export", "--tar", path, "--prefix", "c/"))), [b"c/d"])

    def test_named_and_several_values(self):
        path = self.database()
        self.assertEqual(self.members(self.output("export", "--tar", path)), {b"beside": b"the named ones"})
        self.assertEqual(len(self.members(self.output("export", "--tar", "--db", "plain", path))), 1000)
        self.assertEqual(self.members(self.output("export", "--tar", "--db", "dups", path, status=1)), {b"few": b"0", b"many": b"d0"})
        self.assertIn(f"left out: {2005 - 2}\n", self.errors)
        empty = self.write({})
        self.assertEqual(self.members(self.output("export", "--tar", empty)), {})

    def test_datum(self):
        path = self.write({b"%d" % i: datum(b"%d" % i * i) for i in range(50)} | {b"other": b"\x0f", b"floats": FLOATS,
                                                                                         b"empty": datum(b"")})
        self.assertEqual(self.members(self.output("export", "--tar", "--value", "datum", "--suffix", ".jpg", path, status=1)),
                         {b"%d.jpg" % i: b"%d" % i * i for i in range(50)} | {b"empty.jpg": b""})
        self.assertIn("other.jpg: not a Datum", self.errors)
        self.assertIn("floats.jpg: not a Datum, or a Datum without data", self.errors)

    def test_values_larger_than_memory(self):
        path = self.write({b"%d" % i: b"x" * (3 << 20) for i in range(10)})
        self.assertEqual(len(self.members(self.output("export", "--tar", path, env={"LMDBIO_MEMORY": "8M"}))), 10)
        self.assertIn("LMDBIO_MEMORY", self.lmdbio("export", "--tar", path, status=2, env={"LMDBIO_MEMORY": "0"}).stderr)

    def test_damaged(self):
        keys = {b"%04d" % i: b"%04d" % i * 100 for i in range(3000)}
        path = self.write(keys)
        lost = damage_leaf(self, path)
        self.assertGreater(len(lost), 3)
        found = self.members(self.output("export", "--tar", path, status=1))
        self.assertEqual(found, {k: v for k, v in keys.items() if k not in lost})
        self.assertIn(f"left out: {len(lost)}\n", self.errors)

    def test_damaged_below_directories(self):
        """The record that would be in place of a directory is looked up in the damaged page."""
        keys = {b"dir%03d/f%04d" % (i // 10, i): b"%04d" % i * 100 for i in range(3000)}
        path = self.write(keys)
        lost = damage_leaf(self, path)
        # Some directory begins in the page, and goes on after it.
        self.assertTrue({k[:6] for k in lost} & {k[:6] for k in keys if k > max(lost)})
        found = self.members(self.output("export", "--tar", path, status=1))
        self.assertEqual(found, {k: v for k, v in keys.items() if k not in lost})
        self.assertIn(f"left out: {len(lost)}\n", self.errors)

    def test_records_below_the_name_of_a_named_database(self):
        path = self.write({b"train/x": b"1", b"file": b"2", b"file/x": b"3"})
        self.write({b"k": b"v"}, name=b"train", path=path)
        self.assertEqual(self.members(self.output("export", "--tar", path, status=1)), {b"train/x": b"1", b"file": b"2"})
        self.assertEqual(self.errors.count("is a file"), 1)

    def test_truncated(self):
        path = self.write({b"%04d" % i: bytes([i % 251]) * 9000 for i in range(900)})
        full = self.members(self.output("export", "--tar", path))
        os.truncate(path + "/data.mdb", os.path.getsize(path + "/data.mdb") // 2)
        done = subprocess.run([shimtest.CONFIG["command"], "export", "--tar", path], env=shimtest.environment("stock"),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertIn(done.returncode, (1, 2), done.stderr)
        self.assertTrue(done.stderr.startswith(b"lmdbio: "), done.stderr)
        if done.returncode == 1:
            self.assertLessEqual(self.members(done.stdout).items(), full.items())

    def test_reader_of_the_pipe_ends(self):
        path = self.write({b"%04d" % i: b"x" * 9000 for i in range(3000)})
        for args in (("export", "--tar", path), ("ls", "--json", path), ("cat", path, "0000")):
            for disposition in (signal.SIG_DFL, signal.SIG_IGN):
                read, write = os.pipe()
                os.close(read)
                with subprocess.Popen([shimtest.CONFIG["command"], *args], env=shimtest.environment("stock"), stdout=write,
                                      stderr=subprocess.PIPE, restore_signals=False,
                                      preexec_fn=lambda d=disposition: signal.signal(signal.SIGPIPE, d)) as process:
                    os.close(write)
                    errors = process.stderr.read()
                self.assertEqual((process.returncode, errors), (-signal.SIGPIPE, b""), args)

    def test_full_output(self):
        path = self.write({b"%04d" % i: b"x" * 9000 for i in range(300)})
        with open("/dev/full", "wb") as full:
            done = subprocess.run([shimtest.CONFIG["command"], "export", "--tar", path], env=shimtest.environment("stock"),
                                  stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("No space left", done.stderr)

    def test_usage(self):
        path = self.write({b"a": b"1"})
        for args in (("export", path), ("export", "--tar", path, self.dir + "/out"), ("export",)):
            self.lmdbio(*args, status=2)

    def test_whole_database_is_read_once_in_large_requests(self):
        records, value = 3000, 12000
        source = self.write({b"%08d" % i: b"x" * value for i in range(records)})
        fs = self.slow_storage(source)
        archive = self.output("export", "--tar", fs.path)
        self.assertEqual(archive, self.output("export", "--tar", source))
        read = fs.counters()["read"]
        used = os.path.getsize(source + "/data.mdb")
        self.assertLess(read["bytes"], 1.15 * used)
        self.assertLess(read["numbered"], used / (64 << 10))


class Directory(files_test.Case):
    """Nothing is written outside the directory, and no file is replaced."""

    def test_what_is_there(self):
        path = self.write({b"a/x": b"1", b"b": b"2", b"c": b"3", b"d/y": b"4", b"e/z": b"5"})
        out, outside = self.fresh("out"), self.fresh("outside")
        os.symlink(outside, out + "/a")
        os.symlink(outside + "/made", out + "/b")
        with open(out + "/c", "w", encoding="utf-8") as f:
            f.write("kept")
        with open(out + "/d", "w", encoding="utf-8") as f:
            f.write("a file")
        errors = self.lmdbio("export", path, out, status=1).stderr
        for text in ("a: a file, or a symbolic link", "b: exists already", "c: exists already", "d: a file, or",
                     "left out: 4\n"):
            self.assertIn(text, errors)
        self.assertEqual(os.listdir(outside), [])
        with open(out + "/c", encoding="utf-8") as f:
            self.assertEqual(f.read(), "kept")
        with open(out + "/e/z", encoding="utf-8") as f:
            self.assertEqual(f.read(), "5")

    def test_keys_that_leave_it(self):
        path = self.write({b"../up": b"1", b"/etc/x": b"2", b"a/../../up": b"3", b".": b"4", b"b/..": b"5"})
        out = os.path.join(self.dir, "out")
        self.lmdbio("export", path, out)
        self.assertEqual(sorted(os.listdir(self.dir)), ["db", "out"])
        self.assertEqual(sorted(os.listdir(out)), ["%2E", "%2E%2E", "%2Fetc", "a", "b"])
        self.assertEqual(sorted(os.listdir(out + "/b")), ["%2E%2E"])

    def test_full_file_system(self):
        if os.geteuid() != 0:
            self.skipTest("needs root for a file system of its own")
        path = self.write({b"%03d" % i: b"x" * 100000 for i in range(100)})
        out = self.fresh("out")
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2M", "none", out], stderr=subprocess.PIPE).returncode != 0:
            self.skipTest("no file system can be mounted")
        self.addCleanup(subprocess.run, ["umount", "-l", out], check=True)
        self.assertIn("No space left", self.lmdbio("export", path, out, status=2).stderr)
        self.assertEqual({os.path.getsize(os.path.join(out, f)) for f in os.listdir(out)}, {100000})

    def test_files_that_are_too_large(self):
        path = self.write({b"a": b"x" * 100000, b"b": b"y" * 10})
        out = os.path.join(self.dir, "out")
        errors = self.lmdbio("export", path, out, status=1, preexec_fn=command_test.file_size_limit(50000)).stderr
        self.assertIn("a: File too large", errors)
        self.assertEqual(os.listdir(out), ["b"])

    def test_messages_are_masked(self):
        path = self.write({b"a": b"1"}, path=self.fresh("\x1b[2J"))
        errors = self.lmdbio("cat", path, "no\x1b[2J", status=1).stderr
        self.assertEqual(errors, f"lmdbio: {path}: no key no".replace("\x1b", "\\x1b") + "\\x1b[2J\n")

    def test_directory_that_cannot_be_made(self):
        path = self.write({b"a": b"1"})
        self.assertIn("No such file", self.lmdbio("export", path, self.dir + "/no/such", status=2).stderr)
        self.assertIn("Not a directory", self.lmdbio("export", path, path + "/data.mdb", status=2).stderr)


if __name__ == "__main__":
    shimtest.main()
