"""Databases of somebody else, read without any right but to read: what the owner sees.

Not as root, "somebody else" is played by files and directories without write permission.
"""
import os
import re

import confined
import shimtest

SECOND = "-- a second transaction of this thread"


def passes(transcript):
    """program.c's three passes over the database (plain, MDB_NOTLS, MDB_NOLOCK), and what comes after."""
    parts = re.split(r"^(?=-- reads, flags |-- errors)", transcript, flags=re.M)
    return parts[1:]


def without_locks(one, reference):
    """`one` pass, with what differs for want of locks taken from the pass that wanted none."""
    section = re.compile(SECOND + r"\n.*?^(?=-- other orders)", re.M | re.S)
    lines = re.compile(r"^reader list: .*\n", re.M)
    one, replaced = section.subn(lambda _: section.search(reference).group(), one)
    one, listed = lines.subn(lambda _: lines.search(reference).group(), one)
    assert replaced == listed == 1
    return one


class Unprivileged(confined.Case):
    def setUp(self):
        super().setUp()
        try:
            self.user = confined.as_nobody()
        except confined.Missing as why:
            self.skipTest(str(why))
        if not confined.ROOT:
            self.absent("root: files are this user's own, without write permission")

    def scratch(self):
        path = self.fresh("scratch")
        os.chmod(path, 0o777)
        return path

    def own(self):
        """An empty directory of the other user's."""
        path = self.fresh("own")
        if confined.ROOT:
            os.chown(path, confined.NOBODY, confined.NOBODY)
        return path

    def somebodys(self, name, lock):
        """A database of program.c's, its lock file absent or of that mode: (path, the owner's transcript)."""
        path = os.path.join(self.dir, name)
        os.mkdir(path)
        done = shimtest.run("stock", ["program", path, "write"])
        self.assertEqual(done.returncode, 0, done.out[-2000:])
        owners = shimtest.run("stock", ["program", path, "read", self.scratch()])
        self.assertEqual(owners.returncode, 0, owners.out[-2000:])
        lock_file = os.path.join(path, "lock.mdb")
        if lock is None:
            os.remove(lock_file)
        else:
            os.chmod(lock_file, lock)
        os.chmod(os.path.join(path, "data.mdb"), 0o644 if confined.ROOT else 0o444)
        os.chmod(path, 0o755 if confined.ROOT else 0o555)
        return path, owners.out

    def read(self, mode, path, extra=None):
        return confined.run(mode, ["program", path, "read", self.scratch()], extra, self.user)

    def lines(self, got, path):
        """Those about the database; program.c opens a file of garbage as well."""
        return [line for line in got.err.splitlines() if line.startswith(f"lmdbio: {path}: ")]

    # The lock file can be used: stock can read it too.
    def test_with_the_lock_file(self):
        path, owners = self.somebodys("db", 0o666)
        stock = self.read("stock", path)
        self.assertEqual((stock.returncode, stock.out), (0, owners))
        for mode in shimtest.modes():
            with self.subTest(mode=mode):
                got = self.read(mode, path)
                self.assertEqual(got.returncode, 0, got.out[-2000:] + got.err)
                if got.out != owners:
                    self.fail("transcripts differ at " + shimtest.difference(owners, got.out))
                self.assertEqual(self.lines(got, path), [])

    # It cannot: stock refuses, LMDBIO gives what the owner gets, but for what is about locks.
    def test_without_the_lock_file(self):
        for name, lock in (("absent", None), ("read-only", 0o644 if confined.ROOT else 0o444)):
            path, owners = self.somebodys(name, lock)
            stock = self.read("stock", path)
            self.assertEqual(stock.returncode, 1)
            self.assertIn("mdb_env_open(env, dir, MDB_RDONLY | extra, 0644) = 13, giving up", stock.out)
            plain, notls, nolock, errors = passes(owners)
            want = "".join([without_locks(plain, nolock), without_locks(notls, nolock), nolock, errors])
            for mode in shimtest.modes():
                with self.subTest(lock=name, mode=mode):
                    got = self.read(mode, path)
                    self.assertEqual(got.returncode, 0, got.out[-2000:] + got.err)
                    if got.out != want:
                        self.fail("transcripts differ at " + shimtest.difference(want, got.out))
                    self.assertEqual(len(self.lines(got, path)), 1, got.err)
                    self.assertEqual(os.path.exists(os.path.join(path, "lock.mdb")), lock is not None)
                with self.subTest(lock=name, mode=mode, strict=True):
                    got = self.read(mode, path, {"LMDBIO_STRICT": "1"})
                    self.check_same(stock, got)

    # Nothing of the machinery needs more than an ordinary user has.
    def test_in_a_directory_of_ones_own(self):
        for name, arguments in (("program", []), ("passthrough", []), ("readers", []), ("counted", []),
                                ("forking", ["inherit"]), ("forking", ["reopen"])):
            stock = confined.run("stock", [name, self.own(), *arguments], {}, self.user)
            self.assertEqual(stock.returncode, 0, stock.out[-2000:] + stock.err)
            for mode in shimtest.modes():
                with self.subTest(program=name, mode=mode):
                    # readers.c fills the reader table; program.c opens garbage.
                    variables = {"LMDBIO_STRICT": "1", "LMDBIO_LOG": "error"}
                    got = confined.run(mode, [name, self.own(), *arguments], variables, self.user)
                    self.check_same(stock, got)

    # Statistics of another user go where that user may write, or are given up in one line.
    def test_statistics(self):
        path, _ = self.somebodys("db", None)
        for to, lines in ((os.path.join(self.scratch(), "stats"), 0), (os.path.join(path, "stats"), 1)):
            with self.subTest(to=to):
                mode = shimtest.modes()[0]
                commands = [f"open {path}", "begin", "abort", "close"]
                got = confined.run(mode, ["refused", *commands], {"LMDBIO_STATS": to}, self.user)
                self.assertEqual(got.out, "open = 0\nbegin = 0\nabort = 0\nclose = 0\n", got.err)
                self.assertEqual(len(got.err.splitlines()), 1 + lines, got.err)
                self.assertEqual(os.path.exists(to), not lines)


if __name__ == "__main__":
    shimtest.main()
