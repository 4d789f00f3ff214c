"""What the tests of the Python package share.  CTest sets PYTHONPATH, and BUILD_OF_TESTS to the build directory."""
import os
import random
import subprocess
import sys
import threading

import lmdb
import pytest

BUILD = os.environ.get("BUILD_OF_TESTS", "")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import slowfs  # noqa: E402  (tests/support)


class Database:
    """An environment that py-lmdb wrote, and what is in it: `records`, as (key, value) in key order."""

    def __init__(self, path, records, name=None, dupsort=False):
        self.path = str(path)
        with lmdb.open(self.path, map_size=1 << 32, max_dbs=4) as env:
            db = env.open_db(name.encode() if name else None, dupsort=dupsort)
            with env.begin(write=True, db=db) as txn:
                for key, value in records:
                    txn.put(key, value)
            with env.begin(db=db) as txn:
                self.records = list(txn.cursor())

    def drop_cache(self):
        subprocess.run(["dd", f"if={self.path}/data.mdb", "iflag=nocache", "count=0"], check=True, stderr=subprocess.DEVNULL)


def together(count, work):
    """Runs work(0), work(1), ... in threads of their own, and waits for them."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def made_records(count, sizes, seed=1):
    r = random.Random(seed)
    return [(b"%08d" % i, b"%08d" % i + r.randbytes(max(r.choice(sizes) - 8, 0))) for i in range(count)]


@pytest.fixture(scope="session")
def mixed(tmp_path_factory):
    """1000 records: in leaf pages, on pages of their own, empty-ish."""
    return Database(tmp_path_factory.mktemp("mixed") / "db", made_records(1000, [8, 100, 1500, 3000, 9000]))


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    """640 records of 110 KiB, 70 MiB."""
    return Database(tmp_path_factory.mktemp("large") / "db", made_records(640, [112640]))


@pytest.fixture
def slow():
    """Mounts a database as slow storage would show it: slow(database, delay_us=...) gives a SlowFs."""
    mounts = []

    def mount(database, **options):
        try:
            fs = slowfs.SlowFs(os.path.join(BUILD, "bin", "lmdbio_slowfs"), database.path, **options).__enter__()
        except slowfs.Missing as why:
            pytest.skip(str(why))
        mounts.append(fs)
        database.drop_cache()
        return fs

    yield mount
    for fs in mounts:
        fs.__exit__(None, None, None)


@pytest.fixture
def script(tmp_path):
    """Runs a program in an interpreter of its own; it fails if it does not end in time, or not with status 0.  Calls talk(process)
    while the program runs; the end of its standard input follows."""
    def run(text, *arguments, timeout=120, talk=None, **environment):
        file = tmp_path / "script.py"
        file.write_text(text)
        with subprocess.Popen([sys.executable, "-B", str(file), *map(str, arguments)], env={**os.environ, **environment},
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                if talk is not None:
                    talk(process)
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        assert process.returncode == 0, err
        return out

    return run
