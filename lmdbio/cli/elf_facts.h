// Facts about an ELF file that decide whether a preloaded library can reach it.
#pragma once

namespace lmdbio::cli {

struct ElfFacts {
  bool elf = false;          ///< an ELF file; the rest is false if it is not, or if it is damaged
  bool native = false;       ///< for this word size, byte order and machine
  bool interpreter = false;  ///< loaded by a dynamic loader
  bool defines_lmdb =
      false;  ///< LMDB is linked into it: found in its symbol tables, or, if stripped, by LMDB's messages
};

/// Reads the facts from the open file `fd`.
ElfFacts read_elf(int fd);

}  // namespace lmdbio::cli
