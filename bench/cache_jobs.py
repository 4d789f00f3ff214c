"""Runs the jobs that bench/cache measures, and reads what they have left in the cache (docs/format.md)."""
import glob
import json
import os
import struct
import subprocess
import time

from cold_files import make_cold
from measure import Failed

CHUNK = 4 << 20
CODECS, FILTERS = ("raw", "lz4", "zstd-1", "zstd-3"), ("none", "shuffle", "delta")
LOADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo", "loader.py")
DIGESTS = {"walk": "digest", "loader": "checksum", "ordered": "checksum"}  # names in the JSON of programs that are preloaded
COUNTERS = ("cache_read", "cache_filled")


def command(build, job, path):
    if job == "walk":
        return [os.path.join(build, "bin", "run_cold"), path]
    if job == "shuffled":
        return [os.path.join(build, "bin", "reader_loop"), path, "1", "mapped", "256"]
    return ["/usr/bin/python3", LOADER, path, "--workers", "4", *(["--in-order"] if job == "ordered" else [])]


def settings(cache, codec, size=None):
    """Returns the variables of a job with a cache, or no variables if `cache` is None."""
    if cache is None:
        return {}
    return {"LMDBIO_CACHE_DIR": cache, "LMDBIO_CACHE_CODEC": codec, **({"LMDBIO_CACHE_SIZE": str(size)} if size else {})}


def run_together(build, argv, processes, preload=False, more=None, allowed=(0,)):
    """Starts processes of a program together.  Returns the seconds until the last one has ended, and what each has printed to standard
    output and standard error."""
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("LMDBIO_")}
    env.update(more or {})
    if preload:
        env["LD_PRELOAD"] = os.path.join(build, "lib", "liblmdbio.so")
    begun = time.perf_counter()
    started = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(processes)]
    printed = [process.communicate() for process in started]
    seconds = time.perf_counter() - begun
    for process, (_, errors) in zip(started, printed):
        if process.returncode not in allowed:
            raise Failed(f"{' '.join(argv)}: status {process.returncode}: {errors.strip()}")
    return seconds, printed


def run(build, argv, preload=False, more=None, allowed=(0,)):
    """Runs a program.  Returns the seconds of the process, and what it has printed to standard output and standard error."""
    seconds, [(out, errors)] = run_together(build, argv, 1, preload, more, allowed)
    return seconds, out, errors


def last_line(errors):
    return errors.strip().rpartition("\n")[2]  # the library may have logged lines before it


def run_job(build, job, path, preload=True, more=None, processes=1):
    """Returns the seconds of the processes, and a text that depends on the records that they have read."""
    seconds, printed = run_together(build, command(build, job, path), processes, preload and job in DIGESTS, more)
    read = {json.loads(out)[DIGESTS[job]] if job in DIGESTS else last_line(errors) for out, errors in printed}
    if len(read) != 1:
        raise Failed(f"{job}: the processes read different records")
    return seconds, read.pop()


def counted(path):
    """Returns the sums over all processes of COUNTERS in a file that LMDBIO_STATS has named."""
    sums = dict.fromkeys(COUNTERS, 0)

    def add(found):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            if isinstance(value, (dict, list)):
                add(value)
            elif key in sums:
                sums[key] += value

    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                add(json.loads(line))
    return sums


def cold_tree(path):
    """Evicts the files below `path`.  Twice: what was written a moment ago is then read from the disk once, like files that are
    older, since the first read of it is slower on a virtual disk."""
    for at, _, files in os.walk(path):
        for path in (os.path.join(at, file) for file in files):
            if os.path.getsize(path):
                make_cold(path)
                make_cold(path)


def warm(build, path, more):
    """Fills the cache by `lmdbio cache warm`.  1: not all of the database, because there is no room."""
    _, out, _ = run(build, [os.path.join(build, "bin", "lmdbio"), "cache", "warm", "--json", path], more=more, allowed=(0, 1))
    return json.loads(out)


def image_files(cache):
    """Returns the paths of the data file and the table of the only image."""
    tables = glob.glob(os.path.join(cache, "lmdbio-*", "*.table"))
    if len(tables) != 1:
        raise Failed(f"{cache}: {len(tables)} images")
    return tables[0].removesuffix("table") + "data", tables[0]


def image_facts(cache):
    with open(image_files(cache)[1], "rb") as file:
        table = file.read()
    used, = struct.unpack_from("<Q", table, 16)
    codec, kind, width = struct.unpack_from("<BBH", table, 36)
    stored = [struct.unpack_from("<I", table, at)[0] for at in range(4096 + 8, len(table), 16)]
    plain = sum(min(CHUNK, used - c * CHUNK) for c, n in enumerate(stored) if n)
    if not plain:
        raise Failed(f"{cache}: the image is empty")
    return {"codec": CODECS[codec], "filter": FILTERS[kind] + (f" {width}" if kind else ""), "ratio": plain / sum(stored),
            "chunks": -(-used // CHUNK), "chunks_there": sum(n > 0 for n in stored), "used_bytes": used, "stored_bytes": sum(stored)}
