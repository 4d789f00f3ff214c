"""The command lmdbio: run, info, check, diff, index, config, ps; on good, damaged, tiny and foreign files."""
import contextlib
import ctypes
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import unittest

import shimtest

CREATE, NOSYNC, NOLOCK, DUPSORT, DUPFIXED = 0x40000, 0x10000, 0x400000, 0x04, 0x10
CP_COMPACT = 1


class Val(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("data", ctypes.c_void_p)]


def val(data):
    return Val(len(data), ctypes.cast(ctypes.create_string_buffer(data, max(1, len(data))), ctypes.c_void_p))


class Writer:
    """A writable environment of the real LMDB in `path`."""

    def __init__(self, path, flags=0):
        self.lib = ctypes.CDLL(shimtest.CONFIG["lmdb"])
        self.env = ctypes.c_void_p()
        self.call("mdb_env_create", ctypes.byref(self.env))
        self.call("mdb_env_set_mapsize", self.env, ctypes.c_size_t(64 << 20))
        self.call("mdb_env_set_maxdbs", self.env, 8)
        self.call("mdb_env_open", self.env, path.encode(), NOSYNC | flags, 0o644)

    def call(self, name, *args):
        rc = getattr(self.lib, name)(*args)
        if rc:
            raise AssertionError(f"{name}: {rc}")

    def put(self, records, name=None, flags=0):
        txn, dbi = ctypes.c_void_p(), ctypes.c_uint()
        self.call("mdb_txn_begin", self.env, None, 0, ctypes.byref(txn))
        self.call("mdb_dbi_open", txn, name, CREATE | flags, ctypes.byref(dbi))
        for key, data in records:
            self.call("mdb_put", txn, dbi, ctypes.byref(val(key)), ctypes.byref(val(data)), 0)
        self.call("mdb_txn_commit", txn)

    def close(self):
        self.lib.mdb_env_close(self.env)


def command(*args, env=None, **kwargs):
    full = shimtest.environment("stock", env)
    return subprocess.run([shimtest.CONFIG["command"], *args], env=full, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100, **kwargs)


def file_size_limit(limit):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


