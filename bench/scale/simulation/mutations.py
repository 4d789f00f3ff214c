#!/usr/bin/python3
"""Breaks the exchange of records in three ways, and shows that the counts and the time of simulated jobs detect that.

    bench/scale/simulation/mutations.py [--build DIR] [--ranks P]

Builds the mutants from a copy of the committed sources, which takes some minutes.  Exit status 1: a mutant was not detected.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.dirname(os.path.dirname(HERE))
TOP = os.path.dirname(BENCH)
sys.path.insert(0, BENCH)
from measure import Failed, progress  # noqa: E402
from scale.simulated_campaign import job_words  # noqa: E402
from scale.simulation import simulated_jobs  # noqa: E402

# Name: the file, the text to replace, its replacement, and the count that must differ by a factor of at least
# 1.5.
MUTANTS = {
    "each part is read twice": (
        "lmdbio/ranks/sender.cc", "  const Status st =\n      source_.start(planned_.ordinals,",
        "  std::unique_ptr<PartRead> again;\n  (void)source_.start(planned_.ordinals, {}, again, why);\n  (void)again.release();\n"
        "  const Status st =\n      source_.start(planned_.ordinals,", "file_bytes"),
    # Messages of one record take so long that ranks stop waiting, and read for themselves.
    "parts have one record": (
        "lmdbio/ranks/stream_sizes.cc", "std::max<std::uint64_t>(part_bytes(offer) / record_bytes, 1) * readers",
        "offer + record_bytes != 0 ? readers : readers", "messages"),
    "readers take no turns": (
        "lmdbio/ranks/turns.cc", "  if (at_once_ == 0) return true;\n", "  if (at_once_ + n != UINT64_MAX) return true;\n", "in_flight"),
}
SEEN, SEEN_IN_TIME = 1.5, 1.02  # factors, either way


class Mutants:
    """Builds mutants one after the other in one copy of the sources."""

    def __init__(self, directory):
        self.clone, self.out = os.path.join(directory, "clone"), os.path.join(directory, "build")
        run("git", "clone", "--quiet", TOP, self.clone)
        ccache = shutil.which("ccache")
        run("cmake", "-S", self.clone, "-B", self.out, "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
            *([f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}"] if ccache else []))

    def build(self, mutant):
        """Builds a mutant, and returns the path of the program."""
        file, stands, replacement, _ = mutant
        path = os.path.join(self.clone, file)
        with open(path, encoding="utf-8") as source:
            text = source.read()
        if text.count(stands) != 1:
            raise Failed(f"{file} has changed: the mutation has no place in it")
        try:
            with open(path, "w", encoding="utf-8") as source:
                source.write(text.replace(stands, replacement))
            run("make", "-C", self.out, f"-j{os.cpu_count()}", "run_scale_simulated")
        finally:
            with open(path, "w", encoding="utf-8") as source:
                source.write(text)
        return os.path.join(self.out, "bin", "run_scale_simulated")


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {done.stdout}")


def counts(program, platform, ranks):
    words = job_words("cifar10-like", 16, ranks, 64, "full", 0, "strided")
    job = simulated_jobs.run(program, platform, ranks, [*words, "--group", "4"])
    epoch = job["epochs"][0]
    return {"file_bytes": job["library"]["file_bytes"], "messages": job["library"]["messages"],
            "in_flight": epoch["storage_most_in_flight"], "seconds": epoch["seconds"] - epoch["open_seconds"]}


def main(directory):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(TOP, "build", "dev"), help="with the program as it is (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=288, help="default: %(default)s")
    args = parser.parse_args()
    platform = os.path.join(HERE, "platforms", "bebop-like.json")
    right = counts(os.path.join(os.path.abspath(args.build), "bin", "run_scale_simulated"), platform, args.ranks)
    rows, failed = [["as it is", *map(str, right.values()), ""]], 0
    mutants = Mutants(directory)
    for name, mutant in MUTANTS.items():
        progress(f"building: {name}")
        wrong = counts(mutants.build(mutant), platform, args.ranks)
        ratio, slower = (wrong[what] / right[what] for what in (mutant[3], "seconds"))
        seen = not 1 / SEEN < ratio < SEEN and not 1 / SEEN_IN_TIME < slower < SEEN_IN_TIME
        failed += not seen
        rows.append([name, *map(str, wrong.values()), f"{mutant[3]} x {ratio:.2f}, time x {slower:.2f}{'' if seen else ': NOT SEEN'}"])
    progress("")
    print(f"{args.ranks} ranks, full, readers in groups of 4\n\n| | {' | '.join(right)} | seen |\n|{'---|' * (len(right) + 2)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    return 1 if failed else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="lmdbio_mutant_") as made:
        try:
            sys.exit(main(made))
        except Failed as e:
            sys.exit(f"error: {e}")
