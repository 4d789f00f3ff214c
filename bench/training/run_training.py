"""One run of bench/gpu: trains a network for some seconds with one loader.  Prints a line of JSON: images, seconds, waits, and what was
wrong with the records."""
import argparse
import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import warnings

import torch
import torch.utils.data

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from loading import datasets  # noqa: E402
from training import images  # noqa: E402
from training.networks import NETWORKS  # noqa: E402

WARM_UP = 3  # steps


class Images(datasets.Lmdb):
    """Reads with py-lmdb; a sample has tensors."""

    def __init__(self, path, readahead, side):
        super().__init__(path, readahead)
        self.side = side

    def __getitem__(self, i):
        return images.sample(super().__getitem__(i), self.side)


def maker(args, device):
    """Returns a function that opens the database and returns its loader.  All needed modules are imported when maker() returns."""
    name, path, side = args.loader, os.path.join(args.directory, "lmdb"), args.image
    common = {"batch_size": args.batch, "shuffle": True, "num_workers": args.workers, "pin_memory": device.type == "cuda",
              "persistent_workers": args.workers > 0}
    if not name.startswith("lmdbio-"):
        torch.manual_seed(args.seed)
        return lambda: torch.utils.data.DataLoader(Images(path, "readahead" in name, side), **common)
    import lmdbio.torch as ours

    if name == "lmdbio-tensor":
        return lambda: ours.TensorLoader(path, fields=images.fields(side), batch_size=args.batch, shuffle=True, seed=args.seed,
                                         threads=max(args.workers, 1), device=device)
    return lambda: ours.DataLoader(ours.LmdbDataset(path, decode=lambda record: images.sample(record.value, side)), seed=args.seed,
                                   **common)


class Model:
    """A network with its optimizer.  On a CUDA device it computes in bfloat16."""

    def __init__(self, name, device):
        self.network = NETWORKS[name]().to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01, momentum=0.9)
        self.kind, self.cuda = device.type, device.type == "cuda"

    def step(self, batch):
        x = batch["image"].contiguous(memory_format=torch.channels_last).to(torch.bfloat16 if self.cuda else torch.float32).div_(255)
        with torch.autocast(self.kind, dtype=torch.bfloat16, enabled=self.cuda):
            loss = torch.nn.functional.cross_entropy(self.network(x), batch["label"].long())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


class Waits:
    """Measures how long a device waits for its batches after the first one.  A CPU waits while the program requests a batch.  A CUDA
    device still computes then: events in its stream mark the end of a step, and the moment at which the next batch is on the device
    and the steps before it have ended.  The program enqueues a step while the device computes the one before it."""

    def __init__(self, device):
        self.cuda, self.seconds, self.requesting = device.type == "cuda", 0.0, 0.0
        self.begun = self.ended = None

    @staticmethod
    def event():
        made = torch.cuda.Event(enable_timing=True)
        made.record()
        return made

    def requested(self, seconds):
        """Call this when a batch has been enqueued for the device, with the seconds that the program waited for it."""
        self.requesting += seconds
        if self.cuda:
            self.begun = self.event()
        else:
            self.seconds += seconds

    def computed(self):
        """Call this after each step.  Waits until the device has begun it."""
        if not self.cuda:
            return
        now = self.event()
        self.begun.synchronize()
        if self.ended:
            self.seconds += self.ended.elapsed_time(self.begun) / 1000
        self.ended = now


class Checks:
    """Checks the records on the device.  The program does not wait for the result until result()."""

    def __init__(self, records, device):
        self.seen, self.wrong = torch.zeros(records, dtype=torch.int64, device=device), torch.zeros((), dtype=torch.int64, device=device)

    def add(self, batch):
        number, last = images.numbers(batch["image"]), len(self.seen) - 1
        self.wrong += ((images.labels(batch["image"]) != batch["label"]) | (number > last)).sum()
        self.seen.index_add_(0, number.clamp(max=last), torch.ones_like(number))

    def result(self):
        """Returns the number of wrong records, and how often the record was returned that was returned least and most often."""
        return {"wrong": int(self.wrong), "least": int(self.seen.min()), "most": int(self.seen.max())}


def alone(args, device):
    """Returns a batch that is on the device."""
    choose = random.Random(args.seed)
    made = [images.sample(bytearray(images.record(choose, i, args.image)), args.image) for i in range(args.batch)]
    return {k: v.to(device) for k, v in torch.utils.data.default_collate(made).items()}


def epochs(loader):
    while True:
        yield from loader


def train(args, make, model, device):
    """Trains for at least args.seconds.  The workers of a DataLoader return their first batches at nearly the same time, so the training
    ends when each of them has returned the same number of batches."""
    waits, checks, turn, steps = Waits(device), Checks(args.records, device), max(args.workers, 1), 0
    begin = time.perf_counter()
    batches = epochs(make())
    while steps % turn or time.perf_counter() < begin + args.seconds:
        requested = time.perf_counter()
        batch = {k: v.to(device, non_blocking=True) for k, v in next(batches).items()}
        if steps:
            waits.requested(time.perf_counter() - requested)
        else:
            first_batch_s = time.perf_counter() - begin
            waits.requested(0.0)
        checks.add(batch)
        model.step(batch)
        waits.computed()
        steps += 1
    checked = checks.result()  # waits for the device
    return {"images": steps * args.batch, "seconds": time.perf_counter() - begin, "first_batch_s": first_batch_s,
            "waiting_s": first_batch_s + waits.seconds, "requesting_s": first_batch_s + waits.requesting, **checked}


def end():
    """Ends this process and its workers.  Without this, the process would wait for the batches that the workers have begun."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises an exception
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loader")
    parser.add_argument("directory", help="with the records that bench/gpu has written")
    parser.add_argument("--network", choices=NETWORKS, required=True)
    parser.add_argument("--device", required=True, help="of PyTorch")
    parser.add_argument("--seconds", type=float, required=True)
    for name in ("batch", "workers", "image", "records", "seed"):
        parser.add_argument("--" + name, type=int, required=True)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than there are CPUs
    warnings.filterwarnings("ignore", "The given buffer is not writable")  # samples are only read
    torch.backends.cudnn.benchmark = True
    device = torch.device(args.device)
    model, one = Model(args.network, device), alone(args, device)
    for _ in range(WARM_UP):
        model.step(one)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    make = (lambda: itertools.repeat(one)) if args.loader == "alone" else maker(args, device)
    result = train(args, make, model, device)
    import lmdbio

    print(json.dumps({**result, "torch": torch.__version__, "preloaded": lmdbio.is_active()}), flush=True)
    end()


if __name__ == "__main__":
    main()
