"""What a Python program does with python3-lmdb, as a transcript.  Usage: python_lmdb_script.py EMPTY_DIR"""
import hashlib
import os
import sys
import threading

import lmdb


def say(*what):
    print(*what, flush=True)


def plain(value):
    if isinstance(value, memoryview):
        value = bytes(value)
    if isinstance(value, bytes):
        return value if len(value) < 40 else (len(value), hashlib.sha256(value).hexdigest()[:16])
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return value


def attempt(what, f):
    try:
        r = f()
        say(what, "->", plain(r))
    except Exception as e:  # pylint: disable=broad-except
        say(what, "->", type(e).__name__, str(e).replace(ROOT, "DIR"))


def digest(pairs):
    h = hashlib.sha256()
    n = 0
    for k, v in pairs:
        h.update(bytes(k) + b"\0" + bytes(v) + b"\1")
        n += 1
    return n, h.hexdigest()[:16]


def write(path):
    env = lmdb.open(path, map_size=64 << 20, max_dbs=5, sync=False)
    dups = env.open_db(b"dups", dupsort=True)
    fixed = env.open_db(b"fixed", dupsort=True, dupfixed=True, integerdup=True)
    numbers = env.open_db(b"numbers", integerkey=True)
    with env.begin(write=True) as txn:
        for i in range(3000):
            txn.put(b"key-%05d" % i, b"v" * (i % 300) + b"%d" % i)
        for i in range(0, 3000, 500):
            txn.put(b"big-%05d" % i, bytes([i % 251]) * 40000)
        for i in range(300):
            for d in range(i % 7 + 1):
                txn.put(b"k%04d" % (i % 100), b"dup-%d-%d" % (i, d), db=dups)
                txn.put(b"k%04d" % (i % 100), (i * 10 + d).to_bytes(8, "little"), db=fixed)
            txn.put((i * 3).to_bytes(8, "little"), b"n%d" % i, db=numbers)
    with env.begin(write=True) as txn:
        attempt("replace", lambda: txn.replace(b"key-00001", b"new"))
        attempt("pop", lambda: txn.pop(b"key-00002"))
        attempt("delete", lambda: txn.delete(b"key-00003"))
        attempt("delete absent", lambda: txn.delete(b"key-00003"))
        attempt("no overwrite", lambda: txn.put(b"key-00004", b"x", overwrite=False))
        attempt("empty key", lambda: txn.put(b"", b"x"))
        with env.begin(write=True, parent=txn) as child:
            child.put(b"child", b"kept")
        child = env.begin(write=True, parent=txn)
        child.put(b"child-2", b"dropped")
        child.abort()
        c = txn.cursor()
        attempt("set_range", lambda: c.set_range(b"key-00010"))
        attempt("cursor delete", c.delete)
        attempt("item", lambda: c.item())
        attempt("putmulti", lambda: txn.cursor(db=dups).putmulti([(b"m", b"1"), (b"m", b"2"), (b"m", b"1")]))
    attempt("abort", lambda: env.begin(write=True).abort())
    say(sorted(env.stat().items()))
    env.close()


def cursors(env, txn, db, name):
    with txn.cursor(db=db) as c:
        say(name, "forward", digest(c.iternext()))
        say(name, "backward", digest(c.iterprev()))
        for op in ("first", "last", "next", "prev", "first", "next_dup", "next_nodup", "prev_nodup", "prev_dup",
                   "first_dup", "last_dup", "count"):
            attempt(f"{name} {op}", getattr(c, op))
            attempt(f"{name} item", c.item)
        for key in (b"k0050", b"key-00500", b"nothing", b"zzz", (30).to_bytes(8, "little")):
            for op in ("set_key", "set_range", "get"):
                attempt(f"{name} {op} {key!r}", lambda op=op, key=key: getattr(c, op)(key))
                attempt(f"{name} at", c.item)
            attempt(f"{name} both", lambda key=key: c.set_key_dup(key, b"dup-50-0"))
            attempt(f"{name} range both", lambda key=key: c.set_range_dup(key, b"dup-"))
        attempt(f"{name} getmulti", lambda: c.getmulti([b"k0001", b"absent", b"key-00007"]))
        attempt(f"{name} getmulti dup", lambda: c.getmulti([b"k0001", b"k0002"], dupdata=True))
    say(name, sorted(txn.stat(db).items()))


