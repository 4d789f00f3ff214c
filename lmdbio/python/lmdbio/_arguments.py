"""Checks of the arguments of datasets and loaders."""
import operator
from typing import Any, Optional, Union

Item = Union[int, bytes]

# Arguments: the class that needs a dataset, the class of this dataset, and the class of the argument.
NOT_OURS = ("{} needs an {}, not {}; for a dataset that wraps one, give torch's DataLoader an lmdbio.torch.BatchSampler of the "
            "inner one; for a ConcatDataset, or any other, use torch's DataLoader and samplers")


def last_of(last: Optional[str], drop_last: bool) -> str:
    """Returns the argument `last` of a Plan."""
    if drop_last and last not in (None, "drop"):
        raise ValueError(f"last={last!r} and drop_last=True exclude each other")
    return "drop" if drop_last else last or "pad"


def whole_batch_size(batch_size: Any) -> int:
    """Returns `batch_size` if it is a whole number.  Raises TypeError otherwise."""
    try:
        return operator.index(batch_size)
    except TypeError:
        raise TypeError(f"batch_size must be a whole number, not {batch_size!r}: these loaders read batches; for single samples "
                        "use batch_size=1, or torch's DataLoader") from None


def to_item(i: Any) -> Item:
    """Returns what a sampler has returned: an ordinal or a key.  Raises TypeError if it is neither."""
    if isinstance(i, bytes):
        return i
    try:
        return operator.index(i)
    except TypeError:
        raise TypeError(f"a sampler gives whole numbers, or keys as bytes, not {i!r}") from None
