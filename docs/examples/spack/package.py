# A Spack package of LMDBIO.  Put this file into a repository of your own, and the path of a checkout into `git`:
#
#     spack repo create ~/spack-lmdbio lmdbio      # prints where its repository lies
#     mkdir -p REPOSITORY/packages/lmdbio && cp docs/examples/spack/package.py REPOSITORY/packages/lmdbio/
#     spack repo add REPOSITORY && spack install lmdbio
#
# Tried: a test runs this file with stand-ins for Spack's names, and compares its options with CMakeLists.txt.  All packages and
# variants that it names are in github.com/spack/spack-packages (July 2026).  Not tried: Spack itself.
import os

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.python import PythonExtension

from spack.package import *


class Lmdbio(CMakePackage, PythonExtension):
    """Programs read LMDB databases from slow storage faster, without changes."""

    git = "file:///path/to/checkout"

    version("main", branch="main")

    variant("command", default=True, description="the command lmdbio")
    variant("compression", default=True, description="compress the cache on local disk")
    variant("fuse", default=False, description="lmdbio mount")
    variant("mpi", default=False, description="liblmdbio_mpi.so and lmdbio serve")
    variant("python", default=True, description="the Python package")
    variant("uring", default=True, description="read with io_uring where the kernel has it")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("boost@1.70:", type="build")  # headers
    depends_on("xxhash", type="build")  # a header
    depends_on("lmdb@0.9", type=("build", "run"))  # a header; stock LMDB
    depends_on("liburing cflags=-fPIC", when="+uring")
    depends_on("lz4+pic libs=static", when="+compression")
    depends_on("zstd libs=static cflags=-fPIC", when="+compression")
    depends_on("cli11", type="build", when="+command")
    depends_on("nlohmann-json", type="build", when="+command")
    depends_on("libfuse@3.12:", when="+fuse")
    depends_on("pkgconfig", type="build", when="+fuse")
    depends_on("mpi", when="+mpi")
    extends("python@3.9:", when="+python")
    depends_on("py-pybind11@2.9:", type="build", when="+python")
    depends_on("py-numpy", type=("build", "run"), when="+python")

    requires("platform=linux")
    conflicts("%gcc@:11", msg="LMDBIO is tested with GCC 12")

    def cmake_args(self):
        args = [self.define("LMDBIO_TESTS", False), self.define("LMDBIO_BENCH", False), self.define("CMAKE_INSTALL_LIBDIR", "lib")]
        for name in ("command", "compression", "fuse", "mpi", "python", "uring"):
            args.append(self.define_from_variant("LMDBIO_" + name.upper(), name))
        if self.spec.satisfies("+python"):
            args.append(self.define("Python_EXECUTABLE", self.spec["python"].command.path))
            args.append(self.define("LMDBIO_PYTHON_DIR", os.path.relpath(join_path(python_platlib, "lmdbio"), self.prefix)))
        return args

    @run_after("install")
    def stock_lmdb(self):
        # Spack's library is called liblmdb.so.
        folder = join_path(self.prefix.lib, "lmdbio", "stock")
        mkdirp(folder)
        symlink(join_path(self.spec["lmdb"].prefix.lib, "liblmdb.so"), join_path(folder, "liblmdb.so.0"))
