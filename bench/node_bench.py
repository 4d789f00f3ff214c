"""Common part of bench/node and bench/factors: a run of several processes that read one database, and its checks."""
import os

import cold_bench
from measure import Failed
from node_ranks import Ranks

STOCK = ("stock", "control")  # readers without the library
BACKEND = "backend"           # the reader with Caffe's backend
CAFFE = ("caffe", "caffe-shuffled")  # patterns of run_caffe


class NodeBench(cold_bench.ColdBench):
    def __init__(self, args):
        super().__init__(args)
        self.timeout_s = args.timeout
        self.digests = {}  # checksums of databases

    @staticmethod
    def records(database):
        return int(database.rsplit("-", 1)[1])

    @staticmethod
    def reading_program(backend, pattern):
        if pattern in CAFFE:
            return "run_caffe_lmdbio" if backend == BACKEND else "run_caffe_lmdb"
        return "run_node"

    def read(self, backend, where, database, pattern, procs, options=(), extra=None):
        """Makes one run.  Returns the seconds of its epochs and of the closing, and the use of its processes.  `where`: a set-up of
        cold_files; the processes run in its `inside` if it has one.  `options`: more options of run_node.  `extra`: environment."""
        command = [self.program(self.reading_program(backend, pattern)), os.path.join(where.dir, database), "--pattern", pattern, "--records",
                   str(self.records(database)), "--procs", str(procs), "--epochs", str(self.args.epochs), "--seed",
                   str(self.args.seed), *options]
        inside = getattr(where, "inside", list)
        ours = backend not in STOCK
        other = {"env": self.environment(ours, extra)}
        if backend == BACKEND:
            other["env"].pop("LD_PRELOAD", None)
        if self.args.uid is not None:
            other |= {"user": self.args.uid, "group": self.args.uid, "extra_groups": []}
        epochs, told = [], where.told()
        with Ranks([inside([*command, "--rank", str(r)]) for r in range(procs)], self.labels[backend], self.timeout_s,
                   **other) as ranks:
            for library in ranks.libraries:
                self.goes_to(backend, ours, library)
            for _ in range(self.args.epochs):
                begin, lines = ranks.epoch()
                before, told = told, where.told()
                last = max(line["end_ns"] for line in lines)
                epochs.append(self.phase((last - begin) / 1e9, lines, before, told))
            lines = ranks.end()
            close = self.phase((max(line["end_ns"] for line in lines) - last) / 1e9, lines, told, where.told())
            if said := ranks.said():
                self.note(f"{self.labels[backend]} says: {said.splitlines()[0]}")
        return {"epochs": epochs, "close": close}

    @staticmethod
    def phase(seconds, lines, before, told):
        def total(what):
            return sum(line.get(what, 0) for line in lines)

        requests = told["requests"] - before["requests"] if told else None
        stored = told["request_bytes"] - before["request_bytes"] if told else total("read_bytes")
        return {"seconds": seconds, "bytes": total("bytes"), "records": total("records"),
                "shares": [[line["records"], line["bytes"], line["digest"]] for line in lines if "digest" in line],
                "cpu_s": total("user_s") + total("system_s"),
                "thread_voluntary_switches": total("thread_voluntary_switches"),
                "voluntary_switches": total("voluntary_switches"), "storage_bytes": stored, "requests": requests,
                "rank_seconds": [(line["end_ns"] - line["begin_ns"]) / 1e9 for line in lines if "begin_ns" in line]}

    def compare(self, backend, result, database, pattern):
        """Raises Failed unless in each epoch all processes together (pattern `all`: each process) have read all records.  The bytes
        must be the same for all readers and patterns of the database."""
        records, value_bytes = self.records(database), self.databases[database]["value_bytes"]
        for i, epoch in enumerate(result["epochs"]):
            shares = epoch["shares"]
            for share in shares if pattern == "all" else [[sum(column) for column in zip(*shares)]]:
                read, digest = tuple(share[:2]), share[2] % (1 << 64)
                where = f"{self.labels[backend]}, epoch {i + 1}"
                if read != (records, records * value_bytes):
                    raise Failed(f"{where}: {read[0]} records of {records}, {read[1]} bytes of {records * value_bytes}")
                if digest != self.digests.setdefault(database, digest):
                    raise Failed(f"{where}: other bytes: checksum {digest:016x}, not {self.digests[database]:016x}")
