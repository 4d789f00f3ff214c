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


def command(build, job, path):
    if job == "walk":
        return [os.path.join(build, "bin", "run_cold"), path]
    return [os.path.join(build, "bin", "reader_loop"), path, "1", "mapped", "256"]


def settings(cache, codec, size=None):
    """Returns the variables of a job with a cache, or no variables if `cache` is None."""
    if cache is None:
        return {}
    return {"LMDBIO_CACHE_DIR": cache, "LMDBIO_CACHE_CODEC": codec, **({"LMDBIO_CACHE_SIZE": str(size)} if size else {})}


def run(build, argv, preload=False, more=None, allowed=(0,)):
    """Runs a program.  Returns the seconds of the process, and what it has printed to standard output and standard error."""
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("LMDBIO_")}
    env.update(more or {})
    if preload:
        env["LD_PRELOAD"] = os.path.join(build, "lib", "liblmdbio.so")
    begun = time.perf_counter()
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - begun
    if done.returncode not in allowed:
        raise Failed(f"{' '.join(argv)}: status {done.returncode}: {done.stderr.strip()}")
    return seconds, done.stdout, done.stderr


def last_line(errors):
    return errors.strip().rpartition("\n")[2]  # the library may have logged lines before it


def run_job(build, job, path, preload=True, more=None):
    """Returns the seconds of the process, and a text that depends on the records that it has read."""
    seconds, out, errors = run(build, command(build, job, path), preload and job == "walk", more)
    return seconds, json.loads(out)["digest"] if job == "walk" else last_line(errors)


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
