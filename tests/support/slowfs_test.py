#!/usr/bin/env python3
"""Does the slow file system do what it says?  slowfs_test.py BINARY"""
import ctypes
import errno
import fcntl
import json
import mmap
import os
import random
import select
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import slowfs  # noqa: E402

BINARY = ""
NOBODY = 65534
SIZE = 4 << 20
PAGE = 4096
ROOT = os.geteuid() == 0


def forked(body):
    """body() in a child; its result, as JSON would have it.  An OSError becomes its errno's name."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                result = body()
            except OSError as e:
                result = errno.errorcode[e.errno]
            os.write(w, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(w)
    with os.fdopen(r) as f:
        text = f.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def as_nobody(body):
    def drop():
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return body()
    return forked(drop)


def with_devices(body, *, fuse):
    """body() in a child that sees a /dev with null and, if told so, fuse for everybody.  None: not possible here."""
    def inside():
        libc = ctypes.CDLL(None, use_errno=True)
        for call in (lambda: libc.unshare(0x20000),  # CLONE_NEWNS
                     lambda: libc.mount(None, b"/", None, 0x44000, None),  # MS_REC | MS_PRIVATE
                     lambda: libc.mount(b"none", b"/dev", b"tmpfs", 0, b"mode=755")):
            if call() != 0:
                return None
        os.umask(0)
        os.mknod("/dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        if fuse:
            os.mknod("/dev/fuse", stat.S_IFCHR | 0o666, os.makedev(10, 229))
        return body()
    return forked(inside)


class Child:
    """A process that does what it is told, one call after the other: a lock owner of its own."""

    def __init__(self, body):
        ours, theirs = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(ours[1])
                os.close(theirs[0])
                step = body()
                with os.fdopen(ours[0]) as lines:
                    for line in lines:
                        try:
                            result = step(*json.loads(line))
                        except OSError as e:
                            result = errno.errorcode[e.errno]
                        os.write(theirs[1], (json.dumps(result) + "\n").encode())
            finally:
                os._exit(0)
        os.close(ours[0])
        os.close(theirs[1])
        self.to, self.out = os.fdopen(ours[1], "w"), os.fdopen(theirs[0])

    def send(self, *what):
        self.to.write(json.dumps(what) + "\n")
        self.to.flush()

    def result(self):
        return json.loads(self.out.readline())

    def __call__(self, *what):
        self.send(*what)
        return self.result()

    def answered(self):
        return bool(select.select([self.out], [], [], 0)[0])

    def close(self):
        self.to.close()
        self.out.close()
        os.waitpid(self.pid, 0)


def locker(*paths):
    """What a Child does with files: (which file, call, type, start, length)."""
    def body():
        fds = [os.open(p, os.O_RDWR) for p in paths]

        def step(which, call, *args):
            if call == "close":
                os.close(os.open(paths[which], os.O_RDWR))  # ends all locks of the process on the file
                return "done"
            kind, start, length = args
            kinds = {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK, "u": fcntl.F_UNLCK}
            arg = struct.pack("hhqqi4x", kinds[kind], os.SEEK_SET, start, length, 0)
            command = {"set": fcntl.F_SETLK, "wait": fcntl.F_SETLKW, "get": fcntl.F_GETLK}[call]
            out = struct.unpack("hhqqi4x", fcntl.fcntl(fds[which], command, arg))
            return ["free"] if call == "get" and out[0] == fcntl.F_UNLCK else list(out) if call == "get" else "done"
        return step
    return Child(body)


class Case(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory(prefix="lmdbio_slowfs_test_")
        self.addCleanup(temp.cleanup)
        self.dir = temp.name
        os.chmod(self.dir, 0o755)
        self.source = os.path.join(self.dir, "source")
        os.mkdir(self.source)
        self.bytes = random.Random(1).randbytes(SIZE)
        self.make("data", self.bytes)

    def make(self, name, data=b""):
        with open(os.path.join(self.source, name), "wb") as f:
            f.write(data)

    def mount(self, **options):
        fs = slowfs.SlowFs(BINARY, self.source, **options)
        return self.enterContext(fs) if hasattr(self, "enterContext") else self._enter(fs)

    def _enter(self, fs):
        fs.__enter__()
        self.addCleanup(fs.__exit__, None, None, None)
        return fs

    def open(self, fs, name="data", flags=os.O_RDONLY):
        fd = os.open(os.path.join(fs.path, name), flags)
        self.addCleanup(os.close, fd)
        return fd

    def child(self, body_or_child):
        child = body_or_child if isinstance(body_or_child, Child) else Child(body_or_child)
        self.addCleanup(child.close)
        return child

    def assertErrno(self, code, call, *args, **kwargs):
        with self.assertRaises(OSError) as caught:
            call(*args, **kwargs)
        self.assertEqual(errno.errorcode[caught.exception.errno], errno.errorcode[code])

    def direct_read(self, fd, size=PAGE, offset=0):
        """One read with O_DIRECT (or direct_io): one request, if it is not larger than the mount's."""
        buffer = mmap.mmap(-1, size)
        n = os.preadv(fd, [buffer], offset)
        return buffer[:n]


    def reader(self, fs):
        """A process that reads a page where it is told to, past the page cache; it has the file open already."""
        child = self.child(lambda: (lambda fd: lambda offset: len(self.direct_read(fd, PAGE, offset)))(
            os.open(fs.path + "/data", os.O_RDONLY | os.O_DIRECT)))
        return child


