"""The records of bench/gpu: a label and a random image.  The label follows from bytes of the image, and the first bytes of the image are
the number of the record, so that a training can check what it gets."""
import json
import os
import random
import shutil
import struct

import torch
from loading.records import Database, check_space, up_to
from measure import progress

CLASSES = 1000  # number of different labels
NUMBER = struct.Struct("<I")  # of a record, at the beginning of its image
CHECKED = 61  # number of bytes from which a label follows: the image's first byte, its last one, and some between them


def image_bytes(side):
    return 3 * side * side


def record_bytes(side):
    return 4 + image_bytes(side)


def numbers(images):
    """Returns the numbers of the records with these images, of shape (batch, 3, side, side)."""
    digits = images.flatten(1)[:, :NUMBER.size].long()
    return (digits << torch.arange(0, 8 * NUMBER.size, 8, device=images.device)).sum(1)


def labels(images):
    """Returns the labels that follow from the images."""
    flat = images.flatten(1)
    at = torch.arange(CHECKED, device=images.device) * (flat.shape[1] - 1) // (CHECKED - 1)
    return (flat[:, at].long() * torch.arange(1, CHECKED + 1, device=images.device)).sum(1) % CLASSES


def sample(value, side):
    """Returns the sample of a record, whose memory it uses."""
    return {"label": torch.frombuffer(value, dtype=torch.int32, count=1)[0],
            "image": torch.frombuffer(value, dtype=torch.uint8, offset=4).view(3, side, side)}


def fields(side):
    """Returns the fields of a record, for a TensorLoader."""
    return [("label", "<i4"), ("image", "u1", (3, side, side))]


def record(choose, number, side):
    """Makes a record with a random image.  `choose`: a random.Random."""
    image = NUMBER.pack(number) + choose.randbytes(image_bytes(side) - NUMBER.size)
    label = labels(torch.frombuffer(bytearray(image), dtype=torch.uint8).view(1, 3, side, side))
    return struct.pack("<i", int(label)) + image


def write(directory, count, side, seed):
    """Writes the records to a database below the directory, with stock LMDB, unless it exists."""
    facts, told = {"count": count, "side": side, "seed": seed}, os.path.join(directory, "images.json")
    if os.path.exists(told):
        with open(told, encoding="utf-8") as file:
            if json.load(file) == facts:
                return
    shutil.rmtree(os.path.join(directory, "lmdb"), ignore_errors=True)
    check_space(directory, count, up_to(record_bytes(side) + 64, 4096))
    choose = random.Random(seed)
    with Database(directory, count, record_bytes(side)) as database:
        for i in range(count):
            if i % 100 == 0:
                progress(f"writing: record {i} of {count}")
            database.add(i, record(choose, i, side))
    progress("writing to the disk")
    os.sync()  # pages that are not written yet cannot be evicted
    with open(told, "w", encoding="utf-8") as file:
        json.dump(facts, file)
    progress("")
