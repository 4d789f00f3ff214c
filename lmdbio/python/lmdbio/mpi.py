"""Readers that the ranks of an MPI job share.  One rank reads each record, and sends it to the rank that uses it.

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

__all__ = ["Reader"]

# The key of an attribute of communicators.  The attribute is a dict from options to the state of the ranks, which
# MPI_Finalize ends.
_KEY = MPI.Comm.Create_keyval()


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
        name = os.fsdecode(path)
        code, text, handle = states[options].open(name, database, memory or 0)
        if code:
            _lmdbio._raise(code, text)
        super().__init__(name, database, _handle=handle, _keep=states[options])
