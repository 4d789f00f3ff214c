"""Orders of records."""
import dataclasses
import operator
from typing import Any, Iterable, Optional, Tuple

import numpy
import numpy.typing

_KINDS = {"sequential": 0, "shuffled": 1, "window": 2, "list": 3, "keys": 4}
_LAST = {"keep": 0, "drop": 1, "pad": 2}


@dataclasses.dataclass(frozen=True)
class Order:
    """In which order a stream returns which records: lmdbio_order of lmdbio.h.

    Made by Order.sequential, shuffled, shuffled_in_windows, list and keys.  Each method of an order returns a new one.

    batch: records per batch.  last: what happens to an incomplete last batch of an epoch: "keep", "drop", or "pad": it is
    filled up with the first records of the share.  An order reads `epochs` epochs, None: without end, from `epoch` on.
    The same order of as many records is the same on every machine.
    """

    kind: str = "sequential"
    batch: int = 1
    seed: int = 0
    window: int = 0
    last: str = "keep"
    rank: int = 0
    ranks: int = 1
    block: int = 1
    epochs: Optional[int] = 1
    epoch: int = 0
    position: int = 0
    across_epochs: bool = False
    _list: bytes = dataclasses.field(default=b"", repr=False)  # ordinals, as the machine has 64-bit numbers
    _keys: Optional[Tuple[bytes, ...]] = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"order: kind must be one of {', '.join(_KINDS)}, not {self.kind!r}")
        if self.last not in _LAST:
            raise ValueError(f"order: last must be one of {', '.join(_LAST)}, not {self.last!r}")
        for name in ("batch", "block", "ranks", "epoch", "position", "rank", "seed", "window", "epochs"):
            given = getattr(self, name)
            if given is None and name == "epochs":
                continue
            value = operator.index(given)  # TypeError
            least = 1 if name in ("batch", "block", "ranks", "epochs") else 0
            if not least <= value < 1 << 64:
                raise ValueError(f"order: {name} must be at least {least} and less than 2**64, not {value}")
            object.__setattr__(self, name, value)
        if self.rank >= self.ranks:
            raise ValueError(f"order: rank {self.rank} is not less than the number of ranks, {self.ranks}")

    @classmethod
    def sequential(cls, *, batch: int = 1, **more: Any) -> "Order":
        """All records in key order."""
        return cls("sequential", batch, **more)

    @classmethod
    def shuffled(cls, seed: int = 0, *, batch: int = 1, **more: Any) -> "Order":
        """All records in an order that differs for each seed and epoch."""
        return cls("shuffled", batch, seed=seed, **more)

    @classmethod
    def shuffled_in_windows(cls, seed: int = 0, *, window: int, batch: int = 1, **more: Any) -> "Order":
        """In key order, but shuffled within each `window` records: reads the file nearly in order."""
        return cls("window", batch, seed=seed, window=window, **more)

    @classmethod
    def list(cls, ordinals: Iterable[int], *, batch: int = 1, **more: Any) -> "Order":
        """The records with these ordinals, in each epoch in this order."""
        given = numpy.asarray(ordinals if hasattr(ordinals, "__len__") else [*ordinals])
        if given.size and (given.ndim != 1 or given.dtype.kind not in "iu"):
            raise TypeError("order: ordinals must be a list of whole numbers")
        if given.size and given.min() < 0:
            raise ValueError("order: ordinals must not be negative")
        return cls("list", batch, _list=numpy.array(given, dtype=numpy.uint64).tobytes(), **more)

    @classmethod
    def keys(cls, keys: Iterable[bytes], *, batch: int = 1, **more: Any) -> "Order":
        """The records with these keys, in each epoch in this order; None in place of a key that does not exist."""
        return cls("keys", batch, _keys=tuple(keys), **more)

    def share(self, rank: int, ranks: int, *, block: Optional[int] = None) -> "Order":
        """The part of rank `rank` of `ranks`: of every `ranks` blocks of `block` records, block `rank`.

        block: None: the records of a batch, so that the ranks' batches taken by turns are the whole order.
        """
        return dataclasses.replace(self, rank=rank, ranks=ranks, block=self.batch if block is None else block)

    def repeat(self, epochs: Optional[int] = None) -> "Order":
        """Reads this number of epochs; None: without end."""
        return dataclasses.replace(self, epochs=epochs)

    def resume(self, epoch: int, position: int = 0) -> "Order":
        """Begins at this epoch and position, for example those of Stream.where.  `epochs` counts from this epoch."""
        return dataclasses.replace(self, epoch=epoch, position=position)

    @property
    def _ordinals(self) -> "numpy.typing.NDArray[numpy.uint64]":
        return numpy.frombuffer(self._list, numpy.uint64)

    @property
    def _kind(self) -> int:
        return _KINDS[self.kind]

    @property
    def _last(self) -> int:
        return _LAST[self.last]
