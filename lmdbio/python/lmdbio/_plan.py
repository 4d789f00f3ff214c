"""The batches of an epoch that a process reads."""
import dataclasses
import operator
from typing import Any, Optional

import numpy
import numpy.typing

from ._lmdbio import shuffled
from ._order import Order

Numbers = numpy.typing.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The batches of one rank.

    Rank r of n has the batches r, r + n, r + 2 n, ... of an epoch's order, while all ranks have a whole batch.  The remaining
    samples are divided evenly between the ranks, and form the last batch of each rank.

    last: "pad": the last batches have the same size on all ranks.  Ranks that have one sample less get one of the order's
    first samples, as with torch's DistributedSampler.  "keep": each sample occurs exactly once.  "drop": there is no last
    batch.
    The order does not depend on the number of workers.
    """

    count: int  # number of samples
    batch: int
    shuffle: bool = False
    window: Optional[int] = None  # number of samples within which to shuffle; None: all samples
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    last: str = "pad"

    def __post_init__(self) -> None:
        if operator.index(self.batch) < 1:
            raise ValueError(f"batch_size must be at least 1, not {self.batch}")
        if not 0 <= operator.index(self.seed) < 1 << 64:
            raise ValueError(f"seed must be at least 0 and less than 2**64, not {self.seed}")
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} is not less than the number of ranks, {self.ranks}")
        if self.last not in ("pad", "keep", "drop"):
            raise ValueError(f'last must be "pad", "keep" or "drop", not {self.last!r}')

    @property
    def whole(self) -> int:
        """The number of whole batches of each rank."""
        return self.count // (self.batch * self.ranks)

    def elements(self, k: int) -> Numbers:
        """The positions of the samples of batch `k` in the epoch's order."""
        first = (k * self.ranks + self.rank) * self.batch
        if k < self.whole:
            return numpy.arange(first, first + self.batch)
        if self.last == "drop":
            return numpy.arange(0)
        share, more = divmod(self.count % (self.batch * self.ranks), self.ranks)
        first = self.whole * self.ranks * self.batch + self.rank * share + min(self.rank, more)
        own = numpy.arange(first, first + share + (self.rank < more))
        return numpy.append(own, (self.rank - more) % self.count) if self.last == "pad" and self.rank >= more > 0 else own

    @property
    def batches(self) -> int:
        """The number of batches of this rank."""
        return self.whole + (self.size(self.whole) > 0)

    @property
    def streamed(self) -> int:
        """The number of batches that can be read by order()."""
        return self.batches if self.ranks == 1 else self.whole

    @property
    def length(self) -> int:
        """The number of samples that this rank returns in an epoch."""
        return self.whole * self.batch + self.size(self.whole)

    def size(self, k: int) -> int:
        """The number of samples of batch `k`."""
        return self.batch if k < self.whole else len(self.elements(k))

    def order(self, epoch: int, k: int, parts: int = 1) -> Order:
        """Returns the order of the batches k, k + parts, k + 2 parts, ... among the first `streamed` batches of this epoch."""
        kind = "sequential" if not self.shuffle else "shuffled" if self.window is None else "window_shuffled"
        return Order(kind, self.batch, seed=self.seed, window=self.window or 0,
                     last="keep" if self.ranks == 1 and self.last != "drop" else "drop",
                     rank=k % parts * self.ranks + self.rank, ranks=parts * self.ranks, block=self.batch, epoch=epoch,
                     position=k // parts * self.batch)

    def samples(self, epoch: int, k: int) -> Numbers:
        """The samples of batch `k`."""
        elements = self.elements(k)
        if not self.shuffle or not len(elements):
            return elements
        window = self.window or self.count
        cuts = numpy.flatnonzero((numpy.diff(elements) != 1) | (elements[1:] % window == 0)) + 1
        return numpy.concatenate([self._shuffled(epoch, *divmod(int(run[0]), window), len(run))
                                  for run in numpy.split(elements, cuts)])

    def _shuffled(self, epoch: int, w: int, first: int, n: int) -> Numbers:
        """Returns `n` samples of the order, starting with number `first` of window `w`; see docs/format.md."""
        if self.window is None:
            return shuffled(self.seed, epoch, self.count, first, first + n).astype(numpy.int64)
        begin = w * self.window
        inside = shuffled(self.seed ^ _mix(w), epoch, min(self.window, self.count - begin), first, first + n)
        return inside.astype(numpy.int64) + begin


def _mix(x: int) -> int:
    """Returns the SplitMix64 hash of a number; see docs/format.md."""
    x = (x + 0x9e3779b97f4a7c15) % (1 << 64)
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 % (1 << 64)
    x = (x ^ x >> 27) * 0x94d049bb133111eb % (1 << 64)
    return x ^ x >> 31