class PassThrough(Case):
    def test_data_and_tree_are_the_sources(self):
        fs = self.mount()
        os.mkdir(fs.path + "/sub")
        with open(fs.path + "/sub/new", "w") as f:
            f.write("text")
        os.rename(fs.path + "/sub/new", fs.path + "/sub/renamed")
        os.link(fs.path + "/sub/renamed", fs.path + "/sub/link")
        os.symlink("renamed", fs.path + "/sub/symlink")
        self.assertEqual(os.stat(fs.path + "/sub/link").st_nlink, 2)
        self.assertEqual(os.readlink(fs.path + "/sub/symlink"), "renamed")
        os.unlink(fs.path + "/sub/link")
        os.truncate(fs.path + "/sub/renamed", 2)
        os.chmod(fs.path + "/sub/renamed", 0o640)
        os.utime(fs.path + "/sub/renamed", ns=(1, 2))
        self.assertEqual(sorted(os.listdir(self.source + "/sub")), ["renamed", "symlink"])
        with open(self.source + "/sub/symlink") as f:
            self.assertEqual(f.read(), "te")
        st = os.stat(self.source + "/sub/renamed")
        self.assertEqual((st.st_mode & 0o777, st.st_mtime_ns), (0o640, 2))
        os.unlink(fs.path + "/sub/symlink")
        os.unlink(fs.path + "/sub/renamed")
        os.rmdir(fs.path + "/sub")
        self.assertEqual(os.listdir(fs.path), ["data"])  # the control files are not listed
        self.assertEqual(sorted(os.listdir(fs.path + "/.slowfs")), ["control", "counters", "settings"])
        with open(fs.path + "/data", "rb") as f:
            self.assertEqual(f.read(), self.bytes)
        self.assertErrno(errno.ENOENT, os.stat, fs.path + "/nothing")
        requests = fs.counters()["requests"]
        for op in ("mkdir", "rename", "link", "symlink", "readlink", "rmdir", "create", "write", "readdir"):
            self.assertGreater(requests[op], 0, op)
        self.assertEqual((requests["mkdir"], requests["rmdir"], requests["create"], requests["unlink"]), (1, 1, 1, 3))

    def test_many_names(self):
        names = {f"{'n' * 100}{i}" for i in range(300)}  # more than one readdir holds
        for n in names:
            self.make(n)
        fs = self.mount()
        self.assertEqual(set(os.listdir(fs.path)), names | {"data"})
        self.assertGreater(fs.counters()["requests"]["readdir"], 2)

    def test_shared_mapping_writes_through(self):
        fs = self.mount()
        fd = self.open(fs, flags=os.O_RDWR)
        with mmap.mmap(fd, SIZE) as m:
            m[5 * PAGE:5 * PAGE + 5] = b"mmap!"
            os.pwrite(fd, b"write", 6 * PAGE)
            self.assertEqual(m[6 * PAGE:6 * PAGE + 5], b"write")
            m.flush()
        with open(self.source + "/data", "rb") as f:
            data = f.read()
        self.assertEqual((data[5 * PAGE:5 * PAGE + 5], data[6 * PAGE:6 * PAGE + 5]), (b"mmap!", b"write"))

    def test_changes_of_the_source(self):
        for remote in (False, True):
            with self.subTest(remote_changes=remote):
                self.make("changing", b"old bytes")
                os.utime(self.source + "/changing", ns=(1, 1))
                with slowfs.SlowFs(BINARY, self.source, **({"remote_changes": True} if remote else {})) as fs:
                    with open(fs.path + "/changing", "rb") as f:
                        self.assertEqual(f.read(), b"old bytes")
                    with open(self.source + "/changing", "r+b") as f:
                        f.write(b"new")
                    os.utime(self.source + "/changing", ns=(2, 2))
                    with open(fs.path + "/changing", "rb") as f:
                        self.assertEqual(f.read(), b"new bytes" if remote else b"old bytes")


