#!/usr/bin/python3
"""Tests that every strategy of run_scale reads exactly as bench/scale/README.md says.

    honesty_test.py RUN_SCALE LIBLMDBIO_MPI LMDBIO_SLOWFS [PART OF A NAME]

Jobs run on emulated hosts.  The file system of each host traces every request, with the process that makes it.
strategy_model.py computes the expected requests.  For direct strategies, the test compares all requests of each reader, in
order.  For mapped strategies and full, without the kernel's read-ahead, it compares the pages that each process reads; no
node may read a page twice.
"""
import collections
import os
import random
import re
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(TOP, "bench"), os.path.join(TOP, "tests", "support")]
import slowfs  # noqa: E402
import strategy_model as model  # noqa: E402
from lmdb_pages import PAGE, Tree  # noqa: E402
from measure import Failed, Skip  # noqa: E402
from traced_hosts import LARGEST_REQUEST, TracedHosts  # noqa: E402

DIRECT = ["lmm-dio", "lmm-dio-prov", "lmm-dio-prov-coal", "lmm-dio-prov-coal-stag"]
MAPPED = ["stock", "lmm", "lmm-dm"]


class Different(Exception):
    pass


class TooFewInFlight(Different):
    """Too few requests in flight.  On a busy machine, early requests may be answered before the last ones are sent."""


def equal(what, found, expected):
    if found != expected:
        raise Different(f"{what}: {found}, not {expected}")


def make_database(directory, sizes, shuffled):
    """Writes a database with keys of 100 bytes, so that it has many leaf pages, and branch pages on two levels."""
    import lmdb
    rng, order = random.Random(1), list(range(len(sizes)))
    if shuffled:
        rng.shuffle(order)
    os.mkdir(directory)
    with lmdb.open(directory, map_size=1 << 28) as env:
        for at in range(0, len(order), 100):
            with env.begin(write=True) as txn:
                for i in order[at:at + 100]:
                    txn.put(b"%0100d" % i, rng.randbytes(sizes[i]))
    return Tree(os.path.join(directory, "data.mdb"))


# ---- direct strategies --------------------------------------------------------------------------------------------------


def pieces(request):
    """Divides a request as the kernel does."""
    offset, size = request
    return [(at, min(LARGEST_REQUEST, offset + size - at)) for at in range(offset, offset + size, LARGEST_REQUEST)]


def most_in_flight(lines):
    events = sorted([(line["begin_ns"], 1) for line in lines] + [(line["end_ns"], -1) for line in lines])
    return max(sum(step for _, step in events[:i + 1]) for i in range(len(events)))


def cut_into_phases(phases, lines):
    """Checks a reader's requests against its phases.  Returns (first begin, last end, most in flight, expected) of each phase."""
    at, seen = 0, []
    for n, phase in enumerate(phases):
        due = sorted(piece for request in phase.requests for piece in pieces(request))
        some = lines[at:at + len(due)]
        at += len(due)
        equal(f"phase {n}, {phase.what}", sorted((line["offset"], line["bytes"]) for line in some), due)
        together = sum(sorted((len(pieces(r)) for r in phase.requests), reverse=True)[:model.DEPTH])
        seen.append((some[0]["begin_ns"], max(line["end_ns"] for line in some), most_in_flight(some), together))
        if n and seen[n - 1][1] > seen[n][0]:
            raise Different(f"phase {n}, {phase.what}, begins before the one before it has ended")
        if seen[n][2] > together:
            raise Different(f"phase {n}, {phase.what}: {seen[n][2]} in flight, more than {together}")
    equal("requests", len(lines), at)
    return seen


