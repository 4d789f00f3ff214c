"""Storage of the benchmarks of cold reads: evicts files, and mounts slow file systems.

A set-up is one of
  local[-reverse]
  slow-DELAYms[-READAHEAD][-maxREQUEST][-capMB][-reverse]
      e.g. slow-1ms-128K, slow-5ms-4M-cap500 (500 MB/s), slow-1ms-128K-reverse, slow-1ms-0K-max128K
A FUSE file system (tests/support/slowfs) adds DELAY to each read request.  READAHEAD is the kernel's read-ahead for it
(default: 128K).  REQUEST is the largest read request (default: 1M).
"""
import ctypes
import mmap
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "tests", "support")]
import slowfs  # noqa: E402
from measure import MIB, Skip, fail, size  # noqa: E402

STEP = 4 * MIB
LARGEST_READ_AHEAD_KB = 64 << 10
LARGEST_REQUEST = MIB  # of FUSE
COLD, WARM = 0.001, 0.999  # at most / at least this part of a file is in the page cache


def resident(fd):
    """Returns the part of the file that is in the page cache, 0 to 1.  Correct only for the file's owner and for root: the
    kernel reports to other users that all pages are resident."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    length = os.fstat(fd).st_size
    at = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if at == ctypes.c_void_p(-1).value:
        fail(f"mmap: {os.strerror(ctypes.get_errno())}")
    pages = ctypes.create_string_buffer((length + mmap.PAGESIZE - 1) // mmap.PAGESIZE)
    if libc.mincore(at, length, pages) != 0:
        fail(f"mincore: {os.strerror(ctypes.get_errno())}")
    libc.munmap(at, length)
    return pages.raw.count(1) / len(pages.raw)


def read_through(fd):
    buffer, at = bytearray(STEP), 0
    while n := os.preadv(fd, [buffer], at):
        at += n


def make_warm(path):
    """Reads the file into the page cache.  Returns the part that is resident afterwards, 0 to 1."""
    fd = os.open(path, os.O_RDONLY)
    try:
        for _ in range(3):
            if (there := resident(fd)) >= WARM:
                return there
            read_through(fd)
        if (there := resident(fd)) >= WARM:
            return there
        fail(f"{path} does not stay in the page cache: not enough memory?")
    finally:
        os.close(fd)


def make_cold(path):
    """Reads the file into the page cache, and then evicts it.  So a virtual machine has got the memory from its host before.
    Returns the part that is still resident, 0 to 1."""
    fd = os.open(path, os.O_RDONLY)
    try:
        read_through(fd)
        for _ in range(5):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            left = resident(fd)
            if left < COLD:
                return left
            os.fdatasync(fd)  # pages that are not written yet cannot go
        raise Skip(f"{path}: {100 * left:.1f} % cannot be evicted from the page cache (tmpfs? used by others?)")
    finally:
        os.close(fd)


class Local:
    """The databases in their own directory."""
    limit, slow = 64 * MIB, False

    def __init__(self, name, args):
        found = re.fullmatch(r"local(-reverse)?", name)
        self.reverse, self.dir, self.bytes = bool(found[1]), args.dir, args.local_bytes

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def prepare(self, database, make=make_cold):
        """Makes the database cold (or warm: make_warm).  Returns the part of it that is resident afterwards."""
        return self.prepare_files([os.path.join(database, "data.mdb")], make)

    def prepare_files(self, names, make=make_cold):
        """Does the same for files, given by their paths below the directory.  Returns the largest resident part of a file."""
        return max(make(os.path.join(self.dir, name)) for name in names)

    def told(self):
        return {}


class Slow:
    """The databases through a slow file system.  Its page cache is cold.  The files below it are in memory, so that requests
    take exactly the configured time, and no disk is measured."""
    limit, slow = 4 * MIB, True

    def __init__(self, name, args):
        found = re.fullmatch(r"slow-(\d+(?:\.\d+)?)ms(?:-(\d+[KM]))?(?:-max(\d+[KM]))?(?:-cap(\d+))?(-reverse)?", name)
        if not found:
            raise ValueError(name)
        self.delay_us = round(1000 * float(found[1]))
        self.bandwidth = int(found[4] or 0) * 1000000
        self.reverse, self.bytes, self.source = bool(found[5]), args.slow_bytes, args.dir
        options = {"max_background": 512}
        if found[3]:
            options["max_read"] = request = size(found[3])
            if not 0 < request <= LARGEST_REQUEST or request % 4096 != 0:
                fail(f"{name}: the largest request is a multiple of 4K up to {LARGEST_REQUEST >> 20}M")
        if (kb := size(found[2] or "128K") >> 10) > LARGEST_READ_AHEAD_KB:
            fail(f"{name}: a read-ahead of {found[2]}? A cap of the bandwidth is -capMB")
        if kb < 128:
            options["max_readahead"] = kb << 10
        elif kb != 128:  # the kernel's default
            options["read_ahead_kb"] = kb
        self.fs = slowfs.SlowFs(os.path.join(args.build, "bin", "lmdbio_slowfs"), args.dir, **options)

    def __enter__(self):
        try:
            self.fs.__enter__()
        except slowfs.Missing as e:
            raise Skip(str(e)) from e
        self.dir = self.fs.path
        return self

    def __exit__(self, *_):
        self.fs.__exit__()

    def prepare(self, database, make=make_cold):
        return self.prepare_files([os.path.join(database, "data.mdb")], make)

    def prepare_files(self, names, make=make_cold):
        for name in names:
            make_warm(os.path.join(self.source, name))
        self.fs.set(delay_us=0, bandwidth=0)
        left = max(make(os.path.join(self.dir, name)) for name in names)
        self.fs.set(delay_us=self.delay_us, bandwidth=self.bandwidth, reset=1)
        return left

    def told(self):
        read = self.fs.counters()["read"]
        return {"requests": read["numbered"], "request_bytes": read["bytes"], "request_sizes": read["sizes"],
                "in_flight_max": read["in_flight_max"]}


def setup(name, args):
    try:
        return Local(name, args) if name.startswith("local") else Slow(name, args)
    except (ValueError, TypeError):
        fail(f"no such set-up: {name} (see --help)")
