"""Datasets for PyTorch that read LMDB databases ahead.

    dataset = lmdbio.torch.LmdbDataset("train.lmdb", decode=to_tensor)
    for batch in lmdbio.torch.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4):
        ...

See docs/python.md.
"""
import contextlib
import dataclasses
import itertools
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import torch
import torch.utils.data

from ._arguments import NOT_OURS, Item, last_of, to_item, whole_batch_size
from ._datasets import LmdbDataset, LmdbIterableDataset
from ._follow import FollowDataset
from ._plan import Plan
from ._ranks import Ranks
from ._state import position_in, state_of
from ._conversion import Datum
from ._tensors import TensorLoader
from ._tickets import Indices, Listed, Planned

__all__ = ["BatchSampler", "DataLoader", "Datum", "FollowDataset", "LmdbDataset", "LmdbIterableDataset", "TensorLoader"]


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
