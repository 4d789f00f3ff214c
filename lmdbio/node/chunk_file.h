// Chunk files: chunks of a file that processes of this user have read past the page cache, in tmpfs, for the
// others.
//
// A chunk file is data, not advice.  It is made without a name, filled, and linked when all its bytes are
// there; nobody writes to it after that.  Its name tells everything that its bytes depend on, so whoever
// finds it may use it: there is no header and no lock.  Memory comes back by unlink(2) and with the last
// mapping, which the kernel counts: a process that is stopped or killed keeps or loses nothing of the
// others'.  No memory is used a second time, since a read of a killed process may still be writing to it.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lmdbio/base/mapping.h"
#include "lmdbio/base/result.h"
#include "lmdbio/base/unique_fd.h"

namespace lmdbio::node {

/// Which bytes a chunk file has, and who made it.
struct ChunkName {
  std::uint64_t life = 0;  ///< Row::life of its maker
  std::array<std::uint64_t, 2>
      state{};  ///< of the file's contents, its snapshot included; of the chunk's length
  std::uint32_t chunk = 0;
  friend bool operator==(const ChunkName&, const ChunkName&) = default;
};

/// A chunk file that nobody else can find yet.  Goes with the last of its descriptor and its mappings.
struct UnnamedChunk {
  UniqueFd fd;
  Mapping memory;  ///< of all its bytes, for reading and writing, at a multiple of 2 MiB
};

/// Of `bytes`, a multiple of 2 MiB; has all its memory already, in huge pages where they can be had.
/// ENOSPC: no room for it and as much again.  ENOENT, EROFS, EACCES: no directory can be made in /dev/shm.
/// EPERM: /dev/shm/lmdbio-UID is not a directory of this user's alone.  EMEDIUMTYPE: not in memory.
Result<UnnamedChunk> make_chunk_file(std::size_t bytes) noexcept;
/// All of its bytes are there; nobody writes to it any more.  EEXIST: there is one of that name.
Status link_chunk_file(const UniqueFd& fd, const ChunkName& name) noexcept;
/// Its bytes, for reading, at a multiple of 2 MiB.  ENOENT: there is none.  Errors also as make_chunk_file().
Result<Mapping> open_chunk_file(const ChunkName& name, std::size_t bytes) noexcept;
/// Whoever has it mapped keeps it.  Any thread; the others are for threads whose descriptors no program
/// closes.
Status unlink_chunk_file(const ChunkName& name) noexcept;

/// Chunk files of this user.
struct ListedChunk {
  ChunkName name;
  std::uint64_t bytes;  ///< of memory
  bool dead;            ///< its maker does not live any more
};
/// May throw bad_alloc.
std::vector<ListedChunk> list_chunk_files();
/// Removes those whose makers do not live any more, and the directory if it is empty; returns how many.
std::size_t remove_dead_chunk_files() noexcept;
/// The same of the one that has that life.
void remove_chunk_files_of(std::uint64_t life) noexcept;

}  // namespace lmdbio::node
