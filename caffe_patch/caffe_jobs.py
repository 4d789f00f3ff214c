"""Databases, nets and runs of Caffe for caffe_patch/compare."""
import os
import random
import re
import shlex
import subprocess
import time
from typing import NamedTuple

import lmdb

WAYS = {"stock": "stock", "preload": "LD_PRELOAD", "linked": "linked", "backend": "backend LMDBIO"}
# The time of day in a line of glog.
STAMP = re.compile(r"^[IWEF]\d{4,8} (\d+):(\d+):(\d+\.\d+)")


class Failed(Exception):
    """A run failed, or read wrong records."""


# --- databases --------------------------------------------------------------------------------------------


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def datum(shape, data, label):
    """Caffe's message Datum (caffe.proto): channels, height, width, data, label."""
    fields = b"".join(bytes([number << 3]) + varint(n) for number, n in zip((1, 2, 3), shape))
    return fields + b"\x22" + varint(len(data)) + data + b"\x28" + varint(label)


def noise(seed, size):
    return random.Random(seed).randbytes(size)


def write_database(path, records, shape, label, pixels=None):
    """Writes a database unless it exists.  `label` and `pixels` are functions of the ordinal; `pixels` returns bytes (default: noise)."""
    size = shape[0] * shape[1] * shape[2]
    if os.path.exists(os.path.join(path, "data.mdb")):
        return path
    partial = path + ".partial"
    os.makedirs(partial, exist_ok=True)
    env = lmdb.open(partial, map_size=records * (size + 8192) + (16 << 20), sync=False)
    with env.begin(write=True) as txn:
        for i in range(records):
            txn.put(b"%08d" % i, datum(shape, pixels(i) if pixels else noise(i, size), label(i)), append=True)
    env.sync(True)
    env.close()
    os.rename(partial, path)
    return path


