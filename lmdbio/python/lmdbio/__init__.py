"""Reads LMDB databases fast: records by ordinal or key, in an order that is known in advance.

    reader = lmdbio.Reader("train.lmdb")
    for batch in reader.stream(lmdbio.Order.shuffled(seed=1, batch=64)):
        for key, value in batch:
            ...

See docs/python.md.  Datasets for PyTorch are in lmdbio.torch, and readers for the ranks of an MPI job in lmdbio.mpi.
"""
from ._lmdbio import _check_interpreter

_check_interpreter()  # pylint: disable=wrong-import-position
from ._lmdbio import (Batch, CancelledError, CorruptedError, Error, Follow, Reader, Record, Stream, __version__, is_active,
                      library, shuffled)
from ._order import Order
from ._prefetch import prefetch

__all__ = ["Batch", "CancelledError", "CorruptedError", "Error", "Follow", "Order", "Reader", "Record", "Stream", "__version__",
           "is_active", "library", "prefetch", "shuffled"]
