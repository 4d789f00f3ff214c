"""Copies of a database on local disk that bench/cache --compare reads (cache_compare.py describes them)."""
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time

import lmdb

from cache_data import key
from cache_jobs import cold_tree, command, image_facts, image_files, last_line, run, settings, warm
from measure import MIB, Failed, Skip

SHARDS, LOOKUPS = 16, 2000
FIRST = ["--mark", str(MIB), "--stop"]


def tool(name, package):
    if shutil.which(name) is None:
        raise Skip(f"{name} is missing (Debian package {package})")
    return name


def quiet(*argv):
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(argv)}: {done.stderr.strip()}")


class Copy:
    """A copy on local disk, below `at`.  Reads it with stock LMDB."""
    checked = True  # a walk gives the digest of the records

    def __init__(self, args, name, at):
        self.args, self.name, self.at = args, name, at

    def cold(self):
        cold_tree(self.at)

    def bytes(self):
        return sum(os.path.getsize(os.path.join(at, file)) for at, _, files in os.walk(self.at) for file in files)

    @contextlib.contextmanager
    def ready(self):
        """Gives the directory of the database, evicted."""
        self.cold()
        yield self.at

    def walk(self, more=()):
        with self.ready() as path:
            return self.job("walk", path, more)

    def job(self, job, path, more=()):
        """Returns the seconds of the process, and what it has printed."""
        seconds, out, errors = run(self.args.build, command(self.args.build, job, path) + list(more))
        return seconds, json.loads(out) if job == "walk" else {"digest": last_line(errors)}

    def first(self):
        return self.walk(FIRST)[1]["mark_seconds"]

    def lookups(self, records, path):
        argv = [os.path.join(self.args.build, "bin", "run_random"), path, "--records", str(records), "--count", str(LOOKUPS)]
        return json.loads(run(self.args.build, argv)[1])


class Original(Copy):
    """The database on the slow file system, read with LMDBIO; or with a cache, if `codec` is given."""

    def __init__(self, args, name, where, database, codec=None):
        super().__init__(args, name, os.path.join(args.dir, "cache-" + name.replace(" ", "-")) if codec else None)
        self.where, self.database, self.codec, self.more = where, database, codec, settings(None, None)
        if codec:
            self.more = settings(self.at, codec)
            self.empty()
            where.prepare(database)

    def fill(self):
        warm(self.args.build, os.path.join(self.where.dir, self.database), self.more)
        return self

    def empty(self):
        shutil.rmtree(self.at, ignore_errors=True)
        os.mkdir(self.at)

    def bytes(self):
        return image_facts(self.at)["stored_bytes"] if self.codec else 0

    @contextlib.contextmanager
    def ready(self):
        self.where.prepare(self.database)
        if self.codec:
            self.cold()
        yield os.path.join(self.where.dir, self.database)

    def job(self, job, path, more=()):
        seconds, out, errors = run(self.args.build, command(self.args.build, job, path) + list(more), job == "walk", self.more)
        return seconds, json.loads(out) if job == "walk" else {"digest": last_line(errors)}

    def lookups(self, records, path):
        argv = [os.path.join(self.args.build, "bin", "run_random"), path, "--records", str(records), "--count", str(LOOKUPS)]
        return json.loads(run(self.args.build, argv, True, self.more)[1])


class Frames(Copy):
    """The image of a cache, read by read_frames.cc."""
    checked, first = False, None

    def __init__(self, args, name, at, words):
        super().__init__(args, name, at)
        self.words, self.program = words, os.path.join(args.build, "bin", "read_frames")
        if not os.access(self.program, os.X_OK):
            raise Skip("read_frames is not built (liblz4-dev, libzstd-dev)")

    def bytes(self):
        return image_facts(self.at)["stored_bytes"]

    def walk(self, more=()):
        self.cold()
        seconds, out, _ = run(self.args.build, [self.program, *image_files(self.at)])
        if json.loads(out)["sum"] != self.words:
            raise Failed(f"{self.name}: read other bytes than those of the database")
        return seconds, {}


