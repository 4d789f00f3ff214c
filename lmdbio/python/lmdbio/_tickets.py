"""Reads batches ahead for map-style datasets, whose records are requested one at a time.

A DataLoader requests one index after the other from a map-style dataset.  In this module, an index is a number or a key with a
ticket.  The ticket identifies the batch of the index, and the batch that the same process will request next.
"""
import concurrent.futures
import dataclasses
import functools
import os
import sys
import threading
import warnings
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from ._arguments import LeftOut
from ._lmdbio import Batch, Reader, Record, Stream
from ._plan import Plan


Paths = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]


class Index(int):
    """An ordinal with its ticket, and its number in the batch."""

    ticket: "Ticket"
    at: int

    def __reduce__(self) -> Tuple[Any, ...]:
        return _index, (type(self), int(self), self.ticket, self.at)


class KeyIndex(bytes):
    """A key with its ticket, and its number in the batch."""

    ticket: "Ticket"
    at: int

    def __reduce__(self) -> Tuple[Any, ...]:
        return _index, (type(self), bytes(self), self.ticket, self.at)


def _index(kind: Any, value: Any, ticket: "Ticket", at: int) -> Any:
    made = kind(value)
    made.ticket, made.at = ticket, at
    return made


_warned = False  # True if this process has warned of an index without a ticket


def warn_if_loaded() -> None:
    """Warns once per process if a DataLoader or another class of torch.utils.data requests an index without a ticket.

    Does not warn if the program itself reads single records.
    """
    global _warned
    frame = None if _warned else sys._getframe(2)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("torch.utils.data."):
        frame = frame.f_back
    if frame is None:
        return
    _warned = True
    warnings.warn("an LmdbDataset gets plain indices from torch.utils.data, so nothing is read ahead.  Use lmdbio.torch.DataLoader; "
                  "in place of a Subset, pass it sampler= with the indices of the subset.  For a dataset that wraps an LmdbDataset, "
                  "pass torch's DataLoader a batch_sampler=lmdbio.torch.BatchSampler(...) of the inner dataset, and pass its "
                  "indices on unchanged", RuntimeWarning, stacklevel=3)


@dataclasses.dataclass(frozen=True)
class Planned:
    """Batch `k` of an epoch of a plan.  With N workers, each worker reads every N-th batch."""

    plan: Plan
    epoch: int
    k: int

    def __len__(self) -> int:
        return self.plan.size(self.k)

    def items(self) -> Sequence[int]:
        samples: List[int] = self.plan.samples(self.epoch, self.k).tolist()
        return samples


@dataclasses.dataclass(frozen=True)
class Listed:
    """A batch of ordinals or keys, and the batch that the same process will probably request next."""

    wanted: Tuple[Any, ...]
    following: Tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.wanted)

    def items(self) -> Sequence[Any]:
        return self.wanted


Ticket = Union[Planned, Listed]


class Indices(Sequence[Any]):
    """The indices of a batch.  A worker receives only their ticket, and makes the indices from it."""

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

    # Loaders of other libraries concatenate batches.
    def __add__(self, others: Iterable[Any]) -> List[Any]:
        return [*self, *others]

    def __radd__(self, others: Iterable[Any]) -> List[Any]:
        return [*others, *self]

    def __repr__(self) -> str:
        return repr(list(self.ticket.items()))


def open_reader(path: Any, database: Optional[str], memory: Optional[int], left_out: LeftOut, comm: Any) -> Reader:
    """Opens a reader, or together with the other ranks of an mpi4py communicator."""
    if comm is None:
        return Reader(path, database, memory, **left_out)
    if any(left_out.values()):
        raise ValueError("ranks that read together (comm) cannot exclude records")
    from . import mpi

    return mpi.Reader(comm, path, database, memory)


