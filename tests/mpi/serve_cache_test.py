#!/usr/bin/python3
"""Servers on emulated hosts with a cache on the local disk of each: later jobs read nothing from the file system, the images of all
hosts together have the file once, and compressed bytes travel.

    serve_cache_test.py MPIRUN BIN LIBRARY [unittest arguments]

BIN has lmdbio and lmdbio_slowfs.  Exit status 77: FUSE, namespaces, mpirun or py-lmdb are missing.
"""
import glob
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from served_hosts import HOSTS_PROGRAM, drop_cache, environment, main, mounting  # noqa: E402

MPIRUN, BIN, LIBRARY = sys.argv[1:4]
RECORDS, VALUE = 600, 60000
CODEC = "zstd-1"

READER = """
import json, os, random, shutil, sys, zlib
path, mount = sys.argv[1:3]
import lmdb
found = 0
with lmdb.open(path, readonly=True, lock=False, subdir=False) as env, env.begin() as txn:
    if "lookups" in sys.argv:
        order = list(range(txn.stat()["entries"]))
        random.Random(9).shuffle(order)
        for i in order: found ^= zlib.crc32(txn.get(b"%08d" % i))
    else:
        for i, (key, value) in enumerate(txn.cursor()):
            found ^= zlib.crc32(value)
            if i == 99 and "remove" in sys.argv: shutil.rmtree(os.environ["LMDBIO_CACHE_DIR"])
with open(mount + "/.slowfs/counters") as file: counters = json.load(file)
print(json.dumps({"sum": found, "read": counters["read"]["bytes"]}), flush=True)
"""


