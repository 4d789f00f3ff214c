"""The datasets of lmdbio.torch."""
import collections
import itertools
import os
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Union

import torch
import torch.utils.data

from ._arguments import Keys, last_of, left_out_by
from ._lmdbio import Batch, Record
from ._plan import Plan
from ._ranks import Ranks, this_worker, worker_count
from ._state import position_in, state_of
from ._tickets import Index, Indices, KeyIndex, Opened, Paths, warn_if_loaded

Decode = Callable[[Record], Any]


def _form(decode: Optional[Decode]) -> str:
    """Returns the form in which a dataset reads records; see Fetcher."""
    return "bytes" if decode is None else "mapped"


class LmdbDataset(torch.utils.data.Dataset[Any]):
    """The records of an LMDB database, by ordinal or key: dataset[7], dataset[b"key"].

    path: as for lmdbio.Reader: one path, or a sequence of paths, whose databases are read as one.
    decode: a function that makes a sample from an lmdbio.Record, whose key and value are memoryviews.  None: a sample is the
    value, as bytes.  exclude, exclude_prefixes: keys of records that are not samples, for example [b"__len__"], and beginnings
    of such keys.  These keys need not exist.  dataset[i] and len(dataset) ignore their records.
    Each process opens the database for itself.  Workers may be forked or spawned.  All processes read the state that the
    database had when the dataset was made.  If the database has changed when a process opens it, RuntimeError is raised.
    database, memory: see lmdbio.Reader; `memory` is per process.

    With lmdbio.torch.DataLoader, or with lmdbio.torch.BatchSampler in any other DataLoader, the dataset knows the order
    and reads ahead.  With any other sampler, the dataset reads the records of a batch when they are requested, and warns
    once per process.
    """

    def __init__(self, path: Paths, database: Optional[str] = None, *,
                 decode: Optional[Decode] = None, memory: Optional[int] = None, exclude: Keys = (), exclude_prefixes: Keys = ()) -> None:
        self.decode = decode
        self._opened = Opened(path, database, memory, left_out_by(exclude, exclude_prefixes), worker_count, _form(decode))
        self._opened.samples()

    def __len__(self) -> int:
        return len(self._opened.samples())

    def __getitem__(self, index: Union[int, bytes]) -> Any:
        if type(index) is Index or type(index) is KeyIndex:
            record = self._opened.fetcher().batch(index.ticket)[index.at]
            return record if self.decode is None else self.decode(record)
        if isinstance(index, slice):
            raise TypeError("an LmdbDataset has single samples, no slices")
        warn_if_loaded()
        record = self._opened.samples().record(index)
        return bytes(record.value) if self.decode is None else self.decode(record)

    def __getitems__(self, indices: Sequence[Union[int, bytes]]) -> List[Any]:
        """Returns all samples of a batch.  PyTorch 1.13 and later call this function."""
        fetcher = self._opened.fetcher()
        if isinstance(indices, Indices):
            records = fetcher.take(indices.ticket)
            return list(records) if self.decode is None else [self.decode(r) for r in records]
        if not any(type(i) is Index or type(i) is KeyIndex for i in indices):
            warn_if_loaded()
        batch = fetcher.samples.read(indices)
        return [bytes(v) for v in batch.values] if self.decode is None else [self.decode(r) for r in batch]


