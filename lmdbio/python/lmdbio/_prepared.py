"""The batches that a TensorLoader prepares while the program computes."""
import collections
import concurrent.futures
import functools
import threading
import weakref
from typing import Any, Callable, Deque, List, Optional, Sequence, Set, Tuple, Union

import numpy
import torch

from ._fields import Columns, Datums, Flat
from ._lmdbio import Batch, CancelledError, Follow, Reader, Record
from ._plan import Plan
from ._tickets import Samples

Fields = Union[Columns, Datums, Flat]
Functions = Tuple[Optional[Callable[[List[Record]], List[Any]]], Callable[[Any], Any]]


class Assembling:
    """Batches that threads of the library copy into tensors."""

    def __init__(self, reader: Union[Reader, Follow], fields: Fields, threads: int, ahead: int, pin: bool) -> None:
        self._fields, self._pin = fields, pin
        self._assembler = reader._assembler(fields.layout, threads, ahead + 2)
        self._pinned: Deque[Optional[torch.Tensor]] = collections.deque()
        self._streams = False

    def has_room(self) -> bool:
        """Returns whether there is memory for another batch.  If so, reserves it."""
        # The threads find out for themselves whether there is memory for another buffer of the library.
        return not self._pin or not self._fields.bytes or self._assembler.reserve(self._fields.bytes)

    def _buffer(self) -> int:
        """Returns the address of the buffer for the next batch.  0: a buffer of the library."""
        # PyTorch manages pinned memory: it does not use memory again before copies to the device have ended.
        pinned = torch.empty(self._fields.bytes, dtype=torch.uint8, pin_memory=True) if self._pin and self._fields.bytes else None
        self._pinned.append(pinned)
        return 0 if pinned is None else pinned.data_ptr()

    def request_batch(self, batch: Batch) -> None:
        """Requests a batch that was read.  It must not be used any more."""
        self._assembler.add_batch(batch, self._buffer())

    def request(self, plan: Plan, epoch: int, k: int) -> None:
        to = self._buffer()
        if k < plan.streamed:
            if k == 0 or not self._streams:
                self._assembler.open(plan.order(epoch, k))
                self._streams = True
            self._assembler.add(to)
        else:
            self._assembler.add_ordinals(plan.samples(epoch, k), to)

    def take(self) -> Any:
        count, memory = self._assembler.next()
        raw = self._pinned.popleft()
        if raw is None:
            raw = torch.from_numpy(numpy.frombuffer(memory, numpy.uint8))
        return self._fields.tensors(raw, count)

    def close(self, wait: bool = False) -> None:
        self._assembler.close()  # always waits


class Decoding:
    """Batches that functions of the program make, in a pool of threads.

    functions: a weak reference to a method that returns two functions.  The first one makes a list of samples from a part of a
    batch; None: there are no samples.  The second one makes a batch of tensors from the list, or from the lmdbio.Batch.  This
    object must not keep the program's functions alive, since they may refer to the object that owns the loader.  path: for
    messages.  samples: needed for request().
    """

    def __init__(self, path: Any, functions: "weakref.WeakMethod[Callable[[], Functions]]", threads: int,
                 samples: Optional[Samples] = None) -> None:
        self._path, self._samples, self._functions, self._threads = path, samples, functions, threads
        self._own_threads: Set[int] = set()  # their idents
        begin = functools.partial(_add_this_thread, self._own_threads)
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "lmdbio-decode", begin)
        self._feeder = concurrent.futures.ThreadPoolExecutor(1, "lmdbio-feed", begin)
        self._waiting: Deque["concurrent.futures.Future[concurrent.futures.Future[Any]]"] = collections.deque()
        self._stream: Any = None
        self._closed = False

    def has_room(self) -> bool:
        return True  # it is not known how much memory the program's functions take

    def _feed(self, read: Callable[[], Batch]) -> None:
        functions = self._functions()
        assert functions is not None
        self._waiting.append(self._feeder.submit(self._make, read, *functions()))

    def request_batch(self, batch: Batch) -> None:
        """Requests a batch that was read."""
        self._feed(lambda: batch)

    def request(self, plan: Plan, epoch: int, k: int) -> None:
        self._feed(functools.partial(self._read, plan, epoch, k))

    def _read(self, plan: Plan, epoch: int, k: int) -> Batch:
        assert self._samples is not None
        if k >= plan.streamed:
            return self._samples.read(plan.samples(epoch, k))
        if k == 0 or self._stream is None:
            self._stream = self._samples.stream(plan, epoch, k, 1)
        batch: Batch = next(self._stream)
        return batch

    def _make(self, read: Callable[[], Batch], parts: Optional[Callable[[List[Record]], List[Any]]],
              whole: Callable[[Any], Any]) -> "concurrent.futures.Future[Any]":
        batch = read()
        if parts is None:
            return self._pool.submit(whole, batch)
        size = -(-len(batch) // (4 * self._threads))
        made = [self._pool.submit(parts, batch[i:i + size]) for i in range(0, len(batch), size)]
        # The pool starts its tasks in sequence, so that this one waits only for tasks that have begun.
        return self._pool.submit(lambda: whole([sample for part in made for sample in part.result()]))

    def take(self) -> Any:
        try:
            return self._waiting.popleft().result().result()
        except BaseException as error:
            if self._closed:
                raise CancelledError(f"{self._path}: the loader was closed") from error
            raise

    def close(self, wait: bool = False) -> None:
        self._closed = True
        self._feeder.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._stream is not None:
            self._stream.close()
        # A thread of the pool cannot wait for itself.  It may call this function when it collects garbage.
        if wait and threading.get_ident() not in self._own_threads:
            self._feeder.shutdown()
            self._pool.shutdown()


class Prepared:
    """The batches that are prepared for a loader.  They begin at a position of an epoch, and continue into the next epochs."""

    def __init__(self, sources: Sequence[Any], plan: Plan, epoch: int, k: int, ahead: int) -> None:
        self.plan = plan
        self.next: Optional[Tuple[int, int]] = (epoch, k)  # the batch that take() returns; None: it is not known
        self._sources, self._ahead = sources, ahead
        self._requested = (epoch, k)
        self._count = 0  # batches that were requested and not yet taken
        try:
            self.fill()
        except BaseException:
            self.close()
            raise

    def _after(self, at: Tuple[int, int]) -> Tuple[int, int]:
        epoch, k = at
        return (epoch, k + 1) if k + 1 < self.plan.batches else (epoch + 1, 0)

    def fill(self) -> None:
        while self._count < self._ahead:
            if not all([source.has_room() for source in self._sources]) and self._count != 0:
                break
            for source in self._sources:
                source.request(self.plan, *self._requested)
            self._requested = self._after(self._requested)
            self._count += 1

    def take(self) -> List[Any]:
        assert self.next is not None
        after, self.next = self._after(self.next), None  # an interrupt may come at any place
        made = [source.take() for source in self._sources]
        self._count -= 1
        self.next = after
        return made

    def close(self, wait: bool = False) -> None:
        for source in self._sources:
            source.close(wait)


def _add_this_thread(idents: Set[int]) -> None:
    idents.add(threading.get_ident())
