"""lmdbio pack that is killed, or has no room, at any moment: it continues, and the result is the same."""
import fcntl
import hashlib
import os
import random
import shutil
import signal
import subprocess
import time

import command_test
import files_pack_test
import shimtest
from files_pack_test import stock_records


class Resumed(files_pack_test.Case):
    """Files of 1 MiB, so that transactions end some times."""
    COUNT = 260

    def files(self):
        block = random.Random(8).randbytes(1 << 20)
        return {b"%02d/%06d" % (i % 5, i): b"%08d" % i + block for i in range(self.COUNT)}

    def check(self, db, files, library="lmdb"):
        found = stock_records(db, library)
        self.assertEqual([k for k, _ in found], sorted(files))
        self.assertTrue(all(v == files[k] for k, v in found))
        self.assertTrue(self.json("check", db)["clean"])

    def size(self, partial):
        return sum(os.path.getsize(os.path.join(at, f)) for at, _, fs in os.walk(partial) for f in fs if f == "data.mdb")

    def start(self, *args):
        return subprocess.Popen([shimtest.CONFIG["command"], "pack", *args], env=shimtest.environment("stock"),
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def kill_at(self, threshold, partial, *args):
        """Kills it when its files have so many bytes.  Returns False if it has ended before."""
        with self.start(*args) as process:
            while process.poll() is None and self.size(partial) < threshold:
                time.sleep(0.0005)
            process.kill()
            process.stderr.read()
        return process.returncode == -signal.SIGKILL

    def test_killed(self):
        files, r = self.files(), random.Random(9)
        root = self.tree(files)
        for extra in ((), ("--max-size", "100M"), ("--shuffle", "3", "--label-db", self.dir + "/labels"),
                      ("--format", "1")):
            with self.subTest(extra=extra):
                db, kills = self.out, 0
                for _ in range(6):
                    at = r.randrange(self.COUNT << 20)
                    kills += self.kill_at(at, db + ".partial", root, db, *extra)
                    if os.path.exists(db):
                        break
                self.assertGreater(kills, 0)
                if not os.path.exists(db):
                    # A transaction has 64 MiB.
                    committed = self.size(db + ".partial") > 150 << 20
                    said = self.pack(root, db, *extra).stdout
                    if committed:
                        self.assertRegex(said, r"; \d+ of them were there already")
                if not extra:
                    self.check(db, files)
                elif extra[0] == "--format":
                    # The same file as without an interruption.
                    self.pack("--format", "1", root, whole := self.out)
                    with open(db + "/data.mdb", "rb") as a, open(whole + "/data.mdb", "rb") as b:
                        self.assertEqual(hashlib.file_digest(a, "sha256").digest(), hashlib.file_digest(b, "sha256").digest())
                    self.assertTrue(self.json("check", db)["clean"])
                    if shimtest.CONFIG["lmdb10"]:
                        self.check(db, files, "lmdb10")
                elif extra[0] == "--max-size":
                    found = [x for s in sorted(os.listdir(db)) for x in stock_records(f"{db}/{s}")]
                    self.assertEqual([k for k, _ in found], sorted(files))
                    self.assertTrue(all(v == files[k] for k, v in found))
                else:
                    found = stock_records(db)
                    self.assertEqual(sorted((k[9:], v) for k, v in found), sorted(files.items()))
                    self.assertEqual([k for k, _ in stock_records(self.dir + "/labels")], [k for k, _ in found])

    def strace(self, call, nth, path, *args):
        """Runs pack, and kills it at the nth call of a system call that has the path."""
        strace = ["strace", "-f", "-qq", "-o", "/dev/null"]
        try:
            subprocess.run([*strace, "true"], check=True, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no strace, or it is not allowed here")
        # strace ends as the program that it has started; lmdbio replaces itself by lmdbio-files.
        done = subprocess.run([*strace, "-P", path, "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={nth}",
                               shimtest.CONFIG["command"], "pack", *args], env=shimtest.environment("stock"),
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)

    def test_killed_at_the_end(self):
        files = {b"a/%03d" % i: b"%d" % i * 100 for i in range(300)}
        root, labels = self.tree(files), self.dir + "/labels"
        for call, of_labels, state_only in (("rename", True, False), ("rename", False, False), ("unlink", False, True),
                                            ("unlink", True, True)):
            with self.subTest(call=call, of_labels=of_labels):
                db = self.out
                of = labels if of_labels else db
                args = (root, db, "--label-db", labels)
                self.strace(call, 1, of + (".partial.state" if state_only else ".partial"), *args)
                self.assertEqual(os.path.exists(labels), not of_labels or state_only)
                self.assertEqual(os.path.exists(db), state_only)
                if state_only and of_labels:  # both are complete
                    self.assertIn("exists already", self.pack(*args, status=2).stderr)
                    self.assertIn(f'"lmdbio index {db}" writes it', self.pack(*args, status=2).stderr)
                    self.lmdbio("index", db)
                    self.assertNotIn("index", self.pack(*args, status=2).stderr)
                else:
                    # Other files are not taken for these.
                    if state_only:
                        self.assertIn("exists already", self.pack(*args, "--shuffle", "1", status=2).stderr)
                    self.assertIn("; 300 of them were there already", self.pack(*args).stdout)
                    self.assertFalse([f for f in os.listdir(self.dir) if "partial" in f])
                    self.assertTrue(os.path.exists(labels + "/data.mdb.lmdbio-index"))
                self.check(db, files)
                self.assertEqual(stock_records(labels), [(k, b"0") for k in sorted(files)])
                shutil.rmtree(labels)
        # The state of a database that was removed meanwhile is of no matter.
        self.assertEqual([f for f in os.listdir(self.dir) if "partial" in f], ["labels.partial.state"])
        self.pack(root, self.out, "--shuffle", "1", "--label-db", labels)

    def test_a_database_in_its_source(self):
        root, files = self.tree(self.files()), self.files()
        db, labels = root + "/00/db", root + "/labels"
        args = (root, db, "--label-db", labels)
        self.pack(*args, status=2, preexec_fn=command_test.file_size_limit(150 << 20))
        self.assertRegex(self.pack(*args).stdout, r"; \d+ of them were there already")
        self.check(db, files)
        self.assertEqual(len(stock_records(labels)), len(files))

    def test_other_paths_of_the_source(self):
        root, db = self.partial()
        os.symlink(root, self.dir + "/link")
        limit = command_test.file_size_limit(151 << 20)
        for same in (root + "/", self.dir + "/link", os.path.relpath(root)):
            self.assertNotIn("other files", self.pack(same, db, status=2, preexec_fn=limit).stderr)
        shutil.copytree(root, self.dir + "/copy")
        self.assertIn("other files", self.pack(self.dir + "/copy", db, status=2).stderr)
        self.assertRegex(self.pack(root + "/.", db).stdout, r"; \d+ of them were there already")

    def full(self, *args, **kwargs):
        """What a disk that is full does.  Returns the database, after it was continued with room."""
        files = self.files()
        root, db = self.tree(files), kwargs.pop("db", None) or self.out
        errors = self.pack(root, db, status=2, **kwargs).stderr
        self.assertRegex(errors, "No space left|File too large|the file system may be full")
        self.assertFalse(os.path.exists(db))
        return files, root, db

    def test_file_size_limit(self):
        files, root, db = self.full(preexec_fn=command_test.file_size_limit(150 << 20))
        self.assertRegex(self.pack(root, db).stdout, r"; \d+ of them were there already")
        self.check(db, files)

    def test_full_file_system(self):
        if os.geteuid() != 0:
            self.skipTest("needs root for a file system of its own")
        small = self.fresh("small")
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200M", "none", small], stderr=subprocess.PIPE).returncode != 0:
            self.skipTest("no file system can be mounted")
        self.addCleanup(subprocess.run, ["umount", "-l", small], check=True)
        files, root, db = self.full(db=small + "/db")
        subprocess.run(["mount", "-o", "remount,size=400M", small], check=True)
        self.assertRegex(self.pack(root, db).stdout, r"; \d+ of them were there already")
        self.check(db, files)

    def partial(self):
        """A directory in which packing was interrupted, with two transactions committed."""
        root, db = self.tree(self.files()), self.out
        self.pack(root, db, status=2, preexec_fn=command_test.file_size_limit(150 << 20))
        return root, db

    def test_other_files_or_options(self):
        root, db = self.partial()
        self.assertIn("other options", self.pack(root, db, "--shuffle", "1", status=2).stderr)
        with open(root + "/00/000000", "ab") as f:
            f.write(b"more")
        self.assertIn("other files", self.pack(root, db, status=2).stderr)
        self.assertTrue(os.path.exists(db + ".partial/data.mdb"))

    def test_after_a_restart_of_the_machine(self):
        root, db = self.partial()
        state = db + ".partial.state"
        with open(state, encoding="utf-8") as f:
            lines = f.read().split("\n")
        with open(state, "w", encoding="utf-8") as f:
            f.write("\n".join([lines[0], "another boot", *lines[2:]]))
        self.assertNotIn("there already", self.pack(root, db).stdout)
        self.check(db, self.files())

    def test_two_at_a_time(self):
        root, db = self.partial()
        with open(db + ".partial.state", "rb") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            self.assertIn("another process is packing", self.pack(root, db, status=2).stderr)
        self.pack(root, db)

    def test_what_exists(self):
        root = self.tree({b"a": b"1"})
        db = self.fresh("there")
        self.assertIn("exists already", self.pack(root, db, status=2).stderr)
        os.mkdir(self.dir + "/x.partial")
        with open(self.dir + "/x.partial/mine", "wb"):
            pass
        self.assertIn("is not of lmdbio pack", self.pack(root, self.dir + "/x", status=2).stderr)
        self.assertEqual(os.listdir(self.dir + "/x.partial"), ["mine"])
        # A process was killed before it had written its state, and the directory is not its own.
        with open(self.dir + "/x.partial.state", "wb"):
            pass
        self.assertIn("is not of lmdbio pack", self.pack(root, self.dir + "/x", status=2).stderr)
        self.assertEqual(os.listdir(self.dir + "/x.partial"), ["mine"])
        self.assertIn("No such file", self.pack(root, self.dir + "/no/such", status=2).stderr)
        self.assertIn("No such file", self.pack(self.dir + "/no", self.out, status=2).stderr)


if __name__ == "__main__":
    shimtest.main()
