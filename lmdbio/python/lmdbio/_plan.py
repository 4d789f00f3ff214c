"""Which batches of an epoch a process reads."""
import dataclasses
import operator
from typing import Any, Optional

import numpy
import numpy.typing

from ._lmdbio import shuffled
from ._order import Order


@dataclasses.dataclass(frozen=True)
class Plan:
    """The batches of one rank.  The order of all records is cut into batches; rank r of n has batches r, r + n, r + 2 n, ...

    All ranks have the same number of batches.  drop_last: records that do not fill a batch of each rank are left out.
    Otherwise a rank whose last batch is incomplete, or missing, fills it up with its first records; with one rank, the last
    batch is just incomplete.
    The order does not depend on how many workers read it.
    """

    count: int  # records of the database
    batch: int
    shuffle: bool = False
    window: Optional[int] = None  # shuffle only within so many records
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        if operator.index(self.batch) < 1:
            raise ValueError(f"batch_size must be at least 1, not {self.batch}")
        if not 0 <= operator.index(self.seed) < 1 << 64:
            raise ValueError(f"seed must be at least 0 and less than 2**64, not {self.seed}")
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} is not less than the number of ranks, {self.ranks}")
        if self.pads and 0 < self.count <= (self.ranks - 1) * self.batch:  # the same on all ranks
            raise ValueError(f"{self.count} records are too few for {self.ranks} ranks with batches of {self.batch}")

    @property
    def pads(self) -> bool:
        return self.ranks > 1 and not self.drop_last

    @property
    def records(self) -> int:
        """The number of records of this rank, without those that fill up its last batch."""
        whole, rest = divmod(self.count, self.batch * self.ranks)
        return whole * self.batch + min(max(rest - self.rank * self.batch, 0), self.batch)

    @property
    def batches(self) -> int:
        """The number of batches of each rank."""
        if self.drop_last:
            return self.count // (self.batch * self.ranks)
        return -(-self.count // (self.batch * self.ranks))

    @property
    def length(self) -> int:
        """The number of records that this rank returns in an epoch."""
        return self.batches * self.batch if self.pads or self.drop_last else self.count

    def size(self, k: int) -> int:
        """The number of records of batch `k`."""
        return min(self.batch, self.length - k * self.batch)

    def order(self, epoch: int, k: int, parts: int = 1) -> Order:
        """The order of batches k, k + parts, k + 2 parts, ..., as far as they are not filled up."""
        kind = "sequential" if not self.shuffle else "shuffled" if self.window is None else "window"
        return Order(kind, self.batch, seed=self.seed, window=self.window or 0, last="drop" if self.drop_last else "keep",
                     rank=k % parts * self.ranks + self.rank, ranks=parts * self.ranks, block=self.batch, epoch=epoch,
                     position=k // parts * self.batch)

    def ordinals(self, epoch: int, k: int) -> "numpy.typing.NDArray[Any]":
        """The ordinals of batch `k`; not for shuffling in windows."""
        first, real = k * self.batch, self.records
        at = numpy.arange(first, first + self.size(k), dtype=numpy.int64) % real
        elements = (at // self.batch * self.ranks + self.rank) * self.batch + at % self.batch
        if not self.shuffle:
            return elements
        begin, n = int(elements[0]), len(elements)
        if elements[-1] == begin + n - 1:  # all of one block
            return shuffled(self.seed, epoch, self.count, begin, begin + n)
        return numpy.concatenate([shuffled(self.seed, epoch, self.count, int(e), int(e) + 1) for e in elements])
