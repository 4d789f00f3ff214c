"""Computes the requests of the readers of each strategy, from the pages of the file and from the definitions in
bench/scale/README.md, section "What each strategy reads".  Shares no code with the strategies."""
from collections import namedtuple
from itertools import groupby

from lmdb_pages import PAGE

MIB = 1 << 20
DEPTH = 64  # requests of a reader in flight
GAP, COALESCED = 64 << 10, 4 * MIB  # of strategies that coalesce
METAS = 64 << 10  # read to find the newer meta page: its offset depends on the page size

# `nodes` nodes have `each` ranks.  `batch` is that of one rank.  Ranks of a node have consecutive numbers,
# and the first one reads.
Job = namedtuple("Job", "tree nodes each batch strided epochs")
# Requests (offset, bytes) that a reader has in flight together.  The next phase begins when all of them are
# answered.
Phase = namedtuple("Phase", "what requests")


def readers(job):
    return range(0, job.nodes * job.each, job.each)


def steps(job):
    return len(job.tree.records) // (job.batch * job.nodes * job.each)


def windows(job, steps_of_fetch=1):
    """Returns (first record, number) of each fetch of an epoch."""
    step = job.batch * job.nodes * job.each
    for first in range(0, steps(job), steps_of_fetch):
        yield first * step, min(steps_of_fetch, steps(job) - first) * step


def ordinals(job, window, ranks):
    """Returns the records of a window that these ranks use, sorted."""
    (first, number), all_ranks = window, job.nodes * job.each
    each = number // all_ranks
    return sorted(first + (i * all_ranks + rank if job.strided else each * rank + i) for rank in ranks for i in range(each))


