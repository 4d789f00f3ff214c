"""The factors of bench/factors: their usual and allowed levels, and how levels are shown."""
import math
import re

from measure import MIB, fail, shown_size, size

from .plan import Factor

LARGEST_READ_AHEAD, LARGEST_REQUEST = 64 * MIB, MIB
MOST_BRICKS = 8

FACTORS = [
    Factor("storage", "storage", ("local", "slow-0.2ms", "slow-1ms", "slow-5ms", "slow-1ms-cap400", "gluster-1", "gluster-2"),
           "slow-1ms"),
    Factor("read-ahead", "kernel read-ahead (slow)", ("0K", "128K", "1M"), "128K", True),
    Factor("request", "largest request (slow)", ("128K", "1M"), "1M", True),
    Factor("nordahead", "MDB_NORDAHEAD", ("no", "yes"), "no"),
    Factor("values", "size of values", ("200", "3072", "112640"), "112640"),
    Factor("batch", "values between computations", ("none", "128K", "2M"), "none"),
    Factor("procs", "processes", ("1", "2", "8"), "1"),
    Factor("order", "order", ("partitioned", "strided", "random"), "partitioned"),
]
HELP = {
    "storage": "local; slow-DELAYms or slow-DELAYms-capMB (a slow file system, MB/s of all processes together); gluster-N (GlusterFS, "
               "N bricks)",
    "read-ahead": "of the kernel, on slow file systems; 0K: none",
    "request": "largest read request, on slow file systems; at most 1M",
    "nordahead": "MDB_NORDAHEAD: yes, no",
    "values": "size of values, bytes",
    "batch": "bytes of values that a process reads between computations; none: no computation",
    "procs": "processes that read the database together",
    "order": "in which they use the records: partitioned, strided, random, as bench/node has them",
}
SLOW = re.compile(r"slow-(\d+(?:\.\d+)?)ms(?:-cap(\d+))?")
GLUSTER = re.compile(r"gluster-(\d+)")


def is_size(level, least, most):
    return bool(re.fullmatch(r"\d+[KM]", level)) and least <= size(level) <= most and size(level) % 4096 == 0


def is_allowed(name, level):
    number = int(level) if level.isdecimal() else 0
    return {
        "storage": level == "local" or bool(SLOW.fullmatch(level)) or level in (f"gluster-{n + 1}" for n in range(MOST_BRICKS)),
        "read-ahead": is_size(level, 0, LARGEST_READ_AHEAD),
        "request": is_size(level, 4096, LARGEST_REQUEST),
        "nordahead": level in ("no", "yes"),
        "values": 8 <= number <= 16 * MIB,
        "batch": level == "none" or bool(re.fullmatch(r"\d+[KM]", level)) and size(level) > 0,
        "procs": 1 <= number <= 256,
        "order": level in ("partitioned", "strided", "random"),
    }[name]


def chosen(name, text):
    """Returns the factor with the levels of an option."""
    usual = next(f for f in FACTORS if f.name == name)
    levels = tuple(text.split(","))
    if unknown := [level for level in levels if not is_allowed(name, level)]:
        fail(f"--{name}: '{unknown[0]}' is not possible here; {HELP[name]}")
    if len(set(levels)) != len(levels):
        fail(f"--{name}: {text} names a level twice")
    return Factor(name, usual.title, levels, usual.base if usual.base in levels else levels[0], usual.only_slow)


def shown(name, level):
    if name == "storage":
        if found := SLOW.fullmatch(level):
            return f"slow, {found[1]} ms" + (f", {found[2]} MB/s" if found[2] else "")
        if found := GLUSTER.fullmatch(level):
            return f"GlusterFS, {found[1]} brick" + ("s" if found[1] != "1" else "")
        return "local disk"
    if name == "batch" and level == "none":
        return "no computation"
    if name in ("read-ahead", "request", "batch"):
        return "0" if size(level) == 0 else shown_size(size(level))
    return shown_size(int(level)) if name == "values" else level


def described(configuration):
    """Describes a configuration in words."""
    before = {"read-ahead": "read-ahead ", "request": "requests up to ", "nordahead": "MDB_NORDAHEAD: ", "values": "values of ",
              "procs": "processes: ", "batch": "" if configuration["batch"] == "none" else "computation after each "}
    return ", ".join(before.get(name, "") + shown(name, level) for name, level in configuration.items())


def base(factors):
    """Returns the base configuration."""
    storage = factors[0].base
    return {f.name: f.base for f in factors if f.applies(storage)}


def slow_setup(configuration):
    """Returns the configuration's set-up, as cold_files names it."""
    found = SLOW.fullmatch(configuration["storage"])
    cap = f"-cap{found[2]}" if found[2] else ""
    return f"slow-{found[1]}ms-{configuration['read-ahead']}-max{configuration['request']}{cap}"


def combinations(factors):
    """Returns the number of all combinations of levels."""
    return sum(math.prod(len(f.levels) for f in factors[1:] if f.applies(storage)) for storage in factors[0].levels)
