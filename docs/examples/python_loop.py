"""Reads all records of a database in a shuffled order, each once.

    python3 python_loop.py PATH [SEED]

PATH is an environment's directory or data file.  Prints how many records there are, their bytes and a checksum that does not
depend on the order.
"""
import sys
import zlib

import lmdbio


def main(path, seed=0):
    records = size = check = 0
    reader = lmdbio.Reader(path)
    for batch in reader.stream(lmdbio.Order.shuffled(seed, batch=64)):
        for key, value in batch:  # memoryviews: nothing is copied
            records, size, check = records + 1, size + len(value), check ^ zlib.crc32(value, zlib.crc32(key))
        del key, value, batch  # the library can use their memory for the next batch
    print(f"{records} records, {size} bytes, {check:08x}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python_loop.py PATH [SEED]")
    main(sys.argv[1], *map(int, sys.argv[2:]))
