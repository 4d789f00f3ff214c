"""The order of a followed database against tests/support/rehearsal.py, over random logs.

    rehearsal_test.py PROGRAM [--configurations N] [--seed S]
"""
import argparse
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import rehearsal  # noqa: E402

KINDS = ("reservoir", "class", "ring", "all")


def log_of(seed):
    """Commands for the program, and the lines that it must print."""
    r = random.Random(seed)
    kind = r.randrange(4)
    terms = (r.choice((0, 1, r.getrandbits(64))), r.choice((0, 1, 2, 7, 32)), r.choice((0, 1, 3, 8, 40)),
             r.choice((0, 1, 4, 9)), kind, r.choice((1, 2, 10, 60)))
    order = rehearsal.Rehearsal(*terms[:4], KINDS[kind], terms[5])
    commands, lines = ["terms " + " ".join(map(str, terms))], []
    classes = r.choice((1, 3, 12))
    labels = {}  # of samples that were not removed

    def new_labels(n):
        return [r.randrange(classes) * 5 for _ in range(n)]

    if r.random() < 0.6:
        initial = new_labels(r.choice((0, 1, 5, 200)))
        labels.update(enumerate(initial))
        order.start(initial)
        commands.append("start " + " ".join(map(str, initial)))
    for _ in range(r.choice((5, 40, 150))):
        what = r.random()
        if what < 0.25:
            arrived = new_labels(r.choice((1, 2, 9, 100)))
            first = order.numbers
            records = order.arrive(arrived)
            labels.update((first + i, arrived[record]) for i, record in enumerate(records))
            commands.append("arrive " + " ".join(map(str, arrived)))
            lines.append(f"{first}: " + " ".join(map(str, records)))
        elif what < 0.4 and labels:
            gone = r.sample(sorted(labels), min(len(labels), r.choice((1, 2, 10, len(labels) // 2 + 1))))
            samples = [(n, labels.pop(n)) for n in gone]
            order.remove(samples)
            commands.append("remove " + " ".join(f"{n} {label}" for n, label in samples))
        elif what < 0.45:
            commands.append("reload")
        else:
            fresh, old = order.next()
            commands.append("next")
            assert not set(fresh + old) - set(labels), "a sample that was removed"
            lines.append("".join(f" {n}" for n in fresh) + " |" + "".join(f" {n}" for n in old) +
                         f" | {len(order.pending)}")
    return commands, lines


def main():
    args = argparse.ArgumentParser()
    args.add_argument("program")
    args.add_argument("--configurations", type=int, default=300)
    args.add_argument("--seed", type=int, default=1)
    args = args.parse_args()
    batches = 0
    for seed in range(args.seed, args.seed + args.configurations):
        commands, lines = log_of(seed)
        done = subprocess.run([args.program], input="\n".join(commands) + "\n", stdout=subprocess.PIPE, text=True,
                              timeout=60)
        got = done.stdout.splitlines()
        if done.returncode != 0 or got != lines:
            at = next((i for i, (a, b) in enumerate(zip(got, lines)) if a != b), min(len(got), len(lines)))
            sys.exit(f"seed {seed}: {commands[0]}: status {done.returncode}, line {at} of the output:\n"
                     f"{got[at:at + 1]}, expected\n{lines[at:at + 1]}")
        batches += commands.count("next")
    print(f"{args.configurations} configurations, {batches} batches")


if __name__ == "__main__":
    main()