class Mounted(Copy):
    """An image of a read-only file system."""

    def __init__(self, args, name, kind, make):
        super().__init__(args, name, os.path.join(args.dir, name.replace(" ", "-")))
        self.kind, self.how = kind, None
        os.mkdir(self.at)
        self.image = os.path.join(self.at, "image")
        quiet(*make, *(["-noappend", "-quiet"] if kind == "squashfs" else []))

    @contextlib.contextmanager
    def ready(self):
        self.cold()
        with tempfile.TemporaryDirectory(prefix="mount-", dir=self.args.dir) as path:
            self.how = self.mount(path)
            try:
                yield path
            finally:
                quiet(*(["umount"] if self.how == "kernel" else ["fusermount3" if shutil.which("fusermount3") else "fusermount", "-u"]), path)

    def mount(self, path):
        argv = ["mount", "-t", self.kind, "-o", "loop,ro", self.image, path]
        if self.how in (None, "kernel") and subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            return "kernel"
        program = tool(*{"squashfs": ("squashfuse_ll", "squashfuse"), "erofs": ("erofsfuse", "erofsfuse")}[self.kind])
        quiet(program, self.image, path)
        return program


class Shards(Copy):
    checked = False

    def __init__(self, args, name, database):
        super().__init__(args, name, os.path.join(args.dir, "shards"))
        tool("zstd", "zstd")
        os.mkdir(self.at)
        shard = os.path.join(args.dir, "shard")
        with lmdb.open(database, readonly=True, lock=False) as env, env.begin() as txn:
            count = txn.stat()["entries"]
            for n in range(SHARDS):
                os.mkdir(shard)
                with lmdb.open(shard, map_size=os.path.getsize(os.path.join(database, "data.mdb")) + MIB) as to, to.begin(write=True) as more:
                    for i in range(count * n // SHARDS, count * (n + 1) // SHARDS):
                        more.put(key(i), txn.get(key(i)), append=True)
                quiet("zstd", "-3", "-q", os.path.join(shard, "data.mdb"), "-o", self.path(n))
                shutil.rmtree(shard)

    def path(self, n):
        return os.path.join(self.at, f"{n:04}.zst")

    def unpack(self, n, to):
        os.mkdir(os.path.join(to, str(n)))
        return subprocess.Popen(["zstd", "-dqf", self.path(n), "-o", os.path.join(to, str(n), "data.mdb")])

    def run(self, shards, more=()):
        self.cold()
        with tempfile.TemporaryDirectory(prefix="lmdbio-shards-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else self.args.dir) as to:
            begun, read, unpacking = time.perf_counter(), 0, self.unpack(0, to)
            for n in range(shards):
                if unpacking.wait():
                    raise Failed("zstd -d failed")
                if n + 1 < shards:
                    unpacking = self.unpack(n + 1, to)
                read += self.job("walk", os.path.join(to, str(n)), more)[1]["records"]
                shutil.rmtree(os.path.join(to, str(n)))
            return time.perf_counter() - begun, {"records": read}

    def walk(self, more=()):
        return self.run(SHARDS)

    def first(self):
        return self.run(1, FIRST)[0]  # whole processes


def copy_file(source, to):
    """Returns the seconds of `cp`."""
    begun = time.perf_counter()
    quiet("cp", source, to)
    return time.perf_counter() - begun


def squashfs(args, name, source, block):
    argv = [tool("mksquashfs", "squashfs-tools"), source, os.path.join(args.dir, name.replace(" ", "-"), "image"), "-comp", "zstd",
            "-Xcompression-level", "3", "-b", block]
    return Mounted(args, name, "squashfs", argv)


def erofs(args, name, source):
    argv = [tool("mkfs.erofs", "erofs-utils"), "-zlz4hc", "-C65536", os.path.join(args.dir, name, "image"), source]
    return Mounted(args, name, "erofs", argv)