class Samples:
    """The records of a reader.  Any thread.

    everything: a function that returns a reader which also finds the keys of excluded records.
    """

    def __init__(self, reader: Reader, everything: Callable[[], Reader]) -> None:
        self.reader, self._everything = reader, everything

    def __len__(self) -> int:
        return len(self.reader)

    def read(self, items: Iterable[Any]) -> Batch:
        """Returns the records of these samples, or with these keys.  Raises KeyError, IndexError."""
        items = list(items)
        if not any(isinstance(i, bytes) for i in items):
            return self.reader.read(items)
        if not all(isinstance(i, bytes) for i in items):
            raise TypeError("a batch has either ordinals or keys")
        batch = self._everything().read_keys([bytes(k) for k in items])
        if None in batch.keys:
            raise KeyError(f"{self.reader.path}: no key {bytes(items[batch.keys.index(None)])!r}")
        return batch

    def record(self, item: Any) -> Record:
        return self._everything()[item] if isinstance(item, bytes) else self.reader[item]

    def stream(self, plan: Plan, epoch: int, k: int, parts: int) -> Stream:
        """Returns a stream of the batches k, k + parts, k + 2 parts, ... among the first plan.streamed batches."""
        return self.reader.stream(plan.order(epoch, k, parts), bytes_as="mapped")


