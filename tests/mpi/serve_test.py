#!/usr/bin/python3
"""Unmodified programs (py-lmdb) on emulated hosts, with a server on each of them: which bytes leave the file system, how often, and
whether the programs get the right ones.

    serve_test.py MPIRUN BIN LIBRARY [unittest arguments]

BIN has lmdbio and lmdbio_slowfs.  Exit status 77: FUSE, namespaces, mpirun or py-lmdb are missing.
"""
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from served_hosts import HOSTS_PROGRAM, drop_cache, environment, main, mounting, write_database  # noqa: E402

MPIRUN, BIN, LIBRARY = sys.argv[1:4]
PACKAGE = os.path.join(os.path.dirname(BIN), "python")
RECORDS, VALUE, HOSTS = 600, 60000, 3
SMALL_RECORDS, SMALL_VALUE, EPOCHS = 8000, 3000, 5

# Reads all records and prints JSON: their sum, bytes that the host's file system and the server have delivered.
READER = """
import json, os, random, sys, zlib
path, mount, how = sys.argv[1:4]
import lmdb
open_file = lambda: lmdb.open(path, readonly=True, lock=False, subdir=False)
found = 0
if how in ("shuffled", "in order"):
    import lmdbio
    order = lmdbio.Order.shuffled(5, batch=16) if how == "shuffled" else lmdbio.Order.sequential(batch=16)
    with lmdbio.Reader(path, lock=False) as reader:
        for batch in reader.stream(order.repeat(EPOCHS)):
            for value in batch.values: found += zlib.crc32(value)
elif how == "walk":
    with open_file() as env, env.begin() as txn:
        for epoch in range(2):
            for key, value in txn.cursor(): found = zlib.crc32(value, found)
else:
    if how == "reopened":
        with open_file() as env, env.begin() as txn:
            for key, value in txn.cursor(): found += zlib.crc32(value)
    with open_file() as env, env.begin() as txn:
        order = list(range(txn.stat()["entries"]))
        random.Random(7).shuffle(order)
        for i in order: found ^= zlib.crc32(txn.get(b"%08d" % i))
with open(mount + "/.slowfs/counters") as file: counters = json.load(file)
print(json.dumps({"sum": found, "read": counters["read"]["bytes"]}), flush=True)
"""


def want(values, how):
    import zlib
    found = 0
    if how == "walk":
        for _ in range(2):
            for v in values:
                found = zlib.crc32(v, found)
    elif how in ("lookups", "reopened"):
        found = sum(map(zlib.crc32, values)) if how == "reopened" else 0
        for v in values:
            found ^= zlib.crc32(v)
    else:
        found = EPOCHS * sum(map(zlib.crc32, values))
    return found


