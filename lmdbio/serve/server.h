// The server of a node.  It answers the requests of the node's programs for bytes of database files.  Each
// chunk of a file has a home: one of the servers, which reads the chunk from the file system, once for all
// nodes, and keeps it in memory.  The other servers get the bytes that their programs want from the home.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lmdbio/node/service.h"
#include "lmdbio/ranks/transport.h"
#include "lmdbio/serve/home_files.h"
#include "lmdbio/serve/messages.h"

namespace lmdbio::serve {

/// Bytes of a chunk.  A home reads whole chunks, as long as it has memory for them.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{4} << 20;

/// Returns the home of a chunk: of `ranks` chunks in a row, each has another home.
std::uint32_t home_of(const node::ServedState& file, std::uint64_t chunk, std::uint32_t ranks) noexcept;

/// One thread.  All functions but the constructor may throw bad_alloc.
class Server {
 public:
  struct Settings {
    std::uint64_t memory = 0;  ///< for chunks, in bytes
    /// A home that neither answers nor says that it works for so long, in ns, is not asked for a while.
    std::int64_t patience = 700'000'000;
    std::int64_t (*now)() noexcept = nullptr;  ///< CLOCK_MONOTONIC in ns
    /// The part of the memory for what other homes have sent, in bytes.  Files that are larger are not kept.
    std::uint64_t copies = 0;
  };
  /// All arguments must outlive the server.
  Server(node::ServiceRequests& programs, ranks::Transport& transport, HomeFiles& files,
         const Settings& settings) noexcept;
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Starts to accept requests of other servers.  Call it once.
  Status start();
  /// Accepts no more requests of programs.  Answers those of other servers as long as step() is called.
  void begin_end() noexcept { ending_ = true; }
  /// Returns whether nothing is under way: no message to or from other servers that is known here, and no
  /// read.
  bool has_ended() const noexcept;
  /// Gives up the receives of messages, once has_ended() is true for all servers.  Returns whether the
  /// transport has none any more; call it until then, without step().  If that does not come true, neither
  /// this object nor the transport may be destroyed.
  bool end();
  /// Advances everything.  Never waits.  Returns an error of the transport; programs are then served from
  /// this node's file system only.
  Status step();
  /// Returns whether something is under way: call step() again soon.
  bool is_busy() const noexcept;
  /// Returns whether bytes of this node's part are left to be stored on local disk.
  bool is_storing() const noexcept;
  /// Returns whether the last step() has advanced something: call it again at once.
  bool has_advanced() const noexcept { return has_advanced_; }
  /// Returns whether step() takes requests of programs.  It does not while too many bytes are being read.
  bool accepts() const noexcept { return !ending_ && may_accept(); }
  const node::ServiceCounts& counts() const noexcept { return counts_; }

 private:
  struct File;
  struct Asked;
  struct Incoming;
  struct Outgoing;
  struct Arriving;
  struct Sending;
  struct Spread;
  struct Relay;
  struct Follower;
  enum Channel : unsigned;
  /// A request that waits for a block: of a program, or of another server.
  struct Waiting {
    node::ServiceRequests::Request request;  ///< only of a program
    std::uint32_t rank, slot, number;        ///< only of another server
    Question::To to;                         ///< only of another server
    File* file;
    std::shared_ptr<Block> block;
    std::uint64_t offset;
    std::size_t bytes;
  };

