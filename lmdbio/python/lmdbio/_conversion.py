"""How batches of records become batches of tensors: the arguments of a TensorLoader that say so."""
import os
import weakref
from typing import Any, Callable, List, NamedTuple, Optional, Union

import torch
import torch.utils.data

from ._arguments import number_within
from ._fields import Columns, Datums, Flat
from ._lmdbio import Batch, Follow, Reader, Record, _datum
from ._prepared import Assembling, Decoding, Fields, Functions
from ._tickets import Samples


class Datum(NamedTuple):
    """A record that is a message of Caffe's protobuf type Datum.  `data` is a view of the record: pixels, or an encoded file."""

    channels: int
    height: int
    width: int
    label: int
    encoded: bool
    data: Any
    key: Any
    ordinal: int


class Conversion:
    """Makes sources, which make tensors.  The arguments are those of TensorLoader."""

    def __init__(self, fields: Any, decode: Optional[Callable[[Any], Any]], decode_batch: Optional[Callable[[Batch], Any]],
                 collate_fn: Optional[Callable[[List[Any]], Any]], threads: Optional[int], prefetch: int,
                 pin_memory: Optional[bool], device: Any) -> None:
        self._datum = isinstance(fields, str) and fields == "caffe.Datum"
        if isinstance(fields, str) and fields not in ("caffe.Datum", "flat", "views"):
            raise ValueError(f'fields must be a dtype, "caffe.Datum", "flat" or "views", not {fields!r}')
        if fields is None and decode is None and decode_batch is None:
            raise ValueError("fields, decode or decode_batch is needed: it says what a record is")
        if decode_batch is not None and (fields is not None or decode is not None) or decode is not None and fields is not None and not self._datum:
            raise ValueError('only one of fields, decode and decode_batch may be given; decode also with fields="caffe.Datum"')
        if collate_fn is not None and decode is None:
            raise ValueError("collate_fn is for the samples of decode")
        self._decode, self._decode_batch, self._collate, self._given = decode, decode_batch, collate_fn, fields
        self._views = isinstance(fields, str) and fields == "views"
        self._threads = min(4, len(os.sched_getaffinity(0))) if threads is None else number_within("threads", threads, 1024)
        self.ahead = number_within("prefetch", prefetch, 65536)
        self._device = None if device is None else torch.device(device)
        cuda = self._device is not None and self._device.type == "cuda"
        if cuda and self._device is not None and self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        self.pin = cuda if pin_memory is None else pin_memory
        self._copies: Any = torch.cuda.Stream(self._device) if cuda else None
        self._has_fields = fields is not None and decode is None and not self._views
        self._fields: Optional[Fields] = None
        self._path: Any = None

    @property
    def needs_record(self) -> bool:
        """Whether begin() needs a record, which tells the shape of all."""
        return self._has_fields and self._datum and self._fields is None

    def begin(self, path: Any, first: Optional[Record], room: int) -> None:
        """Call it before source().  path: for messages.  first: a record, if needed.  room: number of records of the largest batch."""
        self._path = path
        if not self._has_fields or self._fields is not None:
            return
        if self._datum:
            assert first is not None
            self._fields = Datums(path, first, room)
        else:
            self._fields = Flat() if isinstance(self._given, str) else Columns(self._given, room)

    def source(self, origin: Union[Reader, Follow], samples: Optional[Samples] = None) -> Union[Assembling, Decoding]:
        if self._fields is not None:
            return Assembling(origin, self._fields, self._threads, self.ahead, self.pin)
        return Decoding(self._path, weakref.WeakMethod(self._functions), self._threads, samples)

    def _functions(self) -> Functions:
        """Returns the two functions of Decoding."""
        if self._views:
            return None, lambda batch: batch.values
        if self._decode_batch is not None:
            return None, self._decode_batch
        assert self._decode is not None
        decode: Callable[[Any], Any] = self._decode
        path, datum = self._path, self._datum

        def decode_all(records: List[Record]) -> List[Any]:
            return [decode(datum_in(r, path) if datum else r) for r in records]

        return decode_all, self._collate or torch.utils.data.default_collate

    def finished(self, parts: List[Any]) -> Any:
        batch = _joined(parts)
        if self.pin:
            batch = _each(batch, lambda t: t if t.is_pinned() else t.pin_memory())
        return self._moved(batch)

    def _moved(self, batch: Any) -> Any:
        if self._device is None:
            return batch
        if self._copies is None:
            return _each(batch, lambda t: t.to(self._device))
        with torch.cuda.stream(self._copies):
            moved = _each(batch, lambda t: t.to(self._device, non_blocking=True))
        now: Any = torch.cuda.current_stream(self._device)
        now.wait_stream(self._copies)
        _each(moved, lambda t: t.record_stream(now))
        return moved


def datum_in(record: Record, path: str) -> Datum:
    """Returns the Datum in a record's value.  Raises ValueError if it is none; `path` is for the message."""
    found = _datum(record.value)
    if found is None:
        raise ValueError(f"{path}: record {record.ordinal} (key {bytes(record.key)!r}) is not a Datum")
    channels, height, width, label, encoded, at, size, _ = found
    return Datum(channels, height, width, label, encoded, record.value[at:at + size], record.key, record.ordinal)


def _joined(parts: List[Any]) -> Any:
    """Returns the batch and its labels as one dict or tuple."""
    batch, *more = parts
    for labels in more:
        if not isinstance(batch, dict):
            batch = (batch, labels)
            continue
        labels = labels if isinstance(labels, dict) else {"label": labels}
        twice = batch.keys() & labels.keys()
        if twice:
            raise ValueError(f"labels: the batch already has a field {min(twice)!r}")
        batch = {**batch, **labels}
    return batch


def _each(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Returns a batch with changed tensors."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {name: _each(part, change) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_each(part, change) for part in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_each(part, change) for part in batch)
    return batch
