"""What the tests of servers on emulated hosts share."""
import importlib.util
import os
import random
import shlex
import sys
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HOSTS_PROGRAM = os.path.join(TOP, "tests", "support", "emulated_hosts.py")


def environment():
    """Returns the environment of a job, without settings of LMDBIO.  With PYTHONUNBUFFERED, print() writes the end of a line by itself,
    and mpirun may put the lines of other hosts before it."""
    return {k: v for k, v in os.environ.items() if not k.startswith("LMDBIO_") and k not in ("LD_PRELOAD", "PYTHONUNBUFFERED")}


def mounting(binaries, data, mount, *options):
    """Returns the shell command that mounts a directory on a host as slow storage, and waits until it is there."""
    slowfs = [os.path.join(binaries, "lmdbio_slowfs"), "--owner=1", "--delay-us=1000", *options, "--", data, mount]
    return f"{shlex.join(slowfs)} </dev/null >/dev/null &\nuntil [ -e {mount}/.slowfs/counters ]; do kill -0 $! || exit 1; sleep 0.01; done"


def write_database(path, records, value_bytes):
    """Writes records with the keys 00000000, 00000001, ...  Returns their values, which do not compress."""
    import lmdb
    rng = random.Random(3)
    values = [rng.randbytes(value_bytes) for _ in range(records)]
    with lmdb.open(path, map_size=1 << 30, subdir=False, lock=False) as env, env.begin(write=True) as txn:
        for i, value in enumerate(values):
            txn.put(b"%08d" % i, value, append=True)
    return values


def drop_cache(path):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def main(binaries):
    """Runs the tests of the main module, with the arguments of unittest from the fourth one on.  Exit status 77: something is missing."""
    if importlib.util.find_spec("lmdb") is None:
        print("py-lmdb is missing")
        sys.exit(77)
    if not os.path.exists("/dev/fuse") or not os.path.exists(os.path.join(binaries, "lmdbio_slowfs")):
        print("FUSE is missing")
        sys.exit(77)
    tests = unittest.main(argv=[sys.argv[0], *sys.argv[4:]], exit=False, verbosity=2).result
    sys.exit(1 if not tests.wasSuccessful() else 77 if tests.skipped else 0)
