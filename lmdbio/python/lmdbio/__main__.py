"""`python3 -m lmdbio ARGUMENTS` is the command `lmdbio ARGUMENTS`."""
import os
import shutil
import sys
from typing import Optional

from . import library


def command() -> Optional[str]:
    """Returns the path of the command that belongs to the library of this package, or None if it is not installed."""
    beside = os.path.dirname(library())
    places = [os.path.join(os.path.dirname(__file__), "bin", "lmdbio"), os.path.join(beside, "..", "bin", "lmdbio"),
              os.path.join(beside, "..", "..", "bin", "lmdbio")]
    return next((os.path.normpath(p) for p in places if os.access(p, os.X_OK)), shutil.which("lmdbio"))


def main() -> None:
    found = command()
    if found is None:
        sys.exit("python3 -m lmdbio: the command lmdbio is not installed (Debian package lmdbio)")
    os.execv(found, ["lmdbio", *sys.argv[1:]])


if __name__ == "__main__":
    main()
