"""Readers that the ranks of an MPI job share: one rank reads each record, and sends it to the rank that uses it.

Needs mpi4py, built for the MPI that LMDBIO was built for.  See docs/mpi.md.
"""
import os
from typing import Optional

try:
    from . import _mpi
except ImportError as error:
    raise ImportError("lmdbio.mpi: this installation of LMDBIO was built without MPI, or liblmdbio_mpi.so is missing "
                      f"(Debian package lmdbio-mpi): {error}") from error
from mpi4py import MPI

from . import _lmdbio

__all__ = ["Reader"]

_ranks = {}  # communicator and options -> its state, which lives until MPI_Finalize


def _failed(code, text):
    if code == 12:  # ENOMEM
        raise MemoryError(text)
    if code == 22:  # EINVAL
        raise ValueError(text)
    if code > 0:
        raise OSError(code, text)
    raise _lmdbio.Error(text)


class Reader(_lmdbio.Reader):
    """An lmdbio.Reader of all ranks of `comm`, an mpi4py communicator; opened by all of them.

    The ranks wait until all have opened the same file; if one cannot, all raise an exception that names the rank and the
    reason.  Streams of the order `order.share(comm.rank, comm.size)` are opened by all ranks together, in the same
    sequence.  keys() is not available.  Waits for other ranks do not end with KeyboardInterrupt.

    readers_per_node: ranks of each node that read the file.  timeout: seconds to wait until all ranks have opened it.
    """

    def __init__(self, comm: MPI.Comm, path, database: Optional[str] = None, memory: Optional[int] = None, *,
                 readers_per_node: int = 1, timeout: int = 60) -> None:
        # The handle of an mpi4py communicator may be reused once it is freed; its state is that of the live one.
        key = (MPI._handleof(comm), readers_per_node, timeout)
        if key not in _ranks:
            ranks = _mpi.Ranks(MPI._addressof(comm), readers_per_node, timeout)
            code, text = ranks.state()
            if code:
                _failed(code, text)
            _ranks[key] = ranks
        name = os.fsdecode(path)
        code, text, handle = _ranks[key].open(name, database, memory or 0)
        if code:
            _failed(code, text)
        super().__init__(name, database, _handle=handle, _keep=_ranks[key])
