"""Datasets for PyTorch that read LMDB databases ahead.

    dataset = lmdbio.torch.LmdbDataset("train.lmdb", decode=to_tensor)
    for batch in lmdbio.torch.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4):
        ...

See docs/python.md.
"""
import collections
import itertools
import os
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import torch
import torch.utils.data

from ._lmdbio import Batch, Record
from ._plan import Plan
from ._tickets import Index, Indices, KeyIndex, Listed, Opened, Planned, read

__all__ = ["BatchSampler", "DataLoader", "LmdbDataset", "LmdbIterableDataset"]

Decode = Callable[[Record], Any]


def _rank_and_ranks(rank: Optional[int], ranks: Optional[int]) -> Tuple[int, int]:
    """As given; else those of torch.distributed, of MPI, or of a program of one process."""
    if (rank is None) != (ranks is None):
        raise ValueError("rank and ranks must be given together")
    if rank is not None and ranks is not None:
        return rank, ranks
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        return mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size
    return 0, 1


def _part_and_parts() -> Tuple[int, int]:
    """Of the workers of a DataLoader."""
    worker = torch.utils.data.get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)


def _parts() -> int:
    return _part_and_parts()[1]


def _place(state: Dict[str, Any], plan: Plan) -> Tuple[int, int]:
    """Epoch and records of a state_dict, after checking that it is of the same order."""
    now_of = {"count": plan.count, "ranks": plan.ranks, "shuffle": plan.shuffle, "window": plan.window, "seed": plan.seed,
              "drop_last": plan.drop_last}
    for name, now in now_of.items():
        if state[name] != now:
            raise ValueError(f"the state was saved with {name}={state[name]}; now it is {now}")
    if plan.ranks > 1 and state["batch_size"] != plan.batch:
        raise ValueError(f"the state was saved with batch_size={state['batch_size']}; now it is {plan.batch}, which would "
                         "give the ranks other records")
    epoch, records = state["epoch"], state["records"]
    if not 0 <= records <= plan.length:
        raise ValueError(f"the state is at record {records} of an epoch of {plan.length}")
    return (epoch, records) if records < plan.length else (epoch + 1, 0)


def _state(plan: Plan, epoch: int, records: int) -> Dict[str, Any]:
    if plan.length and records >= plan.length:
        epoch, records = epoch + 1, 0
    return {"epoch": epoch, "records": records, "seed": plan.seed, "count": plan.count, "ranks": plan.ranks,
            "batch_size": plan.batch, "shuffle": plan.shuffle, "window": plan.window, "drop_last": plan.drop_last}


