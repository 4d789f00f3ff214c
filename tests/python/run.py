"""run.py [MODULES...] -- ARGUMENTS: pytest with these arguments; exit status 77 if a module is missing."""
import importlib.util
import sys

split = sys.argv.index("--")
missing = [m for m in ["pytest", "lmdb", "numpy", *sys.argv[1:split]] if importlib.util.find_spec(m) is None]
if missing:
    print(f"skipped: no Python module {', '.join(missing)}")
    sys.exit(77)
import pytest  # noqa: E402

sys.exit(pytest.main(sys.argv[split + 1:]))
