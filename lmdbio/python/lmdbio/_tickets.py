"""Batches that a dataset is told of one record at a time, and that it reads ahead all the same.

A DataLoader asks a map-style dataset for one index after the other.  Here an index is a number or a key that carries a
ticket: which batch it belongs to, and which one the same process will be asked for next.
"""
import concurrent.futures
import dataclasses
import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from ._lmdbio import Batch, Reader, Stream
from ._plan import Plan


class Index(int):
    """An ordinal with its ticket, and its place in the batch."""

    ticket: "Ticket"
    at: int

    def __reduce__(self) -> Tuple[Any, ...]:
        return _index, (type(self), int(self), self.ticket, self.at)


class KeyIndex(bytes):
    """The same for a key."""

    ticket: "Ticket"
    at: int

    def __reduce__(self) -> Tuple[Any, ...]:
        return _index, (type(self), bytes(self), self.ticket, self.at)


def _index(kind: Any, value: Any, ticket: "Ticket", at: int) -> Any:
    made = kind(value)
    made.ticket, made.at = ticket, at
    return made


@dataclasses.dataclass(frozen=True)
class Planned:
    """Batch `k` of an epoch of a plan.  With N workers, a worker is asked for each N-th batch."""

    plan: Plan
    epoch: int
    k: int

    def __len__(self) -> int:
        return self.plan.size(self.k)

    def items(self) -> Sequence[int]:
        ordinals: List[int] = self.plan.ordinals(self.epoch, self.k).tolist()
        return ordinals


@dataclasses.dataclass(frozen=True)
class Listed:
    """These ordinals or keys; then, of the same process, probably those that follow."""

    wanted: Tuple[Any, ...]
    following: Tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.wanted)

    def items(self) -> Sequence[Any]:
        return self.wanted


Ticket = Union[Planned, Listed]


class Indices(Sequence[Any]):
    """The indices of a batch, which are made where they are used: what is sent to a worker is their ticket."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket

    def __len__(self) -> int:
        return len(self.ticket)

    def __iter__(self) -> Iterator[Any]:
        ticket = self.ticket
        for at, value in enumerate(ticket.items()):
            yield _index(KeyIndex if isinstance(value, bytes) else Index, value, ticket, at)

    def __getitem__(self, i: Any) -> Any:
        return list(self)[i]

    def __repr__(self) -> str:
        return repr(list(self.ticket.items()))


def read(reader: Reader, items: Iterable[Any]) -> Batch:
    """The records with these ordinals or keys.  Raises KeyError, IndexError."""
    items = list(items)
    if not items or not isinstance(items[0], bytes):
        return reader.read(items)
    batch = reader.read_keys([bytes(k) for k in items])
    if None in batch.keys:
        raise KeyError(bytes(items[batch.keys.index(None)]))
    return batch


class Fetcher:
    """Reads the batches of tickets, for one process and one thread.

    parts: the number of processes that share the batches.  copy: a batch is a list of values, as bytes.
    """

    # An epoch in which tickets did not come as expected so often is read without reading ahead.
    MOST_MISSES = 2

    def __init__(self, reader: Reader, parts: int, copy: bool) -> None:
        self.reader, self.parts, self.copy = reader, parts, copy
        self.ticket: Optional[Ticket] = None
        self.records: Sequence[Any] = ()
        self._stream: Optional[Stream] = None
        self._expected: Optional[Tuple[Plan, int, int]] = None  # the batch that the stream gives next
        self._missed: List[Tuple[Plan, int]] = []  # an epoch, so often as another batch than that was asked for
        self._pool: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._ahead: Optional[Tuple[Tuple[Any, ...], "concurrent.futures.Future[Batch]"]] = None

    def batch(self, ticket: Ticket) -> Sequence[Any]:
        """The records of a ticket, which stay here until the next one."""
        if ticket is self.ticket:
            return self.records
        self.ticket, self.records = None, ()  # its memory is free for the next
        made: Any = self._planned(ticket) if isinstance(ticket, Planned) else self._listed(ticket)
        if len(made) != len(ticket):  # filled up with records from elsewhere
            made = read(self.reader, ticket.items())
        self.ticket, self.records = ticket, made._copied_values() if self.copy else made
        return self.records

    def _planned(self, t: Planned) -> Sequence[Any]:
        if self._stream is None or self._expected != (t.plan, t.epoch, t.k):
            epoch = (t.plan, t.epoch)
            if self._expected is not None and self._expected[:2] == epoch:
                self._missed = [m for m in self._missed if m == epoch] + [epoch]
            self.close()
            if self._missed.count(epoch) > self.MOST_MISSES or t.k * t.plan.batch >= t.plan.records:
                return read(self.reader, t.items())
            self._stream = self.reader.stream(t.plan.order(t.epoch, t.k, self.parts), zero_copy=True)
            self._expected = (t.plan, t.epoch, t.k)
        made: Sequence[Any] = next(self._stream, ())
        self._expected = (t.plan, t.epoch, t.k + self.parts)
        return made

    def _listed(self, t: Listed) -> Batch:
        ahead, self._ahead = self._ahead, None
        made = ahead[1].result() if ahead is not None and ahead[0] == t.wanted else read(self.reader, t.wanted)
        if t.following:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(1, "lmdbio")
            self._ahead = (t.following, self._pool.submit(read, self.reader, t.following))
        return made

    def close(self) -> None:
        self._expected = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class Opened:
    """A reader that each process opens for itself when it first needs it; can be pickled.

    parts: tells a process how many share the batches.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"], database: Optional[str], memory: Optional[int],
                 parts: Callable[[], int], copy: bool) -> None:
        self.path, self.database, self.memory, self.parts, self.copy = os.fspath(path), database, memory, parts, copy
        self._process: Optional[int] = None
        self._fetcher: Optional[Fetcher] = None

    def fetcher(self) -> Fetcher:
        if self._fetcher is None or self._process != os.getpid():
            self._fetcher = None  # of the parent process, which forked this one
            self._fetcher = Fetcher(Reader(self.path, self.database, self.memory), self.parts(), self.copy)
            self._process = os.getpid()
        return self._fetcher

    def reader(self) -> Reader:
        return self.fetcher().reader

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_process": None, "_fetcher": None}
