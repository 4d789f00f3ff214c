"""States of lmdbio.Follow, databases without locks, and the snapshots that it holds."""
import errno
import json
import os
import shutil

import pytest
from follow_test import pairs, put_some, writer_process  # noqa: F401  pylint: disable=unused-import

import lmdbio


def fails(code, text, path, **arguments):
    with pytest.raises(OSError, match=text) as why:
        lmdbio.Follow(path, **arguments)
    assert why.value.errno == code


def test_a_state_that_cannot_be_continued(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 10)
    with lmdbio.Follow(path, fresh=4) as follow:
        state = follow.state()
    with pytest.raises(ValueError, match="other options"):  # it has no last key: all records would be new again
        lmdbio.Follow(path, fresh=4, state=state, append_only=True)
    with lmdbio.Follow(path, fresh=4, append_only=True) as follow:
        appended = follow.state()
    put_some(writer, path, 10, 10)
    fails(errno.ESTALE, "so start anew", path, fresh=4, state=state)
    for append_only in (True, False):
        with pytest.raises(ValueError, match="other options"):
            lmdbio.Follow(path, fresh=4, state=appended if not append_only else state, append_only=append_only)


@pytest.mark.parametrize("name", (None, b"named"))
@pytest.mark.parametrize("append_only", (False, True))
def test_a_state_of_another_database(writer, tmp_path, name, append_only):
    arguments = {"fresh": 4, "append_only": append_only, "database": name.decode() if name else None}
    paths = [str(tmp_path / str(i)) for i in range(4)]
    for i, path in enumerate(paths):  # the same transaction; other values, other keys, other numbers of records
        put_some(writer, path, 9 if i == 3 else 10, 100 if i == 2 else 0, size=8 + (i == 1), name=name)
    with lmdbio.Follow(paths[0], **arguments) as follow:
        state = follow.state()
        want = pairs(next(follow)[0])
    shutil.copytree(paths[0], tmp_path / "copy")
    for path in (paths[0], str(tmp_path / "copy")):
        with lmdbio.Follow(path, state=state, **arguments) as follow:
            assert pairs(next(follow)[0]) == want
    for path in paths[1:]:
        fails(errno.ESTALE, "another file", path, state=state, **arguments)
    if append_only:  # later transactions: the last key is not there, or there are fewer records
        put_some(writer, paths[2], 5, 200, name=name)
        writer.commit(paths[0], dels=[(b"%06d" % i, b"") for i in range(3)], name=name)
        for path in (paths[2], paths[0]):
            fails(errno.ESTALE, "another file", path, state=state, **arguments)


def test_a_batch_that_memory_has_no_room_for(writer, tmp_path, script):
    """Its state continues with more memory."""
    path = str(tmp_path / "db")
    put_some(writer, path, 20, size=500_000)
    out = script("""
import sys, lmdbio
follow = lmdbio.Follow(sys.argv[1], fresh=8, seed=3, on_empty="stop")
for _ in range(2):
    try:
        next(follow)
        print("a batch")
    except MemoryError:
        pass
open(sys.argv[2], "wb").write(follow.state())
""", path, tmp_path / "state", LMDBIO_MEMORY="8M")
    assert out == ""
    state = (tmp_path / "state").read_bytes()
    with lmdbio.Follow(path, fresh=8, seed=3, on_empty="stop") as whole:
        want = [pairs(batch) for batch, _ in whole]
    with lmdbio.Follow(path, fresh=8, seed=3, on_empty="stop", state=state) as follow:
        again = follow.state()
        assert [pairs(batch) for batch, _ in follow] == want
    with lmdbio.Follow(path, fresh=8, seed=3, on_empty="stop", state=again) as follow:
        assert [pairs(batch) for batch, _ in follow] == want


# ---- without locks

def overwrite(writer, path, commits):
    """Replaces all records again and again, so that old pages are reused."""
    puts = "[(b'%06d' % i, os.urandom(400)) for i in range(500)]"
    writer.run(f"[commit({path!r}, None, False, {puts}, []) for _ in range({commits})][-1]")


def test_an_overtaken_snapshot(writer, tmp_path):
    path = str(tmp_path / "db")
    overwrite(writer, path, 1)
    for commits in range(2, 12):
        with lmdbio.Follow(path, fresh=8, lock=False) as follow:
            next(follow)
            overwrite(writer, path, commits)
            with pytest.raises(OSError, match="without locks") as why:
                for _ in range(100):
                    next(follow)
            assert why.value.errno == errno.ESTALE


