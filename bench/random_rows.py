"""The rows of bench/random, and their goals."""
import dataclasses

from measure import shown_size

K = 1024


@dataclasses.dataclass(frozen=True)
class Goal:
    """A goal of a reader: `what` is `relation` `local` (on a slow file system: `slow`); None: no goal there.  `what`: "stock" or
    "ring" is the speed as a multiple of theirs; "fetched" is bytes.  `relation`: "at least" and "at most" are for medians;
    "not below": no interval (without one: no median) is below the number."""
    reader: str
    what: str
    local: float | None
    slow: float | None
    relation: str = "at least"

    def text(self, value):
        return {"stock": "x stock", "ring": "x ring", "fetched": "fetched / needed"}[self.what] + f" {self.relation} {value:g}"

    def met(self, value, got):
        if self.relation == "at most":
            return got["median"] <= value
        if self.relation == "not below":
            return (got["median"] if got["high"] is None else got["high"]) >= value
        return got["median"] >= value


@dataclasses.dataclass(frozen=True)
class Row:
    """kind: "get" (lookups in a random order), "walk" (in order, each stride-th record), "order" (all, in order)."""
    name: str
    what: str
    kind: str
    value_bytes: int
    readers: tuple
    goals: tuple = ()
    count: int = 0  # lookups; 0: all records
    order: str = "list"  # order of the reader
    batch: int = 64
    stride: int = 1
    until: float | None = None  # the walk uses all records from this part of the database on
    memory: int | None = None  # size of the file / memory limit
    usual: bool = True


PLAIN = ("stock", "control", "nordahead", "ours", "ring")
GIVEN = ("stock", "control", "reader", "keys", "ring")
PREFETCHED = ("stock", "control", "prefetch", "ring")
IN_ORDER = ("stock", "control", "reader", "ring")
ROWS = [
    Row("order-110K", "reader, batches in order", "order", 110 * K, IN_ORDER, (Goal("reader", "ring", 0.9, 0.9),),
        order="sequential"),
    Row("order-3K", "reader, batches in order", "order", 3 * K, IN_ORDER, (Goal("reader", "ring", 0.9, 0.9),),
        order="sequential", batch=256),
    Row("given-110K", "reader, a random order given", "get", 110 * K, GIVEN, (Goal("reader", "stock", 15, 60),), 1000),
    Row("given-3K", "reader, a random order given", "get", 3 * K, GIVEN, (Goal("reader", "stock", 6, None),), 2000, batch=256),
    Row("prefetch-110K", "lmdbio_prefetch, then mdb_get", "get", 110 * K, PREFETCHED,
        (Goal("prefetch", "stock", 10, 12),), 1000),
    Row("prefetch-3K", "lmdbio_prefetch, then mdb_get", "get", 3 * K, PREFETCHED, count=2000),
    Row("lookup-110K", "mdb_get, memory for the file", "get", 110 * K, PLAIN, (Goal("ours", "stock", 1.5, 4),), 1000),
    Row("lookup-3K", "mdb_get, memory for the file", "get", 3 * K, PLAIN, (Goal("ours", "stock", 1.5, 4),), 2000),
    Row("tight-110K", "mdb_get, memory for a quarter of the file", "get", 110 * K, PLAIN,
        (Goal("ours", "stock", 1.3, 1.3),), 1000, memory=4),
    Row("tight-3K", "mdb_get, memory for a quarter of the file", "get", 3 * K, PLAIN,
        (Goal("ours", "stock", 0.97, 0.97, "not below"),), 2000, memory=4),
    Row("stride8-192K", "MDB_NEXT, each 8th value used", "walk", 192 * K, (*PLAIN, "reader"),
        (Goal("ours", "fetched", 1.15, 1.15, "at most"), Goal("ours", "stock", None, 2)), order="strided", stride=8),
    Row("stride8-12K", "MDB_NEXT, each 8th value used: too small to tell", "walk", 12 * K, (*PLAIN, "reader"),
        (Goal("ours", "stock", 0.97, 0.97, "not below"),), order="strided", stride=8, batch=256),
    Row("turn-192K", "MDB_NEXT, each 8th value used, from half of the file on all", "walk", 192 * K,
        ("stock", "control", "ours", "ring"), (Goal("ours", "stock", 0.97, 0.97, "not below"),), stride=8, until=0.5),
    Row("epoch-110K", "reader, its own shuffle of all records", "get", 110 * K, ("stock", "control", "reader"),
        order="shuffle", usual=False),
]


def judge(row, reader, slow, got):
    """Returns the goals of a reader, and whether it reaches them."""
    asked = []
    for g in row.goals:
        value = g.slow if slow else g.local
        if g.reader != reader or value is None:
            continue
        met = g.met(value, got[g.what]) if got[g.what] is not None else None
        asked.append({"what": g.what, "relation": g.relation, "value": value, "met": met,
                      "text": f"{g.text(value)}: {'?' if met is None else 'yes' if met else 'NO'}"})
    return asked


def listed():
    lines = []
    for r in ROWS:
        count = f"{r.count} lookups" if r.count else "all records"
        lines.append(f"{r.name}: {r.what}; values of {shown_size(r.value_bytes)}, {count}"
                     + ("" if r.usual else "; only when it is named"))
        for g in r.goals:
            for where, value in (("local", g.local), ("slow", g.slow)):
                if value is not None:
                    lines.append(f"    asked of {g.reader}, {where}: {g.text(value)}")
    return "\n".join(lines)
