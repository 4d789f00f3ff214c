// Builds the record index of a database on all nodes together.  One rank of each node builds a part.  Each
// node gets all parts, and its ranks share one copy in shared memory.
//
// Messages.  A rank that builds a part is a leader.  Each leader sends a header to all other leaders: the
// sizes of its part, or an error.  All leaders therefore decide on the same outcome.  Then the leaders send
// each other their parts, and receive them directly into their final memory.  Each leader then sends the
// number of the shared memory to the other ranks of its node.  A rank that cannot attach this memory reports
// that, and receives a copy.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lmdbio/ranks/index_work.h"
#include "lmdbio/ranks/transport.h"
#include "lmdbio/records/index_parts.h"

namespace lmdbio::ranks {

/// Exchanges the parts of one index.  One thread.  The transport must outlive it.
class IndexExchange {
 public:
  struct Settings {
    std::span<const std::uint32_t> nodes;     ///< number of the node of each rank, from 0
    std::uint64_t records = 0;                ///< number of entries in the database's record
    std::string host, name;                   ///< names of this rank's host and of the file, for messages
    bool share = true;                        ///< share memory with the other ranks of the node
    std::shared_ptr<records::Memory> memory;  ///< counts the index; may be null
  };
  /// May throw bad_alloc.
  IndexExchange(const Settings& settings, Transport& transport);
  IndexExchange(const IndexExchange&) = delete;
  IndexExchange& operator=(const IndexExchange&) = delete;
  /// Requires closed(), unless messages fail.
  ~IndexExchange();

  /// Returns whether this rank builds a part: part `part()` of `parts()`.
  bool makes_part() const noexcept { return leader_; }
  std::uint32_t part() const noexcept { return part_; }
  std::uint32_t parts() const noexcept { return static_cast<std::uint32_t>(leaders_.size()); }

  enum class Outcome : unsigned char {
    pending,
    whole,   ///< take() returns the index
    alone,   ///< each rank builds the whole index: a leader has left, or a part is not valid
    failed,  ///< the build has failed, with the same code() and why() on all ranks
  };
  /// Sends and receives headers and parts.  Never waits.  `work` builds this rank's part, and is needed until
  /// has_part().  Null: this rank has left.  Errors are those of the transport, and are final.  May throw
  /// bad_alloc.
  Status progress(IndexWork* work);
  Outcome outcome() const noexcept { return outcome_; }
  int code() const noexcept { return code_; }
  const std::string& why() const noexcept { return why_; }
  /// Returns whether the work is no longer needed.
  bool has_part() const noexcept { return !leader_ || written_; }
  /// Returns whether the work has ended, but must not be destroyed before has_part(), since other ranks
  /// expect the part.
  bool needs_work() const noexcept { return leader_ && sent_ && !written_; }
  /// Returns the parts.  Call it once, with Outcome::whole.  Sets `keep` to the owner of their bytes.
  std::vector<records::RecordIndex> take(std::shared_ptr<const void>& keep);
  /// Returns whether there is an outcome and no message is under way.  Call progress() until this is true.
  bool closed() const noexcept;

 private:
  struct PartMessage {
    records::IndexPartSizes sizes;
    std::int32_t code = 0;
    char why[508] = "";
  };
  /// A message from a leader to the other ranks of its node.
  struct NodeMessage {
    std::uint64_t bytes = 0;   ///< size of the memory
    std::int32_t segment = 0;  ///< number of the memory; -1 if the bytes are sent
    std::int32_t code = 0;
    std::uint32_t outcome = 0;
    char why[508] = "";
  };
  /// Memory of the index: the number of parts, the sizes of each part, and the bytes of each part.
  class Storage;
  struct Leader {  ///< the leader of another node
    std::uint32_t rank = 0;
    PartMessage header;
    Operation header_in, header_out, bytes_in, bytes_out;
  };
  struct Follower {  ///< another rank of this node
    std::uint32_t rank = 0;
    std::uint8_t attached = 0;
    bool answered = false;
    Operation told, answer, bytes;
  };

  Status lead(IndexWork* work);
  Status send_header(IndexWork* work);
  Status judge(IndexWork* work);
  Status tell_followers();
  Status answer_followers();
  Status follow();
  Status check_parts() const;
  void end(Outcome outcome, int code, std::string why);
  PartMessage& header(std::uint32_t part) noexcept;

  Transport& transport_;
  const std::uint64_t records_;
  const std::string host_, name_;
  const bool share_;
  const std::shared_ptr<records::Memory> memory_;
  std::vector<std::uint32_t> leaders_;  ///< rank that builds each part
  std::uint32_t part_ = 0;
  bool leader_ = false;

  Outcome outcome_ = Outcome::pending;
  int code_ = 0;
  std::string why_;
  std::shared_ptr<Storage> storage_;

  // Only for a leader.
  PartMessage own_;
  std::vector<std::unique_ptr<Leader>> others_;
  std::vector<std::unique_ptr<Follower>> followers_;
  NodeMessage to_followers_;
  bool begun_ = false, sent_ = false, written_ = false, told_ = false;
  // Only for the other ranks.
  NodeMessage from_leader_;
  std::uint8_t attached_ = 0;
  Operation heard_, answered_, bytes_in_;
  bool answers_ = false, takes_bytes_ = false;
};

}  // namespace lmdbio::ranks
