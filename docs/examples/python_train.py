"""Trains a small network on images in an LMDB database; a run that was stopped resumes as if it had not been.

    python3 python_train.py PATH --make 512                               # writes a database of generated images
    python3 python_train.py PATH --checkpoint FILE --stop-after 25        # stops after this number of batches
    python3 python_train.py PATH --checkpoint FILE --resume               # continues where the checkpoint was saved

Prints the loss of the last batch and a checksum of the model.  On a CPU, with one thread, both are the same to the last bit if
the run was stopped and resumed, also with another number of workers.
"""
import argparse
import os
import zlib

import lmdb
import numpy
import torch
from torch import nn

import lmdbio.torch

CLASSES, SIDE = 4, 16


def make(path, count):
    """Records of one byte for the class, and the bytes of a grey image: noise with stripes in a direction for each class."""
    rng = numpy.random.default_rng(0)
    rows, columns = numpy.mgrid[:SIDE, :SIDE]
    stripes = [rows, columns, rows + columns, rows - columns]
    with lmdb.open(path, map_size=1 << 30) as env, env.begin(write=True) as txn:
        for i in range(count):
            label = int(rng.integers(CLASSES))
            image = 96 * (stripes[label] // 2 % 2) + rng.integers(0, 160, (SIDE, SIDE))
            txn.put(b"%08d" % i, bytes([label]) + image.astype(numpy.uint8).tobytes())


def decode(record):
    """Makes a sample of a record; runs in the workers."""
    bytes_of = numpy.frombuffer(record.value, numpy.uint8)
    image = torch.tensor(bytes_of[1:].reshape(1, SIDE, SIDE), dtype=torch.float32)
    return image / 255, int(bytes_of[0])


def network():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(),
                         nn.Linear(16 * 5 * 5, CLASSES))


def train(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # results depend on the number of threads
    dataset = lmdbio.torch.LmdbDataset(args.path, decode=decode)
    loader = lmdbio.torch.DataLoader(dataset, batch_size=args.batch, shuffle=True, seed=args.seed, num_workers=args.workers)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    done, loss = 0, None
    if args.resume:
        saved = torch.load(args.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        loss = saved["loss"]

    def save():
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict(), "loss": loss},
                   args.checkpoint + ".new")
        os.replace(args.checkpoint + ".new", args.checkpoint)  # a run that is killed meanwhile leaves the old one

    for epoch in range(loader.state_dict()["epoch"], args.epochs):  # the loader counts epochs itself
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss, done = loss.item(), done + 1
            if done == args.stop_after:
                save()
                return print(f"stopped in epoch {epoch} after {done} batches")
        if args.checkpoint:
            save()
    check = 0
    for parameter in model.parameters():
        check = zlib.crc32(parameter.detach().numpy().tobytes(), check)
    print(f"loss {loss!r}, model {check:08x}")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("path")
    options.add_argument("--make", type=int, metavar="N", help="write a database of N images, and end")
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--workers", type=int, default=0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--checkpoint", metavar="FILE", help="save here after each epoch")
    options.add_argument("--stop-after", type=int, metavar="N", help="save after N batches, and end")
    options.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    args = options.parse_args()
    if (args.resume or args.stop_after) and not args.checkpoint:
        options.error("--resume and --stop-after need --checkpoint")
    if args.make:
        make(args.path, args.make)
    else:
        train(args)


if __name__ == "__main__":
    main()