def check_direct(job, strategy, told, lines):
    expected = model.direct(job, strategy)
    equal("readers", {line["rank"] for line in lines}, set(expected))
    equal("direct", {line["direct"] for line in lines}, {True})
    seen = {rank: cut_into_phases(phases, [line for line in lines if line["rank"] == rank]) for rank, phases in expected.items()}
    # run_scale's own counters do not include the test of direct reads.
    phases = [phase for of_rank in expected.values() for phase in of_rank[1:]]
    sizes = [size for phase in phases for _, size in phase.requests]
    equal("told requests and bytes", (told["requests"], told["request_bytes"]), (len(sizes), sum(sizes)))
    bounds = {"4K": (0, 4096), "64K": (4096, 65536), "256K": (65536, 262144), "1M": (262144, 1 << 20), "more": (1 << 20, 1 << 40)}
    equal("told sizes", told["requests_by_size"], {name: sum(low < s <= high for s in sizes) for name, (low, high) in bounds.items()})
    equal("told ranks", told["requests_by_rank"],
          [sum(len(phase.requests) for phase in expected.get(rank, [])[1:]) for rank in range(told["ranks"])])
    equal("told in flight", told["most_in_flight"], max(min(len(phase.requests), model.DEPTH) for phase in phases))
    equal("told wrong guesses", told["wrong_guesses"], int("prov" in strategy and len(set(job.tree.counts[:-1])) > 1))
    together = [phase for of_rank in seen.values() for phase in of_rank]
    most = max(due for *_, due in together)
    if (found := max(found for *_, found, due in together if due == most)) < most:
        raise TooFewInFlight(f"most in flight: {found}, not {most}")
    if "coal" in strategy and job.nodes > 1:
        check_turns(strategy, expected, seen)


def check_turns(strategy, expected, seen):
    """With turns, the second reader of each pair fetches its values after the first.  Without turns, it overlaps at least once."""
    late = []
    for first, second in zip(list(expected)[::2], list(expected)[1::2]):
        of_two = [[seen[rank][n] for n, phase in enumerate(expected[rank]) if phase.what == "values"] for rank in (first, second)]
        late += [begin > end for (_, end, *_), (begin, *_) in zip(*of_two)]
    if strategy.endswith("stag"):
        equal("fetches of a second reader that do not wait", late.count(False), 0)
    elif all(late):
        raise TooFewInFlight("all fetches of second readers wait")


# ---- the page cache -----------------------------------------------------------------------------------------------------


