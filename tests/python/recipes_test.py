"""The recipes in docs/examples for Spack, conda and environment modules: names, versions and options that exist."""
import pathlib
import re
import subprocess
import sys
import types

SOURCE = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = SOURCE / "docs" / "examples"
CMAKE = "".join(file.read_text() for file in [SOURCE / "CMakeLists.txt", *SOURCE.glob("lmdbio/**/CMakeLists.txt")])
VERSION = re.search(r"project\(lmdbio VERSION ([\d.]+)", CMAKE).group(1)
OPTIONS = set(re.findall(r"option\((LMDBIO_\w+)", CMAKE)) | {"LMDBIO_PYTHON_DIR"}


def test_versions():
    assert f'version = "{VERSION}"' in (EXAMPLES / "conda" / "meta.yaml").read_text()
    assert set(re.findall(r"lmdbio/(\d[\d.]*\d)", (EXAMPLES / "modulefile" / "lmdbio").read_text())) == {VERSION}


def test_conda(tmp_path):
    """build.sh calls CMake with options that exist, and leaves a link to stock LMDB."""
    prefix, called = tmp_path / "prefix", tmp_path / "called"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cmake").write_text(f'#!/bin/sh\necho "$@" >>{called}\n')
    (tmp_path / "bin" / "cmake").chmod(0o755)
    subprocess.run([EXAMPLES / "conda" / "build.sh"], check=True, env={
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin", "SRC_DIR": str(SOURCE), "PREFIX": str(prefix), "PYTHON": sys.executable, "PY_VER": "3.11"})
    lines = called.read_text().splitlines()
    given = re.findall(r"-D(LMDBIO_\w+)=", lines[0])
    assert len(lines) == 3 and len(given) == 6 and set(given) <= OPTIONS
    (prefix / "lib" / "liblmdb.so").touch()
    assert (prefix / "lib" / "lmdbio" / "stock" / "liblmdb.so.0").samefile(prefix / "lib" / "liblmdb.so")


def test_spack(monkeypatch, tmp_path):
    """The recipe, run with stand-ins for what it takes from Spack."""
    variants, used = set(), set()

    class Prefix(str):
        lib = str(tmp_path)

    class Package:
        prefix = Prefix("/prefix")

        def define(self, name, value):
            return name, value

        define_from_variant = define

    class Spec:
        prefix, command = types.SimpleNamespace(lib="/lmdb/lib"), types.SimpleNamespace(path="/python")

        def __getitem__(self, name):
            return self

        def satisfies(self, what):
            return True

    def nothing(*_, **__):
        return lambda method: method

    def needs(_, when="", **__):
        used.add(when.lstrip("+"))

    stand_ins = types.ModuleType("spack")
    stand_ins.__dict__.update(
        version=nothing, requires=nothing, conflicts=nothing, run_after=nothing, depends_on=needs, extends=needs, CMakePackage=Package,
        PythonExtension=type("PythonExtension", (), {}), variant=lambda name, **_: variants.add(name), join_path=lambda *p: "/".join(p),
        mkdirp=lambda path: pathlib.Path(path).mkdir(parents=True), symlink=lambda to, path: pathlib.Path(path).symlink_to(to),
        python_platlib="/prefix/lib/python3.11/site-packages")
    systems = "spack_repo.builtin.build_systems"
    for name in ("spack", "spack.package", "spack_repo", "spack_repo.builtin", systems, systems + ".cmake", systems + ".python"):
        monkeypatch.setitem(sys.modules, name, stand_ins)
    names = {}
    exec(compile((EXAMPLES / "spack" / "package.py").read_text(), "package.py", "exec"), names)
    assert used - {""} == variants

    recipe = names["Lmdbio"]()
    recipe.spec = Spec()
    arguments = dict(recipe.cmake_args())
    given = {name for name in arguments if name.startswith("LMDBIO_")}
    assert given <= OPTIONS and {"LMDBIO_" + variant.upper() for variant in variants} <= given
    assert arguments["LMDBIO_PYTHON_DIR"] == "lib/python3.11/site-packages/lmdbio"
    recipe.stock_lmdb()
    assert (tmp_path / "lmdbio" / "stock" / "liblmdb.so.0").readlink() == pathlib.Path("/lmdb/lib/liblmdb.so")
