"""Defines the order of a followed database (docs/format.md has a summary), written for clarity."""
M64 = (1 << 64) - 1


def mix(x):
    x = x + 0x9e3779b97f4a7c15 & M64
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & M64
    x = (x ^ x >> 27) * 0x94d049bb133111eb & M64
    return x ^ x >> 31


def shuffle(seed, epoch, count, i):
    if count < 2:
        return 0
    bits = max(8, (count - 1).bit_length())
    low, high = bits // 2, bits - bits // 2
    key = mix(mix(seed) ^ epoch)
    while True:
        left, rest = i & (1 << low) - 1, i >> low
        for r in range(8):
            if r % 2 == 0:
                rest ^= mix(key + r * 0xd1b54a32d192ed03 + left & M64) & (1 << high) - 1
            else:
                left ^= mix(key + r * 0xd1b54a32d192ed03 + rest & M64) & (1 << low) - 1
        i = rest << low | left
        if i < count:
            return i


class Rehearsal:
    def __init__(self, seed, fresh, old, lag, kind, capacity):
        self.seed, self.fresh, self.old, self.lag, self.kind, self.capacity = seed, fresh, old, lag, kind, capacity
        self.buffers = {}  # label -> slots, seen, gaps, gaps outside
        self.passes = {}
        self.pending, self.batch, self.numbers, self.entries = [], 0, 0, 0
        self.drawn = [[] for _ in range(lag + 1)]

    def start(self, labels):  # in key order
        for label in labels:
            self.add(self.numbers, label)
            self.numbers += 1
        self.drawn = [self.draw() for _ in range(self.lag + 1)]

    def arrive(self, labels):  # in key order; returns the records in the order of their numbers
        self.entries += 1
        order = [shuffle(mix(self.seed + 1 & M64), self.entries, len(labels), i) for i in range(len(labels))]
        self.pending += [(self.numbers + i, labels[r]) for i, r in enumerate(order)]
        self.numbers += len(labels)
        return order

    def remove(self, samples):  # (number, label)
        gone = dict(samples)
        outside = set(gone) - {n for n, _ in self.pending} - {n for b in self.buffers.values() for n in b[0]}
        self.pending = [p for p in self.pending if p[0] not in gone]
        for b in self.buffers.values():
            kept = [n for n in b[0] if n not in gone]
            if self.kind in ("reservoir", "class"):
                slots = list(b[0])
                for n in sorted(set(slots) & set(gone)):
                    slots[slots.index(n)] = slots[-1]
                    slots.pop()
                kept = slots
            b[1], b[2] = b[1] - len(b[0]) + len(kept), b[2] + len(b[0]) - len(kept)
            b[0] = kept
        for n in outside:
            b = self.buffers[gone[n] if self.kind == "class" else 0]
            b[1], b[3] = b[1] - 1, b[3] + 1
        slots = [n for b in self.buffers.values() for n in b[0]]
        for i, draws in enumerate(self.drawn):
            for k, n in enumerate(draws):
                if n in gone and slots:
                    x = mix(mix(self.seed + 3 & M64) ^ mix((self.batch + i) * self.old + k))
                    draws[k] = slots[x * len(slots) >> 64]
            self.drawn[i] = [n for n in draws if n not in gone]

    def add(self, n, label):
        b = self.buffers.setdefault(label if self.kind == "class" else 0, [[], 0, 0, 0])
        b[1] += 1
        random, gaps = mix(mix(self.seed + 2 & M64) ^ mix(n)), b[2] + b[3]
        if self.kind in ("all", "ring"):
            b[0] = (b[0] + [n])[-self.capacity if self.kind == "ring" else 0:]
        elif gaps:
            if random * gaps >> 64 < b[2]:
                b[0].append(n)
                b[2] -= 1
            else:
                b[3] -= 1
        elif len(b[0]) < self.capacity:
            b[0].append(n)
        elif random * b[1] >> 64 < self.capacity:
            b[0][random * b[1] >> 64] = n

    def place(self, walk, key, n):  # passes: passes that were begun, position, size
        begun, position, size = self.passes.get(walk, (0, 0, 0))
        if position == size or n != size:
            begun, position = begun + 1, 0
        self.passes[walk] = begun, position + 1, n
        return shuffle(key, begun - 1, n, position)

    def draw(self):
        filled = [(label, b[0]) for label, b in self.buffers.items() if b[0]]
        out = []
        for _ in range(min(self.old, sum(len(slots) for _, slots in filled))):
            label, slots = filled[self.place("turns", self.seed, len(filled))]
            key = self.seed ^ mix(label) if self.kind == "class" else self.seed
            out.append(slots[self.place(label, key, len(slots))])
        return out

    def next(self):
        fresh, self.pending = self.pending[:self.fresh], self.pending[self.fresh:]
        for n, label in fresh:
            self.add(n, label)
        old = self.drawn.pop(0)
        self.batch += 1
        self.drawn.append(self.draw())
        return [n for n, _ in fresh], old
