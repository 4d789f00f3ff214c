"""A reader of bench/follow, in a process of its own: follow_reader.py KIND DATABASE [ARGUMENTS]

  latency BATCH      a Follow with BATCH new records and an eighth of old ones in a batch; at the end prints the milliseconds from the
                     beginning of each record's transaction until its batch was returned
  follow BATCH OLD [existing]   a Follow; counts records
  renewing [holds]   py-lmdb: begins a transaction every 10 ms, and reads the new records with a cursor; with `holds`, the transaction
                     lasts until the next one begins
  held               py-lmdb: holds one transaction
  shuffle BATCH COUNT           lmdbio.Reader, COUNT records in a shuffled order
  rehearse BATCH COUNT          a Follow without new records: COUNT old ones, which is a shuffled order, too
  idle SECONDS       a Follow that waits for records which do not come

Prints "ready" when it has opened the database (shuffle, rehearse: before), waits for a line, and at the end prints a line of JSON.
Followers and `renewing` end when the key "end" exists, `held` when standard input ends.
"""
import json
import operator
import resource
import sys
import time

KIND, PATH, *NUMBERS = sys.argv[1:]
if KIND in ("renewing", "held"):
    import lmdb
else:
    import lmdbio
END = b"end"


def ready():
    print("ready", flush=True)
    sys.stdin.readline()


def follow(fresh, old, **more):
    return lmdbio.Follow(PATH, fresh=fresh, old=old, seed=1, buffer="all", finished_key=END, **more)


def latency(batch):
    waits, records = [], follow(batch, batch // 8)
    ready()
    for got, new in records:
        now = time.monotonic_ns()
        waits += [(now - int.from_bytes(record.value[:8], "little")) / 1e6 for record in list(got)[:new]]
    return {"latency_ms": waits}


def followed(batch, old, existing="new"):
    begin = time.perf_counter()
    records, count, checksum = follow(batch, old, existing=existing), 0, 0
    open_seconds = time.perf_counter() - begin
    ready()
    begin = time.perf_counter() - open_seconds  # the pause does not count
    for got, _ in records:
        count += len(got)
        for record in got:
            checksum += record.value[-1]
    return {"records": count, "seconds": time.perf_counter() - begin, "open_seconds": open_seconds, "checksum": checksum}


def renewing(holds=None):
    with lmdb.open(PATH, readonly=True, map_size=1 << 36) as env:
        last, count, ended = b"", 0, False
        ready()
        while not ended:
            with env.begin() as txn:
                cursor = txn.cursor()
                there = cursor.set_range(last + b"\0") if last else cursor.first()
                while there and cursor.key() != END:
                    last = cursor.key()
                    count += len(cursor.value()) != 0
                    there = cursor.next()
                ended = there
                if holds:
                    time.sleep(0.01)
            if not holds:
                time.sleep(0.01)
    return {"records": count}


def held():
    with lmdb.open(PATH, readonly=True, map_size=1 << 36) as env, env.begin() as txn:
        assert txn.stat()["entries"]
        ready()
        sys.stdin.read()
    return {}


def shuffled(batch, count, batches_of):
    ready()
    begin, done, checksum = time.perf_counter(), 0, 0
    batches = batches_of(batch)
    open_seconds = time.perf_counter() - begin
    for got in batches:
        for record in got:
            checksum += record.value[-1]
        done += len(got)
        if done >= count:
            break
    return {"records": done, "seconds": time.perf_counter() - begin, "open_seconds": open_seconds, "checksum": checksum}


def idle(seconds):
    records = lmdbio.Follow(PATH, fresh=1, existing="old", timeout=seconds)
    ready()
    before = resource.getrusage(resource.RUSAGE_SELF)
    try:
        next(records)
    except TimeoutError:
        pass
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "voluntary_switches": after.ru_nvcsw - before.ru_nvcsw, "seconds": seconds}


KINDS = {
    "latency": lambda batch: latency(int(batch)),
    "follow": lambda batch, old, *existing: followed(int(batch), int(old), *existing),
    "renewing": renewing,
    "held": held,
    "shuffle": lambda batch, count: shuffled(int(batch), int(count),
                                             lambda b: lmdbio.Reader(PATH).stream(lmdbio.Order.shuffled(1, batch=b))),
    "rehearse": lambda batch, count: shuffled(int(batch), int(count), lambda b: map(operator.itemgetter(0), lmdbio.Follow(
        PATH, fresh=0, old=b, seed=1, buffer="all", existing="old"))),
    "idle": lambda seconds: idle(float(seconds)),
}
if __name__ == "__main__":
    print(json.dumps(KINDS[KIND](*NUMBERS)), flush=True)
