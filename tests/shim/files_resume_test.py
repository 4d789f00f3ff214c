"""lmdbio pack that is killed, or has no room, at any moment: it continues, and the result is the same."""
import fcntl
import os
import random
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

    def check(self, db, files):
        found = stock_records(db)
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
        for extra in ((), ("--max-size", "100M"), ("--shuffle", "3", "--label-db", self.dir + "/labels")):
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
                elif extra[0] == "--max-size":
                    found = [x for s in sorted(os.listdir(db)) for x in stock_records(f"{db}/{s}")]
                    self.assertEqual([k for k, _ in found], sorted(files))
                    self.assertTrue(all(v == files[k] for k, v in found))
                else:
                    found = stock_records(db)
                    self.assertEqual(sorted((k[9:], v) for k, v in found), sorted(files.items()))
                    self.assertEqual([k for k, _ in stock_records(self.dir + "/labels")], [k for k, _ in found])

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
        state = db + ".partial/lmdbio-pack"
        with open(state, encoding="utf-8") as f:
            lines = f.read().split("\n")
        with open(state, "w", encoding="utf-8") as f:
            f.write(lines[0] + "\nanother boot\n")
        self.assertNotIn("there already", self.pack(root, db).stdout)
        self.check(db, self.files())

    def test_two_at_a_time(self):
        root, db = self.partial()
        with open(db + ".partial/lmdbio-pack", "rb") as f:
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
        self.assertIn("No such file", self.pack(root, self.dir + "/no/such", status=2).stderr)
        self.assertIn("No such file", self.pack(self.dir + "/no", self.out, status=2).stderr)


if __name__ == "__main__":
    shimtest.main()
