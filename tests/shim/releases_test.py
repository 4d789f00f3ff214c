"""Programs built for LMDB 1.0, and the files of 0.9 that only LMDBIO opens for them.

Most of these tests use a stand-in for 1.0 (stand_in_10.c).  The others need LMDB 1.0: the CMake variable LMDB10_DIRECTORY.
"""
import os
import re
import shutil
import subprocess
import unittest

import cold_test
import shimtest
from cold_test import SMALL, Program

MDB_VERSION_MISMATCH, MDB_INVALID = -30794, -30793
LINE = re.compile(r"lmdbio: \S+: a file of LMDB 0\.9, which LMDB 1\.0 refuses: reading it without locks; [^\n]*\n")


def stand_in():
    return os.path.join(shimtest.CONFIG["build"], "tests", "shim", "stand_in_10", "liblmdb.so.1")


class Releases(shimtest.Case):
    program = "releases_10"

    def modes(self):
        return ["linked"] if shimtest.CONFIG["sanitize"] else ["preload", "linked"]

    def run_10(self, mode, what, path, extra=None):
        name = self.program + ("_linked" if mode == "linked" else "")
        return shimtest.run(mode, [shimtest.CONFIG["programs"][name], what, path], extra)

    def made_by_09(self):
        path = self.fresh("of09")
        done = shimtest.run("stock", ["releases", "write", path])
        self.assertEqual(done.returncode, 0, done.out)
        return path

    def read_09(self, path):
        """What a program of 0.9 reads."""
        read = shimtest.run("stock", ["releases", "read", path])
        self.assertEqual(read.returncode, 0, read.out)
        self.assertIn("named = 0", read.out)
        return read.out

    def refused(self, got, code):
        self.assertEqual((got.returncode, got.out), (1, f"open = {code}\n"), got.err)


class StandIn(Releases):
    def test_writes_pass_through(self):
        stock = self.run_10("stock", "write", self.fresh())
        self.assertEqual(stock.returncode, 0, stock.out + stock.err)
        for number in ("flags 500", "is a database: 700", "mdb_env_rollback(env, 99) = 1099", "mdb_txn_prepare(txn) = -30775"):
            self.assertIn(number, stock.out)  # the stand-in answers, not the LMDB under it
        for mode in self.modes():
            with self.subTest(mode=mode):
                self.check_same(stock, self.run_10(mode, "write", self.fresh()))

    def test_a_file_of_09_is_read(self):
        path = self.made_by_09()
        expected = self.read_09(path)
        os.unlink(path + "/lock.mdb")
        self.refused(self.run_10("stock", "read", path), MDB_VERSION_MISMATCH)
        for mode in self.modes():
            with self.subTest(mode=mode):
                got = self.run_10(mode, "read", path)
                self.assertEqual(got.returncode, 0, got.out[-2000:])
                if got.out != expected:
                    self.fail("transcripts differ at " + shimtest.difference(expected, got.out))
                self.assertRegex(got.err, f"^{LINE.pattern}$")
                self.assertGreater(got.calls_ours(), 1000)
        self.assertEqual(os.listdir(path), ["data.mdb"], "the lock file belongs to 0.9")

    # The engine reads the file, and the stand-in has the lock file.
    def test_a_file_of_10_is_served(self):
        old = self.made_by_09()
        expected = self.read_09(old)
        for page_size in (512, 4096, 65536):
            path = self.fresh(f"of10-{page_size}")
            subprocess.run([shimtest.CONFIG["programs"]["make_format_10"], old, path + "/data.mdb", str(page_size)],
                           check=True)
            os.mkdir(path + ".09")
            shutil.copy(old + "/data.mdb", path + ".09")
            for mode in self.modes():
                with self.subTest(mode=mode, page_size=page_size):
                    got = self.run_10(mode, "read", path)
                    self.assertEqual((got.returncode, got.err), (0, ""), got.out[-2000:])
                    if got.out != expected:
                        self.fail("transcripts differ at " + shimtest.difference(expected, got.out))
                    self.assertGreater(got.calls_ours(), 1000)
                    [e] = got.environments()
                    self.assertTrue(e["locks"])
                    self.assertEqual(os.listdir(path), ["data.mdb"])
                    self.assertEqual(sorted(os.listdir(path + ".09")), ["data.mdb", "lock.mdb"])

    def test_strict(self):
        path = self.made_by_09()
        for mode in self.modes():
            got = self.run_10(mode, "read", path, {"LMDBIO_STRICT": "1"})
            self.refused(got, MDB_VERSION_MISMATCH)
            self.assertEqual(got.err, "")
        if not shimtest.CONFIG["sanitize"]:
            self.refused(self.run_10("disabled", "read", path), MDB_VERSION_MISMATCH)

    def test_damaged_metas_are_left_to_lmdb(self):
        path = self.made_by_09()
        for at, what in ((4096 + 136, b"\0" * 8), (40, b"\1\0\0\0"), (16, b"\0" * 4), (20, b"\3\0\0\0")):
            with self.subTest(at=at):
                bad = self.fresh("bad")
                shutil.copy(path + "/data.mdb", bad)
                for page in (0, 4096):
                    with open(bad + "/data.mdb", "r+b") as f:
                        f.seek(page + at % 4096)
                        f.write(what)
                for mode in self.modes():
                    got = self.run_10(mode, "read", bad)
                    self.refused(got, MDB_VERSION_MISMATCH)
                    self.assertLessEqual(len(got.err.splitlines()), 1)
        for bad in ("missing", self.fresh("empty")):
            for mode in self.modes():
                self.refused(self.run_10(mode, "read", bad), MDB_VERSION_MISMATCH)

    # LMDBIO_STOCK_LIB says which library programs use that are linked to one.
    def test_configured_library(self):
        path = self.made_by_09()
        expected = self.read_09(path)
        for mode in self.modes():
            got = self.run_10(mode, "read", path, {"LMDBIO_STOCK_LIB": os.path.realpath(shimtest.CONFIG["lmdb"])})
            self.assertIn("mdb_txn_renew(txn) = 0", got.out)
            self.assertEqual(got.err, "", "0.9 refuses no file of 0.9")
        if not shimtest.CONFIG["sanitize"]:
            got = shimtest.run("preload", ["releases", "read", path], {"LMDBIO_STOCK_LIB": stand_in()})
            self.assertEqual(got.out, expected)
            self.assertRegex(got.err, f"^{LINE.pattern}$")



