"""Processes with a lmdbio.Follow that are killed beside a writer: the lock table, and the next Follow."""
import json
import os
import random
import resource
import signal
import subprocess
import sys

import pytest
from follow_test import put_some, writer_process  # noqa: F401  pylint: disable=unused-import

import lmdbio

# A saved state begins with the size of the log, which has the batches.
FOLLOW = """
import json, os, sys, lmdbio
path, saved, log, every = *sys.argv[1:4], int(sys.argv[4])
size, state = 0, None
if os.path.exists(saved):
    whole = open(saved, "rb").read()
    size, state = int.from_bytes(whole[:8], "little"), whole[8:]
with lmdbio.Follow(path, fresh=8, old=2, seed=7, buffer="reservoir", capacity=50, append_only=True, renew_batches=2, finished_key=b"end",
                   state=state) as follow, open(log, "a") as out:
    out.truncate(size)
    print("open", flush=True)
    for n, (batch, new) in enumerate(follow):
        for key, value in batch: assert bytes(value) == bytes(key) * 8
        print(json.dumps([[bytes(key).decode() for key, _ in batch], new]), file=out, flush=True)
        if n % every == 0:
            with open(saved + ".new", "wb") as file: file.write(os.fstat(out.fileno()).st_size.to_bytes(8, "little") + follow.state())
            os.rename(saved + ".new", saved)
"""
STOCK = """
import lmdb, sys, time
with lmdb.open(sys.argv[1], readonly=True) as env:
    txn = env.begin()
    print("open", flush=True)
    time.sleep(1000)
"""


def started(*argv):
    process = subprocess.Popen([sys.executable, "-c", *map(str, argv)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "open\n"
    return process


def killed(process):
    process.send_signal(signal.SIGKILL)
    process.stdout.close()
    process.wait()


def slots(writer, path, pid):
    """Returns the number of slots of a process in the lock table."""
    return sum(line.split()[0] == str(pid) for line in writer.run(f"env({path!r}).readers()").splitlines()[1:])


def test_a_killed_process_leaves_the_lock_table_as_stock_does(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 100)
    for argv, held in (((STOCK, path), (1,)), ((FOLLOW, path, tmp_path / "state", tmp_path / "log", 1), (1, 2))):
        process = started(*argv)
        put_some(writer, path, 50, 1000 * len(argv))
        assert slots(writer, path, process.pid) in held
        killed(process)
        count = slots(writer, path, process.pid)  # the process may have used another one in between
        assert count in held
        assert writer.run(f"env({path!r}).reader_check()") == count
        assert slots(writer, path, process.pid) == 0
        assert writer.run(f"env({path!r}).reader_check()") == 0


def test_the_next_follow_continues(writer, tmp_path):
    """Processes are killed while they follow, or compare, or save their state.  Together they get each record once."""
    path, saved, log = str(tmp_path / "db"), tmp_path / "state", tmp_path / "log"
    put_some(writer, path, 100)
    r, count = random.Random(46), 100
    for kill in range(12):
        process = started(FOLLOW, path, saved, log, r.choice((1, 3)))
        for _ in range(r.randrange(6)):
            put_some(writer, path, r.randrange(1, 60), count)
            count = int(writer.run(f"env({path!r}).stat()['entries']"))
        killed(process)
        if kill % 2 == 0:
            writer.run(f"env({path!r}).reader_check()")
    writer.commit(path, [(b"end", b"")])
    process = started(FOLLOW, path, saved, log, 3)
    assert process.wait() == 0
    process.stdout.close()
    seen = []
    for line in log.read_text().splitlines():
        keys, new = json.loads(line)
        assert set(keys[new:]) <= set(seen)  # old records were new ones before
        seen += keys[:new]
    assert sorted(seen) == ["%06d" % i for i in range(count)]
    writer.run(f"env({path!r}).reader_check()")
    assert writer.run(f"env({path!r}).readers()") == "(no active readers)\n"


def test_waiting_costs_few_calls(writer, tmp_path):
    """A waiting call looks for a commit after 1, 2, 4, 8 and 16 ms, and then every 20 ms, and sleeps in between."""
    path = str(tmp_path / "db")
    put_some(writer, path, 10)
    with lmdbio.Follow(path, fresh=8, existing="old", timeout=1) as follow:
        before = resource.getrusage(resource.RUSAGE_THREAD)
        with pytest.raises(TimeoutError):
            next(follow)
        after = resource.getrusage(resource.RUSAGE_THREAD)
    assert 1 <= after.ru_nvcsw - before.ru_nvcsw <= 100