class Serve(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="lmdbio_serve_")
        cls.data, cls.mount = (os.path.join(cls.folder.name, d) for d in ("data", "mount"))
        os.mkdir(cls.data)
        os.mkdir(cls.mount)
        cls.file = os.path.join(cls.data, "data.mdb")
        cls.values = write_database(cls.file, RECORDS, VALUE)
        cls.small = os.path.join(cls.data, "small.mdb")
        cls.small_values = write_database(cls.small, SMALL_RECORDS, SMALL_VALUE)
        with open(os.path.join(cls.folder.name, "reader.py"), "w", encoding="utf-8") as file:
            file.write(READER.replace("EPOCHS", str(EPOCHS)))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_on_hosts(self, how, shell="{reader}", served=True, by_run=False, small=False):
        """Runs the reader on each host.  `shell`: the command of a host; "{reader}" stands for the reader.  by_run: `lmdbio run`
        starts the servers.  `small`: reads the database with small records.  Returns the bytes that left the file system, those of
        them that readers read themselves, and what the servers print.  self.environments: the statistics of readers."""
        path, values = (self.small, self.small_values) if small else (self.file, self.values)
        stats = os.path.join(self.folder.name, "stats")
        if os.path.exists(stats):
            os.remove(stats)
        drop_cache(path)
        setup = mounting(BIN, self.data, self.mount)
        reader = ["env", "LD_PRELOAD=" + LIBRARY, "LMDBIO_STATS=" + stats, "PYTHONPATH=" + PACKAGE, "/usr/bin/python3", "-B",
                  os.path.join(self.folder.name, "reader.py"), os.path.join(self.mount, os.path.basename(path)), self.mount, how]
        command = ["/bin/sh", "-c", shell.format(reader=shlex.join(reader))]
        head = []
        if by_run:
            head = ["--head"]
            run = shlex.quote(os.path.join(BIN, "lmdbio")) + " run --nodes --launcher 'MPIRUN' --"
            # Neither servers nor their segments are left.
            command = ["/bin/sh", "-c", f"{run} MPIRUN {shlex.join(command)} || exit 1\n"
                       "! pgrep lmdbio-serve || exit 2\nMPIRUN sh -c '! ipcs -m | grep 0x1db' || exit 3"]
        elif served:
            command = [os.path.join(BIN, "lmdbio"), "serve", "--memory", "256MiB", "--stats", "--", *command]
        env = environment()
        job = subprocess.run([sys.executable, "-B", HOSTS_PROGRAM, "--mpirun", MPIRUN, "--hosts", str(HOSTS), "--ranks", "1", "--timeout", "100",
                              "--setup", setup, *head, "--", *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False)
        if job.returncode == 77:
            self.skipTest(job.stdout.strip())
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        said = [json.loads(line) for line in job.stdout.splitlines() if line.startswith("{")]
        readers = [s for s in said if "sum" in s]
        self.assertEqual([r["sum"] for r in readers], [want(values, how)] * HOSTS)
        with open(stats, encoding="utf-8") as file:
            self.environments = [e for line in file for e in json.loads(line)["environments"]]
        done = [e["io"] for e in self.environments]
        self.assertEqual(len(done), HOSTS * (2 if how == "reopened" else 1))
        themselves = sum(io["read"] - io["server_read"] for io in done)
        return sum(r["read"] for r in readers), themselves, [s for s in said if "sum" not in s]

    def test_each_byte_leaves_the_file_system_once(self):
        size = os.path.getsize(self.file)
        for how in ("walk", "lookups"):
            with self.subTest(how=how):
                read, themselves, servers = self.run_on_hosts(how)
                self.assertEqual(len(servers), HOSTS)
                # On a busy machine, a server or a home may not answer in time.  Then bytes are read again, and counted.
                again = themselves + sum(s["alone"] for s in servers)
                self.assertLessEqual(read - again, 1.05 * size)
                for s in servers:
                    self.assertGreaterEqual(s["to_programs"], 0.5 * size)
                    self.assertLessEqual(s["read"] - s["alone"], 0.45 * size, "a third, and the rest of a chunk")

    # A walk gets the file from other nodes.  Lookups of another environment get it from the server of their node.
    def test_what_another_environment_has_got_is_not_sent_again(self):
        size = os.path.getsize(self.small)
        read, themselves, servers = self.run_on_hosts("reopened", small=True)
        again = themselves + sum(s["alone"] for s in servers)
        self.assertLessEqual(read - again, 1.05 * size)
        for s in servers:
            self.assertGreaterEqual(s["to_programs"], 1.9 * size)
            self.assertLessEqual(s["from_nodes"], 0.8 * size, "two thirds, and the rest of a chunk")

    # The first epoch of a shuffle gets the file in large requests, in the background.  In order, this begins towards the end of the
    # first epoch.  Nothing is asked for in later epochs.
    @unittest.skipUnless(importlib.util.find_spec("numpy"), "the package lmdbio needs NumPy")
    def test_readers_ask_once(self):
        size = os.path.getsize(self.small)
        for how in ("shuffled", "in order"):
            with self.subTest(how=how):
                read, themselves, servers = self.run_on_hosts(how, small=True)
                readers = [e["reader"] for e in self.environments]
                again = themselves + sum(r["read"] - r["server_read"] for r in readers) + sum(s["alone"] for s in servers)
                # If a server was late on a busy machine, its readers have read the records themselves, and what is around them.
                if again == 0:
                    self.assertLessEqual(read, 1.05 * size)
                for e in self.environments:
                    self.assertGreaterEqual(e["io"]["loads_begun"], 1)
                    self.assertGreaterEqual(e["reader"]["records"], EPOCHS * SMALL_RECORDS)
                    # An epoch has as many records as the database; and several of them share a request if they are in order.
                    self.assertLessEqual(e["reader"]["requests"], 0.5 * SMALL_RECORDS)
                for s in servers:
                    self.assertLessEqual(s["to_programs"], 2.5 * size, "an epoch of extents, and the file")
                    self.assertLessEqual(s["from_nodes"], 1.7 * size, "two thirds of these bytes")

    def test_servers_that_run_starts(self):
        size = os.path.getsize(self.file)
        _, themselves, servers = self.run_on_hosts("walk", by_run=True)
        self.assertEqual(servers, [])
        self.assertLessEqual(themselves, 0.5 * HOSTS * size, "servers have brought most of the bytes")

    def test_servers_that_do_not_start(self):
        for launcher, why in (("false", "the servers have not started: false has ended with status 1"), ("/none", "/none")):
            with self.subTest(launcher=launcher):
                job = subprocess.run([os.path.join(BIN, "lmdbio"), "run", "--nodes", "--launcher", launcher, "--", "echo", "run"],
                                     capture_output=True, text=True, check=False)
                self.assertNotEqual(job.returncode, 0)
                self.assertEqual(job.stdout, "")
                self.assertIn(why, job.stderr)

    def test_without_servers(self):
        read, themselves, _ = self.run_on_hosts("walk", served=False)
        self.assertGreaterEqual(themselves, 0.9 * HOSTS * os.path.getsize(self.file))
        self.assertGreaterEqual(read, 0.9 * HOSTS * os.path.getsize(self.file))

    def test_a_server_is_stopped(self):
        stop = 'if [ "$(hostname)" = node1 ]; then kill -STOP $PPID; {reader}; kill -CONT $PPID; else {reader}; fi'
        read, _, _ = self.run_on_hosts("walk", stop)
        self.assertLessEqual(read, 1.05 * HOSTS * os.path.getsize(self.file))


if __name__ == "__main__":
    main(BIN)
