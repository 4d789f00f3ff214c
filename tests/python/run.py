"""run.py [MODULES...] -- ARGUMENTS: pytest with these arguments; exit status 77 if a module is missing."""
import importlib.util
import sys


def main():
    split = sys.argv.index("--")
    missing = [m for m in ["pytest", "lmdb", "numpy", *sys.argv[1:split]] if importlib.util.find_spec(m) is None]
    if missing:
        print(f"skipped: no Python module {', '.join(missing)}")
        return 77
    import pytest
    return pytest.main(sys.argv[split + 1:])


if __name__ == "__main__":  # not in spawned workers, which import the main module
    sys.exit(main())
