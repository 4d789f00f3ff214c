"""A dataset for PyTorch that follows a database while another process writes to it."""
import os
from typing import Any, Callable, Dict, Iterator, Optional, Union

import torch.utils.data

from ._lmdbio import Follow


class FollowDataset(torch.utils.data.IterableDataset[Any]):
    """Batches of new and old records of a database that grows: lmdbio.Follow for PyTorch.

    Each element is a whole batch, so that a DataLoader needs batch_size=None:

        dataset = FollowDataset("stream.lmdb", fresh=64, old=8, decode=to_tensor, finished_key=b"end")
        for batch in torch.utils.data.DataLoader(dataset, batch_size=None):
            ...

    decode: makes a sample from a key and a value (memoryviews, valid during the call); without it, a sample is the value as
    bytes.  collate: makes a batch from a list of samples; without it, torch's default_collate.  The other arguments are those
    of lmdbio.Follow.  The database is opened at the first iteration, in the process that iterates.  Later iterations
    continue where the previous one ended, for example after on_empty="stop".

    comm: an mpi4py communicator, whose ranks follow the database together (lmdbio.mpi.Follow).

    A TensorLoader over a FollowDataset makes the tensors in threads, while the program computes.

    Use it without workers (num_workers=0, the default of DataLoader): state_dict() and `new` are those of the process that
    iterates, and a forked worker cannot use a Follow that its parent has opened.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"], *, fresh: int, old: int = 0,
                 decode: Optional[Callable[[Any, Any], Any]] = None, collate: Optional[Callable[[Any], Any]] = None,
                 state: Optional[bytes] = None, comm: Any = None, **follow: Any) -> None:
        self._path, self._arguments, self._comm = path, dict(follow, fresh=fresh, old=old), comm
        self._decode, self._collate = decode, collate
        self._state, self._follow = state, None  # type: Optional[bytes], Optional[Follow]
        self.new = 0  #: the number of new samples at the beginning of the last batch

    @property
    def follow(self) -> Follow:
        """The Follow of this process, which is opened if necessary."""
        if self._follow is None:
            arguments = dict(self._arguments, state=self._state)
            if self._comm is None:
                self._follow = Follow(self._path, **arguments)
            else:
                from .mpi import Follow as FollowOfRanks
                self._follow = FollowOfRanks(self._comm, self._path, **arguments)
            self._state = None
        return self._follow

    @property
    def share(self) -> int:
        """The most records that a batch of this rank has."""
        return -(-(self._arguments["fresh"] + self._arguments.get("old", 0)) // (self._comm.size if self._comm is not None else 1))

    def __iter__(self) -> Iterator[Any]:
        if torch.utils.data.get_worker_info() is not None:
            raise ValueError("a FollowDataset cannot be read by a worker, since the main process would not have its state: "
                             "use num_workers=0")
        for batch, self.new in self.follow:
            if self._decode is None:
                samples = [bytes(record.value) for record in batch]
            else:
                samples = [self._decode(record.key, record.value) for record in batch]
            yield (self._collate or torch.utils.data.default_collate)(samples)

    def state_dict(self) -> Dict[str, Any]:
        """Returns the state after the last batch, in the process that iterates over the dataset."""
        return {"state": self._state if self._follow is None and self._state is not None else self.follow.state()}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continues from a state of state_dict() at the next iteration."""
        self.close()
        self._state = state["state"]

    def close(self) -> None:
        """Closes the database."""
        if self._follow is not None:
            self._follow.close()
            self._follow = None

    def __getstate__(self) -> Dict[str, Any]:
        if self._follow is not None:
            raise TypeError("a FollowDataset that was iterated over cannot be pickled")
        return self.__dict__
