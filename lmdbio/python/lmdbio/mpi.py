"""Readers that the ranks of an MPI job share.  One rank reads each record, and sends it to the rank that uses it.
Follow follows a database together with the other ranks.

Requires mpi4py, built for the same MPI as LMDBIO.  See docs/mpi.md.
"""
import os
from typing import Any, Optional

try:
    from . import _mpi
except ImportError as error:
    raise ImportError("lmdbio.mpi: this installation of LMDBIO was built without MPI, or liblmdbio_mpi.so is missing "
                      f"(Debian package lmdbio-mpi): {error}") from error
from mpi4py import MPI

from . import _lmdbio

__all__ = ["Follow", "Reader"]

# The key of an attribute of communicators.  The attribute is a dict from options to the state of the ranks, which
# MPI_Finalize ends.
_KEY = MPI.Comm.Create_keyval()


def _ranks_of(comm: MPI.Comm, readers_per_node: int, timeout: int) -> _mpi.Ranks:
    states: Any = comm.Get_attr(_KEY)
    if states is None:
        states = {}
        comm.Set_attr(_KEY, states)
    options = (readers_per_node, timeout)
    if options not in states:
        ranks = _mpi.Ranks(MPI._addressof(comm), *options)
        code, text = ranks.state()
        if code:
            _lmdbio._raise(code, text)
        states[options] = ranks
    found: _mpi.Ranks = states[options]
    return found


class Reader(_lmdbio.Reader):
    """An lmdbio.Reader that all ranks of `comm`, an mpi4py communicator, open and share.

    Each rank waits until all ranks have opened the same file.  If a rank cannot open it, all ranks raise an exception that names
    this rank and the reason.  All ranks must open streams of the order `order.share(comm.rank, comm.size)` in the same sequence
    and with the same end.  Batches that one rank reads for another are copied, even with bytes_as="mapped".  keys() is not
    available.  KeyboardInterrupt does not end waits for other ranks.

    path, database, memory: see lmdbio.Reader.  readers_per_node: number of ranks of each node that read the file.  timeout:
    seconds to wait until all ranks have opened the file.
    """

    def __init__(self, comm: MPI.Comm, path: "str | os.PathLike[str]", database: Optional[str] = None, memory: Optional[int] = None, *,
                 readers_per_node: int = 1, timeout: int = 60) -> None:
        ranks = _ranks_of(comm, readers_per_node, timeout)
        name = os.fsdecode(path)
        code, text, handle = ranks.open(name, database, memory or 0)
        if code:
            _lmdbio._raise(code, text)
        super().__init__(name, database, _handle=handle, _keep=ranks)


class Follow(_lmdbio.Follow):
    """An lmdbio.Follow that all ranks of `comm`, an mpi4py communicator, open and share.

    Each rank waits until all ranks have opened the database.  The batches are those of one process, and each rank gets its share
    of each batch, which may be empty.  Rank 0 decides when a batch is made, and on_empty, timeout, renew_batches and
    renew_seconds matter only there.  All other arguments must be the same on all ranks, and so must `state`, which any number of
    ranks can continue.  close() on rank 0 waits for the other ranks, for at most open_timeout seconds; after cancel(), and at the
    end of a with statement that an exception ends, it does not wait.  See docs/follow.md.

    arguments: see lmdbio.Follow.  open_timeout: seconds to wait until all ranks have opened the database.
    """

    def __init__(self, comm: MPI.Comm, path: "str | os.PathLike[str]", *, open_timeout: int = 60, **arguments: Any) -> None:
        self._state_of_ranks = _ranks_of(comm, 1, open_timeout)
        super().__init__(path, _ranks=self._state_of_ranks.follow_open(), **arguments)
