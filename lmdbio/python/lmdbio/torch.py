"""Datasets for PyTorch that read LMDB databases ahead.

    dataset = lmdbio.torch.LmdbDataset("train.lmdb", decode=to_tensor)
    for batch in lmdbio.torch.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4):
        ...

See docs/python.md.
"""
import collections
import contextlib
import dataclasses
import itertools
import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import torch
import torch.utils.data

from ._arguments import NOT_OURS, Item, Keys, last_of, left_out_by, to_item, whole_batch_size
from ._lmdbio import Batch, Record
from ._plan import Plan
from ._ranks import Ranks, this_worker, worker_count
from ._state import position_in, state_of
from ._tensors import Datum, TensorLoader
from ._tickets import Index, Indices, KeyIndex, Listed, Opened, Paths, Planned, warn_if_loaded

__all__ = ["BatchSampler", "DataLoader", "Datum", "LmdbDataset", "LmdbIterableDataset", "TensorLoader"]

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


class BatchSampler(torch.utils.data.BatchSampler):
    """The batches of an LmdbDataset.  Their indices tell the dataset which batch will be requested next.

    For the argument `batch_sampler` of a DataLoader.  Each iteration is an epoch.  If `shuffle` is set, each epoch has another
    order.  rank, ranks: the share of the batches in a job of several ranks.  Use rank=0, ranks=1 (all batches) for loaders that
    divide the batches between the ranks themselves.

    last: what happens to the remaining samples, which do not fill a batch of each rank.  "pad" and "keep" divide them evenly
    between the ranks.  Some ranks may have one sample less than the others.  With "pad", these ranks get one of the first
    samples.  With "keep", their last batch is smaller.  "drop", or drop_last, omits the remaining samples.

    sampler: returns indices or keys in another order, and divides them between the ranks itself, like torch's
    DistributedSampler.  shuffle, rank and ranks then have no effect.  The sampler may also be passed in place of the dataset.
    The dataset then reads one batch ahead.  workers: the number of workers of the DataLoader, so that each worker knows its
    next batch.
    """

    def __init__(self, dataset: Union[LmdbDataset, "torch.utils.data.Sampler[Item]"], batch_size: int, *, shuffle: bool = False,
                 sampler: Optional[Iterable[Item]] = None, drop_last: bool = False, last: Optional[str] = None, seed: int = 0,
                 rank: Optional[int] = None, ranks: Optional[int] = None, workers: int = 0) -> None:
        count = 0
        self._own: Any = None  # a sampler that represents the order of this class to other libraries
        if isinstance(dataset, torch.utils.data.Sampler):  # other libraries make new batch samplers in this way
            sampler = dataset if sampler is None else sampler
        elif isinstance(dataset, LmdbDataset):
            count = len(dataset)
            self._own = (torch.utils.data.RandomSampler if shuffle and count else torch.utils.data.SequentialSampler)(dataset)
        else:
            raise TypeError(NOT_OURS.format("BatchSampler", "LmdbDataset", type(dataset).__name__))
        if sampler is not None and shuffle and not getattr(sampler, "shuffle", False):
            raise ValueError("shuffle must be False if there is a sampler; with Lightning, shuffle in the sampler, or let "
                             "lmdbio.torch.DataLoader share the samples between the ranks")
        self.last, self.workers, self._ranks = last_of(last, drop_last), workers, Ranks(rank, ranks)
        super().__init__(self._own if sampler is None else sampler, whole_batch_size(batch_size), self.last == "drop")  # type: ignore[arg-type]
        self._all = Plan(count, self.batch_size, shuffle, None, seed, last=self.last)
        self._epoch, self._first = 0, 0

    @property
    def foreign(self) -> Any:
        """The sampler that sets the order, even if another library has set the sampler.  None if this class sets the order."""
        return None if self.sampler is self._own else self.sampler

    @property
    def plan(self) -> Plan:
        """The batches of this rank, if there is no sampler."""
        rank, ranks = self._ranks.now()
        return dataclasses.replace(self._all, rank=rank, ranks=ranks)

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return max(self._epoch, getattr(self.sampler, "epoch", 0))

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Sets the epoch of the next iteration, and its first batch."""
        self._epoch, self._first = epoch, first_batch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return super().__len__() if self.foreign is not None else self.plan.batches

    def __iter__(self) -> Iterator[Any]:
        return _SamplerIterator(self, None if self.foreign is not None else self.plan, self.epoch, self._first)

    def _batches(self, plan: Optional[Plan], epoch: int, first: int) -> Iterator[Indices]:
        if plan is None and hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        if self.epoch == epoch:
            self._epoch, self._first = epoch + 1, 0
        if plan is not None:
            return (Indices(Planned(plan, epoch, k)) for k in range(first, plan.batches))
        return itertools.islice(self._listed(), first, None)

    def _listed(self) -> Iterator[Indices]:
        source: Iterator[Any] = iter(self.sampler)
        waiting: List[Tuple[Item, ...]] = []
        distance = max(self.workers, 1)  # number of batches to the next batch of the same process
        for items in iter(lambda: tuple(itertools.islice(source, self.batch_size)), ()):
            if len(items) < self.batch_size and self.drop_last:
                break
            waiting.append(tuple(map(to_item, items)))
            if len(waiting) > distance:
                yield Indices(Listed(waiting.pop(0), waiting[-1]))
        for items in waiting:
            yield Indices(Listed(items))


class _SamplerIterator:
    """An iteration over a BatchSampler, which can be saved and resumed: the protocol of torchdata's StatefulDataLoader."""

    def __init__(self, sampler: BatchSampler, plan: Optional[Plan], epoch: int, k: int) -> None:
        self._sampler, self._plan, self._epoch, self._k = sampler, plan, epoch, k
        # Made when the first batch is requested: with workers, torch makes two iterators, but uses only one.
        self._batches: Optional[Iterator[Indices]] = None

    def __iter__(self) -> "_SamplerIterator":
        return self

    def __next__(self) -> Indices:
        if self._batches is None:
            self._batches = self._sampler._batches(self._plan, self._epoch, self._k)
        batch = next(self._batches)
        self._k += 1
        return batch

    def state_dict(self) -> Dict[str, Any]:
        return {"epoch": self._epoch, "batch": self._k}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._epoch, self._k, self._batches = state["epoch"], state["batch"], None
        self._sampler.set_epoch(self._epoch, self._k)


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


