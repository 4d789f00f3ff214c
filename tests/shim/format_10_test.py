"""Files in the format of LMDB 1.0, read by programs that were built for LMDB 0.9, and by the command lmdbio.

The files are written by tests/support/format_10.h, and by LMDB 1.0 itself if CMake's LMDB10_LIBRARY names its library.
"""
import ctypes
import json
import os
import shutil
import struct
import subprocess
import textwrap
import unittest

import shimtest

PYTHON = "/usr/bin/python3"
INVALID = "MDB_INVALID"

# Prints what a program sees of an environment: all databases, in both directions, with lookups; the same in a child.
READ = textwrap.dedent("""
    import hashlib, os, sys
    import lmdb
    env = lmdb.open(sys.argv[1], readonly=True, max_dbs=8)
    def look(env):
        with env.begin() as txn:
            for name in (None, b"names", b"dups", b"fixed"):
                db = env.open_db(name, txn=txn, create=False)
                h, n = hashlib.sha256(), 0
                for k, v in txn.cursor(db):
                    if name is None and v and len(v) == 48 and k.rstrip(b"\\0") in (b"names", b"dups", b"fixed"):
                        continue
                    h.update(b"%d %d " % (len(k), len(v)) + k + v)
                    n += 1
                back = sum(1 for _ in txn.cursor(db).iterprev())
                flags = sorted(k for k, v in db.flags(txn).items() if v)
                print(name, n, back - (3 if name is None else 0), h.hexdigest(), flags, txn.stat(db)["entries"])
            main = env.open_db(None, txn=txn)
            for i in range(0, 3000, 7):
                assert txn.get(b"%06d" % i, db=main) == value(i), i
            assert txn.get(b"missing", db=main) is None
            print(env.stat()["psize"], env.info()["last_txnid"], env.max_key_size())
    def value(i):
        return (b"%d" % i) * (1 + i % 40 if i % 50 else 3000)
    look(env)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        look(env)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    try:
        env.copy(sys.argv[2])
    except lmdb.Error as e:
        print("copy", next(word for word in str(e).split(": ") if word.startswith("MDB_")))
""")

FILL = textwrap.dedent("""
    import sys
    import lmdb
    env = lmdb.open(sys.argv[1], map_size=64 << 20, max_dbs=8)
    with env.begin(write=True) as txn:
        for i in range(3000):
            txn.put(b"%06d" % i, (b"%d" % i) * (1 + i % 40 if i % 50 else 3000))
        names = env.open_db(b"names", txn=txn)
        for i in range(100):
            txn.put(b"n%d" % i, b"%d" % i, db=names)
        dups = env.open_db(b"dups", txn=txn, dupsort=True)
        for i in range(4000):
            txn.put(b"d%d" % (i % 31 if i % 2 else 0), b"value %d" % i, db=dups)
        fixed = env.open_db(b"fixed", txn=txn, dupsort=True, dupfixed=True, integerdup=True)
        for i in range(6000):
            txn.put(b"f%d" % (i % 17 if i % 2 else 0), i.to_bytes(4, "little"), db=fixed)
""")

# Writes the same records with LMDB 1.0: library, environment of 0.9, new directory, page size.
WRITE_10 = textwrap.dedent("""
    import ctypes, sys
    import lmdb
    CREATE, DUPSORT, DUPFIXED, INTEGERDUP = 0x40000, 0x04, 0x10, 0x20
    lib = ctypes.CDLL(sys.argv[1])
    class Val(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("data", ctypes.c_char_p)]
    def call(name, *args):
        rc = getattr(lib, name)(*args)
        assert rc == 0, (name, rc)
    env, txn, dbi = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint()
    call("mdb_env_create", ctypes.byref(env))
    call("mdb_env_set_mapsize", env, ctypes.c_size_t(64 << 20))
    call("mdb_env_set_maxdbs", env, 8)
    call("mdb_env_set_pagesize", env, int(sys.argv[4]))
    call("mdb_env_open", env, sys.argv[3].encode(), 0, 0o644)
    call("mdb_txn_begin", env, None, 0, ctypes.byref(txn))
    old = lmdb.open(sys.argv[2], readonly=True, max_dbs=8)
    with old.begin() as read:
        for name, flags in ((None, 0), (b"names", 0), (b"dups", DUPSORT), (b"fixed", DUPSORT | DUPFIXED | INTEGERDUP)):
            call("mdb_dbi_open", txn, name, flags | CREATE, ctypes.byref(dbi))
            for k, v in read.cursor(old.open_db(name, txn=read, create=False)):
                if name is not None or k not in (b"names", b"dups", b"fixed"):
                    call("mdb_put", txn, dbi, ctypes.byref(Val(len(k), k)), ctypes.byref(Val(len(v), v)), 0)
    call("mdb_txn_commit", txn)
    lib.mdb_env_close(env)
""")


class Case(shimtest.Case):
    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("Python has no sanitizer's runtime")
        if shimtest.run("stock", [PYTHON, "-c", "import lmdb.cpython"]).returncode != 0:
            self.skipTest("no python3-lmdb")
        self.old = self.fresh("of09")
        self.python("stock", FILL, self.old)

    def python(self, mode, script, *args, status=0, extra=None):
        done = shimtest.run(mode, [PYTHON, "-c", script, *args], extra=extra)
        self.assertEqual(done.returncode, status, done.out + done.err)
        return done

    def read(self, mode, path, **kwargs):
        return self.python(mode, READ, path, self.fresh("copied"), **kwargs)

    def converted(self, page_size):
        path = self.fresh(f"of10-{page_size}")
        subprocess.run([shimtest.CONFIG["programs"]["make_format_10"], self.old, path + "/data.mdb", str(page_size)],
                       check=True)
        return path

    def command(self, *args, status=0):
        done = subprocess.run([shimtest.CONFIG["command"], *args], env=shimtest.environment("stock"),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100)
        self.assertEqual(done.returncode, status, done.stdout[-2000:] + done.stderr)
        return done.stdout


