"""lmdbio cache: status, warm, drop, verify; with damaged images, refused directories, too little room, readers and a writer
at the same time.

    cache_command_test.py CONFIG [unittest arguments]
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import command_test
import confined
import shimtest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import slowfs  # noqa: E402

CHUNK = 4 << 20
HEADER, ENTRY = 4096, 16  # of a table
RECORDS = 1200            # of 16 to 20 KiB: some chunks

RAW = {"LMDBIO_CACHE_CODEC": "raw"}  # no sample of the database is read


class Cache(command_test.Case):
    """A database, and a directory for the cache on another file system."""

    def setUp(self):
        super().setUp()
        self.db = self.fresh("db")
        self.writer = command_test.Writer(self.db)
        self.addCleanup(self.writer.close)
        self.writer.put([(b"%06d" % i, os.urandom(19200)) for i in range(RECORDS)])
        self.file = os.path.join(os.path.realpath(self.db), "data.mdb")
        self.cache = tempfile.mkdtemp(prefix="lmdbio-cache-test-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, self.cache, ignore_errors=True)
        if os.stat(self.cache).st_dev == os.stat(self.db).st_dev:
            self.skipTest("/dev/shm and the directory for temporary files are one file system")
        self.own = os.path.join(self.cache, f"lmdbio-{os.geteuid()}")
        self.chunks = -(-os.stat(self.file).st_size // CHUNK)
        self.assertGreaterEqual(self.chunks, 5)

    def lmdbio(self, *args, env=None, **kwargs):
        return super().lmdbio(*args, env={**RAW, **(env or {})}, **kwargs)

    def do(self, *args, directory=None, **kwargs):
        return self.json("cache", *args, "--cache", directory or self.cache, **kwargs)

    def say(self, *args, **kwargs):
        return self.lmdbio("cache", *args, "--cache", self.cache, **kwargs)

    def image(self, ending="data"):
        """The only file in the cache with this ending."""
        found = [f for f in os.listdir(self.own) if re.fullmatch(r"[0-9a-f]{32}\." + ending, f)]
        self.assertEqual(len(found), 1, found)
        return os.path.join(self.own, found[0])

    def mount(self, **options):
        """The database on a slow file system."""
        try:
            fs = slowfs.SlowFs(shimtest.CONFIG["slowfs"], self.db, max_background=256, **options)
            fs.__enter__()
        except slowfs.Missing as why:
            self.skipTest(str(why))
        self.addCleanup(fs.__exit__, None, None, None)
        return fs

    def flip(self, path, at):
        with open(path, "r+b") as f:
            f.seek(at)
            byte = f.read(1)
            f.seek(at)
            f.write(bytes([byte[0] ^ 0x40]))

    def check_copy(self):
        with open(self.image(), "rb") as copy, open(self.file, "rb") as file:
            whole = file.read()
            self.assertTrue(copy.read(len(whole)) == whole, "the image differs from the database")


class Commands(Cache):
    def test_status_warm_drop(self):
        self.assertEqual(self.do("status")["images"], [])
        self.assertEqual(os.listdir(self.cache), [])
        first = self.do("warm", self.db)
        size = os.stat(self.file).st_size
        self.assertEqual((first["path"], first["directory"], first["complete"], first["why_incomplete"]), (self.file, self.own, True, None))
        self.assertEqual((first["chunks"], first["chunks_before"] + first["chunks_added"]), (self.chunks, self.chunks))
        self.assertEqual(first["bytes_before"] + first["bytes_added"], first["database_bytes"])
        self.assertLessEqual(first["database_bytes"], size)
        self.assertGreaterEqual(first["bytes_read"], first["database_bytes"] - CHUNK)
        self.assertEqual(os.stat(self.own).st_mode & 0o7777, 0o700)
        self.check_copy()
        again = self.do("warm", self.file)
        self.assertEqual((again["chunks_before"], again["chunks_added"], again["bytes_read"], again["complete"]), (self.chunks, 0, 0, True))
        self.assertEqual((again["image"], again["transaction"]), (first["image"], first["transaction"]))

        status = self.do("status")
        self.assertEqual(status["directory"], self.own)
        [image] = status["images"]
        self.assertEqual((image["name"], image["path"], image["transaction"], image["database_bytes"]),
                         (first["image"], self.file, first["transaction"], first["database_bytes"]))
        self.assertEqual((image["chunks"], image["chunks_there"], image["in_use"]), (self.chunks, self.chunks, False))
        self.assertGreaterEqual(image["disk_bytes"], first["database_bytes"])
        self.assertEqual(status["disk_bytes"], image["disk_bytes"])
        self.assertGreater(status["limit_bytes"], 0)
        self.assertGreater(status["free_bytes"], 0)
        self.assertGreater(image["last_use"], 0)
        self.assertEqual(self.do("status", env={"LMDBIO_CACHE_SIZE": "1G"})["limit_bytes"], 1 << 30)

        # Another commit, another image.  drop finds all images of the path.
        self.writer.put([(b"one", b"more")])
        third = self.do("warm", self.db)
        self.assertNotEqual(third["image"], first["image"])
        self.assertTrue(third["complete"])
        self.assertEqual(len(self.do("status")["images"]), 2)
        removed = self.do("drop", self.db)
        self.assertEqual({i["name"] for i in removed["removed"]}, {first["image"], third["image"]})
        self.assertGreaterEqual(removed["disk_bytes"], 2 * first["database_bytes"])
        self.assertEqual(self.do("status")["images"], [])
        self.assertEqual(os.listdir(self.own), [])
        self.assertEqual(self.do("drop", self.db), {"removed": [], "disk_bytes": 0})

    def test_in_words(self):
        self.assertEqual(self.say("status").stdout, f"{self.cache}: no cache yet\n")
        out = self.say("warm", self.db).stdout
        self.assertRegex(out, rf"^{self.file}: [\d.]+ MiB of [\d.]+ MiB \(100\.0 %\) in the cache; "
                              r"[\d.]+ K?i?B were there before, [\d.]+ MiB were added in [\d.]+ s\n$")
        out = self.say("status").stdout.splitlines()
        self.assertRegex(out[0], rf"^{self.own}: 1 image, [\d.]+ MiB of at most .*; .* are free, of which .* stay free$")
        self.assertEqual(len(out), 3)
        self.assertRegex(out[2], rf" MiB +100\.0 % .* no +{self.file}$")
        self.assertRegex(self.say("verify").stdout, rf"^{self.own}: 1 image, {self.chunks} chunks, .* verified: no damage\n$")
        self.assertRegex(self.say("drop", "--all").stdout, rf"^{self.own}: 1 image removed, [\d.]+ MiB freed\n$")

    def test_the_directory_comes_from_the_environment(self):
        env = {"LMDBIO_CACHE_DIR": self.cache}
        self.assertTrue(self.json("cache", "warm", self.db, env=env)["complete"])
        self.assertEqual(len(self.json("cache", "status", env=env)["images"]), 1)
        self.assertIn("LMDBIO_CACHE_DIR is not set", self.lmdbio("cache", "status", status=2).stderr)
        # --cache overrides it.
        self.assertEqual(self.do("status", directory=self.dir, env=env)["images"], [])

    def test_run_sets_the_directory(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("the library cannot be preloaded in sanitizer builds")
        print_it = ["--", "sh", "-c", 'echo "$LMDBIO_CACHE_DIR"']
        self.assertEqual(self.lmdbio("run", "--cache", self.cache, *print_it).stdout, self.cache + "\n")
        self.assertEqual(self.lmdbio("run", "--cache", "a", *print_it, cwd=self.dir).stdout, os.path.realpath(self.dir) + "/a\n")
        self.assertIn("--cache", self.lmdbio("run", "--help").stdout)

    def test_the_sample_is_read_at_once(self):
        if "thread" in shimtest.CONFIG["sanitize"]:
            self.skipTest("ThreadSanitizer takes minutes to compress the sample")
        fs = self.mount(delay_us=50_000)
        fs.set(reset=1)
        self.do("warm", fs.path, env={"LMDBIO_CACHE_CODEC": "auto"})
        # `warm` itself has at most 8 requests in flight, the sample has 32 places.
        self.assertGreaterEqual(fs.counters()["read"]["in_flight_max"], 16)

    def test_usage(self):
        for args in ((), ("frob",), ("warm",), ("drop",), ("drop", "--all", self.db), ("status", "x"), ("verify", "x")):
            done = self.lmdbio("cache", *args, status=2, env={"LMDBIO_CACHE_DIR": self.cache})
            self.assertNotEqual(done.stderr, "", args)
            self.assertEqual(done.stdout, "", args)

    def test_a_database_that_is_gone(self):
        self.do("warm", self.db)
        gone = os.path.join(self.dir, "elsewhere")
        os.rename(self.db, gone)
        self.assertEqual(self.do("drop", self.dir)["removed"], [])
        # Its state is found under its new name, its path under the old one.
        self.assertEqual(len(self.do("drop", gone)["removed"]), 1)
        os.rename(gone, self.db)
        self.do("warm", self.db)
        os.rename(self.db, gone)
        os.unlink(gone + "/data.mdb")
        self.assertEqual(len(self.do("drop", self.db)["removed"]), 1)

    def test_other_files_stay(self):
        self.do("warm", self.db)
        name = os.path.basename(self.image())
        others = {"notes", "0" * 32, "0" * 31 + ".data", "g" * 32 + ".data", name + ".old", "0" * 32 + ".txt"}
        for other in others:
            with open(os.path.join(self.own, other), "w", encoding="utf-8") as f:
                f.write("mine")
        with open(os.path.join(self.own, "1" * 32 + ".data"), "w", encoding="utf-8") as f:
            f.write("left behind")
        self.assertEqual(len(self.do("status")["images"]), 2)
        self.do("drop", "--all")
        self.assertEqual(set(os.listdir(self.own)), others)


class Damage(Cache):
    def damaged(self, *, chunks=None, status=1):
        j = self.do("verify", status=status)
        if status == 0:
            self.assertEqual((j["damaged"], j["damaged_chunks"]), ([], 0))
            return j
        [image] = j["damaged"]
        self.assertEqual(image["path"], self.file)
        self.assertEqual((image["chunks"], image["removed"]), (chunks, False))
        self.assertEqual(j["damaged_chunks"], len(chunks))
        return j

    def mend(self, missing):
        there = self.do("status")["images"][0]["chunks_there"]
        self.assertEqual(there, self.chunks - missing)
        j = self.do("warm", self.db)
        self.assertEqual((j["chunks_before"], j["chunks_added"], j["complete"]), (self.chunks - missing, missing, True))
        self.check_copy()
        self.damaged(status=0)

    def test_data_and_entries(self):
        self.do("warm", self.db)
        j = self.damaged(status=0)
        self.assertEqual((j["images"], j["chunks"], j["interrupted"]), (1, self.chunks, False))
        self.assertEqual(j["bytes"], self.do("status")["images"][0]["database_bytes"])
        data, table = self.image(), self.image("table")
        self.flip(data, CHUNK + 12345)
        self.damaged(chunks=[1])
        self.mend(1)
        self.flip(table, HEADER + 2 * ENTRY + 7)   # a checksum
        self.flip(table, HEADER + 3 * ENTRY + 9)   # a length
        self.flip(data, 0)
        self.flip(data, CHUNK - 1)
        self.damaged(chunks=[0, 2, 3])
        self.damaged(status=0)
        self.mend(3)

    def test_a_compressed_image(self):
        self.db = self.fresh("even")
        self.file = os.path.join(os.path.realpath(self.db), "data.mdb")
        writer = command_test.Writer(self.db)
        self.addCleanup(writer.close)
        writer.put([(b"%06d" % i, b"%01000d" % i * 20) for i in range(RECORDS)])
        env = {"LMDBIO_CACHE_CODEC": "lz4"}
        warmed = self.do("warm", self.db, env=env)
        if os.stat(self.image()).st_blocks * 512 > warmed["database_bytes"] / 2:
            self.skipTest("built without compression")
        self.chunks = warmed["chunks"]
        self.assertEqual((warmed["complete"], self.damaged(status=0)["chunks"]), (True, self.chunks))
        self.flip(self.image(), 1000)
        self.flip(self.image("table"), HEADER + 2 * ENTRY)
        self.damaged(chunks=[0, 2])
        again = self.do("warm", self.db, env=env)
        self.assertEqual((again["chunks_before"], again["chunks_added"]), (self.chunks - 2, 2))
        self.damaged(status=0)
        self.assertEqual(len(self.do("drop", self.db)["removed"]), 1)
        self.assertEqual(os.listdir(self.own), [])

    def test_in_words(self):
        self.do("warm", self.db)
        self.flip(self.image(), 0)
        out = self.say("verify", status=1).stdout.splitlines()
        self.assertEqual(out[0], f"{self.file}: 1 chunk was damaged and removed: 0")
        self.assertRegex(out[1], r"verified: 1 damaged chunk$")

    def test_of_an_earlier_start_of_the_machine(self):
        self.do("warm", self.db)
        map = self.image(r"[0-9a-f]{16}\.map")
        os.rename(map, re.sub(r"\.[0-9a-f]{16}\.", ".0123456789abcdef.", map))
        self.flip(self.image(), 2 * CHUNK)
        self.damaged(chunks=[2])
        self.assertEqual(len([f for f in os.listdir(self.own) if f.endswith(".map")]), 1)
        self.mend(1)
        # warm verifies as well.
        map = [f for f in os.listdir(self.own) if f.endswith(".map") and "0123456789abcdef" not in f]
        os.unlink(os.path.join(self.own, map[0]))
        self.flip(self.image(), 3 * CHUNK)
        j = self.do("warm", self.db)
        self.assertEqual((j["chunks_before"], j["chunks_added"]), (self.chunks - 1, 1))
        self.check_copy()

    def test_cut_data(self):
        self.do("warm", self.db)
        os.truncate(self.image(), 3 * CHUNK + 1)
        self.damaged(chunks=list(range(3, self.chunks)))
        j = self.do("warm", self.db)  # a file that is too short is made anew
        self.assertEqual((j["chunks_before"], j["chunks_added"], j["complete"]), (0, self.chunks, True))
        self.check_copy()
        self.damaged(status=0)

    def test_tables(self):
        def header(table):
            self.flip(table, 20)

        def cut(table):
            os.truncate(table, 1000)

        def no_data(_):
            os.unlink(self.image())

        def other_data(_):
            data = self.image()
            shutil.copy(data, data + "2")
            os.rename(data + "2", data)

        for damage in (header, cut, no_data, other_data):
            with self.subTest(damage=damage.__name__):
                self.do("warm", self.db)
                damage(self.image("table"))
                self.assertIn("the table of the image is damaged; the image was removed\n", self.say("verify", status=1).stdout)
                self.assertEqual(os.listdir(self.own), [])
                self.assertEqual(self.do("verify")["damaged"], [])
        self.do("warm", self.db)
        os.unlink(self.image("table"))  # an image that is being made
        self.assertEqual(self.do("verify")["damaged"], [])
        self.assertEqual(self.do("status")["images"][0]["path"], None)

    def test_every_byte_of_an_entry(self):
        self.do("warm", self.db)
        table = self.image("table")
        for at in range(12):
            self.flip(table, HEADER + ENTRY + at)
            j = self.do("verify", status=1)
            self.assertEqual(j["damaged"][0]["chunks"], [1], at)
            self.do("warm", self.db)


class Refused(Cache):
    def refused(self, what, *, commands=(("status",), ("verify",), ("drop", "--all"), ("warm",)), **kwargs):
        for command in commands:
            args = command + ((self.db,) if command == ("warm",) else ())
            done = self.say(*args, status=2, **kwargs)
            self.assertIn(what, done.stderr, command)
            self.assertEqual(done.stdout, "", command)

    def test_mode(self):
        os.mkdir(self.own, 0o755)
        self.refused("it must have mode 0700")
        os.chmod(self.own, 0o700)
        self.assertTrue(self.do("warm", self.db)["complete"])

    def test_owner(self):
        if os.geteuid() != 0:
            self.skipTest("another owner needs root")
        os.mkdir(self.own, 0o700)
        os.chown(self.own, 65534, 65534)
        self.refused("belongs to another user")

    def test_links_and_files(self):
        other = self.fresh("other")
        os.chmod(other, 0o700)
        os.symlink(other, self.own)
        self.refused("a link, or not a directory")
        os.unlink(self.own)
        with open(self.own, "w", encoding="utf-8"):
            pass
        self.refused("a link, or not a directory")
        self.assertEqual(os.listdir(other), [])

    def test_a_link_in_place_of_the_data(self):
        self.do("warm", self.db)
        data, victim = self.image(), os.path.join(self.dir, "victim")
        with open(victim, "wb") as f:
            f.write(b"mine")
        os.unlink(data)
        os.symlink(victim, data)
        self.assertNotEqual(self.say("warm", self.db, status=2).stderr, "")
        self.say("verify", status=1)
        with open(victim, "rb") as f:
            self.assertEqual(f.read(), b"mine")

    def test_no_directory(self):
        shutil.rmtree(self.cache)
        self.refused("No such file or directory")

    def test_no_database(self):
        for path in (self.cache, os.path.join(self.dir, "none")):
            self.assertNotEqual(self.say("warm", path, status=2).stderr, "")
        self.assertEqual(os.listdir(self.cache), [])

    def test_the_same_file_system(self):
        done = self.lmdbio("cache", "warm", self.db, "--cache", self.fresh("cache"), status=2)
        self.assertIn("is on the same file system as the cache", done.stderr)


class Room(Cache):
    def test_limit(self):
        env = {"LMDBIO_CACHE_SIZE": "16M"}
        j = self.do("warm", self.db, status=1, env=env)
        self.assertEqual((j["complete"], j["why_incomplete"]), (False, "there is no room for more"))
        there = j["chunks_before"] + j["chunks_added"]
        self.assertIn(there, (3, 4))
        self.assertLessEqual(self.do("status")["disk_bytes"], (16 << 20) + CHUNK)
        again = self.do("warm", self.db, status=1, env=env)
        self.assertEqual((again["chunks_before"], again["bytes_read"]), (there, 0))
        self.assertIn("not complete: there is no room for more", self.say("warm", self.db, status=1, env=env).stdout)
        self.do("verify")
        more = self.do("warm", self.db)
        self.assertEqual((more["complete"], more["chunks_before"]), (True, there))
        self.check_copy()

    def test_a_disk_that_others_fill(self):
        fs = self.mount(hang_from=12, hang_ms="forever")
        try:
            prefix = confined.in_mounts('mount -t tmpfs -o size=48M none "$LMDBIO_CACHE_DIR"')
        except confined.Missing as why:
            self.skipTest(str(why))
        script = '"$1" cache warm "$2" --json & echo wait_hung=1 >"$2/.slowfs/control"; ' \
                 'head -c 48M /dev/zero >"$LMDBIO_CACHE_DIR/full"; printf "hang_from=0\nrelease=1\n" >"$2/.slowfs/control"; ' \
                 'wait $!; echo $?; rm "$LMDBIO_CACHE_DIR/full"; "$1" cache verify --json; "$1" cache warm "$2" --json'
        done = subprocess.run([*prefix, "sh", "-c", script, "sh", shimtest.CONFIG["command"], fs.path],
                              env=shimtest.environment("stock", {**RAW, "LMDBIO_CACHE_DIR": self.cache, "LMDBIO_CACHE_SIZE": "1G"}),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        first, status, rest = re.fullmatch(r"(\{.*?\n\})\n(\d+)\n(.*)", done.stdout, re.DOTALL).groups()
        first = json.loads(first)
        self.assertEqual((status, first["complete"], first["why_incomplete"]), ("1", False, "No space left on device"))
        verified, second = (json.loads(text) for text in re.fullmatch(r"(\{.*?\n\})\n(.*)", rest, re.DOTALL).groups())
        self.assertEqual(verified["damaged"], [])
        self.assertTrue(second["complete"])


class Together(Cache):
    def start(self, *args):
        process = subprocess.Popen([shimtest.CONFIG["command"], "cache", *args, "--cache", self.cache, "--json"],
                                   env=shimtest.environment("stock", RAW), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def end(self, process, status):
        out, err = process.communicate(timeout=100)
        self.assertEqual(process.returncode, status, out + err)
        return json.loads(out)

    def hanging(self):
        """A warm of the database that waits for storage."""
        fs = self.mount(hang_from=12, hang_ms="forever")
        process = self.start("warm", fs.path)
        self.addCleanup(fs.set, hang_from=0, release=1)
        fs.set(wait_hung=1)
        return fs, process

    def test_in_use_and_interrupted(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                fs, process = self.hanging()
                self.assertTrue(self.do("status")["images"][0]["in_use"])
                process.send_signal(number)
                fs.set(hang_from=0, release=1)
                j = self.end(process, 128 + number)
                self.assertEqual((j["complete"], j["why_incomplete"]), (False, "interrupted"))
                self.assertFalse(self.do("status")["images"][0]["in_use"])
                j = self.do("warm", fs.path)
                self.assertTrue(j["complete"])
                self.check_copy()
                self.do("drop", "--all")

    def test_killed(self):
        fs, process = self.hanging()
        process.kill()
        fs.set(hang_from=0, release=1)
        process.communicate()
        self.assertFalse(self.do("status")["images"][0]["in_use"])
        self.assertTrue(self.do("warm", fs.path)["complete"])
        self.check_copy()
        self.do("verify")

    def test_dropped_meanwhile(self):
        fs, process = self.hanging()
        self.assertIn("1 image was in use", self.say("drop", "--all").stdout)
        fs.set(hang_from=0, release=1)
        self.end(process, 0)  # it does not look each time, and what it has is valid
        self.assertEqual(self.do("status")["images"], [])

    def test_a_commit_meanwhile(self):
        fs, process = self.hanging()
        other = command_test.Writer(fs.path, command_test.NOLOCK)
        fs.set(hang_from=0, release=1)
        other.put([(b"one", b"more")])
        j = json.loads(process.communicate(timeout=100)[0])
        self.assertEqual((process.returncode, j["complete"], j["why_incomplete"]), (1, False, "the database has changed"))
        other.close()
        self.do("verify")

    def test_a_database_that_cannot_be_read(self):
        fs = self.mount(fail_from=12, fail_errno="EIO")
        done = self.say("warm", fs.path, status=2)
        self.assertIn("not complete: the database cannot be read: Input/output error", done.stdout)
        fs.set(fail_from=0)
        self.assertTrue(self.do("warm", fs.path)["complete"])
        self.check_copy()

    def test_many_at_once(self):
        """Four warms and two readers, and a drop between them."""
        readers = []
        if not shimtest.CONFIG["sanitize"]:
            script = "import hashlib, lmdb, sys\nh = hashlib.sha256()\n" \
                     "for k, v in lmdb.open(sys.argv[1], readonly=True).begin().cursor():\n  h.update(k + v)\nprint(h.hexdigest())"
            reader = ["run", "--cache", self.cache, "--", "/usr/bin/python3", "-c", script, self.db]
            digest = self.lmdbio("run", *reader[3:]).stdout
            readers = [subprocess.Popen([shimtest.CONFIG["command"], *reader], env=shimtest.environment("stock"),
                                        stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for _ in range(3):
            warms = [self.start("warm", self.db) for _ in range(4)]
            for process in warms:
                self.assertTrue(self.end(process, 0)["complete"])
            self.check_copy()
            self.do("verify")
            self.do("drop", self.db)
        for process in readers:
            self.assertEqual((process.communicate()[0], process.returncode), (digest, 0))
        if readers:
            self.do("warm", self.db)
            self.assertEqual(self.lmdbio(*reader).stdout, digest)


if __name__ == "__main__":
    shimtest.main()
