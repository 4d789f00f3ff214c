"""Builds the package with CMake, for pip; the rest is in pyproject.toml."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent


def version():
    return re.search(r"project\(lmdbio VERSION ([\d.]+)", (TOP / "CMakeLists.txt").read_text()).group(1)


def build(folder):
    """Builds the package's files in `folder`."""
    subprocess.run(["cmake", "-S", TOP, "-B", folder, "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DLMDBIO_TESTS=OFF", "-DLMDBIO_BENCH=OFF",
                    "-DLMDBIO_SPLIT_DEBUG=ON", f"-DPython_EXECUTABLE={sys.executable}"], check=True)
    subprocess.run(["cmake", "--build", folder, "-j", str(len(os.sched_getaffinity(0))), "--target", "lmdbio_python_package",
                    "lmdbio_command"], check=True)


class CMakeBuild(build_ext):
    """Builds the extension modules, and puts the libraries and the command beside them.

    If LMDBIO_BUILD_DIR is set, takes all files from this build directory, where they must have been built before.  The last two
    folders come from docs/examples/wheel/build.
    """

    def run(self):
        package = pathlib.Path(self.get_ext_fullpath("lmdbio._lmdbio")).resolve().parent
        with tempfile.TemporaryDirectory(prefix="lmdbio-") as work:
            built = pathlib.Path(os.environ.get("LMDBIO_BUILD_DIR") or work)
            if not os.environ.get("LMDBIO_BUILD_DIR"):
                build(built)
            for folder, files in (("", (built / "python" / "lmdbio").glob("*.so")), ("lib", (built / "lib").glob("liblmdbio*.so")),
                                  ("bin", [built / "bin" / "lmdbio", built / "bin" / "lmdbio-files"]),
                                  *((name, (built / name).glob("*")) for name in ("lib/lmdbio/stock", "licenses"))):
                (package / folder).mkdir(parents=True, exist_ok=True)
                for file in files:
                    shutil.copy2(file, package / folder)


# Do not write files beside the sources.
with tempfile.TemporaryDirectory(prefix="lmdbio-") as scratch:
    setup(version=version(), ext_modules=[Extension("lmdbio._lmdbio", [])], cmdclass={"build_ext": CMakeBuild},
          options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}})
