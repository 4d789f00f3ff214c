"""The loader whose threads assemble batches, in place of worker processes."""
import os
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

import numpy
import torch
import torch.utils.data

from ._arguments import Keys, last_of, left_out_by, whole_batch_size
from ._conversion import Conversion
from ._fields import Columns
from ._follow import FollowDataset
from ._followed import Followed
from ._lmdbio import Batch, CancelledError
from ._plan import Plan
from ._prepared import Assembling, Prepared
from ._ranks import Ranks
from ._state import position_in, state_of
from ._tickets import Paths, Samples, open_reader


_LATER = "a later iteration over this TensorLoader has begun, or load_state_dict() or close() was called"


class _Batches:
    """An iteration over one epoch of a TensorLoader."""

    def __init__(self, loader: "TensorLoader", plan: Plan, epoch: int, k: int, turn: int) -> None:
        self._loader, self._plan, self._epoch, self._k, self._turn = loader, plan, epoch, k, turn

    def __iter__(self) -> "_Batches":
        return self

    def __next__(self) -> Any:
        if self._k >= self._plan.batches:
            raise StopIteration
        if self._turn != self._loader._turn:
            raise RuntimeError(_LATER)
        try:
            batch = self._loader._take(self._plan, self._epoch, self._k)
        except StopIteration as error:  # it must not end the epoch
            raise RuntimeError("a function of the program raised StopIteration") from error
        self._k += 1
        self._loader._now = (self._epoch, self._k)
        return batch


class _FollowedBatches:
    """An iteration over a TensorLoader of a FollowDataset."""

    def __init__(self, loader: "TensorLoader", turn: int) -> None:
        self._loader, self._turn = loader, turn

    def __iter__(self) -> "_FollowedBatches":
        return self

    def __next__(self) -> Tuple[Any, int]:
        if self._turn != self._loader._turn:
            raise RuntimeError(_LATER)
        return self._loader._take_followed()