def write_database(path):
    """Returns the exclusive or of the CRC-32 of all values.  They compress to about a half."""
    import lmdb
    rng = random.Random(5)
    found = 0
    with lmdb.open(path, map_size=1 << 30, subdir=False, lock=False) as env, env.begin(write=True) as txn:
        for i in range(RECORDS):
            value = rng.randbytes(VALUE // 2).hex().encode()
            txn.put(b"%08d" % i, value, append=True)
            found ^= zlib.crc32(value)
    return found


def disk_bytes(pattern):
    return sum(os.stat(file).st_blocks * 512 for file in glob.glob(pattern))


class ServeCache(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="lmdbio_serve_cache_")
        self.addCleanup(self.folder.cleanup)
        self.data, self.mount, self.caches = (os.path.join(self.folder.name, d) for d in ("data", "mount", "caches"))
        for folder in (self.data, self.mount, self.caches):
            os.mkdir(folder)
        self.file = os.path.join(self.data, "data.mdb")
        self.want = write_database(self.file)
        self.size = os.path.getsize(self.file)
        with open(os.path.join(self.folder.name, "reader.py"), "w", encoding="utf-8") as file:
            file.write(READER)

    def compressed_size(self):
        """Of an image that one process fills."""
        if os.stat("/dev/shm").st_dev == os.stat(self.folder.name).st_dev:
            self.skipTest("/dev/shm and the directory for temporary files are one file system")
        alone = os.path.join(self.folder.name, "alone")
        os.mkdir(alone)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
            copy = shutil.copy(self.file, other)
            subprocess.run([os.path.join(BIN, "lmdbio"), "cache", "warm", copy], check=True, stdout=subprocess.DEVNULL,
                           env={**environment(), "LMDBIO_CACHE_DIR": alone, "LMDBIO_CACHE_CODEC": CODEC})
        return disk_bytes(alone + "/*/*.data")

    def run_job(self, hosts, shell="{reader}", killed=False):
        """Runs the reader on each host, whose cache is caches/HOST.  `shell`: the command of a host; "{reader}" stands for the reader.
        killed: the job may fail.  Returns the bytes that left the file system, those that readers read themselves, and what the servers
        print."""
        stats = os.path.join(self.folder.name, "stats")
        if os.path.exists(stats):
            os.remove(stats)
        drop_cache(self.file)
        reader = ["env", "LD_PRELOAD=" + LIBRARY, "LMDBIO_STATS=" + stats, "/usr/bin/python3", "-B", os.path.join(self.folder.name, "reader.py"),
                  os.path.join(self.mount, "data.mdb"), self.mount]
        server = [os.path.join(BIN, "lmdbio"), "serve", "--stats", "--memory", "256MiB", "--", "/bin/sh", "-c", shell.format(reader=shlex.join(reader))]
        command = (f"export LMDBIO_CACHE_CODEC={CODEC} LMDBIO_CACHE_DIR={self.caches}/$(hostname)\n"
                   f"mkdir -p $LMDBIO_CACHE_DIR\nexec {shlex.join(server)}")
        job = subprocess.run([sys.executable, "-B", HOSTS_PROGRAM, "--mpirun", MPIRUN, "--hosts", str(hosts), "--ranks", "1", "--timeout", "100",
                              "--setup", mounting(BIN, self.data, self.mount), "--", "/bin/sh", "-c", command],
                             stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment(), check=False)
        if job.returncode == 77:
            self.skipTest(job.stdout.strip())
        if killed:
            return None
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        said = [json.loads(line) for line in job.stdout.splitlines() if line.startswith("{")]
        readers = [s for s in said if "sum" in s]
        self.assertEqual([r["sum"] for r in readers], [self.want] * hosts)
        with open(stats, encoding="utf-8") as file:
            done = [e["io"] for line in file for e in json.loads(line)["environments"]]
        self.assertEqual(len(done), hosts)
        themselves = sum(io["read"] - io["server_read"] - io["cache_read"] for io in done)
        servers = [s for s in said if "sum" not in s]
        self.assertEqual(len(servers), hosts)
        return sum(r["read"] for r in readers), themselves, servers

    def fill(self, hosts):
        """Runs jobs until homes read nothing.  On a busy machine, a home may not be asked for some of its chunks.  Returns what the
        last job has returned."""
        for _ in range(5):
            result = self.run_job(hosts)
            if sum(s["read"] - s["alone"] for s in result[2]) == 0:
                return result
        self.fail("homes read the file again and again")

    def test_later_jobs_read_nothing(self):
        compressed = self.compressed_size()
        self.assertLess(compressed, 0.7 * self.size)
        for hosts in (2, 4):
            with self.subTest(hosts=hosts):
                shutil.rmtree(self.caches)
                os.mkdir(self.caches)
                read, themselves, servers = self.fill(hosts)
                # On a busy machine, a server or a home may not answer in time.  Then programs read the file, and this is counted.
                again = themselves + sum(s["alone"] for s in servers)
                self.assertLessEqual(read - again, hosts << 19, "meta pages and branch pages")
                if again == 0:
                    self.assertGreater(sum(s["cached"] for s in servers), 0.5 * self.size)
                for s in servers:
                    self.assertLessEqual(s["from_nodes"], compressed)
                images = disk_bytes(self.caches + "/*/*/*")
                self.assertLessEqual(images, 1.05 * compressed)
                self.assertGreaterEqual(images, 0.95 * compressed)
                read, themselves, servers = self.run_job(hosts, "{reader} lookups")
                again = themselves + sum(s["alone"] for s in servers)
                self.assertLessEqual(read - again, hosts << 19, "meta pages and branch pages")
                self.assertEqual(sum(s["read"] - s["alone"] for s in servers), 0)

    def test_faults(self):
        hosts = 2
        # A server is killed when it has stored something.
        self.run_job(hosts, "{reader} & [ $(hostname) != node1 ] || {{ until [ $(du -sk $LMDBIO_CACHE_DIR | cut -f1) -gt 3000 ]; do sleep 0.01; done\n"
                     "kill -KILL $PPID; }}; wait", killed=True)
        self.fill(hosts)  # right bytes, and complete images
        # A frame of a chunk is damaged: this chunk is read from the file.
        data = glob.glob(self.caches + "/node1/*/*.data")
        self.assertEqual(len(data), 1)
        with open(data[0], "r+b") as file:
            at = os.lseek(file.fileno(), 0, os.SEEK_DATA) + 100_000
            byte = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), at)
        _, themselves, servers = self.run_job(hosts)
        self.assertGreater(themselves + sum(s["read"] for s in servers), 0)
        self.assertLessEqual(sum(s["read"] - s["alone"] for s in servers), 2 * (4 << 20))
        self.fill(hosts)
        # The images are removed while servers and programs use them.
        self.run_job(hosts, "{reader} remove")
        # Images of another user are not used, and not touched.
        self.fill(hosts)
        own = glob.glob(self.caches + "/*/*")
        self.assertEqual(len(own), hosts)
        before = sorted((f, os.stat(f).st_mtime_ns) for f in glob.glob(self.caches + "/*/*/*"))
        for folder in own:
            os.chown(folder, os.geteuid() + 1, -1)
        _, themselves, servers = self.run_job(hosts)
        self.assertEqual(sum(s["cached"] for s in servers), 0)
        self.assertGreaterEqual(themselves + sum(s["read"] for s in servers), 0.9 * self.size)
        self.assertEqual(sorted((f, os.stat(f).st_mtime_ns) for f in glob.glob(self.caches + "/*/*/*")), before)


if __name__ == "__main__":
    main(BIN)
