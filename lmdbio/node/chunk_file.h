// Chunk files: chunks of a database file in tmpfs, which one process has read past the page cache for all
// processes of its user.
//
// The bytes of a chunk file are used as data, unlike the node table, which is only advice.  A process makes
// the file without a name, fills it, and links it when all its bytes are there.  No process writes to it
// after that.  Its name identifies everything that its bytes depend on, so a process that finds it may use
// it: there is no header and no lock.  Its modification time is a checksum of some bytes of each page, and
// each open verifies it.  The kernel counts the mappings, and frees the memory after unlink(2) and the end of
// the last mapping.  A process that is stopped or killed therefore neither keeps nor loses memory of the
// others.  Memory is not reused for another chunk, since a read of a killed process may still be writing to
// it.
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

/// Identifies the bytes of a chunk file, and the process that made it.
struct ChunkName {
  std::uint64_t life = 0;                ///< Row::life of its maker
  std::array<std::uint64_t, 2> state{};  ///< identifies file contents, snapshot and length of the chunk
  std::uint32_t chunk = 0;
  friend bool operator==(const ChunkName&, const ChunkName&) = default;
};

/// A chunk file that other processes cannot find yet.  The kernel frees it when its descriptor and all its
/// mappings are closed.
struct UnnamedChunk {
  UniqueFd fd;
  Mapping memory;  ///< all its bytes, readable and writable, at a multiple of 2 MiB
};

/// The minimum size of /dev/shm for chunk files, in bytes.  If /dev/shm is smaller, no chunk file is made.
/// Otherwise, none is made if more than a quarter of /dev/shm would then be in use, by any process.  The rest
/// is left to the programs, which get SIGBUS if /dev/shm is full.
inline constexpr std::uint64_t kLeastSharedMemory = std::uint64_t{256} << 20;
struct ChunkRoom {
  std::uint64_t left = 0;  ///< bytes that chunk files may take ahead of need, up to 3/16 of /dev/shm in use
  bool crowded = false;    ///< more than half is in use: all chunk files must be removed
};
/// Returns the room in the file system that has this user's chunk files.  Returns no room if there are no
/// chunk files.  Makes one system call.
ChunkRoom chunk_room() noexcept;

/// Makes a chunk file of `bytes`, a multiple of 2 MiB, with all its memory allocated, in huge pages if
/// possible.  Errors: ENOSPC if /dev/shm has no room for it, see above; ENOENT, EROFS or EACCES if no
/// directory can be made in /dev/shm; EPERM if /dev/shm/lmdbio-UID is not a directory of this user alone;
/// EMEDIUMTYPE if that directory is not in memory.
Result<UnnamedChunk> make_chunk_file(std::size_t bytes) noexcept;
/// Gives the file its checksum and its name.  From then on, no process writes to the file.  `memory`: all its
/// bytes, as in UnnamedChunk::memory.  Maps some of the files of this process a second time and verifies
/// them.  Errors: EEXIST if the name exists already; EBADMSG if the second mapping has other bytes.  The
/// first mapping may then have wrong bytes, too, and the file has no name.
Status link_chunk_file(const UniqueFd& fd, const ChunkName& name, Bytes memory) noexcept;
/// Maps the bytes of a chunk file for reading, at a multiple of 2 MiB.  Errors: ENOENT if there is none;
/// EBADMSG if the bytes are not those of its maker; others as make_chunk_file().
Result<Mapping> open_chunk_file(const ChunkName& name, std::size_t bytes) noexcept;
/// Removes the name of a chunk file.  Processes that have it mapped keep it.  Any thread.  The other
/// functions need a thread whose descriptors the program cannot close.
Status unlink_chunk_file(const ChunkName& name) noexcept;

/// A chunk file of this user.
struct ListedChunk {
  ChunkName name;
  std::uint64_t bytes;  ///< of memory
  bool dead;            ///< its maker has ended
};
/// Lists the chunk files of this user.  May throw bad_alloc.
std::vector<ListedChunk> list_chunk_files();
/// Removes the chunk files whose makers have ended, and the directory if it is empty.  Returns how many
/// files it removed.
std::size_t remove_dead_chunk_files() noexcept;
/// Removes the chunk files of the process with that Row::life, and the directory if it is empty.
void remove_chunk_files_of(std::uint64_t life) noexcept;

}  // namespace lmdbio::node