def read(path, **options):
    say("== read", sorted(options.items()))
    env = lmdb.open(path, readonly=True, max_dbs=5, **options)
    info = env.info()
    info.pop("map_addr")
    say(sorted(info.items()), sorted(env.stat().items()), env.max_key_size(), env.max_readers())
    say(sorted(env.flags().items()), os.path.samefile(env.path(), path))
    dups, fixed, numbers = (env.open_db(n, create=False) for n in (b"dups", b"fixed", b"numbers"))
    attempt("open absent", lambda: env.open_db(b"absent", create=False))
    attempt("write txn", lambda: env.begin(write=True))
    for buffers in (False, True):
        with env.begin(buffers=buffers) as txn:
            say("id", txn.id())
            for db, name in ((None, "main"), (dups, "dups"), (fixed, "fixed"), (numbers, "numbers")):
                cursors(env, txn, db or env.open_db(), name)
            attempt("get", lambda: txn.get(b"key-00123"))
            attempt("get default", lambda: txn.get(b"absent", default=b"default"))
            attempt("get big", lambda: len(txn.get(b"big-00500")))
            attempt("put", lambda: txn.put(b"a", b"b"))
            attempt("drop", lambda: txn.drop(dups))
    txn = env.begin()
    first = txn.get(b"key-00100")
    c = txn.cursor()
    say(c.first(), c.key(), first)
    attempt("close with cursor", txn.commit)
    attempt("ended cursor", c.next)
    # A transaction that is kept and renewed, as data sets do.
    total = 0
    for i in range(500):
        with env.begin() as txn:
            total += len(txn.get(b"key-%05d" % (100 + i)))
    say("total", total)

    results = [None] * 4

    def reader(n):
        with env.begin() as txn:
            results[n] = digest(txn.cursor().iternext())

    threads = [threading.Thread(target=reader, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    say("threads", results)

    if options.get("lock", True):
        say("stale", env.reader_check())
    copy = os.path.join(ROOT, "copy")
    os.mkdir(copy)
    env.copy(copy, compact=True)
    with open(os.path.join(copy, "data.mdb"), "rb") as f:
        say("copy", hashlib.sha256(f.read()).hexdigest()[:16])
    again = lmdb.open(copy, readonly=True, max_dbs=5, lock=False)
    dups = again.open_db(b"dups", create=False)
    with again.begin() as txn:
        say("copied", digest(txn.cursor(db=dups).iternext()))
    again.close()
    os.remove(os.path.join(copy, "data.mdb"))
    for rest in os.listdir(copy):
        os.remove(os.path.join(copy, rest))
    os.rmdir(copy)
    env.close()
    attempt("closed", lambda: env.begin())


def forked(path):
    say("== forked")
    child = os.fork()
    if child == 0:
        env = lmdb.open(path, readonly=True, lock=False, max_dbs=5)
        with env.begin() as txn:
            n, h = digest(txn.cursor().iternext())
        say("child", n, h)
        os._exit(0)
    say("status", os.waitpid(child, 0)[1])


ROOT = sys.argv[1]
DB = os.path.join(ROOT, "db")
say(lmdb.version())
write(DB)
read(DB)
read(DB, lock=False, readahead=False)
read(DB, max_readers=3, meminit=False)
forked(DB)
attempt("absent directory", lambda: lmdb.open(os.path.join(ROOT, "none"), readonly=True))
with open(os.path.join(ROOT, "garbage"), "wb") as garbage:
    garbage.write(b"x" * 20000)
attempt("garbage", lambda: lmdb.open(os.path.join(ROOT, "garbage"), readonly=True, subdir=False, lock=False))
