"""Determines which share of the batches this process reads, among the ranks of a job and the workers of a DataLoader."""
import contextlib
import sys
from typing import Any, Dict, Iterator, Optional, Tuple

import torch
import torch.utils.data


def job() -> Tuple[int, int]:
    """Returns the rank and the number of ranks: those of torch.distributed or of MPI, or 0 and 1."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        return mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size
    return 0, 1


class Ranks:
    """The share of the batches to read: the share that the program gave, or that of the job's rank (lmdbio.torch.DataLoader).

    Loaders of other libraries may divide the batches between the ranks themselves, or leave this to the sampler.  This class
    cannot determine which of them does so, and requires that the program gives the share.
    """

    def __init__(self, rank: Optional[int], ranks: Optional[int], comm: Any = None) -> None:
        if (rank is None) != (ranks is None):
            raise ValueError("rank and ranks must be given together")
        if comm is not None:
            if rank is not None:
                raise ValueError("comm has the ranks; rank and ranks must not be given")
            rank, ranks = comm.rank, comm.size
        self._given = None if rank is None or ranks is None else (rank, ranks)
        self._of_loader: Optional[Tuple[int, int]] = None

    def now(self) -> Tuple[int, int]:
        own = self._given or self._of_loader
        if own is None:
            own = job()
            if own[1] > 1:
                raise RuntimeError(
                    f"this job has {own[1]} ranks, and it is not known who shares the batches between them: give rank=0, "
                    "ranks=1 if the loader does, as one that Accelerate has prepared; else the rank and the number of ranks")
        return own

    @contextlib.contextmanager
    def asked_by_loader(self) -> Iterator[None]:
        self._of_loader = job()
        try:
            yield
        finally:
            self._of_loader = None

    def __getstate__(self) -> Dict[str, Any]:
        own = self.now()  # a spawned worker cannot find out its rank, but a spawned rank can
        return {"_given": own if own[1] > 1 else self._given, "_of_loader": None}


def this_worker() -> Tuple[int, int]:
    """Returns the number of this worker of a DataLoader, and the number of workers."""
    worker = torch.utils.data.get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)


def worker_count() -> int:
    return this_worker()[1]