class TensorLoader:
    """Batches as tensors, in a given order.  Threads prepare them while the program computes; there are no worker processes.

        loader = TensorLoader("train.lmdb", fields=[("label", "<i4"), ("image", "u1", (3, 224, 224))], batch_size=256, shuffle=True)
        for epoch in range(10):
            for batch in loader:
                batch["image"], batch["label"]

    path: one path, or a sequence of paths, whose databases are read as one.  Or a FollowDataset without `decode` and `collate`:
    the loader then yields tuples (batch, new) as lmdbio.Follow does, and takes none of `database`, `labels`, `label_fields`, the
    arguments for the order, `memory` and `comm`.  While an iteration goes on, only the loader may use the FollowDataset.

    What a record is:
    fields: a NumPy dtype, or a list that numpy.dtype accepts, for values of one size.  A batch is a dict with a tensor of shape
    (batch, ...) for each field, or a tensor if the dtype has no fields.  "caffe.Datum": values are messages of Caffe's
    protobuf type Datum, of one shape.  A batch is {"data": (batch, channels, height, width), "label": (batch)}.  "flat": values
    of any sizes.  A batch is {"data": the bytes of all values, "offsets": (batch + 1)}; value i of the batch is
    data[offsets[i]:offsets[i + 1]].  "views": a batch is the list of its values, as memoryviews.
    decode: a function that makes a sample from an lmdbio.Record, or with fields="caffe.Datum" from a Datum.  It runs in several
    threads.  collate_fn makes a batch from the list of samples; the default is torch.utils.data.default_collate.
    decode_batch: a function that makes a batch from an lmdbio.Batch.
    labels: an array with one element per sample, in the order of the database.  Or the path of another database with as many
    samples, or the tuple of its path and the name of a named database.  label_fields: the dtype of the values in this database.
    If a batch is a dict, the labels are added to it as "label", or as the fields of label_fields.  Otherwise a batch becomes the
    tuple (batch, labels).

    Order: batch_size, shuffle, window, seed, last, drop_last, rank, ranks, exclude, exclude_prefixes are those of BatchSampler
    and LmdbIterableDataset, and give the same batches.  Without rank and ranks, those of torch.distributed or MPI apply, as for
    DataLoader.  comm: an mpi4py communicator, whose ranks read one database together (lmdbio.mpi); then no record can be excluded.

    threads: number of threads that copy or decode, at most 1024; default: the cores of this process, at most 4.  prefetch: number
    of batches that are prepared ahead, also beyond the end of an epoch.  Prepared batches, and up to prefetch + 2 unused buffers,
    count in LMDBIO_MEMORY, of which all loaders of a process may use half.  If there is less memory, fewer batches are prepared,
    but at least one.  What `decode` returns does not count.  memory: for the reader, see lmdbio.Reader.
    pin_memory: whether tensors are in pinned memory; by default, they are if `device` is a CUDA device.  device: the device to
    which tensors are copied.  The loader copies to a CUDA device on a stream of its own.  It pins and copies tensors, and the
    tensors in dicts, lists and tuples.

    If a batch cannot be read or decoded, or a record does not fit `fields`, the iteration raises an exception.  The next call then
    tries the same batch again.  A tensor keeps the memory of its whole batch.  One thread at a time.  After a fork, the child
    makes its own loader.
    """

    def __init__(self, path: Union[Paths, FollowDataset], database: Optional[str] = None, *, fields: Any = None,
                 decode: Optional[Callable[[Any], Any]] = None, decode_batch: Optional[Callable[[Batch], Any]] = None,
                 collate_fn: Optional[Callable[[List[Any]], Any]] = None, labels: Any = None, label_fields: Any = None,
                 batch_size: int = 1, shuffle: bool = False, window: Optional[int] = None, seed: int = 0, drop_last: bool = False,
                 last: Optional[str] = None, rank: Optional[int] = None, ranks: Optional[int] = None,
                 exclude: Keys = (), exclude_prefixes: Keys = (), memory: Optional[int] = None, threads: Optional[int] = None,
                 prefetch: int = 2, pin_memory: Optional[bool] = None, device: Any = None, comm: Any = None) -> None:
        if window is not None and (window < 1 or not shuffle):
            raise ValueError("window must be at least 1, and needs shuffle=True")
        self._conversion = Conversion(fields, decode, decode_batch, collate_fn, threads, prefetch, pin_memory, device)
        self._labels: Optional[torch.Tensor] = None
        self._resume: Optional[Tuple[int, int]] = None  # epoch and batch at which the next iteration begins
        self._next_epoch, self._now = 0, (0, 0)
        self._turn = 0  # number of the latest iteration
        self._prepared: List[Any] = []  # at most one: Prepared, or Followed
        self._end = weakref.finalize(self, _close, self._prepared)  # Python also calls this function at its exit
        self._pid = os.getpid()
        self._dataset: Optional[FollowDataset] = None
        if isinstance(path, FollowDataset):
            wrong = [name for name, value, default in (
                ("database", database, None), ("labels", labels, None), ("label_fields", label_fields, None),
                ("batch_size", batch_size, 1), ("shuffle", shuffle, False), ("window", window, None), ("seed", seed, 0),
                ("drop_last", drop_last, False), ("last", last, None), ("rank", rank, None), ("ranks", ranks, None),
                ("exclude", exclude, ()), ("exclude_prefixes", exclude_prefixes, ()), ("memory", memory, None),
                ("comm", comm, None)) if value is not default]
            if wrong:
                raise ValueError(f"{wrong[0]} is not for a FollowDataset, which has its own order")
            if path._decode is not None or path._collate is not None:
                raise ValueError("decode and collate of the FollowDataset have no effect: give decode and collate_fn to the loader")
            self._dataset, self._path = path, os.fsdecode(path._path)
            if not self._conversion.needs_record:
                self._conversion.begin(self._path, None, path.share)
            return
        self._ranks = Ranks(rank, ranks, comm)
        left_out = left_out_by(exclude, exclude_prefixes)

        def open_samples(at: Any, name: Optional[str], limit: Optional[int]) -> Samples:
            reader = open_reader(at, name, limit, left_out, comm)
            return Samples(reader, lambda: reader)

        self._samples = open_samples(path, database, memory)
        self._path = self._samples.reader.path
        count = len(self._samples)
        self._all = Plan(count, whole_batch_size(batch_size), shuffle, window, seed, last=last_of(last, drop_last))
        room = min(self._all.batch, max(count, 1))  # records of the largest batch
        self._label_samples: Optional[Samples] = None
        if isinstance(labels, (str, bytes, os.PathLike, tuple)):
            if label_fields is None:
                raise ValueError("label_fields is needed: the dtype of the labels in their database")
            at, name = labels if isinstance(labels, tuple) else (labels, None)
            self._label_samples = open_samples(at, name, None)
            self._label_columns = Columns(label_fields, room)
            if len(self._label_samples) != count:
                raise ValueError(f"{self._label_samples.reader.path} has {len(self._label_samples)} labels, but "
                                 f"{self._samples.reader.path} has {count} samples")
        elif label_fields is not None:
            raise ValueError("label_fields is for labels in a database")
        elif labels is not None:
            self._labels = _as_tensor(labels)
            if len(self._labels) != count:
                raise ValueError(f"there are {len(self._labels)} labels, but {self._samples.reader.path} has {count} samples")
        if count:
            self._conversion.begin(self._path, self._samples.record(0) if self._conversion.needs_record else None, room)

    @property
    def samples(self) -> int:
        """The number of samples of all ranks."""
        self._needs_plan()
        return self._all.count

    @property
    def batch_size(self) -> int:
        self._needs_plan()
        return self._all.batch

    def _needs_plan(self) -> None:
        if self._dataset is not None:
            raise TypeError(f"{self._path}: a followed database has no fixed number of samples and batches, and no epochs")

    def _plan(self) -> Plan:
        self._needs_plan()
        with self._ranks.asked_by_loader():
            rank, ranks = self._ranks.now()
        plan = self._all
        return Plan(plan.count, plan.batch, plan.shuffle, plan.window, plan.seed, rank, ranks, plan.last)

    def __len__(self) -> int:
        """The number of batches of this rank in an epoch."""
        return self._plan().batches

    def __iter__(self) -> Iterator[Any]:
        if self._dataset is not None:
            self._turn += 1
            return _FollowedBatches(self, self._turn)
        epoch, first = self._resume or (self._next_epoch, 0)
        self._resume, self._next_epoch, self._now = None, epoch + 1, (epoch, first)
        self._turn += 1
        return _Batches(self, self._plan(), epoch, first, self._turn)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration.  Ends the current one."""
        self._needs_plan()
        self._resume = (epoch, 0)
        self._turn += 1

    def state_dict(self) -> Dict[str, Any]:
        """Returns the state from which a loader resumes after the last batch that the program got.  Save it with the model."""
        if self._dataset is not None:
            self._settle()
            return self._dataset.state_dict()
        epoch, k = self._resume or self._now
        plan = self._plan()
        return state_of(plan, epoch, min(k * plan.batch, plan.length))

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Makes the next iteration begin where state_dict() was called.  Also takes the state of an lmdbio.torch.DataLoader, or with
        a FollowDataset that of the dataset."""
        if self._dataset is not None:
            self.close()
            return self._dataset.load_state_dict(state)
        plan = self._plan()
        epoch, records = position_in(state, plan)
        if records % plan.batch:
            raise ValueError(f"the state is at record {records}, which is not a whole number of batches of {plan.batch}")
        self._resume = (epoch, records // plan.batch)
        self._turn += 1

    def __reduce__(self) -> Any:
        raise TypeError("a TensorLoader cannot be copied or pickled: make one in each process")

    def close(self) -> None:
        """Ends the threads and the current iteration.  Waits for calls of `decode` and `collate_fn` that have begun, unless one of
        them calls this function.  Tensors stay valid.  The next iteration starts new threads."""
        self._turn += 1
        _close(self._prepared, wait=True)

    def _sources(self) -> List[Any]:
        sources: List[Any] = [self._conversion.source(self._samples.reader, self._samples)]
        if self._label_samples is not None:
            sources.append(Assembling(self._label_samples.reader, self._label_columns, 1, self._conversion.ahead, self._conversion.pin))
        return sources

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(f"{self._path}: this loader was made by another process; each process makes its own")
        if not self._end.alive:
            raise CancelledError(f"{self._path}: the interpreter ends")

    def _settle(self) -> None:
        """Waits until no other thread uses the FollowDataset."""
        self._check()
        for followed in self._prepared:
            followed.settle()

    def _take_followed(self) -> Tuple[Any, int]:
        assert self._dataset is not None
        self._settle()
        follow = self._dataset.follow
        if self._prepared and self._prepared[0].follow is not follow:  # the program has closed the dataset
            _close(self._prepared)
        if not self._prepared:
            self._prepared.append(Followed(follow, weakref.WeakMethod(self._source_of_followed), self._conversion.ahead, self._conversion.pin))
        return self._prepared[0].take(self._conversion.finished)

    def _source_of_followed(self, first: Batch) -> Any:
        """Returns a source for the batches of the FollowDataset.  `first`: one of them."""
        assert self._dataset is not None
        if self._conversion.needs_record:
            if not len(first):
                raise ValueError(f"{self._path}: the shape of the Datums is not known: this rank has no record of the first batch")
            self._conversion.begin(self._path, first[0], self._dataset.share)
        return self._conversion.source(self._dataset.follow)

    def _take(self, plan: Plan, epoch: int, k: int) -> Any:
        self._check()
        if self._prepared and (self._prepared[0].plan != plan or self._prepared[0].next != (epoch, k)):
            _close(self._prepared)
        if not self._prepared:
            self._prepared.append(Prepared(self._sources(), plan, epoch, k, self._conversion.ahead))
        try:
            made = self._prepared[0].take()
        except BaseException:
            _close(self._prepared)
            raise
        try:
            self._prepared[0].fill()
        except BaseException as error:
            _close(self._prepared)
            if not isinstance(error, Exception):
                raise
            # The next call requests the same batch again, and raises the exception.
        if self._labels is not None:
            made.append(self._labels[torch.from_numpy(plan.samples(epoch, k))])
        return self._conversion.finished(made)


def _as_tensor(labels: Any) -> torch.Tensor:
    """Returns the argument `labels` as a tensor.  Raises TypeError."""
    array = numpy.asarray(labels)
    try:
        return torch.from_numpy(numpy.ascontiguousarray(array, array.dtype.newbyteorder("=")) if array.ndim else None)
    except TypeError:
        raise TypeError(f"labels must be an array of numbers with one element per sample, or the path of a database, not {array.dtype} "
                        f"of {array.ndim} dimensions") from None


def _close(prepared: List[Any], wait: bool = False) -> None:
    """Ends the preparation of batches.  wait: also waits for functions of the program."""
    while prepared:
        prepared.pop().close(wait)
