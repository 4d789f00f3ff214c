"""How the bytes of records become tensors: the layouts of the batches that an _Assembler makes.

A layout describes a buffer of bytes.  Each array in it has room for the records of a whole batch, and begins at a multiple
of 64 bytes.  A batch with fewer records uses the beginning of each array.
"""
from typing import Any, Dict, List, Tuple, Union

import numpy
import torch

from ._lmdbio import Record, _datum

Tensors = Union[torch.Tensor, Dict[str, torch.Tensor]]


def _torch_type(dtype: "numpy.dtype[Any]", what: str) -> torch.dtype:
    try:
        return torch.from_numpy(numpy.empty(0, dtype.newbyteorder("="))).dtype
    except TypeError:
        raise TypeError(f"fields: {what} has the type {dtype}, for which this version of torch has no tensors") from None


def _rows(raw: torch.Tensor, at: int, count: int, dtype: torch.dtype, shape: Tuple[int, ...]) -> torch.Tensor:
    """Returns an array of `count` elements of this shape, which begins at byte `at` of `raw`."""
    size = torch.empty(0, dtype=dtype).element_size()
    for n in (count, *shape):
        size *= n
    return raw[at:at + size].view(dtype).view(count, *shape)


class _Places:
    """Assigns places in a buffer to arrays."""

    def __init__(self) -> None:
        self.bytes = 0

    def array(self, bytes: int) -> int:
        """Returns the place of an array of this size."""
        at = self.bytes
        self.bytes += -(-bytes // 64) * 64
        return at


class Columns:
    """Values of one size, which a NumPy dtype describes.  A structured dtype gives a dict, another one a tensor."""

    def __init__(self, fields: Any, batch: int) -> None:
        dtype = numpy.dtype(fields)
        if not dtype.itemsize:
            raise ValueError("fields: the dtype has no bytes")
        self._columns: List[Tuple[str, int, torch.dtype, Tuple[int, ...]]] = []
        columns, places = [], _Places()
        for name in dtype.names or ("",):
            whole, offset = dtype.fields[name][:2] if dtype.fields and name else (dtype, 0)
            base, shape = whole.subdtype or (whole, ())
            what = f"the field {name!r}" if name else "the value"
            if base.names is not None:
                raise TypeError(f"fields: {what} has fields of its own; give them in one list")
            if not whole.itemsize:
                raise ValueError(f"fields: {what} has no bytes")
            at = places.array(whole.itemsize * batch)
            number = base.itemsize // 2 if base.kind == "c" else base.itemsize
            columns.append((offset, whole.itemsize, at, 1 if base.isnative else number))
            self._columns.append((name, at, _torch_type(base, what), shape))
        self.bytes = places.bytes
        self.layout: Tuple[Any, ...] = ("columns", self.bytes, dtype.itemsize, columns)

    def tensors(self, raw: torch.Tensor, count: int) -> Tensors:
        """Returns the batch of `count` records in the buffer `raw`."""
        made = {name: _rows(raw, at, count, dtype, shape) for name, at, dtype, shape in self._columns}
        return made[""] if "" in made else made


class Datums:
    """Values that are Caffe's Datum messages of one shape: {"data": (batch, channels, height, width), "label": (batch)}.

    The first record determines the shape and whether the data are 8-bit or 32-bit numbers.
    """

    def __init__(self, path: str, first: Record, batch: int) -> None:
        found = _datum(first.value)
        what = f"{path}: record {first.ordinal} (key {bytes(first.key)!r})"
        if found is None:
            raise ValueError(f"{what} is not a Datum")
        channels, height, width, _, encoded, _, data, floats = found
        if encoded:
            raise ValueError(f"{what} has an encoded image: give a function decode= for it")
        self._shape = (channels, height, width)
        self._dtype = torch.uint8 if data else torch.float32
        size = (data or floats) // (1 if data else 4)
        if min(self._shape) < 1 or channels * height * width != size:
            raise ValueError(f"{what} has the shape {self._shape}, but {size} elements")
        places = _Places()
        places.array((data or floats) * batch)
        self._labels = places.array(8 * batch)
        self.bytes = places.bytes
        self.layout: Tuple[Any, ...] = ("datum", self.bytes, self._shape, not data, self._labels)

    def tensors(self, raw: torch.Tensor, count: int) -> Tensors:
        return {"data": _rows(raw, 0, count, self._dtype, self._shape),
                "label": _rows(raw, self._labels, count, torch.int64, ())}


class Flat:
    """Values of any sizes, one after another: {"data": (bytes), "offsets": (batch + 1)}."""

    bytes = 0  # depends on the batch
    layout: Tuple[Any, ...] = ("flat",)

    def tensors(self, raw: torch.Tensor, count: int) -> Tensors:
        return {"data": raw[8 * (count + 1):], "offsets": _rows(raw, 0, count + 1, torch.int64, ())}
