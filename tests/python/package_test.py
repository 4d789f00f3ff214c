"""What is installed: stubs that tell the truth, the wheel, the command."""
import ast
import os
import subprocess
import sys
import venv

import conftest
import pytest

import lmdbio
from lmdbio import _lmdbio

HERE = os.path.dirname(lmdbio.__file__)
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "lmdbio", "python")


def public(names):
    return {n for n in names if not n.startswith("__") or n in ("__len__", "__getitem__", "__iter__", "__contains__", "__next__")}


def test_stubs_name_what_there_is():
    with open(os.path.join(HERE, "_lmdbio.pyi"), encoding="utf-8") as f:
        stub = ast.parse(f.read())
    named = {n.name: n for n in stub.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    assert set(named) == {n for n in public(vars(_lmdbio)) if n not in ("_Keys", "_Assembled")}
    for name, node in named.items():
        if isinstance(node, ast.ClassDef) and name not in ("Record", "Error", "CorruptedError", "CancelledError"):
            members = {m.name for m in node.body if isinstance(m, ast.FunctionDef)}
            assert public(members) == public(vars(getattr(_lmdbio, name))) - {"_pybind11_conduit_v1_"}, name
    assert set(lmdbio.__all__) <= set(vars(lmdbio)) and os.path.exists(os.path.join(HERE, "py.typed"))


def test_everything_public_has_a_docstring():
    for name in lmdbio.__all__:
        thing = getattr(lmdbio, name)
        if callable(thing):
            assert thing.__doc__ and len(thing.__doc__) > 20, name
    for name in ("read", "read_keys", "get", "keys", "stream", "close"):
        assert getattr(lmdbio.Reader, name).__doc__


def test_types():
    pytest.importorskip("mypy", reason="no python3-mypy")
    done = subprocess.run([sys.executable, "-m", "mypy", "--ignore-missing-imports", "--cache-dir=" + os.devnull, "-p", "lmdbio"],
                          cwd=os.path.dirname(HERE), stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout


def test_the_command(mixed):
    done = subprocess.run([sys.executable, "-m", "lmdbio", "info", mixed.path], stdout=subprocess.PIPE, text=True, check=True)
    assert "1000" in done.stdout
    assert subprocess.run([sys.executable, "-m", "lmdbio", "no-such-command"], stderr=subprocess.DEVNULL).returncode != 0


def test_the_wheel(tmp_path, mixed):
    """pip installs into a virtual environment; the package works there without the build directory's path."""
    pytest.importorskip("setuptools", reason="no python3-setuptools")
    pytest.importorskip("wheel", reason="no python3-wheel")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    try:
        venv.create(tmp_path / "venv", system_site_packages=True, with_pip=True)
    except subprocess.CalledProcessError:
        pytest.skip("no python3-venv")
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-build-isolation", SOURCE], check=True,
                   env={**environment, "LMDBIO_BUILD_DIR": conftest.BUILD})
    out = subprocess.run([python, "-c", "import lmdbio, sys; print(lmdbio.library(), len(lmdbio.Reader(sys.argv[1])))", mixed.path],
                         cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    library, count = out.split()
    assert library.startswith(str(tmp_path / "venv")) and count == "1000"
    reads = "import lmdb, sys; lmdb.open(sys.argv[1], readonly=True).begin().get(b'00000001')"
    out = subprocess.run([python, "-m", "lmdbio", "run", "--stats", "--", python, "-c", reads, mixed.path], cwd=tmp_path,
                         env=environment, stderr=subprocess.PIPE, text=True, check=True).stderr
    assert "1 read served" in out
    out = subprocess.run([python, "-m", "lmdbio", "ls", mixed.path], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
                         check=True).stdout
    assert len(out.splitlines()) == 1000
    assert not os.path.exists(os.path.join(SOURCE, "build")), "nothing is written beside the sources"
