// Chunk files: chunks of a file that processes of this user have read past the page cache, in tmpfs, for the
// others.
//
// A chunk file is data, not advice.  It is made without a name, filled, and linked when all its bytes are
// there; nobody writes to it after that.  Its name tells everything that its bytes depend on, so whoever
// finds it may use it: there is no header and no lock.  A checksum of some bytes of each page is its time of
// modification; whoever opens the file verifies it.  Memory comes back by unlink(2) and with the last
// mapping, which the kernel counts: a process that is stopped or killed keeps or loses nothing of the
// others'.  No memory is used a second time, since a read of a killed process may still be writing to it.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lmdbio/base/bytes.h"
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

/// /dev/shm is the programs': a program that finds it full gets SIGBUS.  If it is smaller than this, bytes,
/// no chunk file is made; elsewhere none is made if a quarter of it would be in use then, by anybody.
inline constexpr std::uint64_t kLeastSharedMemory = std::uint64_t{256} << 20;
struct ChunkRoom {
  std::uint64_t left = 0;  ///< bytes that chunk files may take before they are needed: up to 3/16 in use
  bool crowded = false;    ///< more than half is in use: all chunk files are to go
};
/// Of the file system that has this user's chunk files; if there is none, it has no room.  One system call.
ChunkRoom chunk_room() noexcept;

/// Of `bytes`, a multiple of 2 MiB; has all its memory already, in huge pages where they can be had.
/// ENOSPC: /dev/shm has no room for it, see above.  ENOENT, EROFS, EACCES: no directory can be made in
/// /dev/shm. EPERM: /dev/shm/lmdbio-UID is not a directory of this user's alone.  EMEDIUMTYPE: not in memory.
Result<UnnamedChunk> make_chunk_file(std::size_t bytes) noexcept;
/// Gives it its checksum and its name; nobody writes to it any more.  `memory`: all of its bytes, as
/// UnnamedChunk::memory has them.  EEXIST: there is one of that name.  EBADMSG: a second mapping, which a
/// process makes of some of its files, has other bytes, and the first one may have; it has no name then.
Status link_chunk_file(const UniqueFd& fd, const ChunkName& name, Bytes memory) noexcept;
/// Its bytes, for reading, at a multiple of 2 MiB.  ENOENT: there is none.  EBADMSG: they are not those that
/// its maker had.  Errors also as make_chunk_file().
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
