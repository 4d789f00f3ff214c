// The parts of a server: what it sends and receives, and what it knows of files.  Only the source files of
// Server include this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lmdbio/serve/server.h"

namespace lmdbio::serve {

/// The longest path of a file that is served, in bytes.
inline constexpr std::size_t kMostPath = 4096;

/// Asks the home of a chunk for bytes of it.
struct Server::Question {
  node::ServedState state;
  std::uint64_t offset;
  std::uint32_t bytes, slot, number;
  std::uint32_t path_bytes;  ///< 0: the home knows the file
  char path[kMostPath];
  std::size_t size() const noexcept { return offsetof(Question, path) + path_bytes; }
};

struct Server::Answer {
  enum class Kind : std::uint32_t {
    bytes,       ///< a message on kBytes follows
    none,        ///< the home cannot bring the bytes
    other_file,  ///< the home sees another file under this path
    working,     ///< of no question: the home has finished reads since it last said so
  };
  Kind kind;
  std::uint32_t slot, number;  ///< of the question
  std::uint32_t bytes;         ///< of the message on kBytes
};

struct Server::File {
  std::string path;
  node::ServedState state;
  std::unique_ptr<HomeFile> home;
  std::optional<Status> opened;  ///< nullopt as long as it is being opened
  /// What waits for that: requests of programs to open it, and questions with the ranks that asked them.
  std::vector<node::ServiceRequests::Request> openers;
  std::deque<std::pair<Question, std::uint32_t>> questions;
  bool outdated = false;
  bool used = false;                                               ///< since the last check
  std::unordered_map<std::uint64_t, std::shared_ptr<Block>> kept;  ///< by chunk
  std::uint64_t newest = 0;                                        ///< the last chunk that a walk has reached
  unsigned in_sequence = 0;                   ///< chunks of this home that were wanted one after the other
  std::unordered_set<std::uint32_t> told;     ///< ranks that know the path
  std::unordered_set<std::uint32_t> refused;  ///< ranks whose file is another one

  bool is_usable() const noexcept { return opened && opened->ok() && !outdated; }
};

/// A question that was not answered yet.  The home need not answer it: the number tells late answers apart.
struct Server::Asked {
  std::optional<node::ServiceRequests::Request> request;
  std::uint32_t home = 0, number = 0;
  std::int64_t since = 0;  ///< time of the question, as waited_
};

template <class Message>
struct Server::Incoming {
  Message message;
  ranks::Operation op;
};

/// Bytes that are on their way.
struct Server::Arriving {
  ranks::Operation op;
  std::uint32_t slot, from;
  bool wanted;
  std::size_t size;
  std::unique_ptr<std::byte[]> bytes;
};

/// A message, and what has its bytes.
struct Server::Sending {
  ranks::Operation op;
  std::vector<std::byte> bytes;
  std::shared_ptr<const void> owner;
};

}  // namespace lmdbio::serve