class Case(shimtest.Case):
    def setUp(self):
        super().setUp()
        if not shimtest.CONFIG["command"]:
            self.skipTest("built without the command")

    def lmdbio(self, *args, status=0, **kwargs):
        done = command(*args, **kwargs)
        self.assertEqual(done.returncode, status, f"{args}\n{done.stdout}{done.stderr}")
        return done

    def json(self, *args, **kwargs):
        return json.loads(self.lmdbio(*args, "--json", **kwargs).stdout)

    def database(self, name="db"):
        """1000 plain records, long values, duplicates on sub-pages and in trees, fixed-size ones, an odd name."""
        path = self.fresh(name)
        w = Writer(path)
        w.put([(b"%05d" % i, b"v" * (i % 60)) for i in range(1000)], b"plain")
        w.put([(b"long%d" % i, b"x" * (5000 * (i + 1))) for i in range(5)], b"long")
        w.put([(b"few", b"%d" % i) for i in range(5)] + [(b"many", b"d%d" % i) for i in range(2000)], b"dups", DUPSORT)
        w.put([(b"k", struct.pack(">I", i)) for i in range(3000)], b"fixed", DUPSORT | DUPFIXED)
        w.put([(b"a", b"b")], b"odd\n\xff")
        w.put([(b"beside", b"the named ones")])
        w.close()
        os.unlink(path + "/lock.mdb")
        return path

    @contextlib.contextmanager
    def writer(self, path, body):
        """Runs `body` again and again in a process that writes to `path` as `w`; n is 0 at first."""
        body = ("import sys; sys.path.insert(0, sys.argv[1]); import json, time, shimtest, command_test\n"
                "shimtest.CONFIG.update(json.load(open(sys.argv[2])))\n"
                "w = command_test.Writer(sys.argv[3]); print('ready', flush=True); n = 0\n"
                "import select\n"
                "while not select.select([sys.stdin], [], [], 0)[0]:\n"
                "    " + body)
        config = os.path.join(self.dir, "config")
        with open(config, "w", encoding="utf-8") as f:
            json.dump(shimtest.CONFIG, f)
        here = os.path.dirname(os.path.abspath(__file__))
        with subprocess.Popen([sys.executable, "-B", "-c", body, here, config, path],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
            try:
                self.assertEqual(writer.stdout.readline(), b"ready\n")
                yield
            finally:
                writer.stdin.close()
            self.assertEqual(writer.wait(), 0)

    def patch(self, path, at, data):
        with open(path, "r+b") as f:
            f.seek(at)
            f.write(data)

    def newest(self, path):
        """(page size, number of the newer meta page)"""
        with open(path, "rb") as f:
            head = f.read(40 + 4)
            size = struct.unpack_from("<I", head, 40)[0]
            ids = []
            for i in range(2):
                f.seek(i * size + 144)
                ids.append(struct.unpack("<Q", f.read(8))[0])
        return size, int(ids[1] > ids[0])


class General(Case):
    def test_help_and_version(self):
        self.assertEqual(self.lmdbio("--version").stdout, f"lmdbio {shimtest.CONFIG['version']}\n")
        self.assertIn("run", self.lmdbio("--help").stdout)
        for name in ("run", "info", "check", "index", "config", "ps"):
            self.assertIn("--json", self.lmdbio(name, "--help").stdout)
        self.assertIn("Usage: lmdbio run [OPTIONS] [--] PROGRAM [ARGS...]\n", self.lmdbio("run", "--help").stdout)

    def test_usage(self):
        for args in ((), ("frob",), ("info",), ("check",), ("check", "a", "b"), ("check", "--meta", "2", "."),
                     ("index",), ("index", "--db", "."), ("config", "x"), ("ps", "x"), ("run",), ("run", "--frob", "true"), ("run", "--set")):
            done = self.lmdbio(*args, status=2)
            self.assertNotEqual(done.stderr, "", args)
            self.assertEqual(done.stdout, "", args)

    def test_mistyped(self):
        for given, meant in (("chekc", "check"), ("inof", "info"), ("indx", "index"), ("confg", "config"), ("rnu", "run")):
            self.assertEqual(self.lmdbio(given, status=2).stderr,
                             f"lmdbio: unknown command: {given}; did you mean {meant}?\n")
        self.assertEqual(self.lmdbio("frobnicate", "x", status=2).stderr,
                         "lmdbio: unknown command: frobnicate; lmdbio --help lists them\n")

    # More of ps: tests/procs/node_test.py.
    def test_nothing_is_shared(self):
        def alone(*args):
            # A /dev/shm of its own, since processes of other tests that were killed leave chunk files.
            mounted = ["sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]
            return subprocess.run(["unshare", "--map-root-user", "--ipc", "--mount", *mounted, *args], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100)
        try:
            if alone("true").returncode != 0:
                self.skipTest("no IPC namespaces here")
        except OSError as why:
            self.skipTest(str(why))
        ps = [shimtest.CONFIG["command"], "ps"]
        for args, output in (((), "no process of this user shares a file on this node\n"), (("--clean",), "0 tables removed, 0 chunk files removed, statistics of 0 processes removed\n")):
            done = alone(*ps, *args)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, output, ""))
        self.assertEqual(json.loads(alone(*ps, "--json").stdout), {"tables": [], "server": None})
        self.assertEqual(json.loads(alone(*ps, "--clean", "--json").stdout),
                         {"removed": 0, "removed_chunk_files": 0, "removed_statistics": 0, "removed_server": False})

    def test_a_closed_output_is_an_error(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([shimtest.CONFIG["command"], "config"], stdout=full, stderr=subprocess.PIPE, text=True,
                                  env=shimtest.environment("stock"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("standard output", done.stderr)


class Config(Case):
    def test_where_values_come_from(self):
        rows = {r["name"]: r for r in self.json("config", env={"LMDBIO_LOG": "debug", "LMDBIO_STATS": "%q"})}
        self.assertEqual((rows["LMDBIO_LOG"]["value"], rows["LMDBIO_LOG"]["source"]), ("debug", "environment"))
        self.assertEqual((rows["LMDBIO_STATS"]["value"], rows["LMDBIO_STATS"]["source"]), ("0", "invalid"))
        self.assertEqual(rows["LMDBIO_STATS"]["refused"], "%q")
        self.assertEqual((rows["LMDBIO_DISABLE"]["value"], rows["LMDBIO_DISABLE"]["source"]), ("0", "default"))
        text = self.lmdbio("config", env={"LMDBIO_LOG": "debug"}).stdout
        for name in rows:
            self.assertIn(name + "=", text)
        self.assertTrue(text.startswith("LMDBIO_LOG=debug\n    from: environment\n"), text)  # what differs from the default is first


class Paths(Case):
    def refused(self, path, *texts):
        for name in ("info", "check", "index"):
            done = self.lmdbio(name, path, status=2)
            self.assertEqual(done.stdout, "")
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            for text in texts:
                self.assertIn(text, done.stderr)

    def file(self, name, data):
        path = os.path.join(self.dir, name)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def test_what_is_no_database(self):
        self.refused(os.path.join(self.dir, "none"), "no such file")
        self.refused(self.fresh("bare"), "without data.mdb")
        self.refused(self.file("empty", b""), "empty (0 bytes)")
        self.refused(self.file("text", b"hello\n" * 2000), "not an LMDB file")
        self.refused(self.file("short", b"hello\n"), "truncated, or not an LMDB file: 6 bytes")
        fifo = os.path.join(self.dir, "fifo")
        os.mkfifo(fifo)
        self.refused(fifo, "a FIFO")
        self.refused("/dev/null", "a character device")
        inside = self.fresh("inside")
        os.mkfifo(inside + "/data.mdb")
        self.refused(inside, "a FIFO")
        path = os.path.join(self.dir, "socket")
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path)
            self.refused(path, "a socket")

    @unittest.skipIf(os.geteuid() == 0, "root may read everything")
    def test_no_permission(self):
        path = self.file("closed", b"x")
        os.chmod(path, 0)
        self.refused(path, "no permission")

    def test_no_permission_as_another_user(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")
        os.chmod(self.dir, 0o755)
        path = self.file("closed", b"x")
        os.chmod(path, 0o600)
        shown = os.path.join(self.dir, "lmdbio")  # the build directory may be closed to others
        shutil.copy(shimtest.CONFIG["command"], shown)
        os.chmod(shown, 0o755)
        done = subprocess.run([shown, "check", path], user=65534, group=65534, extra_groups=[], stderr=subprocess.PIPE,
                              text=True, env=shimtest.environment("stock"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("no permission", done.stderr)

    def test_other_formats(self):
        def meta(at, magic, version, order="<"):
            head = bytearray(8192)
            struct.pack_into("<H", head, 10, 8)
            struct.pack_into(order + "II", head, at, magic, version)
            return bytes(head)

        magic = 0xBEEFC0DE
        self.refused(self.file("v2", meta(16, magic, 2)), "data format version 2")
        self.refused(self.file("devel", meta(16, magic, 999)), "data format version 999")
        self.refused(self.file("devel1.0", meta(24, magic, 999)), "data format version 999")
        self.refused(self.file("nosize1.0", meta(24, magic, 3)), "both meta pages are damaged", "page size 0")
        self.refused(self.file("swapped", meta(16, magic, 1, ">")), "other byte order")
        self.refused(self.file("w32", meta(12, magic, 1)), "32-bit")
        self.refused(self.file("w32swapped", meta(12, magic, 1, ">")), "32-bit", "other byte order")
        self.refused(self.file("nosize", meta(16, magic, 1)), "both meta pages are damaged", "page size 0")

    def test_truncated(self):
        path = self.database() + "/data.mdb"
        size, _ = self.newest(path)
        os.truncate(path, size + 100)
        self.refused(path, "truncated")
        os.truncate(path, 2 * size)
        done = self.lmdbio("check", path, status=1)
        self.assertIn("beyond the end of the file", done.stdout)
        self.assertIn("DAMAGED", self.lmdbio("info", path).stdout)


class Index(Case):
    def test_main_named_and_all(self):
        path = self.database()
        self.assertIn("(main): 6 records", self.lmdbio("index", path).stdout)
        self.assertEqual(sorted(os.listdir(path)), ["data.mdb", "data.mdb.lmdbio-index"])  # no lock file
        j = self.json("index", path + "/data.mdb", "--all")
        self.assertEqual({i["database"]: i["records"] for i in j["indexes"]},
                         {"": 6, "plain": 1000, "long": 5, "dups": 2005, "fixed": 3000, "odd\n\ufffd": 1})
        for i in j["indexes"]:
            self.assertEqual(os.path.getsize(i["file"]), i["file_bytes"])
        self.assertEqual(sorted(os.listdir(path)),
                         ["data.mdb"] + sorted("data.mdb" + n + ".lmdbio-index"
                                               for n in ("", ".plain", ".long", ".dups", ".fixed", ".odd%0A%FF")))
        one = self.json("index", path, "--db", "long", "--db", "plain")["indexes"]
        self.assertEqual(sorted(i["database"] for i in one), ["long", "plain"])
        self.assertIn("no database named nope", self.lmdbio("index", path, "--db", "nope", status=2).stderr)

    def test_info_tells_of_it(self):
        path = self.database()
        self.assertEqual(self.json("info", path, "--fast")["index"]["state"], "none")
        self.lmdbio("index", path)
        self.assertEqual(self.json("info", path)["index"],
                         {"file": path + "/data.mdb.lmdbio-index", "state": "valid"})
        self.assertIn("data.mdb.lmdbio-index: valid", self.lmdbio("info", path, "--fast").stdout)
        w = Writer(path)
        w.put([(b"new", b"record")])
        w.close()
        self.assertIn("ignored: the database file was copied or changed since the index was built",
                      self.lmdbio("info", path, "--fast").stdout)
        self.lmdbio("index", path)
        self.assertEqual(self.json("info", path, "--fast")["index"]["state"], "valid")
        self.patch(path + "/data.mdb.lmdbio-index", 300, b"\xff")
        self.assertIn("ignored: damaged: wrong checksum", self.lmdbio("info", path, "--fast").stdout)

    def test_copies(self):
        """cp -a, and staging by rsync -a, keep an index; a copy with another modification time does not."""
        path = self.database()
        self.lmdbio("index", path)
        for how, state in (("-a", "valid"),
                           ("-r", "ignored: the database file was copied or changed since the index was built")):
            copy = self.fresh("copy" + how) + "/db"
            subprocess.run(["cp", how, path, copy], check=True)
            self.assertEqual(self.json("info", copy, "--fast")["index"]["state"], state)

    def test_a_file_size_limit(self):
        path = self.database()
        done = self.lmdbio("index", path, status=2, preexec_fn=file_size_limit(300))
        self.assertIn("data.mdb.lmdbio-index: cannot be written: File too large", done.stderr)
        self.assertEqual(os.listdir(path), ["data.mdb"])
        self.lmdbio("index", path, preexec_fn=file_size_limit(1 << 20))

    def test_without_proc(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("the leak check needs /proc")
        path = self.database()
        enter = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0" "$@"']
        if subprocess.run([*enter, "true"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("needs root")
        for _ in range(2):
            done = subprocess.run([*enter, shimtest.CONFIG["command"], "index", path], text=True, timeout=100,
                                  env=shimtest.environment("stock"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 0, done)
            self.assertEqual(sorted(os.listdir(path)), ["data.mdb", "data.mdb.lmdbio-index"])
        self.assertEqual(self.json("info", path, "--fast")["index"]["state"], "valid")

    def test_dry_run_writes_nothing(self):
        path = self.database()
        self.assertEqual(len(self.json("index", path, "--all", "--dry-run")["indexes"]), 6)
        self.assertEqual(os.listdir(path), ["data.mdb"])

    def test_another_directory(self):
        path, other = self.database(), self.fresh("indexes")
        for _ in range(2):
            self.lmdbio("index", path, env={"LMDBIO_INDEX_DIR": other})
        self.assertEqual(os.listdir(path), ["data.mdb"])
        self.assertEqual(len(os.listdir(other)), 1)
        second = self.database("db2")  # another file of the same name
        self.lmdbio("index", second, env={"LMDBIO_INDEX_DIR": other})
        self.assertEqual(len(os.listdir(other)), 2)

    def test_mode_and_a_directory_that_cannot_be_written(self):
        path = self.database()
        for mode in (0o644, 0o600, 0o640):
            os.chmod(path + "/data.mdb", mode)
            self.lmdbio("index", path)
            self.assertEqual(os.stat(path + "/data.mdb.lmdbio-index").st_mode & 0o777, mode)
        done = self.lmdbio("index", path, env={"LMDBIO_INDEX_DIR": path + "/nowhere"}, status=2)
        self.assertIn("cannot be written: No such file or directory", done.stderr)

    def test_never_written(self):
        path = self.fresh()
        Writer(path).close()
        self.assertIn("0 records", self.lmdbio("index", path).stdout)

    def test_damage_is_named(self):
        path = self.database()
        data = path + "/data.mdb"
        size, meta = self.newest(data)
        with open(data, "rb") as f:
            f.seek(meta * size + 88 + 40)
            root = struct.unpack("<Q", f.read(8))[0]
        self.patch(data, root * size + 10, b"\x03\x00")
        done = self.lmdbio("index", path, status=2)
        self.assertIn(f"{data}: (main): page {root}: flags are 0x3", done.stderr)
        self.assertEqual(os.listdir(path), ["data.mdb"])


class Stats(Case):
    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("needs a preload")

    def test_what_is_no_statistics(self):
        good = self.fresh("s") + "/stats"
        self.lmdbio("run", "--set", f"LMDBIO_STATS={good}", shimtest.program("counted"), self.fresh("a"))
        self.lmdbio("stats", good)
        for name, content in (("empty", ""), ("text", "# Title\n\ntext\n"), ("json", '{"a": 1}\n')):
            file = os.path.join(os.path.dirname(good), name)
            with open(file, "w", encoding="utf-8") as f:
                f.write(content)
            for files in ([file], [good, file]):
                if len(files) == 1 or content:  # processes that write to an empty file may still run
                    self.assertEqual(self.lmdbio("stats", *files, status=2).stderr, f"lmdbio: {file}: no statistics of LMDBIO\n")

    def test_a_file_size_limit(self):
        """The program goes on, and its exit status is its own."""
        stats = self.fresh("s") + "/stats"
        with open(stats, "w", encoding="utf-8") as f:
            f.write("\n" * (1 << 20))
        done = subprocess.run([shimtest.program("counted"), self.fresh("a")], text=True, timeout=100,
                              env=shimtest.environment("preload", {"LMDBIO_STATS": stats}), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, preexec_fn=file_size_limit(1 << 20))
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("LMDBIO_STATS: cannot write", done.stderr)


class Diff(Case):
    def changes(self, j):
        return [(r["change"], r["database"], bytes.fromhex(r["key_hex"])) for r in j["records"]]

    def test_the_last_commit(self):
        path = self.database()
        w = Writer(path)
        w.put([(b"00003", b"other"), (b"new\0\xff", b"x" * 9000)], b"plain")
        w.close()
        j = self.json("diff", path, status=1)
        self.assertEqual(self.changes(j), [("replaced", "plain", b"00003"), ("inserted", "plain", b"new\0\xff")])
        self.assertEqual((j["inserted"], j["replaced"], j["deleted"], j["same"]), (1, 1, 0, False))
        self.assertEqual(j["older"]["transaction"] + 1, j["newer"]["transaction"])
        self.assertEqual([r["value_hex"] for r in j["records"]], [b"other".hex(), None])
        self.assertLess(j["pages"], 12)
        text = self.lmdbio("diff", path, status=1).stdout
        self.assertIn("replaced  plain  00003  3 -> 5 bytes: other\n", text)
        self.assertIn("inserted  plain  new\\x00\\xff  9000 bytes\n", text)
        self.assertEqual(self.lmdbio("diff", "-q", path, status=1).stdout, "")
        self.assertEqual(self.json("diff", path, "--db", "long")["records"], [])
        self.assertEqual(self.json("diff", path, "--db", "")["records"], [])
        self.assertEqual(len(self.json("diff", path, "--db", "plain", status=1)["records"]), 2)
        j = self.json("diff", path, "--limit", "1", status=1)
        self.assertEqual((len(j["records"]), j["left_out"]), (1, 1))
        self.assertIn("... and 2 more", self.lmdbio("diff", "--limit", "0", path, status=1).stdout)
        self.assertIn("no database named none", self.lmdbio("diff", path, "--db", "none", status=2).stderr)
        self.assertIn("--quiet", self.lmdbio("diff", path, "--quiet", "--json", status=2).stderr)
        self.assertIn("must be at least 0", self.lmdbio("diff", path, "--limit", "-1", status=2).stderr)

    def test_a_compacted_copy(self):
        path, copy = self.database(), self.fresh("copy")
        w = Writer(path)
        w.call("mdb_env_copy2", w.env, copy.encode(), CP_COMPACT)
        w.close()
        self.assertTrue(self.json("diff", path, copy)["same"])
        j = self.json("diff", copy, status=1)
        self.assertEqual((j["inserted"], j["replaced"], j["deleted"]), (1000 + 5 + 2005 + 3000 + 1 + 1, 0, 0))

    def test_two_files(self):
        path = self.database()
        copy = self.fresh("copy")
        shutil.copy(path + "/data.mdb", copy)
        self.assertTrue(self.json("diff", path, copy)["same"])
        w = Writer(copy)
        w.put([(b"few", b"9")], b"dups", DUPSORT)
        w.put([(b"k", b"v")], b"made")
        for i in range(5):
            w.put([(b"00003", b"%d" % i)], b"plain")
        w.close()
        j = self.json("diff", path, copy, status=1)
        self.assertEqual(self.changes(j), [("inserted", "dups", b"few"), ("inserted", "made", b"k"),
                                           ("replaced", "plain", b"00003")])
        self.assertEqual(j["databases"], [{"name": "made", "change": "inserted"}])
        j = self.json("diff", copy, path, status=1)
        self.assertEqual(self.changes(j), [("deleted", "dups", b"few"), ("deleted", "made", b"k"),
                                           ("replaced", "plain", b"00003")])
        self.assertEqual(os.listdir(path), ["data.mdb"])  # no lock file

    def test_never_written(self):
        path = self.fresh()
        Writer(path).close()
        self.assertTrue(self.json("diff", path)["same"])
        other = self.database("other")
        self.assertEqual(self.json("diff", path, other, status=1)["inserted"], 1000 + 5 + 2005 + 3000 + 1 + 1)

    def test_damage_is_named(self):
        path = self.database()
        size, meta = self.newest(path + "/data.mdb")
        with open(path + "/data.mdb", "rb") as f:
            f.seek(meta * size + 88 + 40)
            root = struct.unpack("<Q", f.read(8))[0]
        self.patch(path + "/data.mdb", root * size, b"\xff")
        for args in ((path,), (path, path)):
            done = self.lmdbio("diff", *args, status=2)
            self.assertRegex(done.stderr, rf"data\.mdb: page {root}: .*; see lmdbio check")
        self.assertIn("no such file", self.lmdbio("diff", path, path + "x", status=2).stderr)

    def test_a_file_that_grows(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("needs a preload")
        path, other = self.database(), self.database("other")
        for args in ((path,), (path, other), (other, path), (path, path)):
            want = command("diff", *args)
            sizes = lambda: [os.stat(d + "/data.mdb").st_size for d in (path, other)]
            calls = 0
            while True:
                before = sizes()
                env = {"LD_PRELOAD": shimtest.CONFIG["growing_file"], "GROW_AT": str(calls + 1)}
                done = command("diff", *args, env=env)
                self.assertEqual((done.returncode, done.stdout, done.stderr),
                                 (want.returncode, want.stdout, want.stderr), f"{args} {calls}")
                if sizes() == before:
                    break
                calls += 1
            self.assertGreaterEqual(calls, 3, args)

    def test_damage_of_each_file_is_named(self):
        path, other = self.database(), self.database("other")
        for damaged in (path, other):
            with open(damaged + "/data.mdb", "rb") as f:
                good = f.read()
            size, meta = self.newest(damaged + "/data.mdb")
            root = struct.unpack_from("<Q", good, meta * size + 88 + 40)[0]
            self.patch(damaged + "/data.mdb", root * size, b"\xff")
            for args in ((), ("--db", "plain"), ("--db", "none")):
                done = self.lmdbio("diff", path, other, *args, status=2)
                self.assertIn(f"{damaged}/data.mdb: page {root}: ", done.stderr)
            self.patch(damaged + "/data.mdb", 0, good)

    def test_each_commit(self):
        path = self.database()
        w = Writer(path)
        for i in range(20):
            w.put([(b"%05d" % i, os.urandom(8))], b"plain")
            self.assertEqual(self.changes(self.json("diff", path, status=1)), [("replaced", "plain", b"%05d" % i)])
        w.close()

    def test_beside_a_writer(self):
        path = self.database()
        w = Writer(path)  # the writer below may not have committed when it is ready
        w.put([(b"%05d" % (i * 50), b"%030d" % 0) for i in range(20)], b"plain")
        w.close()
        body = ("n += 1\n"
                "    w.put([(b'%05d' % (i * 50 + n % 50), b'%030d' % n) for i in range(20)], b'plain')\n"
                "    time.sleep(n % 10 / 1000)\n")
        shown = 0
        with self.writer(path, body):
            for _ in range(60):
                done = command("diff", "--json", path)
                if done.returncode == 2:
                    self.assertIn("a writer is active", done.stderr)
                    continue
                self.assertEqual(done.returncode, 1, done.stderr)
                j = json.loads(done.stdout)
                shown += 1
                self.assertEqual((j["inserted"], j["replaced"], j["deleted"]), (0, 20, 0))
                keys = [key for _, _, key in self.changes(j)]
                n = int(bytes.fromhex(j["records"][0]["value_hex"]))
                self.assertEqual(keys, [b"%05d" % (i * 50 + n % 50) for i in range(20)])
        self.assertGreater(shown, 0)


class Check(Case):
    def test_clean(self):
        path = self.database()
        for where in (path, path + "/", path + "/data.mdb"):
            j = self.json("check", where)
            self.assertTrue(j["clean"])
            self.assertEqual(j["findings"], [])
            self.assertEqual(j["entries"], 1000 + 5 + 2005 + 3000 + 1 + 1)
            self.assertEqual(j["named_databases"], 5)
            self.assertEqual(sum(j["pages"].values()), j["last_page"] + 1)
        self.assertIn("clean: 6012 entries in 6 databases", self.lmdbio("check", path).stdout)
        self.assertEqual(self.lmdbio("check", "-q", path).stdout, "")
        for meta in ("0", "1"):
            self.lmdbio("check", path, "--meta", meta)
        self.assertEqual(os.listdir(path), ["data.mdb"])  # no lock file

    def test_never_written_and_emptied(self):
        path = self.fresh()
        Writer(path).close()
        self.assertEqual(self.json("check", path)["pages"]["meta"], 2)

    def test_damaged_page(self):
        path = self.database()
        data = path + "/data.mdb"
        size, _ = self.newest(data)
        with open(data, "rb") as f:
            file = f.read()
        leaf = next(p for p in range(2, len(file) // size)
                    if struct.unpack_from("<QHH", file, p * size) == (p, 0, 2)
                    and b"00500" in file[p * size:(p + 1) * size])
        self.patch(data, leaf * size + 14, struct.pack("<H", 3 * size))
        j = self.json("check", path, status=1)
        self.assertFalse(j["clean"])
        first = j["findings"][0]
        self.assertEqual((first["page"], first["severity"], first["database"]), (leaf, "error", "plain"))
        self.assertIn("bounds", first["reason"])
        text = self.lmdbio("check", path, status=1).stdout
        self.assertIn(f"page {leaf}: error: plain: the bounds", text)
        self.assertIn("lmdbio check", self.lmdbio("info", path).stdout)
        self.assertEqual(self.json("info", path)["errors"], j["errors"])
        self.assertEqual(len(self.json("check", path, "--limit", "0", status=1)["findings"]), 0)

    def test_order_is_a_warning(self):
        path = self.database()
        data = path + "/data.mdb"
        for copy in self.places(data, b"00500"):
            self.patch(data, copy, b"99999")
        j = self.json("check", path, status=1)
        self.assertEqual((j["errors"], j["warnings"]), (0, 1))
        self.assertIn("out of order", j["findings"][0]["reason"])
        self.lmdbio("check", "--any-order", path)

    def places(self, path, what):
        with open(path, "rb") as f:
            file = f.read()
        at, found = file.find(what), []
        while at >= 0:
            found.append(at)
            at = file.find(what, at + 1)
        return found

    def test_damaged_meta(self):
        for which in (0, 1):
            path = self.database()
            data = path + "/data.mdb"
            size, _ = self.newest(data)
            self.patch(data, which * size + 16, b"\0\0\0\0")
            j = self.json("check", path, status=1)
            self.assertEqual([f["page"] for f in j["findings"]], [which])
            self.assertIn("meta page", j["findings"][0]["reason"])
            self.assertEqual([m["good"] for m in j["metas"]], [which != 0, which != 1])
            self.lmdbio("check", path, "--meta", str(which), status=2)
            self.assertFalse(any(v["ours"] for v in self.json("info", path)["lmdbio"]))
            self.patch(data, which * size + 16, struct.pack("<I", 0xBEEFC0DE))
            self.lmdbio("check", path)
            self.patch(data, which * size + 40, struct.pack("<I", 2 * size))
            done = command("check", path)
            self.assertIn(done.returncode, (1, 2), done.stderr)

    def test_a_name_of_any_bytes(self):
        path = self.database()
        out = self.lmdbio("info", path).stdout
        self.assertIn("odd\\x0a\\xff", out)
        names = [d["name"] for d in self.json("info", path)["databases"]]
        self.assertIn("odd\n\ufffd", names)

    def test_a_writer_is_no_damage(self):
        path = self.database()
        body = "n += 1\n    w.put([(b'%05d' % (i * n % 1000), b'w' * (n % 700)) for i in range(50)], b'plain')\n"
        with self.writer(path, body):
            for _ in range(60):
                done = command("check", path)
                if done.returncode == 2:
                    self.assertIn("a writer is active", done.stderr)
                else:
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.lmdbio("info", path)
        self.lmdbio("check", path)


class Info(Case):
    def test_what_it_tells(self):
        path = self.database()
        j = self.json("info", path)
        rows = {d["name"]: d for d in j["databases"]}
        self.assertEqual(rows["plain"]["entries"], 1000)
        self.assertEqual((rows["dups"]["keys"], rows["dups"]["entries"], rows["dups"]["flags"]), (2, 2005, "DUPSORT"))
        self.assertEqual((rows["dups"]["sub_pages"], rows["dups"]["duplicate_trees"]), (1, 1))
        self.assertGreater(rows["fixed"]["pages"]["leaf2"], 0)
        self.assertGreater(rows["long"]["pages"]["overflow"], 5)
        self.assertEqual(j["value_sizes"]["largest"], 25000)
        self.assertEqual(j["value_sizes"]["records"], j["entries"])
        self.assertEqual(sum(b["count"] for b in j["key_sizes"]["by_size"]), j["entries"])
        order = j["value_order"]
        self.assertLessEqual(order["adjacent"], order["forward"])
        self.assertLessEqual(order["forward"], order["steps"])
        self.assertEqual(order["overflow"], 5)
        self.assertTrue(j["lmdbio"][0]["ours"])
        share = j["page_cache"]["share"]
        self.assertTrue(share is None or 0 <= share <= 1)
        text = self.lmdbio("info", path + "/data.mdb").stdout
        self.assertRegex(text, r"\n +16384 to +32767 +2  #")  # the largest value
        self.assertRegex(text, r"\n +4 to +7 +\d+  #")
        for word in ("map size         64.0 MiB", "dups", "DUPSORT", "key sizes", "value sizes", "####",
                     "served by LMDBIO"):
            self.assertIn(word, text)
        self.assertEqual(os.listdir(path), ["data.mdb"])

    def test_fast(self):
        path = self.database()
        j = self.json("info", "--fast", path)
        self.assertFalse(j["walked"])
        self.assertNotIn("databases", j)
        self.assertIn("6 entries", self.lmdbio("info", "--fast", path).stdout)

    def reads(self, path, **settings):
        j = self.json("info", "--fast", path, env={"LMDBIO_" + name: value for name, value in settings.items()})["reads"]
        return j, {a["access"]: a["read_path"] for a in j["accesses"]}

    def test_how_it_would_read(self):
        path = self.database()
        facts, small = self.reads(path)
        self.assertEqual(list(small), ["walk", "lookup", "prefetch", "reader"])  # nothing to load: page faults read small files
        self.assertEqual(small["lookup"], "mmap")
        self.assertGreater(facts["free_memory_bytes"], 0)
        w = Writer(path)
        w.put([(b"%04d" % i, bytes(20_000)) for i in range(100)], b"large")
        w.close()
        self.assertEqual(self.reads(path)[1]["lookup"], "buffered")
        self.assertEqual(self.reads(path)[1]["load"], "buffered")
        facts, none = self.reads(path, MEMORY="0")
        self.assertEqual((facts["memory_limit_bytes"], none["walk"], none["prefetch"], none["reader"]), (0, "buffered", "buffered", "buffered"))
        self.assertEqual(set(self.reads(path, IO="mmap")[1][a] for a in ("walk", "lookup", "prefetch")), {"mmap"})
        facts, direct = self.reads(path, IO="direct", MEMORY="64M")
        self.assertEqual(facts["memory_limit_bytes"], 64 << 20)
        if facts["direct_io"]:
            self.assertEqual(direct, {"walk": "direct", "lookup": "buffered", "load": "direct", "prefetch": "direct", "reader": "direct"})
        # At the end of the text, with the reasons; nothing if LMDBIO does not serve the file.
        end = self.lmdbio("info", path, env={"LMDBIO_IO": "buffered"}).stdout.partition("\n\nhow LMDBIO would read what is not in memory (")[2]
        for words in (r"\n  cursor, key order +large requests ahead of the program, into the page cache \(reason: LMDBIO_IO=buffered\)\n",
                      r"\n  lookups, any order +only what is missing, each value \(\d+(\.\d)? \w+ on average\) in one request, into the page cache\n",
                      r"\n  readers, loaders +the records of several batches at once, .* \(reason: LMDBIO_IO\)\n"):
            self.assertRegex(end, words)
        self.assertIn(f"\n  cache on local disk what {self.dir} has is read from there\n",
                      self.lmdbio("info", path, env={"LMDBIO_CACHE_DIR": self.dir}).stdout)
        off = {"LMDBIO_DISABLE": "1"}
        self.assertNotIn("reads", self.json("info", path, env=off))
        text = self.lmdbio("info", path, env=off).stdout
        self.assertIn("opened with MDB_RDONLY: passed through to stock LMDB: LMDBIO_DISABLE=1", text)
        self.assertNotIn("would read", text)

    def test_pack(self):
        path = self.fresh()
        writer = Writer(path)  # small numbers
        writer.put([(b"%06d" % i, bytes(random.Random(i).choices((0, 0, 0, 1, 2, 7), k=6000)))
                    for i in range(40)])
        writer.close()
        self.assertNotIn("pack", self.json("info", path))
        j = self.json("info", "--fast", "--pack", "--cache-rate", "2000", path)["pack"]
        self.assertEqual(j["recipes"][0]["codec"], "raw")
        self.assertEqual(j["cache_rate"], {"bytes_per_second": 2e9, "source": "given"})
        self.assertEqual(j["file_rate"], {"bytes_per_second": 2e8, "source": "assumed"})
        self.assertGreaterEqual(j["samples"], 1)  # slow machines try fewer
        for r in j["recipes"]:
            self.assertGreaterEqual(r["ratio"], 1)
            self.assertGreater(r["unpack_bytes_per_second"], 0)
        if len(j["recipes"]) > 1:  # this build compresses
            self.assertGreater(max(r["ratio"] for r in j["recipes"]), 2)
        self.assertEqual([(c["cache_share"], c["prefetching"]) for c in j["choices"]],
                         [(s, p) for s in (1, 0.5, 0.25) for p in (True, False)])
        text = self.lmdbio("info", "--pack", path).stdout
        for part in (r"\nraw +- +1\.00 ", r"1000 MB/s \(assumed\), and reads of the file 200 MB/s \(assumed\)",
                     r"\nthe whole file ", r"\n1/4 of the file "):
            self.assertRegex(text, part)
        # A disk that is slower than the file.
        text = self.lmdbio("info", "--pack", "--cache-rate=1", "--file-rate=1000", path).stdout
        self.assertRegex(text, r"the whole file +no cache +no cache")
        for wrong in (("--cache-rate", "2000"), ("--pack", "--file-rate", "0"), ("--pack", "--file-rate", "x")):
            self.assertEqual(command("info", *wrong, path).returncode, 2)

    def test_never_written(self):
        path = self.fresh()
        Writer(path).close()
        self.assertEqual(self.json("info", path)["entries"], 0)
        self.lmdbio("info", path)


class Run(Case):
    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("needs a preload")

    def script(self, text, name="script"):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(path, 0o755)
        return path

    def test_what_the_kernel_reads_for_page_faults_is_told(self):
        path = self.fresh("large")
        w = Writer(path)
        w.put([(b"%04d" % i, bytes(100_000)) for i in range(300)])
        w.close()
        data = os.path.join(path, "data.mdb")
        walk = ("import lmdb, os, sys\n"
                "env = lmdb.open(sys.argv[1], readonly=True)\n"
                "def walk():\n"
                "    with env.begin(buffers=True) as txn: sum(value[50_000] for _, value in txn.cursor())\n"
                "if sys.argv[2] == 'worker' and os.fork() == 0:\n    walk()\n    os._exit(0)\n"
                "os.wait() if sys.argv[2] == 'worker' else walk()\n")
        for how in ("itself", "worker"):  # a worker's figures are the job's, as it writes no line
            with open(data, "rb") as f:
                os.fsync(f.fileno())
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if (self.json("info", "--fast", path)["page_cache"]["share"] or 0) > 0.1:
                self.skipTest("the file stays in the page cache of this file system")
            file = os.path.join(self.dir, how + ".json")
            done = self.lmdbio("run", "--stats", "--json", file, "--set", "IO=mmap", "--", "/usr/bin/python3", "-c", walk, path, how)
            with open(file, encoding="utf-8") as f:
                total = json.load(f)["total"]
            self.assertEqual(total["io"]["read"] if "read" in total["io"] else 0, 0)
            if "storage_bytes" not in total:
                self.skipTest("the kernel does not count")
            self.assertGreater(total["storage_bytes"], 0.9 * os.path.getsize(data), how)
            self.assertIn("MiB by the kernel for page faults and other files; ", done.stderr)
            self.assertIn("; waits for the kernel's reads are not measured (", done.stderr)

    def test_a_data_file_that_was_replaced_under_its_lock_file_is_named(self):
        path, other = self.fresh("used"), self.fresh("other")
        used, new = Writer(path), Writer(other)
        self.addCleanup(used.close)
        for i in range(5):
            used.put([(b"%d" % i, b"")])
        new.put([(b"k", b"")])
        new.close()
        os.replace(os.path.join(other, "data.mdb"), os.path.join(path, "data.mdb"))
        look = "import lmdb, sys\nwith lmdb.open(sys.argv[1], readonly=True) as env, env.begin() as txn: txn.get(b'k')\n"
        done = self.lmdbio("run", "--", "/usr/bin/python3", "-c", look, path, status=1)
        self.assertIn("the lock file is of transaction 5, the data file of transaction 1: the data file was replaced while the lock "
                      "file was in use", done.stderr)

    def test_the_program_is_served(self):
        counted = shimtest.program("counted")
        done = self.lmdbio("run", "--stats", "--", counted, self.fresh())
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"^lmdbio: 1010 reads served, 9.9 KiB; read from storage: 0 B by LMDBIO in 0 requests.*; total wait for "
                                      r"LMDBIO's reads: 0.000 s .*; the job took \d+\.\d+ s, with \d+\.\d+ s of CPU time\nlmdbio: 1 process: .*/db\n")
        self.assertIn("calls served: 11 lookups, 1001 cursor moves", done.stderr)
        self.assertIn("environments passed through to stock LMDB: 1 of 2 (writable environment)", done.stderr)
        self.assertNotIn("warning", done.stderr)
        self.assertNotIn("served by LMDBIO", done.stderr)
        done = self.lmdbio("run", "--processes", "--", counted, self.fresh("db2"))
        self.assertRegex(done.stderr, r"(?m)^lmdbio: process \d+: .*/db2: served by LMDBIO\nlmdbio:   1010 records, ")
        self.assertRegex(done.stderr, r"(?m)^lmdbio: process \d+: .*/db2: passed through to stock LMDB: writable environment$")
        self.assertNotIn("reads served", done.stderr)
        file = os.path.join(self.dir, "stats.json")
        done = self.lmdbio("run", "--json", file, counted, self.fresh())
        self.assertEqual(done.stderr, "")
        with open(file, encoding="utf-8") as f:
            told = json.load(f)
        self.assertEqual(told["exit_status"], 0)
        ours = [e for p in told["processes"] for e in p["environments"] if e["ours"]]
        self.assertEqual([e["calls"]["cursor_get"] for e in ours], [1001])

    def test_without_statistics_it_is_the_same_process(self):
        done = self.lmdbio("run", "sh", "-c", "echo $$ $LD_PRELOAD", env={"LD_PRELOAD": shimtest.CONFIG["spy"]})
        self.assertIn("liblmdbio.so:" + shimtest.CONFIG["spy"], done.stdout)
        with subprocess.Popen([shimtest.CONFIG["command"], "run", "sh", "-c", "echo $$"], stdout=subprocess.PIPE,
                              env=shimtest.environment("stock")) as p:
            self.assertEqual(int(p.stdout.read()), p.pid)

    def test_each_process_tells(self):
        counted = shimtest.program("counted")
        done = self.lmdbio("run", "--json", "-", "--", "sh", "-c", 'for d in "$@"; do "$0" "$d" & done; wait', counted,
                           self.fresh("a"), self.fresh("b"), self.fresh("c"))
        processes = json.loads(done.stdout)["processes"]
        self.assertEqual(len({p["pid"] for p in processes}), 3)

    def test_arguments_are_the_programs(self):
        for args in (("run", "--", "echo", "--stats", "--", "-x"), ("run", "echo", "--stats", "--", "-x")):
            self.assertEqual(self.lmdbio(*args).stdout, "--stats -- -x\n")

    def test_exit_status(self):
        for stats in ((), ("--stats",)):
            self.lmdbio("run", *stats, "sh", "-c", "exit 7", status=7)
            self.lmdbio("run", *stats, os.path.join(self.dir, "none"), status=127)
            self.lmdbio("run", *stats, "no-such-program-anywhere", status=127)
            self.lmdbio("run", *stats, self.dir, status=126)
            self.lmdbio("run", *stats, "/etc/passwd", status=126)
            done = self.lmdbio("run", *stats, self.script("echo plain $1\n"), "text")
            self.assertEqual(done.stdout, "plain text\n")
        self.lmdbio("run", "--stats", "sh", "-c", "kill -TERM $$", status=128 + signal.SIGTERM)
        done = command("run", "sh", "-c", "kill -TERM $$")
        self.assertEqual(done.returncode, -signal.SIGTERM)

    def test_what_cannot_be_run_says_what_to_do(self):
        self.assertIn("no program given; example: lmdbio run", self.lmdbio("run", status=2).stderr)
        self.assertIn("not found in PATH", self.lmdbio("run", "no-such-program-anywhere", status=127).stderr)
        self.assertIn("no such file", self.lmdbio("run", os.path.join(self.dir, "none"), status=127).stderr)
        script = os.path.join(self.dir, "train.py")
        with open(script, "w", encoding="utf-8") as f:
            f.write("print(1)\n")
        self.assertIn(f"start it with: lmdbio run python3 {script}", self.lmdbio("run", script, status=126).stderr)
        self.assertIn("to run the file in this directory, give ./train.py", self.lmdbio("run", "train.py", status=127, cwd=self.dir).stderr)

    def test_signals_are_passed_on(self):
        body = ("import signal, sys\n"
                "all = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}\n"
                "signal.pthread_sigmask(signal.SIG_BLOCK, all)\n"
                "print('ready', flush=True)\n"
                "while True:\n"
                "    n = signal.sigwait(all)\n"
                "    print(int(n), flush=True)\n"
                "    if n == signal.SIGTERM: sys.exit(9)\n")
        with subprocess.Popen([shimtest.CONFIG["command"], "run", "--stats", "--", sys.executable, "-c", body],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              env=shimtest.environment("stock")) as p:
            self.assertEqual(p.stdout.readline(), "ready\n")
            for n in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
                p.send_signal(n)
                self.assertEqual(int(p.stdout.readline()), n)
            self.assertEqual(p.wait(), 9)

    def test_nothing_is_left_behind(self):
        scratch = self.fresh("tmp 100%")
        self.lmdbio("run", "--stats", shimtest.program("counted"), self.fresh(), env={"TMPDIR": scratch})
        self.assertEqual(os.listdir(scratch), [])

    def test_settings(self):
        self.assertEqual(self.lmdbio("run", "--set", "LOG=debug", "--set", "LMDBIO_STATS=1", "sh", "-c",
                                     "echo $LMDBIO_LOG $LMDBIO_STATS").stdout, "debug 1\n")
        for wrong, text in (("FROBNICATE=1", "unknown setting; the settings are LMDBIO_DISABLE"),
                            ("MEMROY=8M", "unknown setting; did you mean LMDBIO_MEMORY?"),
                            ("LMDBIO_STAT=1", "unknown setting; did you mean LMDBIO_STATS?"),
                            ("LOG=loud", "not valid; allowed: error, warn"), ("LOG", "NAME=VALUE")):
            self.assertIn(text, self.lmdbio("run", "--set", wrong, "true", status=2).stderr)
        self.assertIn("LMDBIO_STATS", self.lmdbio("run", "--stats", "--set", "STATS=1", "true", status=2).stderr)
        self.assertIn("LMDBIO_DISABLE is set", self.lmdbio("run", "--set", "DISABLE=1", "true").stderr)
        self.assertRegex(self.lmdbio("run", "--stats", "--set", "DISABLE=1", "--", "true").stderr,
                         r"\Almdbio: warning: LMDBIO_DISABLE is set: .*\n"
                         r"lmdbio: LMDBIO was disabled \(LMDBIO_DISABLE=1\): there are no statistics; the job took \d+\.\d+ s\n\Z")

    def test_library(self):
        self.assertIn(shimtest.CONFIG["soname"],
                      self.lmdbio("run", "--library", shimtest.CONFIG["soname"], "sh", "-c", "echo $LD_PRELOAD").stdout)
        self.assertIn("no such library", self.lmdbio("run", "--library", "/none.so", "true", status=2).stderr)
        spaced = os.path.join(self.dir, "a b.so")
        shutil.copy(shimtest.CONFIG["lib"], spaced)
        self.assertIn("space", self.lmdbio("run", "--library", spaced, "true", status=2).stderr)

    def compile(self, text, *flags):
        source, out = os.path.join(self.dir, "p.c"), os.path.join(self.dir, "p")
        with open(source, "w", encoding="utf-8") as f:
            f.write(text)
        done = subprocess.run([shimtest.CONFIG["cc"], source, "-o", out, *flags], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, check=False)
        if done.returncode:
            self.skipTest("cannot link " + " ".join(flags))
        return out

    def test_what_is_not_reached(self):
        done = self.lmdbio("run", "--stats", "true")
        self.assertIn("no LMDB environment was seen", done.stderr)
        lmdb = self.compile("int mdb_env_open(void) { return 0; }\nint main(void) { return mdb_env_open(); }\n")
        self.assertIn("LMDB linked into it", self.lmdbio("run", lmdb).stderr)
        text = self.compile("#include <stdio.h>\n"
                            'int main(void) { puts("MDB_NOTFOUND: No matching key/data pair found"); return 0; }\n')
        self.assertIn("LMDB linked into it", self.lmdbio("run", text).stderr)
        # What a script is run by.
        self.assertIn("LMDB linked into it", self.lmdbio("run", self.script(f"#!{text}\n")).stderr)
        self.assertIn("LMDB linked into it", self.lmdbio("run", self.script(f"#!/usr/bin/env {text}\n")).stderr)
        self.assertEqual(self.lmdbio("run", self.script("#!/bin/sh\nexit 0\n")).stderr, "")

    def test_a_module_that_is_not_reached(self):
        module, linked = (shimtest.CONFIG["modules"][name] for name in ("symbolic", "linked"))
        if not module:
            self.skipTest("no static liblmdb to bundle")
        host = shimtest.program("dlopen_host")
        told = f"{module} contains an LMDB of its own, which LMDBIO does not reach: see docs/faq.md\n"
        done = self.lmdbio("run", "--stats", "--processes", "--", host, module, self.fresh("a"))
        self.assertRegex(done.stderr, rf"\Almdbio: warning: {re.escape(told)}lmdbio: process \d+: {re.escape(told)}\Z")
        done = self.lmdbio("run", "--stats", "--", host, module, self.fresh("a"), linked, self.fresh("b"))
        self.assertRegex(done.stderr, r"\Almdbio: \d+ reads served")
        self.assertIn("\nlmdbio: 1 process: ", done.stderr)
        self.assertTrue(done.stderr.endswith(f"\nlmdbio: warning: {told}"), done.stderr)
        # A process that tells nothing at exit, and one that has no LMDB at all.
        done = self.lmdbio("run", "--stats", "--", "/usr/bin/python3", "-c",
                           "import ctypes, os, sys; ctypes.CDLL(sys.argv[1]); os._exit(0)", module)
        self.assertIn("no LMDB environment was seen", done.stderr)

    def test_setuid(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")
        program = self.compile("int main(void) { return 0; }\n")
        os.chown(program, 65534, -1)
        os.chmod(program, 0o4755)
        self.assertIn("setuid", self.lmdbio("run", program).stderr)

    def test_static(self):
        static = self.compile("int main(void) { return 0; }\n", "-static")
        self.assertIn("static executable", self.lmdbio("run", static).stderr)


class Installed(Case):
    def test_finds_its_library(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("needs a preload")
        prefix = os.path.join(self.dir, "prefix")
        subprocess.run([shimtest.CONFIG["cmake"], "--install", shimtest.CONFIG["build"], "--prefix", prefix], check=True,
                       stdout=subprocess.DEVNULL)
        done = subprocess.run([prefix + "/bin/lmdbio", "run", "sh", "-c", "echo $LD_PRELOAD"], stdout=subprocess.PIPE,
                              text=True, check=True, env=shimtest.environment("stock"))
        self.assertTrue(done.stdout.startswith(os.path.realpath(prefix)), done.stdout)
        self.assertTrue(os.path.exists(prefix + "/share/man/man1/lmdbio.1"))


if __name__ == "__main__":
    shimtest.main()
