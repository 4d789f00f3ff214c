"""The batches of a followed database that a TensorLoader prepares while the program computes."""
import collections
import concurrent.futures
import threading
import weakref
from typing import Any, Callable, Deque, List, Optional, Tuple, Union

import torch

from ._lmdbio import Batch, Follow
from ._prepared import Assembling, Decoding

Source = Union[Assembling, Decoding]


class Followed:
    """Prepares batches that the Follow has not returned yet.

    The Follow returns a batch only when its tensors are complete.  So its state is always that of the program, and an exception
    loses no batch.  A new snapshot may change the batches that were prepared; they are then prepared again.

    make_source: a weak reference to a method that makes a source, and gets a batch.  This object must not keep the loader alive.
    ahead: number of batches to prepare.  pin: whether buffers are pinned, for the current CUDA device.
    """

    def __init__(self, follow: Follow, make_source: "weakref.WeakMethod[Callable[[Batch], Source]]", ahead: int, pin: bool) -> None:
        self.follow = follow
        self._make_source, self._ahead = make_source, ahead
        self._source: Optional[Source] = None
        self._prepared: Deque[Tuple[List[Optional[int]], int]] = collections.deque()  # ordinals and number of new records
        self._own_thread = 0
        device = torch.cuda.current_device() if pin and torch.cuda.is_available() else None
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "lmdbio-follow", self._begin_thread, (device,))
        self._reading: Optional["concurrent.futures.Future[None]"] = None

    def _begin_thread(self, device: Optional[int]) -> None:
        self._own_thread = threading.get_ident()
        if device is not None:
            torch.cuda.set_device(device)

    def settle(self) -> None:
        """Waits until no other thread uses the Follow."""
        if self._reading is not None:
            failed = self._reading.exception()
            self._reading = None
            if failed is not None:
                self._drop()

    def take(self, finish: Callable[[List[Any]], Any]) -> Tuple[Any, int]:
        """Returns what `finish` makes of the next batch, and the number of new records.  Raises StopIteration at the end."""
        self.settle()
        self.follow._wait()
        source: Optional[Source] = None
        try:
            new = self._request_next()
            source, self._source = self._source, None  # an interrupt may come at any place: nothing prepared is then used again
            assert source is not None
            made = finish([source.take()])
            self._prepared.popleft()
            next(self.follow)
        except BaseException as error:
            if source is not None:
                source.close()
            self._drop()
            if isinstance(error, StopIteration):  # it must not end the iteration
                raise RuntimeError("a function of the program raised StopIteration") from error
            raise
        self._source = source
        self._reading = self._pool.submit(self._read_ahead, source)
        return made, new

    def _request_next(self) -> int:
        """Requests the next batch, unless it was prepared.  Returns the number of new records."""
        try:
            batch, new = self.follow._ahead(0)
        except MemoryError:  # what was prepared may take the memory
            self._drop()
            batch, new = self.follow._ahead(0)
        wanted = batch.ordinals, new
        if self._source is None or (self._prepared and self._prepared[0] != wanted):
            self._drop()
            make_source = self._make_source()
            assert make_source is not None
            self._source = make_source(batch)
        if not self._prepared:
            self._source.request_batch(batch)
            self._prepared.append(wanted)
        return new

    def _read_ahead(self, source: Source) -> None:
        while len(self._prepared) < self._ahead and source.has_room():
            try:
                batch, new = self.follow._ahead(len(self._prepared))
            except Exception:  # there is no such batch yet; or the program gets the error when the batch is the next one
                return
            known = batch.ordinals, new
            source.request_batch(batch)
            self._prepared.append(known)

    def _drop(self) -> None:
        """Drops what was prepared, and unused buffers."""
        source, self._source = self._source, None
        self._prepared.clear()
        if source is not None:
            source.close()

    def close(self, wait: bool = False) -> None:
        # The pool's thread cannot wait for itself.  It may call this function when it collects garbage.
        self._pool.shutdown(wait=threading.get_ident() != self._own_thread, cancel_futures=True)
        source, self._source = self._source, None
        if source is not None:
            source.close(wait)