class LmdbDataset(torch.utils.data.Dataset[Any]):
    """The records of an LMDB database, by ordinal or key: dataset[7], dataset[b"key"].

    decode: makes a sample of an lmdbio.Record, whose key and value are memoryviews; None: a sample is the value, as bytes.
    Each process opens the database when it first needs it; workers may be forked or spawned.  database, memory: as for
    lmdbio.Reader, for each process.

    With lmdbio.torch.DataLoader, or with lmdbio.torch.BatchSampler in any other DataLoader, the dataset knows the order
    and reads ahead.  With any other sampler, it reads the records of a batch when it is asked for them.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"], database: Optional[str] = None, *,
                 decode: Optional[Decode] = None, memory: Optional[int] = None) -> None:
        self.decode = decode
        self._opened = Opened(path, database, memory, _parts, copy=decode is None)

    def __len__(self) -> int:
        return len(self._opened.reader())

    def __getitem__(self, index: Union[int, bytes]) -> Any:
        if type(index) is Index or type(index) is KeyIndex:
            record = self._opened.fetcher().batch(index.ticket)[index.at]
            return record if self.decode is None else self.decode(record)
        if isinstance(index, slice):
            raise TypeError("an LmdbDataset has single samples, no slices")
        record = self._opened.reader()[index]
        return bytes(record.value) if self.decode is None else self.decode(record)

    def __getitems__(self, indices: Sequence[Union[int, bytes]]) -> List[Any]:
        """All samples of a batch; PyTorch 1.13 and later call this."""
        fetcher = self._opened.fetcher()
        if isinstance(indices, Indices):
            records = fetcher.take(indices.ticket)
            return list(records) if self.decode is None else [self.decode(r) for r in records]
        batch = read(fetcher.reader, indices)
        return [bytes(v) for v in batch.values] if self.decode is None else [self.decode(r) for r in batch]


class BatchSampler(torch.utils.data.Sampler[Indices]):
    """The batches of an LmdbDataset; their indices tell the dataset what will be asked for next.

    For the argument `batch_sampler` of a DataLoader.  Each iteration is an epoch, with an order of its own if `shuffle` is
    set.  rank, ranks: None: those of torch.distributed or MPI, if initialized.  All ranks have the same number of
    batches: drop_last leaves out what is left over; otherwise ranks fill up their last batch with their first records.

    sampler: indices or keys in another order.  The dataset then reads one batch ahead; workers: the number of workers of
    the DataLoader, so that each of them knows its next batch.
    """

    def __init__(self, dataset: LmdbDataset, batch_size: int, *, shuffle: bool = False,
                 sampler: Optional[Iterable[Union[int, bytes]]] = None, drop_last: bool = False, seed: int = 0,
                 rank: Optional[int] = None, ranks: Optional[int] = None, workers: int = 0) -> None:
        if sampler is not None and shuffle:
            raise ValueError("shuffle must be False if there is a sampler")
        self.sampler, self.workers, self.drop_last, self.batch_size = sampler, workers, drop_last, batch_size
        own = (0, 1) if sampler is not None else _rank_and_ranks(rank, ranks)
        self.plan = Plan(len(dataset), batch_size, shuffle, None, seed, *own, drop_last)
        self._epoch, self._first = 0, 0

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """The epoch of the next iteration, and its first batch."""
        self._epoch, self._first = epoch, first_batch

    def __len__(self) -> int:
        if self.sampler is None:
            return self.plan.batches
        whole, rest = divmod(len(self.sampler), self.batch_size)  # type: ignore[arg-type]
        return whole + (rest != 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Indices]:
        return self._batches(self._epoch, self._first)

    def _batches(self, epoch: int, first: int) -> Iterator[Indices]:
        # Not before the first batch: with workers, torch makes two iterators, and uses one.
        if self._epoch == epoch:
            self.set_epoch(epoch + 1)
        if self.sampler is None:
            yield from (Indices(Planned(self.plan, epoch, k)) for k in range(first, self.plan.batches))
            return
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        yield from itertools.islice(self._listed(), first, None)

    def _listed(self) -> Iterator[Indices]:
        source = iter(self.sampler)  # type: ignore[arg-type]
        waiting: List[Tuple[Union[int, bytes], ...]] = []
        distance = max(self.workers, 1)  # to the next batch of the same process
        for items in iter(lambda: tuple(itertools.islice(source, self.batch_size)), ()):
            if len(items) < self.batch_size and self.drop_last:
                break
            waiting.append(tuple(i if isinstance(i, bytes) else int(i) for i in items))
            if len(waiting) > distance:
                yield Indices(Listed(waiting.pop(0), waiting[-1]))
        for items in waiting:
            yield Indices(Listed(items))


class LmdbIterableDataset(torch.utils.data.IterableDataset[Any]):
    """The records of an LMDB database in an order that the dataset sets.

    Workers of a DataLoader share the order batch by batch, so that its batches are the same with any number of workers.
    batch_size: that of the DataLoader, which lmdbio.torch.DataLoader sets by itself.  window: shuffle only within so
    many neighbouring records, which reads the file nearly in order.  The other arguments are those of LmdbDataset and
    BatchSampler.

    Without workers, an iteration that is not broken off is followed by the next epoch.  With workers,
    lmdbio.torch.DataLoader counts epochs; with another DataLoader call set_epoch() before each.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"], database: Optional[str] = None, *,
                 decode: Optional[Decode] = None, memory: Optional[int] = None, shuffle: bool = False,
                 window: Optional[int] = None, seed: int = 0, batch_size: Optional[int] = None, drop_last: bool = False,
                 rank: Optional[int] = None, ranks: Optional[int] = None) -> None:
        if window is not None and (window < 1 or not shuffle):
            raise ValueError("window must be at least 1, and needs shuffle=True")
        if (rank is None) != (ranks is None):
            raise ValueError("rank and ranks must be given together")
        self.decode, self.shuffle, self.window, self.seed = decode, shuffle, window, seed
        self.batch_size, self.drop_last = batch_size, drop_last
        self._rank, self._ranks = rank, ranks
        self._opened = Opened(path, database, memory, _parts, copy=decode is None)
        # Epoch and records at which an iteration begins: of a worker that is started for it, and, in memory that is
        # shared, of one that lives on.
        self._begin = (0, 0)
        self._shared_begin = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._iterated_by: Optional[int] = None  # process
        self._count: Optional[int] = None
        self._given = 0

    def plan(self) -> Plan:
        """The number of records is that of the first call, in the process that has made the dataset."""
        if self._rank is None:
            self._rank, self._ranks = _rank_and_ranks(None, None)
        if self._count is None:
            self._count = len(self._opened.reader())
        return Plan(self._count, self.batch_size or 1, self.shuffle, self.window, self.seed, self._rank, self._ranks or 1,
                    self.drop_last)

    def __getstate__(self) -> Dict[str, Any]:
        self.plan()  # a spawned worker knows no rank
        return self.__dict__

    def __len__(self) -> int:
        return self.plan().length

    def set_epoch(self, epoch: int, records: int = 0) -> None:
        """The epoch of the next iteration, and how many of its records are left out at the beginning."""
        self._begin = (epoch, records)
        self._shared_begin[0], self._shared_begin[1] = epoch, records
        self._given = 0

    def state_dict(self) -> Dict[str, Any]:
        """Where the next record is, if this process iterates over the dataset itself.  In a DataLoader with workers, use
        lmdbio.torch.DataLoader.state_dict."""
        epoch, records = self._begin
        return _state(self.plan(), epoch, records + self._given)

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """The next iteration begins where the one that saved the state was."""
        self.set_epoch(*_place(state, self.plan()))

    def __iter__(self) -> Iterator[Any]:
        lives_on = torch.utils.data.get_worker_info() is not None and self._iterated_by == os.getpid()
        self._iterated_by = os.getpid()
        epoch, records = self._shared_begin.tolist() if lives_on else self._begin
        return self._samples(self.plan(), epoch, records)

    def _samples(self, plan: Plan, epoch: int, records: int) -> Iterator[Any]:
        part, parts = _part_and_parts()
        first, skipped = divmod(records, plan.batch)
        if skipped and parts > 1:
            raise ValueError(f"{records} records are not whole batches of {plan.batch}, as workers need them")
        alone = torch.utils.data.get_worker_info() is None
        self._given = 0
        for record in self._records(plan, epoch, first + part, parts, skipped):
            self._given += 1
            yield record if self.decode is None else self.decode(record)
        if alone:
            self.set_epoch(epoch + 1)

    def _records(self, plan: Plan, epoch: int, first: int, parts: int, skipped: int) -> Iterator[Any]:
        """Of batches first, first + parts, ... of an epoch; values if nothing is decoded."""
        reader = self._opened.reader()
        if len(reader) != plan.count:
            raise RuntimeError(f"{reader.path}: the database has {len(reader)} records now; it had {plan.count} when the "
                               "dataset was first used")
        records: Callable[[Batch], Sequence[Any]] = Batch._copied_values
        if self.decode is not None:
            records = list
        stream = None
        for k in range(first, plan.batches, parts):
            size, real = plan.size(k), min(plan.size(k), plan.records - k * plan.batch)
            if real > 0:
                if stream is None:
                    stream = reader.stream(plan.order(epoch, k, parts), zero_copy=True)
                waiting = collections.deque(itertools.islice(records(next(stream)), skipped, None))
                while waiting:  # keeps no reference to the samples that were yielded
                    yield waiting.popleft()
            if real < size:
                begin = records(next(reader.stream(plan.order(epoch, 0), zero_copy=True)))
                filling = itertools.islice(itertools.cycle(begin), size - max(real, 0))
                yield from itertools.islice(filling, max(skipped - max(real, 0), 0), None)
            skipped = 0