class Counting(Case):
    def test_reads_are_counted_by_size(self):
        fs = self.mount()
        fd = self.open(fs, flags=os.O_RDONLY | os.O_DIRECT)
        for size, times in ((PAGE, 3), (3 * PAGE, 2), (1 << 20, 1)):
            for i in range(times):
                self.assertEqual(self.direct_read(fd, size, i * PAGE), self.bytes[i * PAGE:i * PAGE + size])
        c = fs.counters()
        self.assertEqual(c["requests"]["read"], 6)
        self.assertEqual(c["requests"]["open"], 1)
        self.assertEqual(c["read"]["direct"], 6)
        self.assertEqual(c["read"]["sizes"], {"4096": 3, "16384": 2, "1048576": 1})
        self.assertEqual(c["read"]["bytes"], 9 * PAGE + (1 << 20))
        self.assertEqual((c["read"]["in_flight"], c["read"]["in_flight_max"]), (0, 1))
        fs.set(reset=1)
        c = fs.counters()
        self.assertEqual((c["requests"]["read"], c["read"]["bytes"], c["read"]["sizes"]), (0, 0, {}))

    def test_trace(self):
        path = os.path.join(self.dir, "trace")
        fs = self.mount(trace=path, delay_us=1000)
        before = time.monotonic_ns()
        reader = self.reader(fs)
        self.assertEqual(reader(8 * PAGE), PAGE)
        # A page fault, in a thread that is not the process's first.
        with mmap.mmap(self.open(fs), SIZE, prot=mmap.PROT_READ) as m:
            ids = []
            thread = threading.Thread(target=lambda: ids.extend((threading.get_native_id(), m[20 * PAGE])))
            thread.start()
            thread.join()
        fs.settings()  # control files are not traced
        with open(path) as f:
            lines = [json.loads(line) for line in f]
        self.assertEqual(len(lines), fs.counters()["requests"]["read"])
        self.assertEqual(sum(line["bytes"] for line in lines), fs.counters()["read"]["bytes"])
        first, second = lines[0], lines[1]
        self.assertEqual({k: first[k] for k in ("process", "thread", "file", "offset", "bytes", "direct")},
                         {"process": reader.pid, "thread": reader.pid, "file": "data", "offset": 8 * PAGE, "bytes": PAGE, "direct": True})
        self.assertEqual((second["process"], second["thread"], second["direct"]), (os.getpid(), ids[0], False))
        self.assertTrue(second["offset"] <= 20 * PAGE < second["offset"] + second["bytes"])
        for line in lines:
            self.assertTrue(before < line["begin_ns"] <= line["end_ns"] - 1_000_000 < time.monotonic_ns())
        self.assertLess(first["end_ns"], second["begin_ns"])

    def test_the_page_cache_is_used_until_cold_open(self):
        fs = self.mount()
        for option, expected in ((0, False), (1, True)):
            fs.set(cold_open=option)
            with open(fs.path + "/data", "rb") as f:
                f.read()
            fs.set(reset=1)
            with open(fs.path + "/data", "rb") as f:
                self.assertEqual(f.read(), self.bytes)
            self.assertEqual(fs.counters()["read"]["bytes"] >= SIZE, expected)

    def test_delay(self):
        fs = self.mount()
        fd = self.open(fs, flags=os.O_RDONLY | os.O_DIRECT)
        fs.set(delay_us=20000)
        threads = 4
        barrier = threading.Barrier(threads)

        def read(i):
            barrier.wait()
            self.direct_read(fd, PAGE, i * PAGE)
        before = time.monotonic_ns()
        workers = [threading.Thread(target=read, args=(i,)) for i in range(threads)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        self.assertGreaterEqual(time.monotonic_ns() - before, 20_000_000)  # never earlier: holds on any machine
        c = fs.counters()
        self.assertEqual((c["requests"]["read"], c["read"]["in_flight"]), (threads, 0))
        self.assertGreater(c["read"]["in_flight_max"], 1)  # delays do not queue up behind each other
        fs.set(delay_us=0)
        self.assertEqual(fs.settings()["delay_us"], 0)

    def test_delay_of_metadata(self):
        fs = self.mount()
        fs.set(metadata_delay_us=20000)
        before = time.monotonic_ns()
        with open(fs.path + "/data", "rb") as f:
            self.assertGreaterEqual(time.monotonic_ns() - before, 40_000_000)  # a lookup, and an open
            self.assertEqual(f.read(PAGE), self.bytes[:PAGE])
        before = time.monotonic_ns()
        with self.assertRaises(FileNotFoundError):
            os.stat(fs.path + "/none")
        self.assertGreaterEqual(time.monotonic_ns() - before, 20_000_000)
        fs.set(metadata_delay_us=0)
        self.assertEqual(fs.settings()["metadata_delay_us"], 0)

    def test_control_is_all_or_nothing(self):
        fs = self.mount(delay_us=7, fail_errno="ESTALE", dir_mode="0755")
        self.assertEqual({k: fs.settings()[k] for k in ("delay_us", "fail_errno", "dir_mode", "files")},
                         {"delay_us": 7, "fail_errno": errno.ESTALE, "dir_mode": 0o755, "files": "*"})
        before = fs.settings()
        for bad in ({"delay_us": "x"}, {"nothing": 1}, {"fail_errno": "ENOTHING"}, {"no_mmap": 2}, {"reset": -1},
                    {"file_mode": "8"}, {"hang_ms": -1}):
            with self.assertRaises(OSError) as caught:
                fs.set(**{"uid": 5, "delay_us": 8, **bad})
            self.assertEqual(caught.exception.errno, errno.EINVAL)
            self.assertIn(next(iter(bad)), fs.errors().splitlines()[-1])
        self.assertEqual(fs.settings(), before)
        fs.set(delay_us=9, files="*.mdb")
        self.assertEqual((fs.settings()["delay_us"], fs.settings()["files"]), (9, "*.mdb"))
        subprocess.run(["sh", "-c", 'echo delay_us=3 > "$1"/.slowfs/control', "sh", fs.path], check=True)
        self.assertEqual(fs.settings()["delay_us"], 3)


class Bandwidth(Case):
    def test_a_cap_shared_by_two_mounts(self):
        group = os.path.join(self.dir, "group")
        rate = 40 << 20
        a = self.mount(bandwidth_group=group, bandwidth=rate)
        b = self.mount(bandwidth_group=group)
        self.assertEqual(b.settings()["bandwidth"], rate)

        def read(fs):
            fd = self.open(fs, flags=os.O_RDONLY | os.O_DIRECT)
            for at in range(0, SIZE, 1 << 19):
                self.assertEqual(self.direct_read(fd, 1 << 19, at), self.bytes[at:at + (1 << 19)])
        workers = [threading.Thread(target=read, args=(fs,)) for fs in (a, b)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        bucket = a.counters()["bucket"]
        self.assertEqual(bucket, b.counters()["bucket"])
        self.assertEqual(bucket["bytes"], a.counters()["read"]["bytes"] + b.counters()["read"]["bytes"])
        self.assertEqual(bucket["bytes"], 2 * SIZE)
        self.assertEqual(bucket["transfers"], 16)
        self.assertGreaterEqual(bucket["busy_ns"] * rate, bucket["bytes"] * 10**9)
        self.assertLess(bucket["busy_ns"] * rate, bucket["bytes"] * 10**9 + 16 * rate)  # rounding
        self.assertGreaterEqual(bucket["free_ns"] - bucket["begin_ns"], bucket["busy_ns"])  # one after the other
        self.assertGreaterEqual(after, bucket["free_ns"])  # nothing was answered before it was paid for
        b.set(bandwidth=0, reset=1)
        fd = self.open(a, flags=os.O_RDONLY | os.O_DIRECT)
        self.direct_read(fd)
        self.assertEqual((a.settings()["bandwidth"], a.counters()["bucket"]["bytes"]), (0, 0))

    def test_a_group_outlives_who_is_killed(self):
        group = os.path.join(self.dir, "group")
        with slowfs.SlowFs(BINARY, self.source, bandwidth_group=group, bandwidth=1000) as killed:
            reader = self.reader(killed)
            reader.send(0)
            while killed.counters()["bucket"]["transfers"] == 0:  # the request has bought its 4 seconds
                os.sched_yield()
            killed.kill()
            self.assertEqual(reader.result(), "ECONNABORTED")
        fs = self.mount(bandwidth_group=group)
        self.assertEqual(fs.settings()["bandwidth"], 1000)
        fs.set(bandwidth=1 << 30)
        self.assertEqual(fs.counters()["bucket"]["bytes"], PAGE)

    def test_a_file_that_is_no_group(self):
        with self.assertRaisesRegex(RuntimeError, "data: not the file of a bandwidth group"):
            self.mount(bandwidth_group=self.source + "/data")
        with open(self.source + "/data", "rb") as f:
            self.assertEqual(f.read(), self.bytes)


class Kernel(Case):
    def test_max_read(self):
        fs = self.mount(max_read=8192)
        with open(fs.path + "/data", "rb") as f:
            self.assertEqual(f.read(), self.bytes)
        fd = self.open(fs, flags=os.O_RDONLY | os.O_DIRECT)
        self.assertEqual(self.direct_read(fd, 1 << 20), self.bytes[:1 << 20])
        c = fs.counters()["read"]
        self.assertLessEqual(set(c["sizes"]), {"4096", "8192"})
        self.assertEqual(c["direct"], (1 << 20) // 8192)

    def test_max_readahead(self):
        sizes = {}
        for limit in (0, 32768, 131072):
            with slowfs.SlowFs(BINARY, self.source, max_readahead=limit) as fs:
                with open(fs.path + "/data", "rb", buffering=0) as f:
                    while f.read(PAGE):
                        pass
                sizes[limit] = max(map(int, fs.counters()["read"]["sizes"]))
        self.assertEqual(sizes, {0: PAGE, 32768: 32768, 131072: 131072})

    def test_read_ahead_of_the_mount(self):
        try:
            fs = self.mount(read_ahead_kb=64)
        except slowfs.Missing as e:
            self.skipTest(str(e))
        for kb in (64, 1024, 16):
            fs.set(read_ahead_kb=kb, cold_open=1, reset=1)
            with open(fs.path + "/data", "rb", buffering=0) as f:
                while f.read(PAGE):
                    pass
            largest = max(map(int, fs.counters()["read"]["sizes"]))
            self.assertEqual(largest, kb << 10)


class ReadFaults(Case):
    def outcomes(self, fs, fd, reads, **settings):
        fs.set(reset=1, **settings)
        out = []
        for i in range(reads):
            try:
                out.append(len(self.direct_read(fd, PAGE, i * PAGE)))
            except OSError as e:
                out.append(errno.errorcode[e.errno])
        return out

    def test_errors_at_from_every(self):
        fs = self.mount()
        fd = self.open(fs, flags=os.O_RDONLY | os.O_DIRECT)
        ok = PAGE
        self.assertEqual(self.outcomes(fs, fd, 4, fail_at=2), [ok, "EIO", ok, ok])
        self.assertEqual(fs.counters()["faults"]["read_error"], 1)
        self.assertEqual(fs.counters()["read"]["bytes"], 3 * PAGE)
        self.assertEqual(self.outcomes(fs, fd, 4, fail_at=0, fail_from=3, fail_errno="ESTALE"),
                         [ok, ok, "ESTALE", "ESTALE"])
        self.assertEqual(self.outcomes(fs, fd, 5, fail_from=0, fail_every=2, fail_errno="EAGAIN"),
                         [ok, "EAGAIN", ok, "EAGAIN", ok])
        self.assertEqual(fs.counters()["faults"]["read_error"], 2)
        self.assertEqual(self.outcomes(fs, fd, 3, fail_every=0), [ok] * 3)

    def test_an_error_in_a_page_fault_is_sigbus(self):
        fs = self.mount(fail_from=1)
        pid = os.fork()
        if pid == 0:
            fd = os.open(fs.path + "/data", os.O_RDONLY)
            os._exit(mmap.mmap(fd, PAGE, prot=mmap.PROT_READ)[0] & 0)
        self.assertEqual(os.WTERMSIG(os.waitpid(pid, 0)[1]), signal.SIGBUS)
        self.assertGreater(fs.counters()["faults"]["read_error"], 0)

    def test_short_reads(self):
        fs = self.mount(short_bytes=512)
        fd = self.open(fs, flags=os.O_RDONLY | os.O_DIRECT)
        self.assertEqual(self.outcomes(fs, fd, 1, short_at=1), [PAGE])  # the kernel has read the rest
        self.assertEqual(fs.counters()["read"]["numbered"], 2)
        self.assertEqual(fs.counters()["faults"]["read_short"], 1)
        fs.set(raw_direct=1)
        fd = self.open(fs, flags=os.O_RDONLY | os.O_DIRECT)
        self.assertEqual(self.outcomes(fs, fd, 3, short_at=2), [PAGE, 512, PAGE])
        self.assertEqual(self.outcomes(fs, fd, 3, short_at=0, short_every=1, short_bytes=0), [0] * 3)
        self.assertEqual(fs.counters()["faults"]["read_short"], 3)

    def test_only_files_that_are_named(self):
        self.make("other", self.bytes)
        fs = self.mount(files="oth*", fail_from=1, direct_errno="EINVAL", write_open_errno="EACCES")
        with open(fs.path + "/data", "rb") as f:
            self.assertEqual(f.read(), self.bytes)
        self.open(fs, flags=os.O_RDWR | os.O_DIRECT)
        self.assertEqual(fs.counters()["read"]["numbered"], 0)
        self.assertErrno(errno.EIO, os.read, self.open(fs, "other"), 1)
        self.assertErrno(errno.EACCES, self.open, fs, "other", os.O_RDWR)
        self.assertErrno(errno.EINVAL, self.open, fs, "other", os.O_RDONLY | os.O_DIRECT)

    def test_hang_until_released(self):
        fs = self.mount(hang_at=2)
        reader = self.reader(fs)
        self.assertEqual(reader(0), PAGE)
        reader.send(PAGE)
        fs.set(wait_hung=1)
        self.assertEqual(fs.counters()["hung"], 1)
        self.assertEqual(fs.counters()["read"]["in_flight"], 1)
        with open(fs.path + "/data", "rb") as f:  # others are served
            self.assertEqual(f.read(), self.bytes)
        self.assertFalse(reader.answered())
        fs.set(release=1)
        self.assertEqual(reader.result(), PAGE)
        self.assertEqual((fs.counters()["hung"], fs.counters()["faults"]["read_hang"]), (0, 1))

    def test_hang_for_a_time(self):
        fs = self.mount(hang_at=1, hang_ms=30)
        fd = self.open(fs, flags=os.O_RDONLY | os.O_DIRECT)
        before = time.monotonic_ns()
        self.assertEqual(len(self.direct_read(fd)), PAGE)
        self.assertGreaterEqual(time.monotonic_ns() - before, 30_000_000)  # never earlier
        self.assertEqual(fs.counters()["faults"]["read_hang"], 1)

    def test_who_hangs_can_be_killed(self):
        fs = self.mount(hang_from=1, raw_direct=1, cold_open=1)
        for how, flags in (("direct", os.O_DIRECT), ("read", 0), ("mmap", 0)):
            with self.subTest(how=how):
                pid = os.fork()
                if pid == 0:
                    fd = os.open(fs.path + "/data", os.O_RDONLY | flags)
                    os._exit(mmap.mmap(fd, PAGE, prot=mmap.PROT_READ)[0] if how == "mmap"
                             else len(self.direct_read(fd)))
                fs.set(wait_hung=1)
                os.kill(pid, signal.SIGKILL)
                self.assertEqual(os.WTERMSIG(os.waitpid(pid, 0)[1]), signal.SIGKILL)
                fs.set(release=1)  # read-ahead that nobody waits for

    def test_unmounting_ends_hangs_and_delays(self):
        for setting in ({"hang_from": 1}, {"delay_us": 3_600_000_000}):
            with self.subTest(**setting):
                fs = slowfs.SlowFs(BINARY, self.source, **setting)
                with fs:
                    reader = self.reader(fs)
                    reader.send(0)
                    while fs.counters()["read"]["in_flight"] == 0:
                        os.sched_yield()
                self.assertEqual(reader.result(), "ENOTCONN")
                self.assertFalse(os.path.exists(fs.path))


class Refusals(Case):
    def test_mmap(self):
        fs = self.mount()
        for flags, prot in ((os.O_RDONLY, mmap.PROT_READ), (os.O_RDWR, mmap.PROT_READ),
                            (os.O_RDWR, mmap.PROT_READ | mmap.PROT_WRITE)):
            for refused in (0, 1):
                fs.set(no_mmap=refused)
                fd = self.open(fs, flags=flags)
                if refused:
                    self.assertErrno(errno.ENODEV, mmap.mmap, fd, SIZE, flags=mmap.MAP_SHARED, prot=prot)
                else:
                    with mmap.mmap(fd, SIZE, flags=mmap.MAP_SHARED, prot=prot) as m:
                        self.assertEqual(m[:], self.bytes)
        self.assertEqual(fs.counters()["faults"]["direct_io_open"], 3)
        self.assertEqual(os.pread(fd, PAGE, PAGE), self.bytes[PAGE:2 * PAGE])

    def test_mmap_from_the_start(self):
        fs = self.mount(no_mmap=1)
        fd = self.open(fs)
        self.assertErrno(errno.ENODEV, mmap.mmap, fd, SIZE, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self.assertEqual(os.pread(fd, SIZE, 0), self.bytes)
        direct = self.open(fs, flags=os.O_RDONLY | os.O_DIRECT)
        self.assertEqual(self.direct_read(direct, PAGE, PAGE), self.bytes[PAGE:2 * PAGE])

    def test_direct(self):
        fs = self.mount(direct_errno="EINVAL")
        self.assertErrno(errno.EINVAL, self.open, fs, flags=os.O_RDONLY | os.O_DIRECT)
        self.assertErrno(errno.EINVAL, self.open, fs, "new", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        self.assertFalse(os.path.exists(self.source + "/new"))
        self.open(fs)
        self.assertEqual(fs.counters()["faults"]["direct_refused"], 2)

    def test_create_and_write_open(self):
        fs = self.mount()
        for name in ("EROFS", "EACCES", "ENOSPC"):
            code = getattr(errno, name)
            fs.set(reset=1, create_errno=name)
            self.assertErrno(code, self.open, fs, "new", os.O_RDWR | os.O_CREAT)
            self.assertErrno(code, os.mkdir, fs.path + "/new")
            self.assertErrno(code, os.symlink, "x", fs.path + "/new")
            self.open(fs, flags=os.O_RDWR | os.O_CREAT)  # it exists
            self.assertEqual(fs.counters()["faults"]["create_refused"], 3)
            fs.set(reset=1, create_errno=0, write_open_errno=name)
            self.assertErrno(code, self.open, fs, flags=os.O_RDWR)
            self.assertErrno(code, self.open, fs, flags=os.O_WRONLY)
            self.assertErrno(code, self.open, fs, "new", os.O_RDWR | os.O_CREAT)
            self.open(fs)
            self.assertEqual(fs.counters()["faults"]["write_open_refused"], 3)
            fs.set(write_open_errno=0)
        self.assertEqual(os.listdir(self.source), ["data"])


class Locks(Case):
    def test_as_on_a_local_file(self):
        """The same calls on the mount and on the kernel's own locks: the same answers."""
        self.make("locked")
        local = os.path.join(self.dir, "local")
        with open(local, "wb"):
            pass
        fs = self.mount()
        children = [self.child(locker(fs.path + "/locked", local)) for _ in range(3)]
        seed = random.randrange(1 << 32)
        r = random.Random(seed)
        seen = {}
        for i in range(4000):
            c = r.choice(children)
            call = r.choices(["set", "get", "close"], [20, 10, 1])[0]
            args = [] if call == "close" else [r.choice("rwu" if call == "set" else "rw"), r.randrange(12),
                                               r.choice([0, 1, 1, 2, 3, 5])]
            got, want = (c(which, call, *args) for which in (0, 1))
            if call == "get":  # which of several locks is shown is not laid down, nor is how they are put together
                got, want = got[0], want[0]
                got, want = (x == "free" for x in (got, want))
            self.assertEqual(got, want, f"seed {seed}, call {i}: {call} {args}")
            seen[call, str(got)] = seen.get((call, str(got)), 0) + 1
        for what in (("set", "done"), ("set", "EAGAIN"), ("get", "True"), ("get", "False"), ("close", "done")):
            self.assertGreater(seen.get(what, 0), 20, what)
        c = fs.counters()
        self.assertEqual(c["locks"]["granted"] + c["locks"]["unlocks"], seen["set", "done"])
        self.assertEqual(c["locks"]["conflicts"], seen["set", "EAGAIN"])
        self.assertEqual(c["requests"]["getlk"], seen["get", "True"] + seen["get", "False"])

    def test_what_getlk_shows(self):
        self.make("locked")
        fs = self.mount()
        a, b = (self.child(locker(fs.path + "/locked")) for _ in range(2))
        self.assertEqual(a(0, "set", "r", 10, 5), "done")
        self.assertEqual(a(0, "set", "r", 15, 0), "done")  # grows the first
        self.assertEqual(b(0, "get", "w", 0, 11), [fcntl.F_RDLCK, 0, 10, 0, a.pid])
        self.assertEqual(b(0, "get", "r", 0, 11), ["free"])
        self.assertEqual(b(0, "get", "w", 0, 10), ["free"])
        self.assertEqual(a(0, "set", "u", 12, 1), "done")
        self.assertEqual(b(0, "get", "w", 12, 1), ["free"])
        self.assertEqual(b(0, "get", "w", 0, 0)[2:4], [10, 2])

    def test_waiting(self):
        self.make("locked")
        fs = self.mount()
        a, b, c = (self.child(locker(fs.path + "/locked")) for _ in range(3))

        def wait_for(n):
            while fs.counters()["locks"]["waited"] < n:
                os.sched_yield()
        self.assertEqual(a(0, "set", "w", 0, 10), "done")
        b.send(0, "wait", "w", 5, 1)
        wait_for(1)
        self.assertEqual(a(0, "set", "u", 0, 5), "done")  # not yet what b waits for
        c.send(0, "wait", "r", 6, 1)
        wait_for(2)
        self.assertFalse(b.answered() or c.answered())
        self.assertEqual(a(0, "set", "u", 5, 1), "done")
        self.assertEqual(b.result(), "done")
        self.assertFalse(c.answered())
        self.assertEqual(a(0, "set", "r", 6, 4), "done")  # a weaker lock lets readers in
        self.assertEqual(c.result(), "done")
        a.send(0, "wait", "w", 5, 1)
        wait_for(3)
        self.assertEqual(b(0, "close"), "done")
        self.assertEqual(a.result(), "done")
        # who is killed holds and wants nothing any more
        b.send(0, "wait", "w", 5, 1)
        wait_for(4)
        os.kill(b.pid, signal.SIGKILL)
        self.assertEqual(b.out.readline(), "")
        c.send(0, "wait", "w", 5, 1)
        wait_for(5)
        os.kill(a.pid, signal.SIGKILL)
        self.assertEqual(c.result(), "done")

    def test_refused(self):
        self.make("locked")
        fs = self.mount()
        child = self.child(locker(fs.path + "/locked"))
        self.assertEqual(child(0, "set", "w", 0, 1), "done")
        for name in ("ENOLCK", "ENOSYS", "EOPNOTSUPP"):
            fs.set(reset=1, lock_errno=name)
            shown = errno.errorcode[getattr(errno, name)]
            for call in ("set", "wait", "get"):
                self.assertEqual(child(0, call, "r", 0, 1), shown)
            self.assertEqual(child(0, "set", "u", 0, 1), "done")
            self.assertEqual(fs.counters()["faults"]["lock_refused"], 3)
        fs.set(lock_errno=0)
        self.assertEqual(child(0, "set", "w", 0, 1), "done")  # the kernel asks again after ENOSYS

    def test_hanging(self):
        self.make("locked")
        fs = self.mount(lock_hang_ms="forever")
        child = self.child(locker(fs.path + "/locked"))
        for call in ("set", "wait"):
            child.send(0, call, "w", 0, 1)
            fs.set(wait_hung=1)
            self.assertFalse(child.answered())
            fs.set(release=1)
            self.assertEqual(child.result(), "done")
        fs.set(lock_hang_ms=20, lock_errno="ENOLCK")
        before = time.monotonic_ns()
        self.assertEqual(child(0, "set", "w", 0, 1), "ENOLCK")
        self.assertGreaterEqual(time.monotonic_ns() - before, 20_000_000)
        self.assertEqual(fs.counters()["faults"]["lock_hang"], 3)
        fs.set(lock_hang_ms="forever")
        child.send(0, "wait", "w", 0, 1)
        fs.set(wait_hung=1)
        os.kill(child.pid, signal.SIGTERM)  # interrupted: it can die
        self.assertEqual(child.out.readline(), "")
        self.assertEqual(fs.counters()["hung"], 0)

    def test_left_to_the_kernel(self):
        self.make("locked")
        fs = self.mount(kernel_locks=True, lock_errno="ENOLCK")
        a, b = (self.child(locker(fs.path + "/locked")) for _ in range(2))
        self.assertEqual(a(0, "set", "w", 0, 1), "done")
        self.assertEqual(b(0, "set", "w", 0, 1), "EAGAIN")
        self.assertEqual(fs.counters()["requests"]["setlk"], 0)


@unittest.skipUnless(ROOT, "only root shows files to others")
class Owners(Case):
    def test_files_of_somebody_else(self):
        fs = self.mount(uid=1234, gid=4321, file_mode="0644", dir_mode="0755")
        for path in (fs.path, fs.path + "/data"):
            st = os.stat(path)
            self.assertEqual((st.st_uid, st.st_gid), (1234, 4321))
        self.assertEqual(os.stat(fs.path).st_mode & 0o7777, 0o755)
        self.assertEqual(os.stat(fs.path + "/data").st_mode & 0o7777, 0o644)

        def try_all():
            out = [os.getuid()]
            for flags in (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT):
                try:
                    os.close(os.open(fs.path + ("/new" if flags & os.O_CREAT else "/data"), flags))
                    out.append("ok")
                except OSError as e:
                    out.append(errno.errorcode[e.errno])
            return out
        self.assertEqual(as_nobody(try_all), [NOBODY, "ok", "EACCES", "EACCES"])
        fs.set(file_mode="0600")
        self.assertEqual(as_nobody(try_all), [NOBODY, "EACCES", "EACCES", "EACCES"])
        fs.set(uid=NOBODY)
        self.assertEqual(as_nobody(try_all), [NOBODY, "ok", "ok", "ok"])
        self.assertEqual(os.stat(self.source + "/new").st_uid, NOBODY)  # belongs to who made it
        fs.set(uid=-1, gid=-1, file_mode=-1, dir_mode=-1)
        self.assertEqual(os.stat(fs.path + "/data").st_uid, 0)

    def test_control_is_the_owners(self):
        fs = self.mount(uid=NOBODY)
        self.assertEqual(as_nobody(lambda: fs.set(delay_us=1)), "EACCES")
        self.assertEqual(as_nobody(lambda: fs.counters()["hung"]), 0)

    def test_a_mount_by_another_user(self):
        """Through fusermount3, without privileges."""
        if not os.path.exists("/etc/mtab"):
            self.skipTest("no /etc/mtab, without which fusermount3 unmounts nothing for users")
        def mount():
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            if not os.access(BINARY, os.X_OK):
                return ["missing", 77, BINARY]
            source, mountpoint = tempfile.mkdtemp(), tempfile.mkdtemp()
            try:
                with open(source + "/x", "w") as f:
                    f.write("mine")
                process = subprocess.Popen([BINARY, "--fail-from=1", source, mountpoint], stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE, text=True)
                if process.stdout.readline() != "ready\n":
                    return ["missing", process.wait(), process.stderr.read()]
                with open(mountpoint + "/x") as f:
                    try:
                        out = f.read()
                    except OSError as e:
                        out = errno.errorcode[e.errno]
                process.terminate()
                process.communicate()
                return [out, process.returncode, os.path.ismount(mountpoint)]
            finally:
                os.unlink(source + "/x")
                os.rmdir(source)
                os.rmdir(mountpoint)
        out = with_devices(mount, fuse=True)
        if out is None:
            self.skipTest("no mount namespaces")
        if out[0] == "missing":
            self.assertEqual(out[1], 77, out)
            self.skipTest(out[2])
        self.assertEqual(out, ["EIO", 0, False])


class Lmdb(Case):
    def setUp(self):
        try:
            import lmdb
        except ImportError:
            self.skipTest("python3-lmdb")
        self.lmdb = lmdb
        super().setUp()

    def test_several_writers_and_readers(self):
        fs = self.mount()
        path = fs.path + "/db"
        os.mkdir(path)

        def count():
            """Adds one to a counter, 50 times, beside others: lost without locks."""
            with self.lmdb.open(path, map_size=16 << 20) as env:
                for i in range(50):
                    with env.begin(write=True) as txn:
                        n = int(txn.get(b"n", b"0"))
                        txn.put(b"n", str(n + 1).encode())
                        txn.put(f"{os.getpid()}.{i}".encode(), os.urandom(5000))
                    with env.begin() as txn:
                        if int(txn.get(b"n")) <= n:
                            return "older than what was written"
            return "done"
        writers = [self.child(lambda: count) for _ in range(3)]
        for w in writers:
            w.send()
        self.assertEqual([w.result() for w in writers], ["done"] * 3)
        c = fs.counters()
        self.assertGreater(c["requests"]["setlk"], 0)
        self.assertGreater(c["requests"]["write"], 150)
        for where in (path, self.source + "/db"):
            with self.lmdb.open(where, readonly=True) as env, env.begin() as txn:
                self.assertEqual(txn.get(b"n"), b"150", where)
                self.assertEqual(sum(1 for _ in txn.cursor()), 151)
                self.assertEqual({len(v) for k, v in txn.cursor() if k != b"n"}, {5000})

    def test_faults_reach_it(self):
        fs = self.mount()
        path = fs.path + "/db"
        os.mkdir(path)
        with self.lmdb.open(path, map_size=1 << 20) as env, env.begin(write=True) as txn:
            txn.put(b"k", b"v")

        def read():
            with self.lmdb.open(path, readonly=True) as env, env.begin() as txn:
                return txn.get(b"k").decode()

        def outcome(**settings):
            def body():
                try:
                    return read()
                except self.lmdb.Error as e:
                    return str(e)
            fs.set(**settings)
            return forked(body)
        self.assertEqual(outcome(), "v")
        self.assertIn(os.strerror(errno.ENODEV), outcome(no_mmap=1))
        self.assertIn(os.strerror(errno.ENOLCK), outcome(no_mmap=0, lock_errno="ENOLCK"))
        self.assertIn(os.strerror(errno.EACCES), outcome(lock_errno=0, write_open_errno="EACCES"))
        self.assertEqual(outcome(write_open_errno="EROFS"), "v")  # stock forgives that one
        self.assertIn(os.strerror(errno.EIO), outcome(write_open_errno=0, cold_open=1, files="data.mdb", fail_from=1))
        self.assertEqual(outcome(fail_from=0), "v")


class Lifetime(Case):
    """However it ends, nothing stays mounted."""

    def gone(self, path):
        deadline = time.monotonic() + 60
        while os.path.ismount(path) or self.dead(path):
            self.assertLess(time.monotonic(), deadline, "still mounted")
            time.sleep(0.001)
        self.assertEqual(os.listdir(path), [])

    @staticmethod
    def dead(path):
        try:
            os.stat(path)
        except OSError as e:
            return e.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        return False

    def start(self, *options, **how):
        mountpoint = os.path.join(self.dir, "mnt")
        os.makedirs(mountpoint, exist_ok=True)
        process = subprocess.Popen([BINARY, *options, self.source, mountpoint], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, **how)
        self.addCleanup(process.communicate)
        self.assertEqual(process.stdout.readline(), "ready\n")
        self.assertTrue(os.path.ismount(mountpoint))
        return process, mountpoint

    def test_signals(self):
        for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            process, mountpoint = self.start()
            fd = os.open(mountpoint + "/data", os.O_RDONLY)  # busy
            process.send_signal(s)
            self.assertEqual(process.wait(), 0)
            self.assertEqual(os.listdir(mountpoint), [])
            self.assertErrno(errno.ENOTCONN, os.pread, fd, PAGE, 0)
            self.assertErrno(errno.ENOTCONN, os.close, fd)

    @unittest.skipUnless(ROOT, "umount(8)")
    def test_unmounted_by_others(self):
        process, mountpoint = self.start("--hang-from=1")
        reader = self.child(lambda: lambda: len(os.pread(os.open(mountpoint + "/data", os.O_RDONLY), 1, 0)))
        reader.send()
        with open(mountpoint + "/.slowfs/control", "w") as f:
            f.write("wait_hung=1\n")
        subprocess.run(["umount", "-f", "-l", mountpoint], check=True)
        self.assertIn(reader.result(), ("ECONNABORTED", "ENOTCONN", "EIO"))
        self.assertEqual(process.wait(), 0)
        self.assertEqual(os.listdir(mountpoint), [])

    def test_killed(self):
        process, mountpoint = self.start()
        process.kill()
        process.wait()
        self.gone(mountpoint)

    def test_parent_killed(self):
        mountpoint = os.path.join(self.dir, "mnt")
        os.mkdir(mountpoint)
        parent = subprocess.Popen(["sh", "-c", '"$@" & wait', "sh", BINARY, self.source, mountpoint],
                                  stdout=subprocess.PIPE, text=True)
        self.addCleanup(parent.communicate)
        self.assertEqual(parent.stdout.readline(), "ready\n")
        parent.kill()
        self.assertEqual(parent.stdout.read(), "")  # the end of it: the mount's process, too, has ended
        parent.wait()
        self.assertEqual(os.listdir(mountpoint), [])

    def test_owner_already_dead(self):
        child = subprocess.Popen(["true"])
        child.wait()
        done = subprocess.run([BINARY, f"--owner={child.pid}", self.source, self.dir], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("owner", done.stderr)

    def test_errors(self):
        for argv, status, text in ((["/nowhere", self.dir], 1, "/nowhere: No such file"),
                                   ([self.source, self.dir + "/nowhere"], 1, "nowhere: No such file"),
                                   ([self.source, self.source + "/data"], 1, "not a directory"),
                                   ([self.source], 2, "mountpoint"),
                                   (["--max-read=5000", self.source, self.dir], 2, "4096"),
                                   (["--fail-errno=ENOTHING", self.source, self.dir], 2, "ENOTHING"),
                                   (["--trace=/nowhere/trace", self.source, self.dir], 1, "/nowhere/trace: No such file"),
                                   (["--nothing", self.source, self.dir], 2, "nothing")):
            done = subprocess.run([BINARY, *argv], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (status, ""), done)
            self.assertIn(text, done.stderr)

    @unittest.skipUnless(ROOT, "unshare(2)")
    def test_missing_fuse_is_77(self):
        def mount():
            try:
                with slowfs.SlowFs(BINARY, self.source):
                    return "mounted"
            except slowfs.Missing as e:
                return str(e)
        out = with_devices(mount, fuse=False)
        if out is None:
            self.skipTest("no mount namespaces")
        self.assertRegex(out, "status 77: .*/dev/fuse")


def main():
    global BINARY
    BINARY = sys.argv.pop(1)
    try:
        with tempfile.TemporaryDirectory() as source, slowfs.SlowFs(BINARY, source):
            pass
    except slowfs.Missing as e:
        print(f"skipped: {e}", file=sys.stderr)
        sys.exit(77)
    unittest.main()


if __name__ == "__main__":
    main()
