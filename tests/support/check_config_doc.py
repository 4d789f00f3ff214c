#!/usr/bin/env python3
"""docs/configuration.md has exactly the table of settings that the code has: check_config_doc.py PROGRAM FILE"""
import difflib
import subprocess
import sys

BEGIN, END = "<!-- config:begin -->", "<!-- config:end -->"


def main():
    program, path = sys.argv[1:]
    want = subprocess.run([program], check=True, capture_output=True, text=True).stdout.strip().splitlines()
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except OSError as e:
        sys.exit(f"{path}: {e.strerror}")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit(f"{path}: wanted once each, in this order: {BEGIN} and {END}; between them goes:\n\n"
                 + "\n".join(want))
    have = text[text.index(BEGIN) + len(BEGIN):text.index(END)].strip().splitlines()
    if have != want:
        print(f"{path}: the table of settings differs from the code's; replace it by the output of {program}:")
        print("\n".join(difflib.unified_diff(have, want, "documented", "code", lineterm="")))
        sys.exit(1)
    print(f"{len(want) - 2} settings agree")


if __name__ == "__main__":
    main()
