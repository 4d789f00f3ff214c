// The record index of a database, made by all nodes together: one rank of each node makes a part, all nodes
// get all parts, and the ranks of a node have them once, in shared memory.
//
// Messages.  Each rank that makes a part sends a header to all others that do: the sizes of its part, or what
// is wrong.  So all of them come to the same result, and the parts follow, straight to where they stay.  Then
// each tells the other ranks of its node where the index is; a rank that cannot attach that memory answers
// so, and gets the bytes.
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

/// One thread.  The transport outlives it.
class IndexExchange {
 public:
  struct Settings {
    std::span<const std::uint32_t> nodes;     ///< the number of the node of each rank, from 0
    std::uint64_t records = 0;                ///< that the database's record gives
    std::string host, name;                   ///< of this rank, and of the file: for messages
    bool share = true;                        ///< memory with the ranks of the node
    std::shared_ptr<records::Memory> memory;  ///< that the index is counted in; may be null
  };
  /// May throw bad_alloc.
  IndexExchange(const Settings& settings, Transport& transport);
  IndexExchange(const IndexExchange&) = delete;
  IndexExchange& operator=(const IndexExchange&) = delete;
  /// Only when closed(), or if no message can be sent any more.
  ~IndexExchange();

  /// This rank makes part `part()` of `parts()`.
  bool makes_part() const noexcept { return leader_; }
  std::uint32_t part() const noexcept { return part_; }
  std::uint32_t parts() const noexcept { return static_cast<std::uint32_t>(leaders_.size()); }

  enum class Outcome : unsigned char {
    pending,
    whole,   ///< take() has it
    alone,   ///< a rank that was to make a part has left: each rank makes the index for itself
    failed,  ///< the same on all ranks: code() and why()
  };
  /// Never waits.  `work`: of this rank's part, until has_part(); null: this rank has left.  An error is the
  /// transport's, and final.  May throw bad_alloc.
  Status progress(IndexWork* work);
  Outcome outcome() const noexcept { return outcome_; }
  int code() const noexcept { return code_; }
  const std::string& why() const noexcept { return why_; }
  /// The work is not needed any more.
  bool has_part() const noexcept { return !leader_ || written_; }
  /// The work is done and must not go before has_part(): others count on the part.
  bool needs_work() const noexcept { return leader_ && sent_ && !written_; }
  /// Once it is whole: the parts, and what their bytes need to live.
  std::vector<records::RecordIndex> take(std::shared_ptr<const void>& keep);
  /// There is an outcome, and nothing is under way; until then progress() is to be called.
  bool closed() const noexcept;

 private:
  struct PartMessage {
    records::IndexPartSizes sizes;
    std::int32_t code = 0;
    char why[508] = "";
  };
  /// To the other ranks of a node.
  struct NodeMessage {
    std::uint64_t bytes = 0;   ///< of the memory
    std::int32_t segment = 0;  ///< its number; -1: the bytes come
    std::int32_t code = 0;
    std::uint32_t outcome = 0;
    char why[508] = "";
  };
  /// What the index takes: how many parts, the sizes of each, and the bytes of each.
  class Storage;
  struct Leader {  ///< that makes another part
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

  // Of a rank that makes a part.
  PartMessage own_;
  std::vector<std::unique_ptr<Leader>> others_;
  std::vector<std::unique_ptr<Follower>> followers_;
  NodeMessage to_followers_;
  bool begun_ = false, sent_ = false, written_ = false, told_ = false;
  // Of another one.
  NodeMessage from_leader_;
  std::uint8_t attached_ = 0;
  Operation heard_, answered_, bytes_in_;
  bool answers_ = false, takes_bytes_ = false;
};

}  // namespace lmdbio::ranks
