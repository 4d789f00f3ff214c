#!/usr/bin/python3
"""Writes the quickstart's database: pieces of real pictures as Caffe Datum records, through stock LMDB.

Decodes pictures, and cuts square pieces from them at random places (with a fixed seed, so that the databases are always
the same).  Each piece becomes a record: channels, height, width, data (planes in Caffe's order blue, green, red) and
label, in the wire format of Caffe's Datum message.  Keys are "%08d_<picture>".
"""
import argparse
import glob
import os
import random
import sys

import lmdb
import numpy as np

DATA_FIELD, LABEL_FIELD = b"\x22", b"\x28"  # field 4, bytes; field 5, varint


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def datum(planes, label):
    """Returns the serialised Datum of an array (channels, height, width) of bytes."""
    channels, height, width = planes.shape
    data = planes.tobytes()
    head = b"\x08" + varint(channels) + b"\x10" + varint(height) + b"\x18" + varint(width)
    return head + DATA_FIELD + varint(len(data)) + data + LABEL_FIELD + varint(label)


def decode(folder, smallest):
    """Yields the name and pixels (height, width, 3) of each picture below `folder` whose width and height are at least `smallest`."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    paths = [p for kind in ("jpg", "jpeg", "png", "webp")
             for p in glob.glob(os.path.join(folder, "**", "*." + kind), recursive=True) if not os.path.islink(p)]
    pictures = []
    for path in sorted(paths):
        try:
            with Image.open(path) as picture:
                if min(picture.size) < smallest:
                    continue
                pixels = np.asarray(picture.convert("RGB"))
        except OSError as error:
            print(f"warning: {path}: {error}", file=sys.stderr)
            continue
        pictures.append((os.path.splitext(os.path.basename(path))[0][:32], pixels))
        progress(f"decoding: {len(pictures)} of {len(paths)} pictures")
    progress("")
    if not pictures:
        sys.exit(f"error: no pictures in {folder}")
    return pictures


def synthetic(count):
    """Returns pictures for --smoke, which has no network: gradients with noise."""
    noise = np.random.default_rng(1)
    y, x = np.mgrid[0:400, 0:600]
    for i in range(count):
        base = np.stack([(x * (i + 1) + y * c) // 7 % 256 for c in (1, 2, 3)], axis=-1)
        yield f"gradient{i}", (base + noise.integers(0, 16, base.shape)).astype(np.uint8)


def progress(text):
    if sys.stderr.isatty():
        sys.stderr.write("\r" + text + "\033[K")


def write(path, pictures, side, wanted_bytes):
    """Writes a database of at least `wanted_bytes` of records, pieces of side x side."""
    choose = random.Random(side)
    record_bytes = 3 * side * side
    records = -(-wanted_bytes // record_bytes)
    os.makedirs(path)
    env = lmdb.open(path, map_size=2 * records * (record_bytes + 8192) + (64 << 20), sync=False)
    written = 0
    while written < records:
        with env.begin(write=True) as txn:
            for i in range(written, min(written + 1000, records)):
                label = choose.randrange(len(pictures))
                name, pixels = pictures[label]
                top = choose.randrange(pixels.shape[0] - side + 1)
                left = choose.randrange(pixels.shape[1] - side + 1)
                piece = pixels[top:top + side, left:left + side, ::-1].transpose(2, 0, 1)
                txn.put(f"{i:08d}_{name}".encode(), datum(piece, label))
        written = min(written + 1000, records)
        progress(f"writing {os.path.basename(path)}: {100 * written // records} %")
    progress("")
    env.sync(True)
    env.close()
    size = os.path.getsize(os.path.join(path, "data.mdb"))
    print(f"{os.path.basename(path)}: {records} records of {side} x {side} pixels from {len(pictures)} pictures, "
          f"{size} bytes ({size / 2**30:.2f} GiB)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", help="folder with decodable pictures; without it, synthetic ones")
    parser.add_argument("--out", required=True, help="the database, which does not exist yet")
    parser.add_argument("--mib", type=float, required=True, help="its size")
    parser.add_argument("--side", type=int, default=256, help="of a piece, pixels (default: %(default)s)")
    args = parser.parse_args()
    pictures = decode(args.pictures, args.side) if args.pictures else list(synthetic(4))
    write(args.out, pictures, args.side, int(args.mib * 2**20))


if __name__ == "__main__":
    main()
