#!/usr/bin/env python3
"""Checks that each picture of the documentation is what its script draws, and is shown on a page:

  check_pictures.py ROOT     ROOT: the source tree

docs/NAME.svg is what docs/NAME.py prints.  Prints what differs, and ends with 1.
"""
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path


def problems(root):
    docs = root / "docs"
    pages = "".join(page.read_text() for page in [root / "README.md", *docs.glob("*.md")])
    pictures = sorted(docs.glob("*.svg"))
    assert len(pictures) >= 4, pictures
    for picture in pictures:
        script = picture.with_suffix(".py")
        if not script.exists():
            yield f"docs/{picture.name}: no docs/{script.name} draws it"
            continue
        done = subprocess.run([sys.executable, "-B", script], stdout=subprocess.PIPE, text=True, check=True)
        xml.etree.ElementTree.fromstring(done.stdout)
        if done.stdout != picture.read_text():
            yield f"docs/{picture.name} is not what its script draws; run: python3 docs/{script.name} > docs/{picture.name}"
        if f"{picture.name})" not in pages:
            yield f"docs/{picture.name}: no page shows it"


def main():
    found = list(problems(Path(sys.argv[1])))
    print("\n".join(found) or "all pictures are as drawn")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