  void accept_program(const node::ServiceRequests::Request& request);
  void accept_question(Question question, std::uint32_t from);
  void answer_question(File& file, const Question& question, std::uint32_t from);
  Status accept_answer(const Answer& answer, std::uint32_t from);
  File* find_or_open(const std::string& path, const node::ServedState& state);
  void advance(File& file);
  void look_at(File& file);
  void finish_open(const node::ServiceRequests::Request& request, const File& file);
  bool read_here(Waiting waiting, bool is_home);
  void count(const Block& block, std::uint64_t bytes) noexcept;
  Result<std::shared_ptr<Block>> read_chunk(File& file, std::uint64_t chunk);
  bool has_room(const File& file, std::uint64_t chunk) const noexcept;
  void read_ahead(File& file, std::uint64_t chunk);
  void ask(const node::ServiceRequests::Request& request, std::uint32_t server, Question::To to);
  void accept_no(Asked& asked, const Answer& answer, std::uint32_t from);
  void read_alone(unsigned slot);
  enum class Form : unsigned char { plain, packed };
  void give_program(unsigned slot, Bytes bytes, Form form);
  void give(const Waiting& waiting);
  bool unpack(Waiting waiting);
  void forget(File& file, const std::shared_ptr<Block>& block) noexcept;
  void answer(std::uint32_t rank, Answer answer, Bytes bytes, std::shared_ptr<const void> owner);
  std::uint64_t relay_memory() const noexcept;
  std::optional<std::uint32_t> name_holder(const File& file, const Question& question, std::uint32_t from,
                                           bool has_bytes);
  void ask_holder(const Asked& asked, std::uint32_t holder);
  void ask_home_again(unsigned slot);
  void answer_as_holder(const Question& question, std::uint32_t from);
  void answer_followers(const node::ServiceRequests::Request& request, Bytes bytes,
                        const std::shared_ptr<const void>& owner);
  bool give_copy(const node::ServiceRequests::Request& request, File& file);
  void keep_copy(File& file, std::uint64_t offset, Bytes bytes, const std::shared_ptr<const void>& owner);
  void drop_copies(File& file) noexcept;
  bool drop_oldest_copies(const File* but) noexcept;
  void keep_for_others(const node::ServiceRequests::Request& request, std::unique_ptr<std::byte[]> bytes,
                       std::size_t size);
  template <class Accept>
  Status take(std::deque<Incoming>& incoming, Channel channel, Accept&& accept);
  Status receive(Incoming& incoming, Channel channel);
  Status receive_bytes();
  template <class Entry>
  Outgoing& outgoing(std::uint32_t rank, Channel channel, const Entry& entry, std::uint64_t bytes);
  void flush(std::uint32_t rank, Channel channel, Outgoing& message);
  bool may_accept() const noexcept;
  void show_work(std::int64_t now);

  node::ServiceRequests& programs_;
  ranks::Transport& transport_;
  HomeFiles& home_;
  const Settings settings_;
  Status failed_;  ///< of the transport
  std::vector<std::unique_ptr<File>> files_;
  std::deque<Incoming> questions_, answers_;
  std::map<std::pair<std::uint32_t, Channel>, Outgoing> outgoing_;  ///< of this step
  std::deque<Waiting> waiting_;
  std::vector<Asked> asked_;  ///< for each slot
  std::uint32_t numbers_ = 0;
  std::list<Arriving> arriving_;
  std::list<Sending> sending_;
  std::list<Spread> spreads_;       ///< of this home
  std::deque<Relay> relays_;        ///< of other homes
  std::uint64_t copied_ = 0;        ///< bytes of all copies
  std::deque<Follower> followers_;  ///< that wait for bytes of other homes
  /// Another server.  Times are CLOCK_MONOTONIC in ns.
  struct Peer {
    std::int64_t heard = 0;         ///< when it last answered, or said that it works, as waited_
    std::int64_t asked = 0;         ///< when it last asked this server; 0: never
    std::int64_t answered = 0;      ///< when this server last answered it, or said that it works
    std::int64_t silent_until = 0;  ///< it is not asked before
    std::int64_t pause = 0;         ///< how long it was not asked the last time, less for each answer, in ns
  };
  std::unordered_map<std::uint32_t, Peer> peers_;
  std::int64_t next_look_ns_ = 0, next_sign_ns_ = 0, last_step_ns_ = 0;
  std::int64_t waited_ = 0;    ///< time in which this server could hear others, in ns
  bool has_read_ = false;      ///< since show_work()
  bool has_advanced_ = false;  ///< in the last step
  bool ending_ = false;        ///< see begin_end()
  node::ServiceCounts counts_;
};

}  // namespace lmdbio::serve
