"""Common functions of the benchmarks' Python programs: intervals, a fair order, facts about the machine."""
import argparse
import hashlib
import os
import platform
import re
import statistics
import sys

MIB = 1 << 20


class Skip(Exception):
    """The measurement is not possible here."""


class Failed(Exception):
    """A reader failed, or read other bytes than other readers."""


def fail(message):
    sys.exit(f"error: {message}")


def counted(n, noun):
    """Returns "1 node", "2 nodes"."""
    return f"{n} {noun}" + ("" if n == 1 else "s")


def progress(line):
    if sys.stderr.isatty():
        sys.stderr.write("\r" + line + "\033[K")


def size(string):
    found = re.fullmatch(r"(\d+)(?:([KMG])(?:IB)?)?", string.upper())
    if not found:
        raise argparse.ArgumentTypeError(f"'{string}' is not a size such as 512M")
    return int(found[1]) << {None: 0, "K": 10, "M": 20, "G": 30}[found[2]]


def shown_size(n):
    return f"{n} B" if n < 1024 else f"{n / 1024:g} KiB" if n < MIB else f"{n / MIB:g} MiB"


def interval(values):
    """Returns the median and its interval of at least 95 % from order statistics (None below six values), as stats.h does."""
    values = sorted(values)
    n = len(values)
    term, below, k = 0.5**n, 0.0, 0
    while k < n // 2 and below + term <= 0.025:
        below += term
        term *= (n - k) / (k + 1)
        k += 1
    low, high = (values[k - 1], values[n - k]) if k else (None, None)
    return {"median": statistics.median(values), "low": low, "high": high}


def spread(values):
    """Returns the median and the range."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def text(i, digits=3):
    shown = f"{i['median']:.{digits}f}"
    return shown + (f" [{i['low']:.{digits}f}, {i['high']:.{digits}f}]" if i["low"] is not None else "")


def round_order(n, i):
    """Returns the order in which n programs run in round i: rotated, and reversed every n rounds, as in runner.h."""
    order = [(i + j) % n for j in range(n)]
    return order[::-1] if i // n % 2 else order


def checksum(path):
    """Returns a checksum of a file, or None if there is none."""
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def first_line(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().strip()
    except OSError:
        return ""


def machine_facts():
    def field(path, prefix):
        with open(path, encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(prefix)), "")

    return {"cpu": field("/proc/cpuinfo", "model name"), "cpus": os.cpu_count(), "kernel": platform.release(),
            "hypervisor": " hypervisor" in field("/proc/cpuinfo", "flags"), "memory": field("/proc/meminfo", "MemTotal"),
            "transparent_hugepage": first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
            "load_average": os.getloadavg()}


def device_facts(directory):
    """Returns facts about the device of the directory's file system."""
    device = os.stat(directory).st_dev
    where = f"{os.major(device)}:{os.minor(device)}"
    kind = ""
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        for line in mounts:
            if line.split()[2] == where:
                kind = line.split(" - ")[1].split()[0]
    return {"file_system": kind, "read_ahead_kb": first_line(f"/sys/class/bdi/{where}/read_ahead_kb")}


def device_line(facts):
    return f"{facts['file_system']}, read-ahead {facts['read_ahead_kb']} KiB"