def covered(requests):
    return (page for offset, size in requests for page in range(offset // PAGE, (offset + size) // PAGE))


def pages_of(lines):
    """Counts the reads of each page."""
    return collections.Counter(covered((line["offset"], line["bytes"]) for line in lines))


def check_nodes(job, expected, lines):
    """`expected` has the pages that each rank may read.  In each node, one of these ranks must read each page, once."""
    for line in lines:
        if not pages_of([line]).keys() <= expected.get(line["rank"], set()):
            raise Different(f"rank {line['rank']} reads what it does not need: {line}")
    for node in range(job.nodes):
        due = set().union(*(expected.get(rank, set()) for rank in range(node * job.each, (node + 1) * job.each)))
        found = pages_of(line for line in lines if line["node"] == node)
        equal(f"pages that node {node} reads not at all, or twice",
              (sorted(due - found.keys()), [page for page, times in found.items() if times > 1]), ([], []))


def check_mapped(job, strategy, told, lines):
    expected = model.mapped(job, strategy)
    equal("page faults of 4 KiB, and metas", {(line["direct"], line["bytes"]) for line in lines}, {(False, PAGE)})
    check_nodes(job, expected, lines)
    equal("readers", told["readers"], job.nodes * job.each if strategy == "stock" else job.nodes)
    used = sum(number for _, number in model.windows(job))
    equal("places sent", told["places_sent_bytes"], job.epochs * 16 * used * (job.nodes - 1) // job.nodes if strategy == "lmm-dm" else 0)


def check_read_ahead(job, _strategy, _told, lines):
    """The kernel reads 128 KiB around a page fault.  The values that a node needs are closer together, so the kernel reads all pages."""
    used = PAGE * len(model.mapped(job._replace(nodes=1, each=job.nodes * job.each), "lmm")[0])
    for node in range(job.nodes):
        mine = [line["bytes"] for line in lines if line["node"] == node]
        if not 0.95 < sum(mine) / used < 1.05 or max(mine) > 128 << 10:
            raise Different(f"node {node} reads {sum(mine) / used:.3f} of the pages, in requests of up to {max(mine)} bytes")


def check_full(job, _strategy, told, lines):
    """full reads through the page cache.  One rank of each node opens the file for all.  With one node, the kernel reads around."""
    ranks = range(job.nodes * job.each)
    equal("direct reads", [line for line in lines if line["direct"]], [])
    if job.nodes > 1:
        expected = {rank: {0, 1, *covered(requests)} for rank, requests in model.full(job).items()}
        check_nodes(job, {rank: expected.get(rank, {0, 1}) for rank in ranks}, lines)
    check_once(job, lines, told)


def check_full_direct(job, _strategy, told, lines):
    """Compares all requests with LMDBIO_IO=direct.  A single reader may still have a part's first leaf page from the previous part."""
    lines = [line for line in lines if line["direct"]]
    equal("readers", {line["rank"] for line in lines if line["offset"]}, set(model.readers(job)))
    for reader, requests in model.full(job).items():
        found = collections.Counter((line["offset"], line["bytes"]) for line in lines if line["node"] == reader // job.each)
        due = collections.Counter([*requests, *[(0, PAGE)] * job.each])
        if job.nodes > 1:
            equal(f"requests of node {reader // job.each}: too many, too few", (dict(found - due), dict(due - found)), ({}, {}))
        elif abs(found.total() - due.total()) > 2 * len(list(model.full_rounds(job))):
            raise Different(f"{found.total()} requests, not {due.total()}")
    check_once(job, lines, told)


def check_once(job, lines, told):
    """The job reads values once, in the first epoch, and leaf pages twice, once of these for the index.  Tolerance: 5 %."""
    tree, found = job.tree, pages_of(lines)
    used = {page for parts in model.full_rounds(job) for part in parts.values() for o in part for page in model.pages_of(tree.records[o])}
    equal("pages of values that are not read", sorted(used - found.keys()), [])
    equal("requests of later epochs", [e["storage_requests"] for e in told["epochs"][1:]], [0] * (job.epochs - 1))
    due = len(used) + 2 * len(tree.leaves) + job.nodes * (2 + sum(map(len, tree.levels))) + job.nodes * job.each
    if found.total() > 1.05 * due:
        raise Different(f"{found.total()} pages, more than {due} and 5 %")


# ---- the jobs -----------------------------------------------------------------------------------------------------------


def check_libraries(strategy, told, out):
    """Mapped strategies and full load the real LMDB, and only full loads LMDBIO.  For stock, the dynamic loader's log must agree."""
    equal("LMDB and LMDBIO loaded", (told["lmdb_loaded"], told["lmdbio_loaded"]), (strategy in (*MAPPED, "full"), strategy == "full"))
    for rank in range(told["ranks"] if strategy == "stock" else 0):
        with open(f"{out}/rank.{rank}", encoding="ascii") as file, open(f"{out}/loader.{rank}.{int(file.read())}", encoding="utf-8") as log:
            text = log.read()
        bound = {re.search(r" to (\S+) ", line)[1] for line in text.splitlines() if "`mdb_" in line and "binding file" in line}
        equal("what has mdb_ functions", {os.path.basename(library) for library in bound}, {"liblmdb.so.0"})
        equal("LMDBIO in the loader's log", "liblmdbio" in text, False)


def jobs(small, large, uneven):
    """(database, job, strategy, check, options of the file system, environment)"""
    exact, direct = ["--max-readahead=0"], {"LMDBIO_IO": "direct"}
    # With one reader, the assignment makes no difference.
    for name, tree, batch, shapes in (("small", small, 40, ((1, 4, True), (4, 2, True), (4, 2, False))), ("large", large, 4, ((4, 2, True),))):
        for nodes, each, strided in shapes:
            job = model.Job(tree, nodes, each, batch, strided, 2)
            for strategy in DIRECT[:None if nodes > 1 else -1]:  # with one reader, turns make no difference
                yield name, job, strategy, check_direct, [], {}
            for strategy in MAPPED:
                yield name, job, strategy, check_mapped, exact, {}
            yield name, job, "full", check_full, exact, {}
            yield name, job, "full", check_full_direct, exact, direct
            if name == "small" and strided:
                for strategy in ("stock", "lmm"):
                    yield name, job, strategy, check_read_ahead, [], {}
    job = model.Job(uneven, 4, 2, 20, True, 2)
    for strategy in DIRECT[:3]:
        yield "uneven", job, strategy, check_direct, [], {}
    yield "uneven", job, "lmm-dm", check_mapped, exact, {}


def run(hosts, name, command, kind, debug):
    """Runs and checks a job.  Returns its requests and bytes."""
    _, job, strategy, check, options, env = kind
    for delay_us in (3000, 30000, 100000):  # long enough that all requests of a phase can be in flight together
        more = [f"--delay-us={delay_us}"] if check is check_direct else []
        told, lines = hosts.traced_job(name, (job.nodes, job.each), command, [*more, *options], env, debug)
        check_libraries(strategy, told, hosts.out)
        try:
            check(job, strategy, told, lines)
            break
        except Different as e:
            # A rank of full that has waited for a second reads for itself.
            busy = isinstance(e, TooFewInFlight) or (strategy == "full" and max(e["wait_s_max"] for e in told["epochs"]) > 0.9)
            if not busy or delay_us == 100000:
                raise
    return len(lines), sum(line["bytes"] for line in lines)


def main():
    program, library, slowfs_program = map(os.path.abspath, sys.argv[1:4])
    try:
        import lmdb  # noqa: F401
        with tempfile.TemporaryDirectory() as empty, slowfs.SlowFs(slowfs_program, empty):
            pass
    except (ImportError, slowfs.Missing) as e:
        print(e)
        return 77
    failed = ran = 0
    with tempfile.TemporaryDirectory(prefix="lmdbio_honesty_") as directory:
        databases, mount, out = (os.path.join(directory, name) for name in ("databases", "mount", "out"))
        os.mkdir(databases)
        os.mkdir(out)
        uneven = random.Random(2).choices([0, 10, 300, 2100, 5000, 20000], k=1500)
        contents = {"small": [3072] * 6000, "large": [110 << 10] * 300, "uneven": uneven}
        trees = [make_database(os.path.join(databases, name), sizes, name == "uneven") for name, sizes in contents.items()]
        hosts = TracedHosts(slowfs_program, databases, mount, out)
        for kind in jobs(*trees):
            database, job, strategy, check, *_ = kind
            assignment = "strided" if job.strided else "contiguous"
            name = f"{strategy}, {database} values, {job.nodes} x {job.each}, {assignment}, {check.__name__}"
            if sys.argv[4:] and sys.argv[4] not in name:
                continue
            command = [program, os.path.join(mount, database), "--no-check", "--strategy", strategy, "--library", library,
                       "--batch", str(job.batch), "--epochs", str(job.epochs), "--counters", hosts.counters,
                       "--assignment", assignment]
            debug = f"export LD_DEBUG=bindings LD_DEBUG_OUTPUT={out}/loader.$OMPI_COMM_WORLD_RANK" if strategy == "stock" else ""
            ran += 1
            try:
                requests, size = run(hosts, name, command, kind, debug)
                print(f"{name}: {requests} requests, {size / (1 << 20):.1f} MiB", flush=True)
            except Skip as e:
                print(e)
                return 77
            except (Failed, Different) as e:
                failed += 1
                print(f"FAILED: {name}: {str(e)[:1000]}", flush=True)
    print(f"{failed} of {ran} jobs failed")
    return 0 if failed == 0 and ran else 1


if __name__ == "__main__":
    sys.exit(main())
