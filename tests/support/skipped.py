#!/usr/bin/env python3
"""Names what a run of ctest has skipped, for tests/run.

skipped.py tests JUNIT    the tests that did not run, one a line
skipped.py cases JUNIT    TEST: CASE for each case that a test skipped while others of it ran, one a line
skipped.py whole JUNIT    the tests that have passed and skipped no case, one a line; all NAME_... must have for NAME
skipped.py selftest

JUNIT: the file of ctest --output-junit, with --test-output-size-passed so large that output is whole.
"""
import re
import sys
import xml.etree.ElementTree as ElementTree

GOOGLETEST = re.compile(r"^\[  SKIPPED \] (\w[\w/]*\.[\w/]+)", re.M)
UNITTEST = re.compile(r"^(\w+) \([\w.]+\)(?:\n[^\n]*)?? \.\.\. skipped ['\"]", re.M)
PYTEST = re.compile(r"^SKIPPED \[\d+\] (\S+):", re.M)  # with -rs: file and line


def test_cases(root):
    return root.iter("testcase")


def tests(root):
    return [c.get("name") for c in test_cases(root) if c.get("status") == "notrun"]


def cases(root):
    found = []
    for c in test_cases(root):
        if c.get("status") == "notrun":
            continue
        output = c.findtext("system-out") or ""
        for name in dict.fromkeys(n for p in (GOOGLETEST, UNITTEST, PYTEST) for n in p.findall(output)):
            found.append(f"{c.get('name')}: {name}")
    return found


def whole(root):
    some = {line.split(":")[0] for line in cases(root)} | {c.get("name") for c in test_cases(root) if c.get("status") != "run"}
    names = [c.get("name") for c in test_cases(root)]
    return [name for name in names if name not in some and not any(other.startswith(name + "_") for other in some)]


def selftest():
    root = ElementTree.fromstring("""<testsuite>
<testcase name="all" status="run"><system-out>[       OK ] A.B (0 ms)
test_a (__main__.T.test_a) ... ok
</system-out></testcase>
<testcase name="none" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>[  SKIPPED ] A.B (0 ms)</system-out></testcase>
<testcase name="some" status="run"><system-out>[  SKIPPED ] A.B (0 ms)
[       OK ] A.C (0 ms)
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] A.B
</system-out></testcase>
<testcase name="python" status="run"><system-out>test_a (__main__.T) ... ok
test_b (__main__.T) ... skipped 'no FUSE'
test_c (__main__.T.test_c)
What it tests. ... skipped "no 'x'"
test_d (__main__.T) ... ok
</system-out></testcase>
<testcase name="pytest" status="run"><system-out>SKIPPED [1] reader_test.py:12: no torch
</system-out></testcase>
<testcase name="variants" status="run"><system-out>[       OK ] A.B (0 ms)</system-out></testcase>
<testcase name="variants_two" status="run"><system-out>[  SKIPPED ] A.B (0 ms)
[       OK ] A.C (0 ms)</system-out></testcase>
<testcase name="bad" status="fail"><failure message=""/><system-out>[  FAILED  ] A.B (0 ms)
</system-out></testcase>
</testsuite>""")
    assert tests(root) == ["none"], tests(root)
    assert cases(root) == ["some: A.B", "python: test_b", "python: test_c",
                           "pytest: reader_test.py:12", "variants_two: A.B"], cases(root)
    assert whole(root) == ["all"], whole(root)


def main():
    if sys.argv[1:] == ["selftest"]:
        selftest()
    elif len(sys.argv) == 3 and sys.argv[1] in ("tests", "cases", "whole"):
        for line in {"tests": tests, "cases": cases, "whole": whole}[sys.argv[1]](ElementTree.parse(sys.argv[2]).getroot()):
            print(line)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