def released(out):
    return re.findall(r"^# release (.*)$", out, re.MULTILINE)


def plain(text):
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


class Modules(shimtest.Case):
    """Modules opened with RTLD_LOCAL."""

    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("needs a preload")

    def host(self, mode, names, extra=None):
        argv = ["dlopen_host"]
        for i, name in enumerate(names):
            argv += [shimtest.CONFIG["modules"][name], self.fresh(f"db{i}")]
        return shimtest.run(mode, argv, extra)

    def compare(self, names, releases, extra=None):
        """All modules run the same code, so the output is that of as many modules with 0.9."""
        self.assertEqual(self.host("stock", names).returncode, 1, "stock refuses what 1.0 cannot read")
        with_09 = ["linked", "stand_in", "bundled"][:len(names)]
        if not all(shimtest.CONFIG["modules"][name] for name in with_09):
            self.skipTest("no static liblmdb to bundle")
        expected = self.host("stock", with_09)
        got = self.host("preload", names, extra)
        self.assertEqual(got.returncode, 0, got.out[-2000:] + got.err)
        self.assertEqual(released(got.out), releases)
        if plain(expected.out) != plain(got.out):
            self.fail(shimtest.difference(plain(expected.out), plain(got.out)))
        self.assertEqual(len(LINE.findall(got.err)), len(got.err.splitlines()), got.err)
        self.assertEqual(len(got.err.splitlines()), len(names) - names.count("linked"))
        self.assertGreater(got.calls_ours(), 1000 * len(names))

    def test_linked_to_10(self):
        self.compare(["linked_10"], ["1.0"])

    def test_linked_to_either(self):
        self.compare(["linked", "linked_10"], ["0.9", "1.0"])
        self.compare(["linked_10", "linked"], ["1.0", "0.9"])

    def test_both_in_one_module(self):
        self.compare(["both"], ["1.0", "0.9"])
        self.compare(["linked", "both", "linked_10"], ["0.9", "1.0", "0.9", "1.0"])

    # A library of another release is not used for the functions of one that the module contains.
    def test_both_in_one_module_and_a_configured_library(self):
        self.compare(["both"], ["1.0", "0.9"], {"LMDBIO_STOCK_LIB": os.path.realpath(shimtest.CONFIG["lmdb"])})