class Fetcher:
    """Reads the batches of tickets, for one thread.

    parts: the number of processes that share the batches.  bytes_as: the form of a batch.  "bytes": a list of values, as bytes
    objects.  "mapped": a sequence of records, whose keys and values are views.
    """

    # After this number of streams have been closed in an epoch and replaced by others, batches are read without a stream.
    MOST_GIVEN_UP = 2

    def __init__(self, samples: Samples, parts: int, bytes_as: str) -> None:
        self.samples, self.parts, self.bytes_as = samples, parts, bytes_as
        self.ticket: Optional[Ticket] = None
        self.records: Union[Batch, List[Any], Tuple[()]] = ()
        self._stream: Optional[Stream] = None
        self._expected: Optional[Planned] = None  # the next batch that the stream returns
        self._step = parts  # the distance from one batch of this process to the next
        self._last: Optional[Planned] = None
        self._given_up: Dict[Tuple[Plan, int], int] = {}  # by plan and epoch
        self._pool: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._ahead: Optional[Tuple[Tuple[Any, ...], "concurrent.futures.Future[Batch]"]] = None
        self._in_vain = 0  # number of batches that were read ahead, but not requested

    def batch(self, ticket: Ticket) -> Any:
        """Returns the records of a ticket, and keeps them until the next ticket."""
        if ticket is self.ticket:
            return self.records
        self.ticket, self.records = None, ()  # frees the memory for the next batch
        made: Any = self._planned(ticket) if isinstance(ticket, Planned) else self._listed(ticket)
        if len(made) != len(ticket):
            made = self.samples.read(ticket.items())
        self.ticket, self.records = ticket, made._copied_values() if self.bytes_as == "bytes" else made
        return self.records

    def take(self, ticket: Ticket) -> Any:
        """Returns the records of a ticket, and keeps no reference to them."""
        records = self.batch(ticket)
        self.ticket, self.records = None, ()
        return records

    def _planned(self, t: Planned) -> Union[Batch, Tuple[()]]:
        if self._stream is None or self._expected != t:
            if len(self.samples) != t.plan.count or t.k >= t.plan.streamed:
                return self.samples.read(t.items())
            if self._expected is not None and self._expected.k < self._expected.plan.streamed:
                epoch = (t.plan, t.epoch)
                if self._given_up.get(epoch, 0) >= self.MOST_GIVEN_UP:
                    return self.samples.read(t.items())
                if len(self._given_up) > 100:
                    self._given_up.clear()
                self._given_up[epoch] = self._given_up.get(epoch, 0) + 1
            last = self._last
            if last is not None and (last.plan, last.epoch) == (t.plan, t.epoch) and last.k < t.k:
                self._step = t.k - last.k  # another library may divide the batches between ranks
            self.close()
            self._stream = self.samples.stream(t.plan, t.epoch, t.k, self._step)
            self._expected = t
        made: Union[Batch, Tuple[()]] = next(self._stream, ())
        self._expected, self._last = dataclasses.replace(t, k=t.k + self._step), t
        return made

    def _listed(self, t: Listed) -> Batch:
        ahead, self._ahead = self._ahead, None
        made = None
        if ahead is not None:
            failed = ahead[1].exception()  # waits
            if ahead[0] != t.wanted:
                self._in_vain += 1
            elif failed is None:
                made = ahead[1].result()
        ahead = None  # releases a batch that was not requested
        if made is None:
            made = self.samples.read(t.wanted)
        if t.following and self._in_vain <= self.MOST_GIVEN_UP:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(1, "lmdbio")
            self._ahead = (t.following, self._pool.submit(self.samples.read, t.following))
        return made

    def close(self) -> None:
        self._expected = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class Opened:
    """A reader that each process opens for itself, when the process first needs it.  Can be pickled.  Any thread.

    All processes read the same state of the database.  parts: a function that returns the number of processes that share the
    batches.  bytes_as: see Fetcher.  comm: an mpi4py communicator whose ranks read together, or None.
    """

    def __init__(self, path: Paths, database: Optional[str], memory: Optional[int], left_out: LeftOut,
                 parts: Callable[[], int], bytes_as: str, comm: Any = None) -> None:
        several = not isinstance(path, (str, bytes, os.PathLike))
        self.path: Any = [os.path.abspath(os.fspath(p)) for p in path] if several else os.path.abspath(os.fspath(path))  # type: ignore
        self.database, self.memory, self.left_out, self.parts, self.bytes_as = database, memory, left_out, parts, bytes_as
        self.comm, self._maker = comm, os.getpid()
        self.state: Optional[Tuple[int, int]] = None  # the state to read: that of the reader, and its number of records
        self._own = _Own()

    def _here(self) -> "_Own":
        own = self._own
        if own.process != os.getpid():
            own = self._own = _Own()  # the old one belongs to the parent of this forked process
        return own

    def fetcher(self) -> Fetcher:
        """Returns the Fetcher of the calling thread."""
        own = self._here()
        made: Optional[Fetcher] = getattr(own.thread, "fetcher", None)
        if made is None:
            made = own.thread.fetcher = Fetcher(self.samples(), self.parts(), self.bytes_as)
        return made

    def samples(self) -> Samples:
        own = self._here()
        with own.mutex:
            if own.samples is None:
                reader = self._open(self.left_out)
                everything: Callable[[], Reader] = functools.lru_cache(maxsize=None)(lambda: self._open({}))
                own.samples = Samples(reader, everything if any(self.left_out.values()) else (lambda: reader))
            return own.samples

    def _open(self, left_out: LeftOut) -> Reader:
        if self.comm is not None and self._maker != os.getpid():
            raise RuntimeError(f"{self.path}: workers cannot take part if ranks read together (comm): use num_workers=0")
        reader = open_reader(self.path, self.database, self.memory, left_out, self.comm)
        now = reader._state, len(reader)
        if left_out is self.left_out:
            self.state = self.state or now
        assert self.state is not None
        if self.state[0] != now[0] or (left_out is self.left_out and self.state != now):
            raise RuntimeError(
                f"{reader.path}: the database was changed: its last transaction is {now[0]}, with {now[1]} records; it was "
                f"{self.state[0]}, with {self.state[1]}, when the dataset was made; make a new dataset and loader to read the new "
                "state")
        return reader

    def __getstate__(self) -> Dict[str, Any]:
        if self.comm is not None:
            raise TypeError(f"{self.path}: a dataset of ranks that read together (comm) cannot be pickled; use num_workers=0")
        return {**self.__dict__, "_own": None}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._own = _Own()


class _Own:
    """The objects of an Opened that belong to one process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.mutex = threading.Lock()
        self.samples: Optional[Samples] = None
        self.thread = threading.local()
