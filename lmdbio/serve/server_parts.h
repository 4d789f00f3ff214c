// The parts of a server: what it sends and receives, and what it knows of files.  Only the source files of
// Server include this.
#pragma once

#include <algorithm>
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

#include "lmdbio/serve/messages.h"
#include "lmdbio/serve/server.h"

namespace lmdbio::serve {

struct Server::File {
  std::string path;
  node::ServedState state;
  std::unique_ptr<HomeFile> home;
  std::optional<Status> opened;  ///< nullopt as long as it is being opened
  /// What waits for that: requests of programs to open it, and questions with the ranks that asked them.
  std::vector<node::ServiceRequests::Request> openers;
  std::deque<std::pair<Question, std::uint32_t>> questions;
  bool outdated = false;
  bool used = false;  ///< since the last check
  using Blocks = std::unordered_map<std::uint64_t, std::shared_ptr<Block>>;
  Blocks kept;      ///< by chunk
  Blocks unpacked;  ///< blocks that were decompressed; `kept` has them as they came from local disk
  /// What other homes have sent for programs of this node, by offset: multiples of node::kServiceBytes.
  std::unordered_map<std::uint64_t, std::pair<Bytes, std::shared_ptr<const void>>> copies;
  std::int64_t asked = 0;    ///< when a program has asked for bytes that could be copied, as waited_
  std::uint64_t newest = 0;  ///< the last chunk that a walk has reached
  unsigned in_sequence = 0;  ///< chunks of this home that were wanted one after the other
  std::unordered_set<std::uint32_t> told;     ///< ranks that know the path
  std::unordered_set<std::uint32_t> refused;  ///< ranks whose file is another one

  std::uint64_t bytes_in(std::uint64_t chunk) const noexcept {
    return std::min(kChunkBytes, home->size() - chunk * kChunkBytes);
  }
  bool is_usable() const noexcept { return opened && opened->ok() && !outdated; }
};

/// The servers that want some bytes of this home.
struct Server::Spread {
  const File* file;
  std::uint64_t offset;
  std::size_t bytes;
  std::int64_t asked;                  ///< when the last one has asked, CLOCK_MONOTONIC in ns
  std::vector<std::uint32_t> holders;  ///< in the order of their questions
};

/// Bytes of another home, for servers to which the home names this one.
struct Server::Relay {
  const File* file;
  std::uint64_t offset;
  Bytes bytes;
  std::shared_ptr<const void> owner;
};

/// A server that waits for bytes which this one has asked for.
struct Server::Follower {
  const File* file;
  std::uint64_t offset;
  std::size_t bytes;
  std::uint32_t rank, slot, number;
};

/// A question that was not answered yet.  The home need not answer it: the number tells late answers apart.
struct Server::Asked {
  std::optional<node::ServiceRequests::Request> request;
  std::uint32_t home = 0, number = 0;  ///< home: or the server that it has named
  Question::To to = Question::To::home;
  std::int64_t since = 0;  ///< time of the question, as waited_
};

/// A receive of a message with questions or answers.
struct Server::Incoming {
  std::unique_ptr<std::byte[]> bytes;  ///< kMessageBytes
  ranks::Operation op;
};

/// Bytes that are on their way.
struct Server::Arriving {
  ranks::Operation op;
  bool begun;  ///< the receive
  std::uint32_t slot, from;
  bool wanted;
  std::size_t size;
  bool is_packed;
  std::unique_ptr<std::byte[]> bytes;
};

/// A message that is being collected for another server.  Messages of the channels are sent by flush().
struct Server::Outgoing {
  std::vector<std::byte> entries;
  std::uint64_t bytes = 0;  ///< that the entries ask for, or that follow them
  /// Bytes that follow, one message for each, and what has them.
  std::vector<std::pair<Bytes, std::shared_ptr<const void>>> following;
};

/// A message, and what has its bytes.
struct Server::Sending {
  ranks::Operation op;
  std::vector<std::byte> bytes;
  std::shared_ptr<const void> owner;
};

}  // namespace lmdbio::serve