class _Batches:
    """An iterator that tells its loader which batches the program got."""

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
    """torch's DataLoader for the datasets of this module: their batches are read ahead, and it can resume.

    Takes the arguments of torch.utils.data.DataLoader, and seed, rank and ranks (see BatchSampler).  Each iteration is the
    next epoch.  An LmdbIterableDataset has its own shuffle, seed, rank, ranks and drop_last.
    """

    def __init__(self, dataset: Union[LmdbDataset, LmdbIterableDataset], batch_size: int = 1,
                 shuffle: Optional[bool] = None, sampler: Optional[Iterable[Union[int, bytes]]] = None, *,
                 num_workers: int = 0, drop_last: bool = False, seed: Optional[int] = None, rank: Optional[int] = None,
                 ranks: Optional[int] = None, **more: Any) -> None:
        self._resume: Optional[Tuple[int, int]] = None  # epoch and batch at which the next iteration begins
        self._next_epoch, self._now = 0, (0, 0)
        if isinstance(dataset, LmdbIterableDataset):
            if drop_last or any(x is not None for x in (shuffle, sampler, seed, rank, ranks)):
                raise ValueError("an LmdbIterableDataset sets shuffle, seed, drop_last, rank and ranks itself")
            self._order: Union[LmdbIterableDataset, BatchSampler] = dataset
            if dataset.batch_size not in (None, batch_size):
                raise ValueError(f"the dataset has batch_size={dataset.batch_size}, of its own or of another loader; "
                                 f"this loader has {batch_size}")
            dataset.batch_size = batch_size
            super().__init__(dataset, batch_size=batch_size, num_workers=num_workers, **more)
            return
        if not isinstance(dataset, LmdbDataset):
            raise TypeError("lmdbio.torch.DataLoader needs an LmdbDataset or LmdbIterableDataset; for a dataset that wraps "
                            "one, give torch's DataLoader an lmdbio.torch.BatchSampler of the inner one")
        batches = BatchSampler(dataset, batch_size, shuffle=bool(shuffle), sampler=sampler, drop_last=drop_last, seed=seed or 0,
                               rank=rank, ranks=ranks, workers=num_workers)
        self._order = batches
        super().__init__(dataset, batch_sampler=batches, num_workers=num_workers, **more)

    def _plan(self) -> Plan:
        return self._order.plan() if isinstance(self._order, LmdbIterableDataset) else self._order.plan

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        epoch, first = self._resume or (self._next_epoch, 0)
        self._resume, self._next_epoch, self._now = None, epoch + 1, (epoch, first)
        self._order.set_epoch(epoch, first * self._plan().batch if isinstance(self._order, LmdbIterableDataset) else first)
        return _Batches(self, super().__iter__(), epoch, first)

    def state_dict(self) -> Dict[str, Any]:
        """Which batch comes after the last one that the program got: saved with a model, training resumes there."""
        epoch, k = self._resume or self._now
        plan = self._plan()
        return _state(plan, epoch, min(k * plan.batch, plan.length))

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """The next iteration begins where state_dict() was called, also with another number of workers."""
        if isinstance(self._order, BatchSampler) and self._order.sampler is not None:
            raise ValueError("a DataLoader with a sampler of the program's cannot resume")
        plan = self._plan()
        epoch, records = _place(state, plan)
        if records % plan.batch:
            raise ValueError(f"the state is at record {records}, which is not a whole number of batches of {plan.batch}")
        self._resume = (epoch, records // plan.batch)
