"""Records of the kinds that bench/cache writes.  All come from a seed.

  random     random bytes; --values gives their size
  image      rows of 768 bytes that differ little; --values gives their size
  jpeg       pieces of pictures, compressed again, 512 x 384 pixels (needs Pillow; else random bytes behind a JPEG header)
  resized    Caffe Datum, 3 x 256 x 256 uint8: pieces of pictures, scaled down 2 times or more
  full       Caffe Datum, 3 x 256 x 256 uint8: pieces of pictures at full resolution
  fields     4 smooth fields of 128 x 128 float32: temperature, pressure and wind
  counts     4 x 64 x 64 x 64 int16: counts of particles around smooth densities, as in CosmoFlow
  graphs     pickled dictionaries of arrays: features of nodes, edges, features of edges, positions; 28 KB
  molecules  pickled dictionaries: atoms, SMILES, 11 conformations in float32, as in Uni-Mol; 2.6 KB

The pictures are those of a folder (--pictures), for example of an unpacked Debian package.  Without it, they are synthetic: random
fields with the spectrum of photographs, and noise.  Such data show how the programs work, not how well pictures compress.
"""
import dataclasses
import io
import pickle
import typing

import lmdb
import numpy as np

from demo.make_images import datum, decode

SIDE = 256  # of a piece, pixels


def smooth(random, shape, slope):
    """Returns a random field with mean 0 and deviation 1 whose amplitudes fall with the power `slope` of the frequency."""
    squares = np.zeros(())
    for axis, n in enumerate(shape):
        frequencies = np.fft.rfftfreq(n) if axis + 1 == len(shape) else np.fft.fftfreq(n)
        squares = squares[..., None] + (frequencies * n)**2
    amplitudes = np.maximum(squares, 1)**(-slope / 2)
    amplitudes[(0,) * len(shape)] = 0
    field = np.fft.irfftn(np.fft.rfftn(random.standard_normal(shape)) * amplitudes, shape, range(len(shape)))
    return field / field.std()


def synthetic_pictures(count=4, side=1024):
    random = np.random.default_rng(1)
    for i in range(count):
        light = smooth(random, (side, side), 2)[..., None]
        colours = np.stack([smooth(random, (side, side), 2.5) for _ in range(3)], axis=-1)
        noisy = 120 + 45 * light + 20 * colours + random.normal(0, 2, (side, side, 3))
        yield f"synthetic{i}", np.clip(noisy, 0, 255).astype(np.uint8)