class _Shared(torch.utils.data.distributed.DistributedSampler[Any]):
    """The samples of this rank, as the sampler of lmdbio.torch.DataLoader.

    Other libraries do not replace the sampler of a loader if the sampler already divides the samples between the ranks.
    """

    def __init__(self, batches: BatchSampler) -> None:
        self._batches = batches

    @property
    def shuffle(self) -> bool:  # type: ignore[override]
        return self._batches._all.shuffle

    def __len__(self) -> int:
        with self._batches._ranks.asked_by_loader():
            return self._batches.plan.length

    def __iter__(self) -> Iterator[Any]:
        with self._batches._ranks.asked_by_loader():
            batches = iter(self._batches)
        return itertools.chain.from_iterable(batches)

    def set_epoch(self, epoch: int) -> None:
        self._batches.set_epoch(epoch)


class _Batches:
    """An iterator over batches that counts the batches that the program has received, for its loader."""

    def __init__(self, loader: "DataLoader", batches: Iterator[Any], epoch: int, first: int) -> None:
        self._loader, self._batches, self._epoch, self._next = loader, batches, epoch, first

    def __iter__(self) -> "_Batches":
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._next += 1
        self._loader._now = (self._epoch, self._next)
        return batch


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader for the datasets of this module.  It reads their batches ahead, and can resume.

    Takes the arguments of torch.utils.data.DataLoader, and also seed, last, rank and ranks (see BatchSampler).  Each iteration
    is the next epoch.  If rank and ranks are None, those of torch.distributed or MPI apply, if it is initialized when an
    iteration begins.  An LmdbIterableDataset has its own shuffle, seed, rank, ranks, last and drop_last.  `positional`:
    batch_size, shuffle and sampler, in this sequence.
    """

    def __init__(self, dataset: Union[LmdbDataset, LmdbIterableDataset], *positional: Any, batch_size: int = 1,
                 shuffle: Optional[bool] = None, sampler: Optional[Iterable[Item]] = None,
                 batch_sampler: Optional[Iterable[Sequence[Item]]] = None, num_workers: int = 0, drop_last: bool = False,
                 last: Optional[str] = None, seed: Optional[int] = None, rank: Optional[int] = None,
                 ranks: Optional[int] = None, **more: Any) -> None:
        # Lightning makes a new loader with the positional arguments of the first loader, and passes other arguments by name.
        if positional and (batch_sampler is None or shuffle is None):
            if len(positional) > 3 or batch_size != 1 or (len(positional) > 1 and shuffle is not None):
                raise TypeError("DataLoader: too many arguments without a name, or one that is given twice")
            given: List[Any] = [*positional, *[batch_size, shuffle, sampler][len(positional):]]
            batch_size, shuffle, sampler = given
        self._resume: Optional[Tuple[int, int]] = None  # epoch and batch at which the next iteration begins
        self._next_epoch, self._now = 0, (0, 0)
        if isinstance(dataset, LmdbIterableDataset):
            if shuffle or drop_last or any(x is not None for x in (sampler, batch_sampler, last, seed, rank, ranks)):
                raise ValueError("an LmdbIterableDataset sets shuffle, seed, drop_last, last, rank and ranks itself, and takes no "
                                 "sampler")
            if dataset.batch_size not in (None, whole_batch_size(batch_size)):
                raise ValueError(f"the dataset has batch_size={dataset.batch_size}, of its own or of another loader; "
                                 f"this loader has {batch_size}")
            dataset.batch_size = batch_size
            self._order: Any = dataset
            super().__init__(dataset, batch_size=batch_size, num_workers=num_workers, **more)
            return
        if not isinstance(dataset, LmdbDataset):
            raise TypeError(NOT_OURS.format("lmdbio.torch.DataLoader", "LmdbDataset or LmdbIterableDataset", type(dataset).__name__))
        if batch_sampler is not None and (whole_batch_size(batch_size) != 1 or shuffle or drop_last or
                                          any(x is not None for x in (sampler, last, seed, rank, ranks))):
            raise ValueError("batch_sampler excludes batch_size, shuffle, sampler, drop_last, last, seed, rank and ranks")
        if sampler is not None and shuffle:
            raise ValueError("shuffle must be False if there is a sampler")
        if batch_sampler is None:
            batch_sampler = BatchSampler(dataset, batch_size, shuffle=bool(shuffle), sampler=sampler, drop_last=drop_last,
                                         last=last, seed=seed or 0, rank=rank, ranks=ranks, workers=num_workers)
        self._order = batch_sampler
        super().__init__(dataset, batch_sampler=batch_sampler, num_workers=num_workers, **more)
        if isinstance(batch_sampler, BatchSampler):  # torch does not allow a plain assignment
            own = batch_sampler.foreign
            object.__setattr__(self, "sampler", _Shared(batch_sampler) if own is None else own)

    def _plan(self) -> Optional[Plan]:
        """Returns the plan of this rank's batches, or None if another sampler sets the order."""
        own = self._order
        if not isinstance(own, LmdbIterableDataset) and (not isinstance(own, BatchSampler) or own.foreign is not None):
            return None
        with own._ranks.asked_by_loader():
            return own.plan() if isinstance(own, LmdbIterableDataset) else own.plan

    def __len__(self) -> int:
        plan = self._plan()
        return super().__len__() if plan is None else plan.batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        epoch, first = self._resume or (max(self._next_epoch, getattr(self._order, "epoch", 0)), 0)
        plan = self._plan()
        if isinstance(self._order, LmdbIterableDataset) and plan is not None:
            self._order.set_epoch(epoch, first * plan.batch)
        elif isinstance(self._order, BatchSampler):
            self._order.set_epoch(epoch, first)
        self._resume, self._next_epoch, self._now = None, epoch + 1, (epoch, first)
        with self._order._ranks.asked_by_loader() if plan is not None else contextlib.nullcontext():
            return _Batches(self, super().__iter__(), epoch, first)

    def state_dict(self) -> Dict[str, Any]:
        """Returns the state from which a loader resumes after the last batch that the program got.  Save it with the model."""
        epoch, k = self._resume or self._now
        plan = self._plan()
        if plan is None:
            try:
                ended = k == len(self)
            except TypeError:  # a sampler without a length
                ended = False
            return {"epoch": epoch + 1, "batch": 0} if ended else {"epoch": epoch, "batch": k}
        return state_of(plan, epoch, min(k * plan.batch, plan.length))

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Makes the next iteration begin where state_dict() was called.  The number of workers may differ."""
        plan = self._plan()
        if plan is None:
            repeats = isinstance(self._order, BatchSampler) and hasattr(self._order.sampler, "set_epoch")
            if "batch" not in state or "epoch" not in state:
                raise ValueError("not a state of state_dict() of a loader with a sampler")
            if state["batch"] and not repeats:
                raise ValueError("a DataLoader with a sampler of the program's cannot resume within an epoch, unless the sampler "
                                 "has set_epoch()")
            self._resume = (state["epoch"], state["batch"])
            return
        epoch, records = position_in(state, plan)
        if records % plan.batch:
            raise ValueError(f"the state is at record {records}, which is not a whole number of batches of {plan.batch}")
        self._resume = (epoch, records // plan.batch)