def digit(i):
    """Returns a picture of 28 x 28 of class i % 10: noise with a bright square, whose place depends on the class."""
    rows = bytearray(p // 4 for p in noise(i, 784))
    at = (i % 10) // 5 * 14 * 28 + (i % 5) * 5
    for y in range(10):
        rows[at + y * 28:at + y * 28 + 5] = bytes([200 + i % 50] * 5)
    return bytes(rows)


# --- nets -------------------------------------------------------------------------------------------------


def data_layer(phase, source, backend, batch, transform, shuffle=False):
    """Returns a data layer.  `transform`: content of transform_param."""
    more = " shuffle: true" if shuffle else ""
    return (f'layer {{ name: "data" type: "Data" top: "data" top: "label" include {{ phase: {phase} }} transform_param {{ {transform} }}\n'
            f'  data_param {{ source: "{source}" batch_size: {batch} backend: {backend}{more} }} }}\n')


# The net ignores the pixels.  Its output is the label, which Caffe prints.
READ_ONLY = 'layer { name: "silence" type: "Silence" bottom: "data" }\n'


def filled(name, kind, bottom, top, param):
    filler = 'weight_filler { type: "xavier" } bias_filler { type: "constant" }'
    return (f'layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" top: "{top}" param {{ lr_mult: 1 }} param {{ lr_mult: 2 }}\n'
            f'  {param[0]} {{ {param[1]} {filler} }} }}\n')


def pooled(name, bottom):
    return (f'layer {{ name: "{name}" type: "Pooling" bottom: "{bottom}" top: "{name}" '
            'pooling_param { pool: MAX kernel_size: 2 stride: 2 } }\n')


# LeCun et al. 1998, with the sizes that are usual for Caffe.
LENET = (filled("conv1", "Convolution", "data", "conv1", ("convolution_param", "num_output: 20 kernel_size: 5 stride: 1")) +
         pooled("pool1", "conv1") +
         filled("conv2", "Convolution", "pool1", "conv2", ("convolution_param", "num_output: 50 kernel_size: 5 stride: 1")) +
         pooled("pool2", "conv2") +
         filled("ip1", "InnerProduct", "pool2", "ip1", ("inner_product_param", "num_output: 500")) +
         'layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }\n' +
         filled("ip2", "InnerProduct", "ip1", "ip2", ("inner_product_param", "num_output: 10")) +
         'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }\n')


def write_solver(directory, net, iterations, display, tests=None):
    """Writes a net and a solver, and returns the path of the solver.  `tests`: (interval, iterations)."""
    files = {name: os.path.join(directory, name + ".prototxt") for name in ("net", "solver")}
    lines = [f'net: "{files["net"]}"', f"max_iter: {iterations}", f"display: {display}", 'lr_policy: "fixed"', "base_lr: 0.01",
             "momentum: 0.9", "random_seed: 1", "solver_mode: CPU", "snapshot_after_train: false"]
    if tests:
        lines += [f"test_interval: {tests[0]}", f"test_iter: {tests[1]}", "test_initialization: true"]
    os.makedirs(directory, exist_ok=True)
    for name, text in (("net", 'name: "compare"\n' + net), ("solver", "\n".join(lines) + "\n")):
        with open(files[name], "w", encoding="utf-8") as out:
            out.write(text)
    return files["solver"]


# --- runs -------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    logs: list      # by rank
    whole_s: float  # time of the whole command, with mpirun, the start of the library and all reads


class Runner:
    """Runs Caffe.  `binaries`: of a build of the published Caffe, and of a build with the patch.  `library`: liblmdbio.so.
    `mpirun`: a command line, to which -np P is added."""

    def __init__(self, binaries, library, mpirun, timeout, settings):
        self.stock, self.patched = binaries
        self.library, self.mpirun, self.timeout, self.settings = library, shlex.split(mpirun), timeout, settings

    def run(self, way, solver, ranks=1):
        """Trains a net.  Returns a Run."""
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("LMDBIO_")}
        if way != "stock":
            env |= self.settings
            # The loader must find the library of the build, even if the binary was linked with an installed
            # one.
            env["LD_LIBRARY_PATH"] = ":".join(filter(None, [os.path.dirname(self.library), env.get("LD_LIBRARY_PATH")]))
        if way == "preload":
            env["LD_PRELOAD"] = self.library
        directory = os.path.dirname(solver)
        train = [self.stock if way in ("stock", "preload") else self.patched, "train", f"--solver={solver}"]
        # Each rank writes its own file.  Its name has the rank that Open MPI or MPICH sets; without them, 0.
        log = os.path.join(directory, f"log.{way}.")
        script = f'exec "$@" >{shlex.quote(log)}"${{OMPI_COMM_WORLD_RANK:-${{PMI_RANK:-0}}}}" 2>&1'
        command = ["/bin/sh", "-c", script, "sh", *train]
        if ranks > 1:
            # Preload into the program, not into mpirun.
            preload = [f"LD_PRELOAD={env.pop('LD_PRELOAD')}"] if "LD_PRELOAD" in env else []
            command = [*self.mpirun, "-np", str(ranks), "/usr/bin/env", *preload, *command]
        files = [f"{log}{rank}" for rank in range(ranks)]
        for file in files:
            if os.path.exists(file):
                os.remove(file)
        start = time.monotonic()
        try:
            done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, timeout=self.timeout)
        except subprocess.TimeoutExpired as e:
            raise Failed(f"{WAYS[way]}, {ranks} ranks: no end after {self.timeout} s") from e
        whole_s = time.monotonic() - start
        logs = [open(f, encoding="utf-8", errors="replace").read() if os.path.exists(f) else "" for f in files]
        if done.returncode != 0:
            raise Failed(f"{WAYS[way]}, {ranks} ranks: ended with {done.returncode}: {done.stdout}"
                         + "\n".join(log[-2000:] for log in logs))
        return Run(logs, whole_s)


def outputs(log, name, phase="Train"):
    """Returns the printed values of an output of the net, in order, as text."""
    return re.findall(rf"{phase} net output #\d+: {name} = (\S+)", log)


def losses(log):
    return re.findall(r"\bloss = (\S+)", log)


def solver_seconds(log):
    """Returns the seconds from the line "Solving" to the end of the iterations.  They do not include the opening of databases and,
    with `shuffle: true`, Caffe's walk over the whole database."""
    def at(what):
        line = next((line for line in log.splitlines() if what in line), None)
        if line is None or not (found := STAMP.match(line)):
            raise Failed(f"the log has no line '{what}' with a time")
        return int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3])

    return (at("Optimization Done") - at("Solving ")) % 86400
