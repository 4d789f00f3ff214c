// The docstring of Python's class Reader.
#pragma once

namespace lmdbio::python {

inline constexpr const char* kReaderDoc =
    "One snapshot of one database: what was committed when the reader was opened.  Or several databases\n"
    "as one, with the records of the first one first.  These must not be changed while they are read.\n\n"
    "path: the directory that contains data.mdb, or a data file, or a sequence of such paths.\n"
    "database: the name of a database;\n"
    "None: the main one.  memory: upper limit in bytes for what the reader reads ahead and for the\n"
    "batches that the program holds, at least 1 MiB; None: LMDBIO_MEMORY.  lock: False: as\n"
    "MDB_NOLOCK, for databases that are not written; several databases are always opened in this way.\n"
    "index_file: False: do not look for an index file.  exclude, exclude_prefixes: keys of records that\n"
    "the reader leaves out, and beginnings of such keys.\n\n"
    "The keyword bytes_as of the methods is the form of keys and values: \"view\": memoryviews of the\n"
    "library's memory.  \"bytes\": bytes objects, which do not count in `memory`.  \"mapped\": "
    "memoryviews;\n"
    "in streams, of the mapped file where records are in the page cache, which is fastest.  As with LMDB,\n"
    "the process ends by SIGBUS if the file is truncated while such views are used.\n\n"
    "Any number of threads may use a reader.  After a fork, the child opens its own.\n"
    "Raises FileNotFoundError and other OSErrors, CorruptedError, KeyError (no such database),\n"
    "MemoryError, and Error if LMDBIO does not serve the file.";

}  // namespace lmdbio::python
