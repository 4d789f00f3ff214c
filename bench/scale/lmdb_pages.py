"""Reads the pages of an LMDB file without LMDB and without LMDBIO's code, for tests.  docs/format.md describes the format."""
import struct
from collections import namedtuple

PAGE = 4096
BRANCH, LEAF, BIG = 1, 2, 1  # flags of pages, and of nodes

# The place of a value, in bytes.  `leaf`: index of the leaf page with its node.
Record = namedtuple("Record", "leaf offset bytes")


class Tree:
    """The main database.  `levels`: page numbers of the branch pages, from the root down.  `leaves`: page numbers of the leaf pages, in
    key order.  For each leaf page, `ancestors` has the branch pages above it, and `counts` its number of records.  `data_pages`:
    number of leaf and overflow pages according to the file."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        self.file_bytes = len(self.data)
        meta = max((0, 1), key=lambda n: self._u64(n * PAGE + 144)) * PAGE
        magic, page_size = self._u32(meta + 16), self._u32(meta + 40)
        depth = struct.unpack_from("<H", self.data, meta + 88 + 6)[0]
        _, leaf_pages, overflow_pages, entries, root = struct.unpack_from("<5Q", self.data, meta + 88 + 8)
        assert magic == 0xBEEFC0DE and page_size == PAGE
        self.data_pages = leaf_pages + overflow_pages
        self.levels, level = [], [(root, ())]
        for _ in range(depth - 1):
            self.levels.append([number for number, _ in level])
            level = [(child, above + (number,)) for number, above in level for child in self._children(number)]
        self.leaves = [number for number, _ in level]
        self.ancestors = [above for _, above in level]
        self.records, self.counts = [], []
        for leaf, number in enumerate(self.leaves):
            found = [self._record(leaf, node) for node in self._nodes(number, LEAF)]
            self.counts.append(len(found))
            self.records += found
        assert len(self.records) == entries and len(self.leaves) == leaf_pages
        del self.data

    def _u32(self, at):
        return struct.unpack_from("<I", self.data, at)[0]

    def _u64(self, at):
        return struct.unpack_from("<Q", self.data, at)[0]

    def _nodes(self, number, kind):
        """Returns the file offsets of the nodes of a page."""
        at = number * PAGE
        own, _, flags, lower = struct.unpack_from("<Q3H", self.data, at)
        assert own == number and flags & 3 == kind
        return [at + slot for slot in struct.unpack_from(f"<{(lower - 16) // 2}H", self.data, at + 16)]

    def _children(self, number):
        for node in self._nodes(number, BRANCH):
            low, high, flags = struct.unpack_from("<3H", self.data, node)
            yield low | high << 16 | flags << 32

    def _record(self, leaf, node):
        low, high, flags, key_bytes = struct.unpack_from("<4H", self.data, node)
        data = node + 8 + key_bytes
        return Record(leaf, self._u64(data) * PAGE + 16 if flags & BIG else data, low | high << 16)