class Walking(cold_test.Walks):
    """cold.c, which checks every byte: a program whose real library is the stand-in."""
    right = "right 1600"

    def cold(self, path, commands, extra=None):
        return self.run_cold([f"open {path}", "begin 0", *commands, "end 0", "close 0"],
                             {"LMDBIO_STOCK_LIB": stand_in(), **(extra or {})}, known=SMALL)

    def test_walks_and_threads(self):
        path = self.db(SMALL)
        for io in ("direct", "buffered", "mmap"):
            with self.subTest(io=io):
                got = self.cold(path, ["walk 0", "back 0", "range 0 700", "pair 0"], {"LMDBIO_IO": io})
                self.assertEqual((got["walk"], got["back"], got["range"], got["pair"]),
                                 ([self.right], [self.right], ["right 900"], ["right 3200"]), got.out)
                self.assertRegex(got.err, f"^{LINE.pattern}$")
        got = self.run_cold([*[f"open {path}", "begin 0"], f"open {path}", "begin 1", "threads", "turns"],
                            {"LMDBIO_STOCK_LIB": stand_in()}, known=SMALL)
        self.assertEqual(got["threads"] + got["turns"], ["right 3200", "right 3200"], got.out)

    def test_forked_children(self):
        got = self.cold(self.db(SMALL), ["part 0 400", "fork 0 4", "walk 0"])
        self.assertEqual((got["part"], got["walk"]), (["right 400"], [self.right]), got.out + got.err)
        self.assertTrue(got["fork"][0].startswith(self.right), got.out)

    def test_map_size(self):
        again = ["begin 0", "walk 0", "end 0"]
        got = self.run_cold([f"open {self.db(SMALL)}", *again, "resize 0 512", *again, "resize 0 1", *again, "close 0"],
                            {"LMDBIO_STOCK_LIB": stand_in()}, known=SMALL)
        self.assertEqual((got["walk"], got["resize"]), ([self.right] * 3, ["0", "0"]), got.out)

    # There are no locks, so the writer of 0.9 may overwrite pages of a transaction from its second commit on.
    def test_a_writer_commits(self):
        path = self.fresh("written")
        write = Program(self, "stock")
        for command in (SMALL, f"make {path}", f"writer {path}", "commit"):
            self.assertEqual(write.do(command), "0")
        read = Program(self, "preload", {"LMDBIO_STOCK_LIB": stand_in()})
        for command in (SMALL, "versions", f"open {path}"):
            self.assertEqual(read.do(command), "0")
        for _ in range(4):
            self.assertEqual(read.do("begin 0"), "0")
            self.assertEqual(read.do("part 0 700"), "right 700")
            self.assertEqual(write.do("commit"), "0")
            self.assertEqual(read.do("rest 0"), "right 900")
            self.assertEqual(read.do("end 0"), "0")
        self.assertEqual(read.do("close 0"), "0")
        self.assertEqual(read.end(), 0)


class Real(Releases):
    program = "releases_real"

    def setUp(self):
        super().setUp()
        if self.program not in shimtest.CONFIG["programs"]:
            self.skipTest("needs LMDB 1.0: LMDB10_DIRECTORY is not set")
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("needs a preload")

    def test_its_own_files(self):
        paths = [self.fresh("stock"), self.fresh("ours")]
        stock, ours = (self.run_10(mode, "write", path) for mode, path in zip(("stock", "preload"), paths))
        self.assertEqual(stock.returncode, 0, stock.out)
        self.check_same(stock, ours)
        files = []
        for path in paths:
            with open(path + "/data.mdb", "rb") as f:
                files.append(f.read())
        self.assertTrue(files[0] == files[1], "the files differ")
        stock, ours = (self.run_10(mode, "read", paths[0]) for mode in ("stock", "preload"))
        self.assertEqual(stock.returncode, 0, stock.out)
        self.check_same(stock, ours)
        self.assertGreater(ours.calls_ours(), 1000)

    def test_a_file_of_09_is_read(self):
        path = self.made_by_09()
        expected = self.read_09(path)
        os.unlink(path + "/lock.mdb")
        got = self.run_10("preload", "read", path)
        self.assertEqual(got.out, expected)
        self.assertRegex(got.err, f"^{LINE.pattern}$")
        self.assertEqual(os.listdir(path), ["data.mdb"])
        for mode, extra in (("preload", {"LMDBIO_STRICT": "1"}), ("disabled", None), ("stock", None)):
            self.refused(self.run_10(mode, "read", path, extra), MDB_INVALID)


if __name__ == "__main__":
    shimtest.main()
