"""Orders of records."""
import dataclasses
import operator
from typing import Any, Iterable, Optional, Tuple

import numpy
import numpy.typing

_KINDS = {"sequential": 0, "shuffled": 1, "window_shuffled": 2, "list": 3, "keys": 4, "mixed": 6}
_LAST = {"keep": 0, "drop": 1, "pad": 2}


def ordinals_of(given: Iterable[int]) -> "numpy.typing.NDArray[numpy.uint64]":
    """Returns a copy of the ordinals that a program passes to Reader.read, as an array.

    Raises TypeError, ValueError, IndexError.
    """
    array = numpy.asarray(given if hasattr(given, "__len__") else [*given])
    if not array.size:
        return numpy.empty(0, dtype=numpy.uint64)
    if array.dtype.kind not in "iu":
        raise TypeError("ordinals must be whole numbers; for keys call read_keys")
    if array.ndim != 1:
        raise ValueError("ordinals must be a list of numbers")
    if array.min() < 0:
        raise IndexError("ordinals must not be negative")
    return array.astype(numpy.uint64)


@dataclasses.dataclass(frozen=True)
class Order:
    """The order in which a stream returns records: lmdbio_order of lmdbio.h.

    Make an order by Order.sequential, shuffled, window_shuffled, list, keys or mixed.  Each method of an order returns a new order.

    batch: records per batch.  last: what happens to an incomplete last batch of an epoch.  "keep": it has fewer records.
    "drop": it is omitted.  "pad": the first records of the share fill it up.  A stream begins at `epoch` and `position`, and
    ends before `end_epoch`.  If end_epoch is 0, the stream reads only the epoch in which it begins.  If end_epoch is None, it
    never ends.  A stream that does not begin before its end is empty.  An order depends only on its fields and on the number
    of records, so that it is the same on every machine.
    """

    kind: str = "sequential"
    batch: int = 1
    seed: int = 0
    window: int = 0
    last: str = "keep"
    rank: int = 0
    ranks: int = 1
    block: int = 1
    end_epoch: Optional[int] = 0
    epoch: int = 0
    position: int = 0
    across_epochs: bool = False
    _list: bytes = dataclasses.field(default=b"", repr=False)  # ordinals, as 64-bit numbers in the machine's byte order
    _keys: Optional[Tuple[bytes, ...]] = dataclasses.field(default=None, repr=False)
    weights: Tuple[float, ...] = ()
    length: int = 0

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"order: kind must be one of {', '.join(_KINDS)}, not {self.kind!r}")
        if self.last not in _LAST:
            raise ValueError(f"order: last must be one of {', '.join(_LAST)}, not {self.last!r}")
        for name in ("batch", "block", "ranks", "epoch", "position", "rank", "seed", "window", "end_epoch", "length"):
            given = getattr(self, name)
            if given is None and name == "end_epoch":
                continue
            value = operator.index(given)  # TypeError
            least = 1 if name in ("batch", "block", "ranks") else 0
            if not least <= value < 1 << 64:
                raise ValueError(f"order: {name} must be at least {least} and less than 2**64, not {value}")
            object.__setattr__(self, name, value)
        if self.rank >= self.ranks:
            raise ValueError(f"order: rank {self.rank} is not less than the number of ranks, {self.ranks}")

    @classmethod
    def sequential(cls, *, batch: int = 1, **more: Any) -> "Order":
        """Returns an order of all records in key order."""
        return cls("sequential", batch, **more)

    @classmethod
    def shuffled(cls, seed: int = 0, *, batch: int = 1, **more: Any) -> "Order":
        """Returns a shuffled order of all records, which differs for each seed and epoch."""
        return cls("shuffled", batch, seed=seed, **more)

    @classmethod
    def window_shuffled(cls, seed: int = 0, *, window: int, batch: int = 1, **more: Any) -> "Order":
        """Returns an order of all records in key order, but shuffled within each `window` records.

        A stream of this order reads the file nearly in order.
        """
        return cls("window_shuffled", batch, seed=seed, window=window, **more)

    @classmethod
    def list(cls, ordinals: Iterable[int], *, batch: int = 1, **more: Any) -> "Order":
        """Returns an order of the records with these ordinals, in this sequence in each epoch."""
        given = numpy.asarray(ordinals if hasattr(ordinals, "__len__") else [*ordinals])
        if given.size and (given.ndim != 1 or given.dtype.kind not in "iu"):
            raise TypeError("order: ordinals must be a list of whole numbers")
        if given.size and given.min() < 0:
            raise ValueError("order: ordinals must not be negative")
        return cls("list", batch, _list=numpy.array(given, dtype=numpy.uint64).tobytes(), **more)

    @classmethod
    def keys(cls, keys: Iterable[bytes], *, batch: int = 1, **more: Any) -> "Order":
        """Returns an order of the records with these keys, in this sequence in each epoch.

        A record is None if its key does not exist.
        """
        return cls("keys", batch, _keys=tuple(keys), **more)

    @classmethod
    def mixed(cls, weights: Iterable[float], seed: int = 0, *, batch: int = 1, length: Optional[int] = None, **more: Any) -> "Order":
        """Returns a shuffled order of the records of several databases, in proportion to `weights`, one for each database.

        length: records per epoch; None: the number of records of the reader.  When all records of a database have been read,
        they are read again in another shuffled order, even within an epoch.
        """
        if length is not None and operator.index(length) < 1:
            raise ValueError(f"order: length must be at least 1, or None, not {length}")
        return cls("mixed", batch, seed=seed, weights=tuple(map(float, weights)), length=length or 0, **more)

    def share(self, rank: int, ranks: int, *, block: Optional[int] = None) -> "Order":
        """Returns the share of a rank: the blocks rank, rank + ranks, rank + 2 ranks, ... of this order.

        block: records per block.  None: the records per batch, so that rank r of n reads the batches r, r + n, r + 2 n, ... of
        the whole order.
        """
        return dataclasses.replace(self, rank=rank, ranks=ranks, block=self.batch if block is None else block)

    def repeat(self, epochs: Optional[int] = None) -> "Order":
        """Returns the same order with another end: a stream ends before epoch `epochs`.

        A stream that begins with epoch 0 reads this many epochs.  epochs: at least 1; None: the stream never ends.  resume()
        does not change the end.
        """
        if epochs is not None and operator.index(epochs) < 1:
            raise ValueError(f"order: epochs must be at least 1, or None, not {epochs}")
        return dataclasses.replace(self, end_epoch=epochs)

    def resume(self, epoch: int, position: int = 0) -> "Order":
        """Returns the same order with another start, for example the position of a stream: order.resume(*stream.position).

        The stream is empty if the start is not before the end that repeat() has set.
        """
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