class Pictures:
    """Pictures of a folder, or synthetic ones.  Decoded at the first use."""

    def __init__(self, folder):
        self.folder, self.pixels = folder, []

    def source(self):
        return "pictures" if self.folder else "synthetic pictures"

    def piece(self, random, height, width, scale=1):
        """Returns a piece, scaled down by averages of scale x scale pixels."""
        if not self.pixels:
            found = decode(self.folder, 2 * SIDE) if self.folder else synthetic_pictures()
            self.pixels = [pixels for _, pixels in found]
        pixels = self.pixels[random.integers(len(self.pixels))]
        scale = min(scale, pixels.shape[0] // height, pixels.shape[1] // width)
        top = random.integers(pixels.shape[0] - height * scale + 1)
        left = random.integers(pixels.shape[1] - width * scale + 1)
        piece = pixels[top:top + height * scale, left:left + width * scale]
        if scale == 1:
            return piece
        sums = sum(piece[row::scale, column::scale].astype(np.uint16) for row in range(scale) for column in range(scale))
        return (sums // scale**2).astype(np.uint8)


def random_bytes(random, _, value_bytes):
    return random.bytes(value_bytes)


def image(random, _, value_bytes):
    width = 768
    steps = random.integers(-6, 7, size=(value_bytes + width - 1) // width * width, dtype=np.int16).reshape(-1, width)
    return np.clip(128 + steps.cumsum(axis=0), 0, 255).astype(np.uint8).tobytes()[:value_bytes]


def jpeg(random, pictures, value_bytes):
    try:
        from PIL import Image
    except ImportError:
        return b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01" + random.bytes(value_bytes)
    out = io.BytesIO()
    Image.fromarray(pictures.piece(random, 384, 512, int(random.integers(1, 4)))).save(out, "JPEG", quality=85)
    return out.getvalue()


def planes(piece, label):
    return datum(np.ascontiguousarray(piece[..., ::-1].transpose(2, 0, 1)), int(label))


def resized(random, pictures, _):
    return planes(pictures.piece(random, SIDE, SIDE, int(random.integers(2, 7))), random.integers(1000))


def full(random, pictures, _):
    return planes(pictures.piece(random, SIDE, SIDE), random.integers(1000))


def fields(random, *_):
    mean, deviation = np.array([[280, 100, 0, 0], [15, 1, 8, 8]])[..., None, None]  # temperature in K, pressure in kPa, wind in m/s
    return (mean + deviation * np.stack([smooth(random, (128, 128), 4) for _ in range(4)])).astype(np.float32).tobytes()


def counts(random, *_):
    density = np.exp(1.2 * smooth(random, (64, 64, 64), 2.2))
    growth = np.array([0.7, 0.9, 1.1, 1.3])[:, None, None, None]  # four times of the same volume
    return random.poisson(0.55 * density**growth).astype(np.int16).tobytes()


def graphs(random, *_):
    nodes = int(random.integers(170, 250))
    positions = np.cumsum(random.normal(0, 1, (nodes, 3)), axis=0).astype(np.float32)
    ends = np.arange(1, nodes)
    others = np.maximum(ends - random.geometric(0.4, nodes - 1), 0)
    edges = np.stack([np.concatenate([ends, others]), np.concatenate([others, ends])])
    limits = np.array([30, 4, 8, 8, 5, 2, 4, 2, 2])
    return pickle.dumps({"x": (random.random((nodes, 9))**3 * limits).astype(np.int64), "edge_index": edges,
                         "edge_attr": np.linalg.norm(positions[edges[0]] - positions[edges[1]], axis=1),
                         "pos": positions, "y": float(random.normal())}, protocol=4)


def molecules(random, *_):
    atoms = int(random.integers(12, 20))
    names = ["CCCCCCNOOFS"[i] for i in random.integers(11, size=atoms)]
    places = np.cumsum(random.normal(0, 0.9, (atoms, 3)), axis=0)
    moved = [(places + random.normal(0, 0.3, places.shape)).astype(np.float32) for _ in range(11)]
    text = "".join(name + ("(=O)", "1", "[C@H]", *7 * [""])[i] for name, i in zip(names, random.integers(10, size=atoms)))
    return pickle.dumps({"atoms": names, "coordinates": moved, "smi": text}, protocol=4)


@dataclasses.dataclass
class Kind:
    make: typing.Callable  # of a numpy generator, Pictures, and the size that --values gives
    bytes: int = 0  # about the mean of a record; 0: --values gives it
    least: float = 0  # the ratio that a cache should reach; 0: none.  The cache should leave JPEG as it is.


KINDS = {"random": Kind(random_bytes), "image": Kind(image), "jpeg": Kind(jpeg, 40000, 1), "resized": Kind(resized, 3 * SIDE * SIDE, 2.0),
         "full": Kind(full, 3 * SIDE * SIDE, 1.4), "fields": Kind(fields, 256 << 10, 1.4), "counts": Kind(counts, 2 << 20, 6.4),
         "graphs": Kind(graphs, 28000, 4.2), "molecules": Kind(molecules, 2600, 1.75)}
SEVEN = [name for name, kind in KINDS.items() if kind.least]


def key(i):
    """Returns the key of record i, as in keys.h."""
    return b"%08d_n%06d.JPEG\0" % (i, i * 7919 % 1000000)


def write(path, kind, total, value_bytes, pictures):
    """Writes records of at least `total` bytes with stock LMDB, in the order of their keys.  Returns how many."""
    random, count, written = np.random.default_rng(1), 0, 0
    with lmdb.open(path, map_size=4 * total + (64 << 20), sync=False) as env:
        while written < total:
            with env.begin(write=True) as txn:
                for _ in range(1000):
                    record = KINDS[kind].make(random, pictures, value_bytes)
                    txn.put(key(count), record, append=True)
                    count, written = count + 1, written + len(record)
                    if written >= total:
                        break
        env.sync(True)
    return count