def pages_of(record):
    return range(record.offset // PAGE, (record.offset + record.bytes - 1) // PAGE + 1) if record.bytes else range(0)


def merged(extents, gap):
    """Merges extents (offset, bytes) that are at most `gap` bytes apart."""
    runs = []
    for offset, size in sorted(extents):
        if runs and offset - runs[-1][1] <= gap:
            runs[-1][1] = max(runs[-1][1], offset + size)
        else:
            runs.append([offset, offset + size])
    return [(begin, end - begin) for begin, end in runs]


def single(pages):
    return [(page * PAGE, PAGE) for page in pages]


# ---- direct strategies --------------------------------------------------------------------------------------------------


def direct(job, strategy):
    """Returns the phases of each reader, in order."""
    tree, guesses = job.tree, "prov" in strategy
    opening = [Phase("test of direct reads", [(0, PAGE)]), Phase("metas", [(0, min(METAS, tree.file_bytes))])]
    opening += [Phase("branch pages", single(level)) for level in tree.levels]
    if guesses:
        opening.append(Phase("first leaf page", single(tree.leaves[:1])))
    phases = {reader: list(opening) for reader in readers(job)}
    coalesces = "coal" in strategy
    step_bytes = (tree.file_bytes // len(tree.records) + 1) * job.batch * job.each
    steps_of_fetch = min(-(-COALESCED // step_bytes), steps(job)) if coalesces else 1
    guess = Guess(tree)
    for _ in range(job.epochs):
        walk = Walk(tree)
        for window in windows(job, steps_of_fetch):
            mine = {reader: ordinals(job, window, range(reader, reader + job.each)) for reader in phases}
            found = guess.find(mine) if guesses else dict.fromkeys(mine, walk.find(sum(window)))
            for reader, records in mine.items():
                pages = [page for o in records for page in pages_of(tree.records[o])]
                phases[reader] += [*found[reader], Phase("values", merged(single(pages), GAP if coalesces else 0))]
    return phases


class Walk:
    """Reads each leaf page once in an epoch.  Reads as many together as the rest of the window needs, judged by the last page."""

    def __init__(self, tree):
        self.tree, self.leaf, self.end = tree, 0, 0  # records of the leaf pages that were stepped over end at `end`
        self.there = 0  # number of leaf pages that were read

    def find(self, window_end):
        phases = []
        while self.end < window_end:
            if self.leaf == self.there:
                together = (window_end - self.end) // self.tree.counts[self.leaf - 1] if self.leaf else 1
                self.there = min(self.leaf + min(max(together, 1), DEPTH), len(self.tree.leaves))
                phases.append(Phase("leaf pages", single(self.tree.leaves[self.leaf:self.there])))
            self.end += self.tree.counts[self.leaf]
            self.leaf += 1
        return phases


class Guess:
    """Guesses the leaf pages of a reader's records as if all were as full as the first one.  After a wrong guess, the readers count
    the records of all leaf pages, each reader in a part of them."""

    def __init__(self, tree):
        self.tree, self.counted = tree, False

    def find(self, mine):
        tree, phases = self.tree, {reader: [] for reader in mine}
        all_leaves = len(tree.leaves)
        if not self.counted:
            each = tree.counts[0]
            guesses = {reader: sorted({o // each for o in records}) for reader, records in mine.items()}
            right = True
            for reader, leaves in guesses.items():
                if leaves[-1] >= all_leaves:
                    right = False
                    continue
                phases[reader].append(Phase("leaf pages", single(tree.leaves[i] for i in leaves)))
                right = right and all(
                    tree.counts[i] == (each if i + 1 < all_leaves else len(tree.records) - i * each) for i in leaves)
            if right:
                return phases
            self.counted = True
            for i, reader in enumerate(mine):
                part = tree.leaves[all_leaves * i // len(mine):all_leaves * (i + 1) // len(mine)]
                phases[reader] += [Phase("all leaf pages", single(part[at:at + 256])) for at in range(0, len(part), 256)]
        for reader, records in mine.items():
            leaves = [leaf for leaf, _ in groupby(tree.records[o].leaf for o in records)]
            phases[reader].append(Phase("leaf pages", single(tree.leaves[i] for i in leaves)))
        return phases


# ---- mapped strategies --------------------------------------------------------------------------------------------------


def mapped(job, strategy):
    """Returns the pages that each reading rank touches in an epoch."""
    tree, ranks = job.tree, range(job.nodes * job.each)
    last = tree.records[sum(list(windows(job))[-1]) - 1].leaf
    walk = {0, 1, *tree.leaves[:last + 1], *(page for above in tree.ancestors[:last + 1] for page in above)}

    def values(of):
        return {page for window in windows(job) for o in ordinals(job, window, of) for page in pages_of(tree.records[o])}

    if strategy == "stock":
        return {rank: walk | values([rank]) for rank in ranks}
    own = {reader: values(range(reader, reader + job.each)) for reader in readers(job)}
    return {reader: pages | (walk if strategy == "lmm" or reader == 0 else set()) for reader, pages in own.items()}


# ---- full ---------------------------------------------------------------------------------------------------------------


def full_rounds(job):
    """Returns the records that each reader reads in each round."""
    tree, all_readers, all_ranks = job.tree, job.nodes, job.nodes * job.each
    number, block = len(tree.records), 1 if job.strided else job.batch
    shares = [[o for o in range(number) if o // block % all_ranks == rank] for rank in range(all_ranks)]
    needed = {o for share in shares for o in share[:len(share) // job.batch * job.batch]}
    of_round = max(COALESCED // (tree.data_pages * PAGE // number), 1) * all_readers
    for n, first in enumerate(range(0, number, of_round)):
        size = min(of_round, number - first)
        parts = [range(first + size * i // all_readers, first + size * (i + 1) // all_readers) for i in range(all_readers)]
        yield {reader: [o for o in parts[(i + n) % all_readers] if o in needed] for i, reader in enumerate(readers(job))}


def of_part(tree, records):
    """Returns the requests for the values and the leaf pages of a part.  Gaps of up to 64 KiB are read as well, or half of that and so
    on, so that the total remains below 4 MiB.  A gap of one page is always read."""
    wanted = [(r.offset - 16, r.bytes + 16) for r in records] + single({tree.leaves[r.leaf] for r in records})
    gap = GAP
    while gap and sum(size for _, size in merged(wanted, gap)) > COALESCED:
        gap //= 2
    for offset, size in merged(wanted, max(gap, PAGE)):
        end = -(-(offset + size) // PAGE) * PAGE
        yield from ((at, min(MIB, end - at)) for at in range(offset, end, MIB))


def of_index(pages):
    """Returns the requests for branch or leaf pages.  Pages at most 16 KiB apart are one request, of at most 256 KiB."""
    requests = []
    for page in sorted(pages):
        if requests and page - requests[-1][1] <= 5 and page - requests[-1][0] < 64:
            requests[-1][1] = page
        else:
            requests.append([page, page])
    return [(first * PAGE, (last - first + 1) * PAGE) for first, last in requests]


def full(job):
    """Returns all direct requests of each node's reader.  Values must lie in overflow pages."""
    tree, leaves, requests = job.tree, len(job.tree.leaves), {}
    for i, reader in enumerate(readers(job)):
        part = tree.leaves[leaves * i // job.nodes:leaves * (i + 1) // job.nodes]
        requests[reader] = [request for level in [*tree.levels, part] for request in of_index(level)]
        for parts in full_rounds(job):
            requests[reader] += of_part(tree, [tree.records[o] for o in parts[reader]])
    return requests
