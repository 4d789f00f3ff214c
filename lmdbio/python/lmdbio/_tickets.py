"""Batches that a dataset is told of one record at a time, and that it reads ahead all the same.

A DataLoader asks a map-style dataset for one index after the other.  Here an index is a number or a key that carries a
ticket: which batch it belongs to, and which one the same process will be asked for next.
"""
import concurrent.futures
import dataclasses
import os
from typing import Optional, Sequence, Tuple

from ._lmdbio import Batch, Reader
from ._order import Order
from ._plan import Plan


class Index(int):
    """An ordinal with its ticket, and its place in the batch."""

    def __new__(cls, value, ticket, at):
        made = super().__new__(cls, value)
        made.ticket, made.at = ticket, at
        return made

    def __reduce__(self):
        return type(self), (int(self), self.ticket, self.at)


class KeyIndex(bytes):
    """The same for a key."""

    def __new__(cls, value, ticket, at):
        made = super().__new__(cls, value)
        made.ticket, made.at = ticket, at
        return made

    def __reduce__(self):
        return type(self), (bytes(self), self.ticket, self.at)


@dataclasses.dataclass(frozen=True)
class Planned:
    """Batch `k` of an epoch of a plan.  With N workers, a worker is asked for each N-th batch."""

    plan: Plan
    epoch: int
    k: int

    def __len__(self) -> int:
        return self.plan.size(self.k)

    def items(self):
        return self.plan.ordinals(self.epoch, self.k).tolist()


@dataclasses.dataclass(frozen=True)
class Listed:
    """These ordinals or keys; then, of the same process, probably those that follow."""

    wanted: Tuple
    following: Tuple = ()

    def __len__(self) -> int:
        return len(self.wanted)

    def items(self):
        return self.wanted


class Indices(Sequence):
    """The indices of a batch, which are made where they are used: what is sent to a worker is their ticket."""

    def __init__(self, ticket):
        self.ticket = ticket

    def __len__(self):
        return len(self.ticket)

    def __iter__(self):
        return (KeyIndex(x, self.ticket, i) if isinstance(x, bytes) else Index(x, self.ticket, i)
                for i, x in enumerate(self.ticket.items()))

    def __getitem__(self, i):
        return list(self)[i]

    def __repr__(self):
        return repr(list(self.ticket.items()))


def read(reader: Reader, items, copy: bool) -> Batch:
    """The records with these ordinals or keys.  Raises KeyError, IndexError."""
    items = list(items)
    if not items or not isinstance(items[0], bytes):
        return reader.read(items, copy=copy)
    batch = reader.read_keys([bytes(k) for k in items], copy=copy)
    if None in batch.keys:
        raise KeyError(bytes(items[batch.keys.index(None)]))
    return batch


class Fetcher:
    """Reads the batches of tickets, for one process and one thread.  copy: records are bytes."""

    # An epoch in which tickets did not come as expected so often is read without reading ahead.
    MOST_MISSES = 2

    def __init__(self, reader: Reader, copy: bool):
        self.reader, self.copy = reader, copy
        self._ticket, self._records = None, None
        self._stream, self._expected, self._misses = None, None, (None, 0)
        self._pool, self._ahead = None, (None, None)

    def record(self, index, parts: int):
        """The record of an Index or KeyIndex; `parts`: the number of processes that share the batches."""
        if index.ticket is not self._ticket:
            self.batch(index.ticket, parts)
        return self._records[index.at]

    def batch(self, ticket, parts: int):
        """All records of a ticket."""
        self._ticket, self._records = None, None  # its memory is free for the next
        made = self._planned(ticket, parts) if isinstance(ticket, Planned) else self._listed(ticket)
        if len(made) != len(ticket):  # filled up with records from elsewhere
            made = read(self.reader, ticket.items(), self.copy)
        self._ticket, self._records = ticket, made
        return made

    def _planned(self, t: Planned, parts: int):
        epoch = (t.plan, t.epoch)
        if self._expected != (*epoch, t.k, parts):
            if self._expected is not None and self._expected[:2] == epoch:
                self._misses = (epoch, self._misses[1] + 1 if self._misses[0] == epoch else 1)
            self.close()
            if (self._misses[0] == epoch and self._misses[1] > self.MOST_MISSES) or t.k * t.plan.batch >= t.plan.records:
                return read(self.reader, t.items(), self.copy)
            self._stream = self.reader.stream(t.plan.order(t.epoch, t.k, parts), copy=self.copy, zero_copy=not self.copy)
            self._expected = (*epoch, t.k, parts)
        made = next(self._stream, ())
        self._expected = (*epoch, t.k + parts, parts)
        return made

    def _listed(self, t: Listed):
        wanted, future = self._ahead
        self._ahead = (None, None)
        made = future.result() if wanted == t.wanted else read(self.reader, t.wanted, self.copy)
        if t.following:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(1, "lmdbio")
            self._ahead = (t.following, self._pool.submit(read, self.reader, t.following, self.copy))
        return made

    def close(self) -> None:
        self._expected = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class Opened:
    """A reader that each process opens for itself when it first needs it; can be pickled."""

    def __init__(self, path, database: Optional[str], memory: Optional[int], copy: bool):
        self.path, self.database, self.memory, self.copy = os.fspath(path), database, memory, copy
        self._process, self._fetcher = None, None

    def fetcher(self) -> Fetcher:
        if self._process != os.getpid():
            self._fetcher = None  # of the parent process, which forked this one
            self._fetcher = Fetcher(Reader(self.path, self.database, self.memory), self.copy)
            self._process = os.getpid()
        return self._fetcher

    def reader(self) -> Reader:
        return self.fetcher().reader

    def __getstate__(self):
        return {**self.__dict__, "_process": None, "_fetcher": None}