class Format10(Case):
    def test_programs_of_09_read_files_of_10(self):
        want = self.read("stock", self.old).out.splitlines()
        for page_size in (512, 4096, 65536):
            for mode in ("preload", "soname"):
                with self.subTest(page_size=page_size, mode=mode):
                    path = self.converted(page_size)
                    got = self.read(mode, path)
                    lines = got.out.splitlines()
                    self.assertEqual(lines[:4], want[:4])
                    self.assertEqual(lines[5:9], want[:4], "in the child")
                    psize, txnid, key = map(int, lines[4].split())
                    self.assertGreaterEqual(psize, page_size)
                    self.assertEqual(txnid, 9)
                    self.assertEqual(key, (psize - 24) // 2 // 2 * 2 - 2 - 8 - 48)
                    self.assertEqual(lines[-1], "copy " + INVALID)
                    self.assertIn("a file of LMDB 1.0, which LMDB 0.9 refuses: reading it without locks", got.err)
                    self.assertGreater(got.calls_ours(), 10000)
                    self.assertEqual(os.listdir(path), ["data.mdb"], "the lock file belongs to 1.0")
                    self.assertNotEqual(self.read("stock", path, status=1).err.find(INVALID), -1)

    def test_files_that_lmdb_10_has_written(self):
        library = shimtest.CONFIG["lmdb10"]
        if not library:
            self.skipTest("no library of LMDB 1.0 (CMake's LMDB10_LIBRARY)")
        want = self.read("stock", self.old).out.splitlines()
        for page_size in (512, 4096, 65536):
            with self.subTest(page_size=page_size):
                path = self.fresh("written")
                self.python("stock", WRITE_10, library, self.old, path, str(page_size))
                got = self.read("preload", path)
                lines = got.out.splitlines()
                self.assertEqual(lines[:4], want[:4])
                self.assertEqual(lines[5:9], want[:4], "in the child")
                if shimtest.CONFIG["command"]:
                    self.assertEqual(json.loads(self.command("check", "--json", path))["errors"], 0)

    def test_strict_refuses_as_stock_does(self):
        path = self.converted(4096)
        self.assertIn(INVALID, self.read("preload", path, status=1, extra={"LMDBIO_STRICT": "1"}).err)

    def test_encrypted_pages_are_not_read(self):
        path = self.converted(4096)
        with open(path + "/data.mdb", "r+b") as f:
            for page in (0, 1):
                f.seek(4096 * page + 24 + 24 + 4)  # flags of the free database's record
                f.write(struct.pack("<H", 0x2008))
        done = self.read("preload", path, status=1)
        self.assertIn(INVALID, done.err)
        self.assertEqual(done.err.count("the pages are encrypted"), 1)

    def test_damage_is_an_error(self):
        path = self.converted(4096)
        with open(path + "/data.mdb", "r+b") as f:
            size = os.fstat(f.fileno()).st_size
            for page in range(2, size // 4096):
                f.seek(4096 * page + 18)
                if struct.unpack("<H", f.read(2))[0] == 2:  # a leaf page
                    f.seek(4096 * page + 20)
                    f.write(b"\xf0\xff")
        self.assertIn("MDB_CORRUPTED", self.read("preload", path, status=1).err)

    def test_a_writer_of_09_is_refused(self):
        path = self.converted(4096)
        for mode in ("stock", "preload"):
            done = self.python(mode, FILL, path, status=1)
            self.assertIn(INVALID, done.err)


class Command(Case):
    def setUp(self):
        super().setUp()
        if not shimtest.CONFIG["command"]:
            self.skipTest("built without the command")

    def test_info_check_and_index(self):
        for page_size in (512, 65536):
            path = self.converted(page_size)
            info = json.loads(self.command("info", "--json", path))
            self.assertEqual(info["format"], "1.0")
            self.assertEqual(info["transaction"], 9)
            self.assertIn(b"format of LMDB 1.0", self.command("info", path))
            check = json.loads(self.command("check", "--json", path))
            self.assertEqual(check["errors"], 0)
            self.assertEqual(check["named_databases"], 3)
            self.command("index", "--all", path)
            names = {n for n in os.listdir(path) if n.endswith(".lmdbio-index")}
            self.assertEqual(names, {"data.mdb.lmdbio-index", "data.mdb.names.lmdbio-index", "data.mdb.dups.lmdbio-index",
                                     "data.mdb.fixed.lmdbio-index"})
        old = json.loads(self.command("info", "--json", self.old))
        self.assertEqual(old["format"], "0.9")

    def test_check_names_damage(self):
        path = self.converted(4096)
        with open(path + "/data.mdb", "r+b") as f:
            f.seek(4096 * 5 + 18)
            f.write(b"\0\0")
        self.command("check", path, status=1)

    def test_records_are_those_of_the_other_file(self):
        path = self.converted(4096)
        for name in ("names", "fixed"):
            self.assertEqual(self.command("cat", "--db", name, path, "n7" if name == "names" else "f3"),
                             self.command("cat", "--db", name, self.old, "n7" if name == "names" else "f3"))
        listed = self.command("ls", "--json", path).splitlines()
        of_old = self.command("ls", "--json", self.old).splitlines()
        self.assertEqual(len(listed), len(of_old))

    def test_diff_of_one_named_database(self):
        path = self.converted(4096)
        self.command("diff", "--db", "names", self.old, path)


if __name__ == "__main__":
    shimtest.main()
