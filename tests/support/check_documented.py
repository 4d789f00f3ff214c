#!/usr/bin/env python3
"""Checks that what users see is documented:

  check_documented.py LMDBIO ROOT     LMDBIO: the built command; ROOT: the source tree

Each subcommand is added, and is in the man page with its options, in the completion for bash, and in README.  Each name in
the statistics is in docs/operations.md.  Prints what is missing, and ends with 1.
"""
import re
import subprocess
import sys
from pathlib import Path

LISTS = ("lmdbio/window/file_stats.h", "lmdbio/tree/prefetch_counters.h", "lmdbio/records/counters.h")  # CounterField rows
REPORT = "lmdbio/stats/report_json.cc"


def help_of(lmdbio, *words):
    return subprocess.run([lmdbio, *words, "--help"], stdout=subprocess.PIPE, check=True, text=True).stdout


def subcommands(text):
    """The names in the part "Subcommands" of a --help."""
    return re.findall(r"^  ([a-z][a-z0-9-]*)  ", text.partition("Subcommands:")[2], re.M)


def options(text):
    return sorted(set(re.findall(r"^  (?:-\w, ?)?(--[a-z-]+)|^  -\w,(--[a-z-]+)", text, re.M)) - {("", "")})


def completions(root, *words):
    """What lmdbio.bash offers for the last of these words."""
    script = f'. "{root}/lmdbio/cli/lmdbio.bash"; COMP_WORDS=(lmdbio "$@"); COMP_CWORD=$#; _lmdbio; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return subprocess.run(["bash", "-c", script, "bash", *words], stdout=subprocess.PIPE, check=True, text=True).stdout.split()


def command_problems(lmdbio, root):
    man = (root / "lmdbio/cli/lmdbio.1").read_text().replace("\\-", "-")
    synopsis = man.partition(".SH SYNOPSIS")[2].partition("\n.SH")[0]
    sections = dict(re.findall(r"^\.SS lmdbio ([\w-]+)\n(.*?)(?=^\.S[SH])", man + "\n.SH", re.M | re.S))
    readme = (root / "README.md").read_text()
    names = subcommands(help_of(lmdbio))
    assert len(names) > 10, names
    declared, sources = ((root / "lmdbio/cli" / p).read_text() for p in ("command.h", "main.cc"))
    sources += (root / "lmdbio/cli/files_main.cc").read_text()
    for function in re.findall(r"^void (add_\w+)\(", declared, re.M):
        if f"{function}(app" not in sources:
            yield f"neither main.cc nor files_main.cc calls {function}()"
    for name in names:
        if name not in sections:
            yield f"lmdbio.1 has no section for {name}"
        if not re.search(rf"^\.B lmdbio {name}\b", synopsis, re.M):
            yield f"lmdbio.1: SYNOPSIS lacks {name}"
        if name not in completions(root, ""):
            yield f"lmdbio.bash does not complete {name}"
        if not re.search(rf"`(?:lmdbio )?{name}\b", readme):
            yield f"README.md does not name {name}"
        try:
            text = help_of(lmdbio, name)
        except subprocess.CalledProcessError as e:
            if name not in ("mount", "serve") or e.returncode != 127:
                raise
            continue  # its program is not built without libfuse or MPI
        for words, page in [((name,), text), *(((name, inner), help_of(lmdbio, name, inner)) for inner in subcommands(text))]:
            offered = completions(root, *words, "--")
            for option in {a or b for a, b in options(page)} - {"--help"}:
                if option not in sections.get(name, ""):
                    yield f"lmdbio.1: the section for {name} lacks {option}"
                if option not in offered:
                    yield f"lmdbio.bash lacks {option} of {' '.join(words)}"


def statistics_problems(root):
    page = (root / "docs/operations.md").read_text()
    names = set()
    for path in LISTS:
        found = re.findall(r'\{"([a-z_0-9]+)", &', (root / path).read_text())
        assert found, path
        names.update(found)
    names.update(re.findall(r'append_number\(\w+, "([a-z_0-9]+)"', (root / REPORT).read_text()))
    for name in sorted(names):
        if not re.search(rf"`[^`]*\b{name}\b[^`]*`", page):
            yield f"docs/operations.md does not explain the statistics field {name}"


def main():
    lmdbio, root = sys.argv[1], Path(sys.argv[2])
    problems = [*command_problems(lmdbio, root), *statistics_problems(root)]
    print("\n".join(problems) or "all is documented")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
