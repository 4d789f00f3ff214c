"""The Python programs in docs/examples, and the code in docs/python.md."""
import ast
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zlib

import lmdb
import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
# Open MPI refuses to run as root, or with more ranks than cores, otherwise.
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "self,vader",
       "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_plm_rsh_agent": "/bin/false"}
BATCHES = 10  # of an epoch


def run(*command, fails=False, **env):
    """What the command prints."""
    done = subprocess.run([*map(str, command)], env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=120, check=False)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def example(name, *arguments, **more):
    return run(sys.executable, DOCS / "examples" / name, *arguments, **more)


def needs(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the Python module {module} is not installed")


def needs_mpi():
    needs("mpi4py")
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    for what, command in (("lmdbio._mpi cannot be imported", [sys.executable, "-c", "import lmdbio._mpi"]),
                          ("mpirun does not work here", ["mpirun", "-n", "1", "true"])):
        tried = subprocess.run(command, env={**os.environ, **MPI}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               timeout=60, check=False)
        if tried.returncode != 0:
            pytest.skip(f"{what}: {tried.stdout.strip()}")


@pytest.fixture
def database(tmp_path):
    """A database, and what the examples print of it."""
    path, size, check = tmp_path / "records", 0, 0
    with lmdb.open(str(path), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for i in range(501):
            key, value = b"%05d" % i, bytes([i % 251]) * (i * 37 % 9000)
            txn.put(key, value)
            size, check = size + len(value), check ^ zlib.crc32(value, zlib.crc32(key))
    return path, f"501 records, {size} bytes, {check:08x}\n"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    needs("torch")
    path = tmp_path_factory.mktemp("train") / "images"
    example("python_train.py", path, "--make", 32 * BATCHES - 7)  # the last batch is not complete
    return path


@pytest.fixture(scope="module")
def whole(images):
    """What a run prints that was not stopped."""
    return example("python_train.py", images)


def test_loop(database):
    path, expected = database
    assert example("python_loop.py", path) == expected
    assert example("python_loop.py", path / "data.mdb", 7) == expected


def test_loop_without_database(tmp_path):
    assert "FileNotFoundError" in example("python_loop.py", tmp_path / "none", fails=True)
    assert "usage:" in example("python_loop.py", fails=True)


def test_training_does_not_depend_on_workers(images, whole):
    assert re.fullmatch(r"loss \d\S*, model [0-9a-f]{8}\n", whole)
    assert example("python_train.py", images, "--workers", 2) == whole
    assert example("python_train.py", images, "--seed", 2) != whole


@pytest.mark.parametrize("stop, workers, workers_then", [(3, 0, 0), (13, 2, 1), (BATCHES, 2, 0)])
def test_training_resumes(images, whole, tmp_path, stop, workers, workers_then):
    saved = tmp_path / "checkpoint"
    stopped = example("python_train.py", images, "--checkpoint", saved, "--stop-after", stop, "--workers", workers)
    assert stopped == f"stopped in epoch {(stop - 1) // BATCHES} after {stop} batches\n"
    assert example("python_train.py", images, "--checkpoint", saved, "--resume", "--workers", workers_then) == whole


def test_training_stops_twice(images, whole, tmp_path):
    saved = tmp_path / "checkpoint"
    example("python_train.py", images, "--checkpoint", saved, "--stop-after", 4)
    assert "epoch 1 after 11 batches" in example("python_train.py", images, "--checkpoint", saved, "--resume", "--stop-after", 11)
    for _ in range(2):  # the second run starts from the last checkpoint, and has nothing to do
        assert example("python_train.py", images, "--checkpoint", saved, "--resume") == whole


def test_training_needs_a_checkpoint(images):
    assert "--checkpoint" in example("python_train.py", images, "--resume", fails=True)


@pytest.mark.parametrize("ranks, counts", [(2, [256, 245]), (3, [181, 160, 160])])
def test_mpi(database, ranks, counts):
    needs_mpi()
    printed = run("mpirun", "--oversubscribe", "-n", ranks, sys.executable, "-m", "mpi4py", DOCS / "examples" / "python_mpi.py",
                  database[0], **MPI)
    # mpirun may put the text of one rank before the line end of another.
    lines = sorted(re.findall(r"rank \d of \d: \d+ records", printed))
    assert lines == [f"rank {rank} of {ranks}: {n} records" for rank, n in enumerate(counts)]
    assert len("".join(lines)) == len(printed.replace("\n", ""))


TENSORS = """
import sys
from mpi4py import MPI
import lmdbio.torch
comm, ranks = MPI.COMM_WORLD, MPI.COMM_WORLD.size
for last in ("pad", "keep", "drop"):
    arguments = {"fields": "flat", "batch_size": 10, "shuffle": True, "seed": 7, "last": last}
    alone = lmdbio.torch.TensorLoader(sys.argv[1], rank=comm.rank, ranks=ranks, **arguments)
    together = lmdbio.torch.TensorLoader(sys.argv[1], comm=comm, **arguments)
    for epoch in range(3):
        a, b = list(alone), list(together)
        assert len(a) == len(b) > 0
        assert all(x["data"].equal(y["data"]) and x["offsets"].equal(y["offsets"]) for x, y in zip(a, b))
    together.close()
    arguments = {"shuffle": True, "seed": 7, "last": last}
    alone = lmdbio.torch.LmdbIterableDataset(sys.argv[1], rank=comm.rank, ranks=ranks, **arguments)
    together = lmdbio.torch.LmdbIterableDataset(sys.argv[1], comm=comm, **arguments)
    alone, together = (lmdbio.torch.DataLoader(d, batch_size=10, collate_fn=list) for d in (alone, together))
    for epoch in range(3):
        assert list(alone) == list(together)
    try:
        next(iter(lmdbio.torch.DataLoader(together.dataset, batch_size=10, num_workers=1)))
        assert False
    except RuntimeError as error:
        assert "use num_workers=0" in str(error), error
comm.Barrier()
print("same" * (comm.rank == 0), end="")
"""


@pytest.mark.parametrize("ranks", [1, 3])
def test_tensors_of_ranks_that_read_together(database, tmp_path, ranks):
    needs_mpi()
    needs("torch")
    program = tmp_path / "tensors.py"
    program.write_text(TENSORS)
    assert run("mpirun", "--oversubscribe", "-n", ranks, sys.executable, "-m", "mpi4py", program, database[0], **MPI) == "same"


FOLLOW = """
import sys
from mpi4py import MPI
import lmdbio.mpi
comm, ranks = MPI.COMM_WORLD, MPI.COMM_WORLD.size
arguments = {"fresh": 20, "old": 7, "seed": 3, "capacity": 50, "on_empty": "stop"}

def batches(follow, n):
    return [([(bytes(k), bytes(v)) for k, v in batch], new, batch.position) for batch, new in (next(follow) for _ in range(n))]

with lmdbio.mpi.Follow(comm, sys.argv[1], **arguments) as follow:
    shares = batches(follow, 5)
    state = follow.state()
    assert len(set(comm.allgather(state))) == 1
with lmdbio.mpi.Follow(comm, sys.argv[1], state=state, **arguments) as follow:
    shares += batches(follow, 3)
try:
    lmdbio.mpi.Follow(comm, sys.argv[1], **dict(arguments, seed=comm.rank // (ranks - 1)))
    assert False
except ValueError as error:
    assert f"rank {ranks - 1} (" in str(error) and "other options" in str(error), error
every = comm.gather(shares)
if comm.rank == 0:
    with lmdbio.Follow(sys.argv[1], **arguments) as alone:
        for i, (records, new, position) in enumerate(batches(alone, 8)):
            of_ranks = [shares[i] for shares in every]
            assert [share[0] for share in of_ranks] == [records[r::ranks] for r in range(ranks)]
            assert sum(share[1] for share in of_ranks) == new and {share[2] for share in of_ranks} == {position}
comm.Barrier()
print("same" * (comm.rank == 0), end="")
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_follow_together(database, tmp_path, ranks):
    needs_mpi()
    program = tmp_path / "follow.py"
    program.write_text(FOLLOW)
    assert run("mpirun", "--oversubscribe", "-n", ranks, sys.executable, "-m", "mpi4py", program, database[0], **MPI) == "same"


def test_mpi_without_database(tmp_path):
    needs_mpi()
    assert "FileNotFoundError" in run("mpirun", "--oversubscribe", "-n", 2, sys.executable, "-m", "mpi4py",
                                      DOCS / "examples" / "python_mpi.py", tmp_path / "none", fails=True, **MPI)


def test_code_in_the_documentation_compiles():
    text = (DOCS / "python.md").read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert len(blocks) == text.count("```python") > 5
    for block in blocks:
        ast.parse("\n" * text.count("\n", 0, block.start(1)) + block.group(1), "docs/python.md")


def test_links_in_the_documentation():
    text = re.sub(r"```.*?```", "", (DOCS / "python.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    for link in re.findall(r"\]\(([^)]+)\)", text):
        file, _, heading = link.partition("#")
        assert (DOCS / file).exists() if file else heading in headings, link
