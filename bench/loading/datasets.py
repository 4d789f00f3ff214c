"""The loaders that bench/loaders compares, written as programs usually write them.  A sample is the bytes of a record."""
import functools
import os
import random
import tarfile

import lmdb
import torch
import torch.utils.data

BATCH = 64
# The shuffle buffer for tar shards has room for BUFFER samples.  It begins to return samples when it has
# BUFFER_BEGINS, and then grows.  These are WebDataset's numbers.
BUFFER, BUFFER_BEGINS = 1000, 100


class Lmdb(torch.utils.data.Dataset):
    """Reads with py-lmdb, as torchvision's LSUN does.  Each worker opens the environment at the first use."""

    def __init__(self, path, readahead):
        self.path, self.readahead, self.env = path, readahead, None
        with self.open() as env:
            self.length = env.stat()["entries"]

    def open(self):
        return lmdb.open(self.path, readonly=True, lock=False, readahead=self.readahead, meminit=False)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        if self.env is None:
            self.env = self.open()
        with self.env.begin(write=False) as txn:
            return txn.get(f"{i:08d}".encode())


class Files(torch.utils.data.Dataset):
    """Reads one file per record.  Lists the files at the beginning, as torchvision's ImageFolder does."""

    def __init__(self, path):
        self.paths = sorted(os.path.join(parent, name) for parent, _, names in os.walk(path) for name in names)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with open(self.paths[i], "rb") as file:
            return file.read()


class TarShards(torch.utils.data.IterableDataset):
    """Reads tar files from begin to end, as WebDataset does.  Shards are shuffled and divided between the workers, and samples are
    shuffled in a buffer."""

    def __init__(self, path):
        self.shards = sorted(os.path.join(path, name) for name in os.listdir(path))

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        part, parts = (worker.id, worker.num_workers) if worker else (0, 1)
        # The seed is the same in all workers, and differs in each epoch.
        seed = worker.seed - worker.id if worker else int(torch.randint(1 << 62, ()))
        shards = list(self.shards)
        random.Random(seed).shuffle(shards)
        return self.shuffled(self.samples(shards[part::parts]), random.Random(seed + part))

    @staticmethod
    def samples(shards):
        for shard in shards:
            with tarfile.open(shard, "r|*") as tar:
                for member in tar:
                    yield tar.extractfile(member).read()
                    tar.members.clear()  # they would use memory

    @staticmethod
    def shuffled(samples, choose):
        buffer = []

        def taken():
            at = choose.randrange(len(buffer))
            buffer[at], buffer[-1] = buffer[-1], buffer[at]
            return buffer.pop()

        for sample in samples:
            buffer.append(sample)
            if len(buffer) < BUFFER and (another := next(samples, None)) is not None:
                buffer.append(another)
            if len(buffer) >= BUFFER_BEGINS:
                yield taken()
        while buffer:
            yield taken()


def maker(name):
    """Returns a function that opens the loader's data in a directory, and returns its DataLoader.  Each worker calls `starts` with its
    number when it starts.  All needed modules are imported when maker() returns."""
    if name.startswith("lmdbio-"):
        import lmdbio.torch

        return functools.partial(make_ours, lmdbio.torch, name)
    return functools.partial(make, name)


class Rows:
    """The batches of a TensorLoader as arrays with a row for each sample."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return (batch.numpy() for batch in self.loader)


def make_ours(ours, name, directory, workers, seed, starts):
    path = os.path.join(directory, "lmdb")
    if name == "lmdbio-tensor":
        with lmdb.open(path, readonly=True, lock=False) as env, env.begin() as txn:
            value = len(next(iter(txn.cursor()))[1])
        return Rows(ours.TensorLoader(path, fields=("u1", value), batch_size=BATCH, shuffle=True, seed=seed, threads=max(workers, 1)))
    if name == "lmdbio-map":
        dataset, order = ours.LmdbDataset(path), {"shuffle": True, "seed": seed}
    else:
        dataset, order = ours.LmdbIterableDataset(path, shuffle=True, seed=seed), {}
    return ours.DataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=list, worker_init_fn=starts, **order)


def make(name, directory, workers, seed, starts):
    torch.manual_seed(seed)
    if name == "tar":
        dataset, shuffle = TarShards(os.path.join(directory, "tar")), None
    elif name == "files":
        dataset, shuffle = Files(os.path.join(directory, "files")), True
    else:
        dataset, shuffle = Lmdb(os.path.join(directory, "lmdb"), readahead="readahead" in name), True
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=shuffle, num_workers=workers, collate_fn=list,
                                       worker_init_fn=starts)
