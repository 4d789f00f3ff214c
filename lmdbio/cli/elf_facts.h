// What an ELF file says of whether a preloaded library can reach it.
#pragma once

namespace lmdbio::cli {

struct ElfFacts {
  bool elf = false;          ///< an ELF file at all; the rest is false if not, or if it is damaged
  bool native = false;       ///< of this word size, byte order and machine
  bool interpreter = false;  ///< loaded by a dynamic loader
  bool defines_lmdb =
      false;  ///< LMDB is part of it: its symbol tables say so, or, stripped, LMDB's messages in it
};

/// Of an open file.
ElfFacts read_elf(int fd);

}  // namespace lmdbio::cli
