"""Checks of the arguments of datasets and loaders."""
import operator
from typing import Any, Dict, Iterable, List, Optional, Union

Item = Union[int, bytes]
Keys = Union[bytes, Iterable[bytes]]
LeftOut = Dict[str, Any]

# Arguments: the class that needs a dataset, the class of this dataset, and the class of the argument.
NOT_OURS = ("{} needs an {}, not {}; for a dataset that wraps one, give torch's DataLoader an lmdbio.torch.BatchSampler of the "
            "inner one; for a ConcatDataset, or any other, use torch's DataLoader and samplers")


def left_out_by(exclude: Keys, exclude_prefixes: Keys) -> LeftOut:
    """Returns the two arguments of Reader that leave records out.  Here, a single key stands for a list of one."""
    def listed(keys: Keys) -> List[bytes]:
        return [keys] if isinstance(keys, bytes) else [*keys]

    return {"exclude": listed(exclude), "exclude_prefixes": listed(exclude_prefixes)}


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


def number_within(name: str, value: Any, most: int) -> int:
    """Returns the argument `name` if it is a whole number from 1 to `most`.  Raises TypeError, ValueError."""
    number = operator.index(value)
    if not 1 <= number <= most:
        raise ValueError(f"{name} must be from 1 to {most}, not {number}")
    return number


def to_item(i: Any) -> Item:
    """Returns what a sampler has returned: an ordinal or a key.  Raises TypeError if it is neither."""
    if isinstance(i, bytes):
        return i
    try:
        return operator.index(i)
    except TypeError:
        raise TypeError(f"a sampler gives whole numbers, or keys as bytes, not {i!r}") from None
