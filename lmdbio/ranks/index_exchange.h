// Builds the record index of a database on all nodes together.  One rank of each node builds a part.  Each
// node gets all parts, and its ranks have them once, in shared memory.
//
// Messages.  Each rank that builds a part (a leader) sends a header to all other leaders: the sizes of its
// part, or an error.  So all leaders come to the same result.  Then they send each other the parts, which
// are received directly into their final memory.  Each leader then tells the other ranks of its node where
// the index is.  A rank that cannot attach that memory answers so, and receives a copy.
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

/// Exchanges the parts of one index.  One thread.  The transport outlives it.
class IndexExchange {
 public:
  struct Settings {
    std::span<const std::uint32_t> nodes;     ///< number of the node of each rank, from 0
    std::uint64_t records = 0;                ///< number of records according to the database's record
    std::string host, name;                   ///< of this rank and of the file, for messages
    bool share = true;                        ///< share memory with the ranks of the node
    std::shared_ptr<records::Memory> memory;  ///< counts the index; may be null
  };
  /// May throw bad_alloc.
  IndexExchange(const Settings& settings, Transport& transport);
  IndexExchange(const IndexExchange&) = delete;
  IndexExchange& operator=(const IndexExchange&) = delete;
  /// Requires closed(), unless messages cannot be sent any more.
  ~IndexExchange();

  /// Returns whether this rank builds a part: part `part()` of `parts()`.
  bool makes_part() const noexcept { return leader_; }
  std::uint32_t part() const noexcept { return part_; }
  std::uint32_t parts() const noexcept { return static_cast<std::uint32_t>(leaders_.size()); }

  enum class Outcome : unsigned char {
    pending,
    whole,   ///< take() returns the index
    alone,   ///< a rank that was to build a part has left: each rank builds the whole index
    failed,  ///< on all ranks, with the same code() and why()
  };
  /// Sends and receives headers and parts.  Never waits.  `work`: builds this rank's part; needed until
  /// has_part().  Null: this rank has left.  An error is one of the transport, and final.  May throw
  /// bad_alloc.
  Status progress(IndexWork* work);
  Outcome outcome() const noexcept { return outcome_; }
  int code() const noexcept { return code_; }
  const std::string& why() const noexcept { return why_; }
  /// Returns whether the work is not needed any more.
  bool has_part() const noexcept { return !leader_ || written_; }
  /// Returns whether the work is done and must stay until has_part(), since other ranks expect the part.
  bool needs_work() const noexcept { return leader_ && sent_ && !written_; }
  /// Returns the parts.  Only once, with Outcome::whole.  `keep` owns their bytes.
  std::vector<records::RecordIndex> take(std::shared_ptr<const void>& keep);
  /// Returns whether there is an outcome and no message is under way.  Until then, progress() must be
  /// called.
  bool closed() const noexcept;

 private:
  struct PartMessage {
    records::IndexPartSizes sizes;
    std::int32_t code = 0;
    char why[508] = "";
  };
  /// From a leader to the other ranks of its node.
  struct NodeMessage {
    std::uint64_t bytes = 0;   ///< size of the memory
    std::int32_t segment = 0;  ///< its number; -1: the bytes are sent
    std::int32_t code = 0;
    std::uint32_t outcome = 0;
    char why[508] = "";
  };
  /// Memory of the index: the number of parts, the sizes of each part, and the bytes of each part.
  class Storage;
  struct Leader {  ///< of another node
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
  Status read_table();
  void end(Outcome outcome, int code, std::string why);
  PartMessage& header(std::uint32_t part) noexcept;

  Transport& transport_;
  const std::uint64_t records_;
  const std::string host_, name_;
  const bool share_;
  const std::shared_ptr<records::Memory> memory_;
  std::vector<std::uint32_t> leaders_;  ///< ranks, by part
  std::uint32_t part_ = 0;
  bool leader_ = false;

  Outcome outcome_ = Outcome::pending;
  int code_ = 0;
  std::string why_;
  std::shared_ptr<Storage> storage_;
  std::vector<records::RecordIndex> index_;

  // Of a leader.
  PartMessage own_;
  std::vector<std::unique_ptr<Leader>> others_;
  std::vector<std::unique_ptr<Follower>> followers_;
  NodeMessage to_followers_;
  bool begun_ = false, sent_ = false, written_ = false, told_ = false;
  // Of the other ranks.
  NodeMessage from_leader_;
  std::uint8_t attached_ = 0;
  Operation heard_, answered_, bytes_in_;
  bool answers_ = false, takes_bytes_ = false;
};

}  // namespace lmdbio::ranks