class LmdbIterableDataset(torch.utils.data.IterableDataset[Any]):
    """The records of an LMDB database in an order that the dataset sets.

    The workers of a DataLoader divide the order by batches, so that the batches are the same with any number of workers.
    batch_size: must be that of the DataLoader; lmdbio.torch.DataLoader sets it.  window: shuffles only within this number of
    neighbouring records, so that reads are nearly in file order.  comm: an mpi4py communicator, whose ranks read one database
    together (lmdbio.mpi); all ranks make the same iterations, without workers.  The other arguments are those of LmdbDataset
    and BatchSampler.

    Without workers, the next epoch follows each complete iteration.  With workers, lmdbio.torch.DataLoader counts the epochs.
    With another DataLoader, call set_epoch() before each epoch.
    """

    def __init__(self, path: Paths, database: Optional[str] = None, *,
                 decode: Optional[Decode] = None, memory: Optional[int] = None, exclude: Keys = (), exclude_prefixes: Keys = (),
                 shuffle: bool = False, window: Optional[int] = None, seed: int = 0, batch_size: Optional[int] = None,
                 drop_last: bool = False, last: Optional[str] = None, rank: Optional[int] = None,
                 ranks: Optional[int] = None, comm: Any = None) -> None:
        if window is not None and (window < 1 or not shuffle):
            raise ValueError("window must be at least 1, and needs shuffle=True")
        self.decode, self.shuffle, self.window, self.seed = decode, shuffle, window, seed
        self.batch_size, self.last, self._ranks = batch_size, last_of(last, drop_last), Ranks(rank, ranks, comm)
        left_out = left_out_by(exclude, exclude_prefixes)
        self._opened = Opened(path, database, memory, left_out, worker_count, _form(decode), comm)
        self._opened.samples()
        # Epoch and number of records at which an iteration begins.  `_begin` is for a worker that is started for the
        # iteration.  `_shared_begin`, in shared memory, is for a worker that already exists.
        self._begin = (0, 0)
        self._shared_begin = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._iterated_by: Optional[int] = None  # id of the process
        self._given = 0  # number of records that this process has returned since the beginning of the iteration
        self._skipped = 0  # number of records that this worker omits at its next iteration

    def plan(self) -> Plan:
        rank, ranks = self._ranks.now()
        return Plan(len(self._opened.samples()), self.batch_size or 1, self.shuffle, self.window, self.seed, rank, ranks, self.last)

    def __len__(self) -> int:
        return self.plan().length

    def set_epoch(self, epoch: int, records: int = 0) -> None:
        """Sets the epoch of the next iteration, and the number of records that are skipped at its beginning."""
        self._begin = (epoch, records)
        self._shared_begin[0], self._shared_begin[1] = epoch, records
        self._given = self._skipped = 0

    def state_dict(self) -> Dict[str, Any]:
        """Returns the position of the next record, if this process iterates over the dataset itself.

        In a worker, as torchdata's StatefulDataLoader calls it, the state is that of this worker.  For the other loaders with
        workers, use lmdbio.torch.DataLoader.state_dict.
        """
        epoch, records = self._begin
        if torch.utils.data.get_worker_info() is None:
            return state_of(self.plan(), epoch, records + self._given)
        part, parts = this_worker()
        return {**state_of(self.plan(), epoch, records), "worker": part, "workers": parts, "given": self._given}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Sets the start of the next iteration to the position in `state`, which state_dict() has returned."""
        part, parts = this_worker()
        if (state.get("worker", part), state.get("workers", 1)) != (part, parts):
            raise ValueError(f"the state was saved in worker {state.get('worker', 0)} of {state.get('workers', 1)}; this is worker "
                             f"{part} of {parts}")
        self.set_epoch(*position_in(state, self.plan()))
        self._given = self._skipped = state.get("given", 0)

    def __iter__(self) -> Iterator[Any]:
        lives_on = torch.utils.data.get_worker_info() is not None and self._iterated_by == os.getpid()
        self._iterated_by = os.getpid()
        epoch, records = self._shared_begin.tolist() if lives_on else self._begin
        return self._samples(self.plan(), epoch, records)

    def _samples(self, plan: Plan, epoch: int, records: int) -> Iterator[Any]:
        part, parts = this_worker()
        alone = torch.utils.data.get_worker_info() is None
        self._given, self._skipped = self._skipped, 0
        if parts == 1:
            first, skipped = divmod(records + self._given, plan.batch)
        elif records % plan.batch:
            raise ValueError(f"{records} records are not whole batches of {plan.batch}, as workers need them")
        else:
            batches, skipped = divmod(self._given, plan.batch)
            first = records // plan.batch + batches * parts
        for record in self._records(plan, epoch, first + part, parts, skipped):
            self._given += 1
            yield record if self.decode is None else self.decode(record)
        if alone:
            self.set_epoch(epoch + 1)

    def _records(self, plan: Plan, epoch: int, first: int, parts: int, skipped: int) -> Iterator[Any]:
        """Returns the records of the batches first, first + parts, ... of an epoch, or their values if there is no `decode`."""
        samples = self._opened.samples()
        records: Callable[[Batch], Sequence[Any]] = Batch._copied_values
        if self.decode is not None:
            records = list
        stream = None
        for k in range(first, plan.batches, parts):
            if stream is None and k < plan.streamed:
                stream = samples.stream(plan, epoch, k, parts)
            got = [next(stream) if stream is not None and k < plan.streamed else samples.read(plan.samples(epoch, k))]
            waiting = collections.deque(itertools.islice(records(got.pop()), skipped, None))
            skipped = 0
            while waiting:  # keep no reference to the samples that were yielded
                yield waiting.popleft()
