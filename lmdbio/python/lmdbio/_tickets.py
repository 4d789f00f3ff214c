"""Reads batches ahead for map-style datasets, which are asked for one record at a time.

A DataLoader asks a map-style dataset for one index after the other.  Here an index is a number or a key that carries a
ticket: which batch it belongs to, and which one the same process will be asked for next.
"""
import concurrent.futures
import dataclasses
import os
import threading
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
    if not any(isinstance(i, bytes) for i in items):
        return reader.read(items)
    if not all(isinstance(i, bytes) for i in items):
        raise TypeError("a batch has either ordinals or keys")
    batch = reader.read_keys([bytes(k) for k in items])
    if None in batch.keys:
        raise KeyError(bytes(items[batch.keys.index(None)]))
    return batch


class Fetcher:
    """Reads the batches of tickets, for one thread.

    parts: the number of processes that share the batches.  copy: a batch is a list of values, as bytes.
    """

    # In an epoch, so many streams are given up for another one; then batches are read without a stream.
    MOST_GIVEN_UP = 2

    def __init__(self, reader: Reader, parts: int, copy: bool) -> None:
        self.reader, self.parts, self.copy = reader, parts, copy
        self.ticket: Optional[Ticket] = None
        self.records: Union[Batch, List[Any], Tuple[()]] = ()
        self._stream: Optional[Stream] = None
        self._expected: Optional[Planned] = None  # the batch that the stream gives next
        self._given_up: Dict[Tuple[Plan, int], int] = {}  # by plan and epoch
        self._pool: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._ahead: Optional[Tuple[Tuple[Any, ...], "concurrent.futures.Future[Batch]"]] = None

    def batch(self, ticket: Ticket) -> Any:
        """The records of a ticket, which stay here until the next one."""
        if ticket is self.ticket:
            return self.records
        self.ticket, self.records = None, ()  # its memory is free for the next
        made: Any = self._planned(ticket) if isinstance(ticket, Planned) else self._listed(ticket)
        if len(made) != len(ticket):  # filled up with records from elsewhere
            made = read(self.reader, ticket.items())
        self.ticket, self.records = ticket, made._copied_values() if self.copy else made
        return self.records

    def take(self, ticket: Ticket) -> Any:
        """As batch(), but keeps no reference to the records."""
        records = self.batch(ticket)
        self.ticket, self.records = None, ()
        return records

    def _planned(self, t: Planned) -> Union[Batch, Tuple[()]]:
        if self._stream is None or self._expected != t:
            if len(self.reader) != t.plan.count or t.k * t.plan.batch >= t.plan.records:
                return read(self.reader, t.items())  # the order is that of another number of records; or it fills up
            if self._expected is not None and self._expected.k < self._expected.plan.batches:
                epoch = (t.plan, t.epoch)
                if self._given_up.get(epoch, 0) >= self.MOST_GIVEN_UP:
                    return read(self.reader, t.items())
                if len(self._given_up) > 100:
                    self._given_up.clear()
                self._given_up[epoch] = self._given_up.get(epoch, 0) + 1
            self.close()
            self._stream = self.reader.stream(t.plan.order(t.epoch, t.k, self.parts), zero_copy=True)
            self._expected = t
        made: Union[Batch, Tuple[()]] = next(self._stream, ())
        self._expected = dataclasses.replace(t, k=t.k + self.parts)
        return made

    def _listed(self, t: Listed) -> Batch:
        ahead, self._ahead = self._ahead, None
        made = None
        if ahead is not None:
            failed = ahead[1].exception()  # waits
            if failed is None and ahead[0] == t.wanted:
                made = ahead[1].result()
        ahead = None  # what was not asked for is given back
        if made is None:
            made = read(self.reader, t.wanted)
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
    """A reader that each process opens for itself when it first needs it; can be pickled.  Any thread.

    parts: returns the number of processes that share the batches.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"], database: Optional[str], memory: Optional[int],
                 parts: Callable[[], int], copy: bool) -> None:
        self.path, self.database, self.memory, self.parts, self.copy = os.fspath(path), database, memory, parts, copy
        self._own = _Own()

    def _here(self) -> "_Own":
        own = self._own
        if own.process != os.getpid():
            own = self._own = _Own()  # the old one is of the parent process, which forked this one
        return own

    def fetcher(self) -> Fetcher:
        """Of the calling thread."""
        own = self._here()
        made: Optional[Fetcher] = getattr(own.thread, "fetcher", None)
        if made is None:
            made = own.thread.fetcher = Fetcher(self.reader(), self.parts(), self.copy)
        return made

    def reader(self) -> Reader:
        own = self._here()
        with own.mutex:
            if own.reader is None:
                own.reader = Reader(self.path, self.database, self.memory)
            return own.reader

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_own": None}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._own = _Own()


class _Own:
    """What a process has of an Opened."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.mutex = threading.Lock()
        self.reader: Optional[Reader] = None
        self.thread = threading.local()