def test_append_only_continues_when_it_is_overtaken(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 100)
    first, seen = [100], []

    def append(commits):
        for _ in range(commits):
            put_some(writer, path, 50, first[0])
            first[0] += 50

    overtake = [True]

    def label(_, value):  # the bytes may have been overwritten
        if overtake[0]:
            overtake[0] = False
            append(4)  # overtakes the snapshot that is being compared
        return len(value)

    with lmdbio.Follow(path, fresh=10, old=5, lock=False, append_only=True, buffer="class", label=label, on_empty="stop") as follow:
        for batch, new in follow:
            assert all(value == key * 8 for key, value in pairs(batch))
            seen += [int(key) for key, _ in pairs(batch)[:new]]
            if first[0] < 3000:
                append(3)
                overtake[0] = True
    assert sorted(seen) == list(range(first[0]))


# ---- the end, and the snapshots

def test_finished_key_before_the_last_key(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 10)
    arguments = {"fresh": 4, "append_only": True, "finished_key": b"!end", "timeout": 20}
    with lmdbio.Follow(path, **arguments) as follow:
        next(follow)
        state = follow.state()
        put_some(writer, path, 3, 10)
        writer.commit(path, [(b"!end", b"")])
        assert sum(new for _, new in follow) == 9
    with lmdbio.Follow(path, state=state, **arguments) as follow:
        assert sum(new for _, new in follow) == 9


def test_the_previous_snapshot_ends_after_lag_batches(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 10)
    with lmdbio.Follow(path, fresh=8, old=4, lag=3, existing="old", on_empty="rehearse", timeout=20) as follow:
        next(follow)
        put_some(writer, path, 5, 10)
        next(follow)
        held = [line.split() for line in writer.run(f"env({path!r}).readers()").splitlines()[1:]]
        assert sorted(line[2] for line in held if line[0] == str(os.getpid())) == ["1", "2"]
        for _ in range(3):
            next(follow)
        held = [line.split() for line in writer.run(f"env({path!r}).readers()").splitlines()[1:]]
        assert [line[2] for line in held if line[0] == str(os.getpid()) and line[2] != "-"] == ["2"]


def test_each_pass_is_read_ahead(writer, tmp_path, script):
    """Values are announced again after they were read, since they may have left memory.  Values in memory are not announced."""
    path = str(tmp_path / "db")
    put_some(writer, path, 100, size=20_000)  # 120,000 bytes each
    program = """
import ctypes, os, sys, lmdbio
libc = ctypes.CDLL(None, use_errno=True)
def forget(data):
    for line in open("/proc/self/maps"):
        first, end = (int(x, 16) for x in line.split()[0].split("-"))
        if line.rstrip().endswith(data):  # pages that are mapped stay in the page cache
            assert libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), 4) == 0
    fd = os.open(data, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
with lmdbio.Follow(sys.argv[1], fresh=0, old=10, lag=2, existing="old", buffer="all") as follow:
    for i in range(50):
        if i % 10 == 0 and sys.argv[2] == "cold": forget(sys.argv[1] + "/data.mdb")
        next(follow)
"""
    announced = {}
    for how in ("warm", "cold"):
        script(program, path, how, LMDBIO_STATS=tmp_path / how)
        with open(path + "/data.mdb", "rb") as data:
            data.read()
        announced[how] = json.loads((tmp_path / how).read_text())["environments"][0].get("prefetch", {"keys": 0})["keys"]
    assert announced["warm"] <= 30
    assert 200 <= announced["cold"] <= 520  # five passes, and the batches ahead; the kernel reads ahead, too


MEMORY = """
import resource, sys, lmdbio
limit = int(sys.argv[2])
data = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (data + limit + (4 << 20), data + limit + (4 << 20)))
try:
    with lmdbio.Follow(sys.argv[1], fresh=256, old=32, buffer=sys.argv[3], on_empty="stop", seed=1) as follow:
        print(sum(new for _, new in follow))
except MemoryError as why:
    print(why)
"""


@pytest.mark.parametrize("buffer", ["all", "reservoir"])
def test_memory_of_many_keys(writer, tmp_path, script, buffer):
    """What is counted in LMDBIO_MEMORY is what is used: the process has no more than the limit and 4 MiB."""
    path, n = str(tmp_path / "db"), 1_000_000
    writer.run(f"commit({path!r}, None, False, ((b'%010d' % i, b'') for i in range({n})), [])")
    for mib in (24, 64):
        answer = script(MEMORY, path, mib << 20, buffer, LMDBIO_MEMORY=f"{mib}M")
        if mib == 64:
            assert int(answer) == n
        else:
            assert "has no room for the keys" in answer
