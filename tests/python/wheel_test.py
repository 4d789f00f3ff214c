"""docs/examples/wheel/build: what the wheel holds, its tag, and a virtual environment that has nothing else."""
import importlib.machinery
import importlib.util
import os
import pathlib
import platform
import re
import subprocess
import sys
import venv
import zipfile
import zlib

import conftest
import lmdb
import numpy
import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILDER = SOURCE / "docs" / "examples" / "wheel" / "build"
CLEAN = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_PRELOAD")}
ELF = ("_lmdbio.cpython", "lib/liblmdbio.so", "lib/lmdbio/stock/liblmdb.so.0", "bin/lmdbio", "bin/lmdbio-files")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The path of a wheel of the build directory, and what the builder says about it."""
    pytest.importorskip("setuptools", reason="no python3-setuptools")
    pytest.importorskip("wheel", reason="no python3-wheel")
    out = tmp_path_factory.mktemp("wheel")
    printed = subprocess.run([sys.executable, "-B", BUILDER, "--built", conftest.BUILD, "--out", out], env=CLEAN, check=True,
                             stdout=subprocess.PIPE, text=True).stdout.splitlines()
    assert [str(file) for file in out.iterdir()] == printed[:1]
    return pathlib.Path(printed[0]), printed[1]


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The bin directory of an environment that has the wheel and, of this machine, NumPy and py-lmdb alone."""
    folder = tmp_path_factory.mktemp("venv")
    try:
        venv.create(folder, with_pip=True)
    except subprocess.CalledProcessError:
        pytest.skip("no python3-venv")
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", "--no-index", "--no-deps", built[0]], check=True, env=CLEAN)
    site = next(folder.glob("lib/python3*/site-packages"))
    for module in (numpy, lmdb):
        (site / module.__name__).symlink_to(os.path.dirname(module.__file__))
    return folder / "bin"


def run(*command, **env):
    """What the command prints to standard output and standard error."""
    done = subprocess.run([*map(str, command)], env={**CLEAN, **env}, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def numbers(version):
    return tuple(map(int, version.split(".")))


def test_what_it_holds(built, tmp_path):
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(tmp_path)
        names = {name.removeprefix("lmdbio/"): wheel.getinfo(name).external_attr >> 16 & 0o111 for name in wheel.namelist()}
    assert all(names[name] == 0o111 for name in ("bin/lmdbio", "bin/lmdbio-files"))
    assert "py.typed" in names and "__main__.py" in names and not [name for name in names if "mpi" in name and name.endswith(".so")]
    assert sum("Copyright" in file.read_text() for file in (tmp_path / "lmdbio" / "licenses").iterdir()) == \
        sum(name.startswith("licenses/") for name in names)
    programs = [name for name in names if name.startswith(ELF)]
    assert len(programs) == len(ELF)
    for name in programs:
        sections = run("readelf", "-SW", tmp_path / "lmdbio" / name)[0]
        assert ".debug_info" not in sections, name


def test_its_tag_is_true(built, tmp_path):
    """Nothing that another system may lack, no directory of this machine, and the glibc of the tag."""
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(tmp_path)
    versions, allowed = ["2.5"], {"libc.so.6", "libm.so.6", "libpthread.so.0", "libstdc++.so.6", "libgcc_s.so.1", "liblmdbio.so"}
    for name in (tmp_path / "lmdbio").rglob("*"):
        if not name.is_file() or name.read_bytes()[:4] != b"\x7fELF":
            continue
        dynamic = run("readelf", "-dW", name)[0]
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
        assert {n for n in needed if not n.startswith("ld-linux")} <= allowed, (name, needed)
        for path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic):
            # An empty element would be the current directory.
            assert all(element.startswith("$ORIGIN/") for element in path.split(":")), (name, path)
        versions += re.findall(r"@GLIBC_([\d.]+)", run("readelf", "--dyn-syms", "-W", name)[0])
    newest = max(versions, key=numbers)
    python, system = f"cp{sys.version_info[0]}{sys.version_info[1]}", newest.replace(".", "_")
    assert built[0].name.split("-")[2:] == [python, python, f"manylinux_{system}_{platform.machine()}.whl"]
    assert built[1] == f"needs Python {sys.version_info[0]}.{sys.version_info[1]} and glibc {newest} or later"


def test_what_is_no_manylinux_wheel(tmp_path, monkeypatch):
    """Libraries that a system may lack, symbols that no known system has, directories of this machine."""
    loader = importlib.machinery.SourceFileLoader("builder", str(BUILDER))
    builder = importlib.util.module_from_spec(importlib.util.spec_from_loader("builder", loader))
    loader.exec_module(builder)
    library = tmp_path / "x.so"

    def needed(*options):
        subprocess.run(["c++", "-shared", "-fPIC", "-o", library, "-Wl,--no-as-needed", *options, "-xc++", "-"], check=True, text=True,
                       input="#include <string>\nstd::string f(int i) { return std::to_string(i); }\n")
        return builder.needs([library])

    assert needed()[1] == set()
    assert needed("-llmdb", "-Wl,-rpath,$ORIGIN/lib") == (needed()[0], {"liblmdb.so.0"})
    monkeypatch.setattr(builder, "LIBSTDCXX", builder.LIBSTDCXX[:0])
    assert any(re.fullmatch(r"GLIBCXX_3\.4[\d.]*", version) for version in needed()[1])
    for path in ("/opt/lib", "$ORIGIN/lib:", "$ORIGIN/lib:lib"):
        with pytest.raises(SystemExit, match="does not lie in the wheel"):
            needed("-Wl,-rpath," + path)


def test_the_command(installed, mixed):
    version = re.search(r"project\(lmdbio VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
    assert run(installed / "lmdbio", "--version")[0] == f"lmdbio {version}\n"
    assert "LMDBIO_MEMORY" in run(installed / "lmdbio", "config")[0]
    assert len(run(installed / "lmdbio", "ls", mixed.path)[0].splitlines()) == len(mixed.records)


def test_an_unchanged_program(installed, mixed):
    reads = "import lmdb, sys; print(len(lmdb.open(sys.argv[1], readonly=True).begin().get(b'00000001')))"
    out, err = run(installed / "lmdbio", "run", "--stats", "--", installed / "python", "-c", reads, mixed.path)
    assert out == f"{len(mixed.records[1][1])}\n" and "1 read served" in err


@pytest.mark.parametrize("hidden", [False, True])
def test_the_example(installed, mixed, hidden):
    """The second time on a system without LMDB: that of the wheel is used then, and not before."""
    hide = {"LD_AUDIT": os.path.join(conftest.BUILD, "tests", "shim", "libshim_hide_lmdb_audit.so")} if hidden else {}
    out, err = run(installed / "python", SOURCE / "docs" / "examples" / "python_loop.py", mixed.path, LMDBIO_LOG="debug", **hide)
    check = 0
    for key, value in mixed.records:
        check ^= zlib.crc32(value, zlib.crc32(key))
    assert out == f"{len(mixed.records)} records, {sum(len(value) for _, value in mixed.records)} bytes, {check:08x}\n"
    stock = re.search(r"stock LMDB [\d.]+: (\S+)", err).group(1)
    assert (str(installed.parent) in stock) == hidden and (not hidden or stock.endswith("/lmdbio/lib/lmdbio/stock/liblmdb.so.0"))
