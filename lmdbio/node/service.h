// Requests of programs to the server of their node (`lmdbio serve`), through one segment of shared memory per
// user.  The server brings bytes of database files from other nodes.
//
// A program trusts the bytes that it gets as it trusts the bytes of a chunk file: their checksum is verified.
// It trusts nothing else in the segment, neither numbers nor sizes, and waits for the server only for a
// limited time.
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/result.h"
#include "lmdbio/node/segment.h"
#include "lmdbio/node/service_slot.h"

namespace lmdbio::node {

/// Identifies the contents of a database file on all nodes (io/content_state.h), and the snapshot that they
/// are used for.
struct ServedState {
  std::array<std::uint64_t, 2> contents{};
  std::uint64_t snapshot = 0;    ///< transaction id
  std::uint64_t page_bytes = 0;  ///< size of a page of the database
  std::uint64_t used_bytes = 0;  ///< bytes of the file that the snapshot uses
  friend bool operator==(const ServedState&, const ServedState&) = default;
};

/// The number of slots, and the bytes that a request may ask for.
inline constexpr unsigned kServiceSlots = 64;
inline constexpr std::size_t kServiceBytes = std::size_t{1} << 20;

/// What a server did so far, in bytes.
struct ServiceCounts {
  std::uint64_t read = 0;  ///< from the file system
  std::uint64_t to_programs = 0;
  std::uint64_t to_nodes = 0, from_nodes = 0;
  std::uint64_t kept = 0;    ///< in memory now
  std::uint64_t alone = 0;   ///< read from the file system although another server is the home
  std::uint64_t cached = 0;  ///< read from the image on local disk, before compression
};

/// Parts of a result besides its number.
inline constexpr std::int64_t kPackedResult = std::int64_t{1} << 32;  ///< the bytes are compressed
inline constexpr std::int64_t kStoresResult = std::int64_t{1} << 33;  ///< see Service::Opened

/// The server of this user on this node, as its segment shows it.  It wrote these numbers itself, so they may
/// have any value.
struct ListedService {
  bool dead;             ///< it was killed; its segment is left
  std::uint32_t nodes;   ///< that exchange bytes, this one included; 0 before and after that
  unsigned programs;     ///< how often programs have the segment attached
  ServiceCounts counts;  ///< at most a second old
};

/// Returns nullopt if there is no server, or one of another version.  May throw bad_alloc.
std::optional<ListedService> listed_service();
/// Removes the segment of a killed server.  Returns whether there was one.
bool remove_dead_service() noexcept;

struct ServiceLayout;

/// The server of this node, as a program sees it.  Any thread.
class Service {
 public:
  /// Returns the server of this node, or nullptr if none lives, or if it has no other node to exchange bytes
  /// with.  Without a server, this takes about a microsecond.
  static std::shared_ptr<Service> get() noexcept;
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  struct Opened {
    std::uint32_t file;  ///< its number, for read()
    bool stores;         ///< the server stores its part of the file on local disk
  };
  /// Announces a database file.  `path`: absolute.  Errors: ENOTSUP if the server does not serve the file,
  /// because it sees another file under this path; others as read().  Blocks as read().
  Result<Opened> open(std::string_view path, const ServedState& state) noexcept;
  /// A range of a file, at most kServiceBytes long.
  struct Range {
    std::uint64_t offset;
    MutableBytes to;
    Result<std::size_t> result = Status::from_errno(ETIMEDOUT);
    bool packed = false;  ///< the bytes are compressed: the server leaves it to programs to decompress them
  };
  /// The number of ranges that are asked for at the same time.
  static constexpr std::size_t kAtOnce = 16;
  /// Reads ranges of a file that was announced with `state`.  Their results are how many bytes were read:
  /// fewer only at the end of the file, or if they are packed.  Errors: ETIMEDOUT if the server does not
  /// answer in time, or did not a moment ago; EIO if it cannot bring the bytes; ECANCELED in a forked child.
  /// Blocks as long as the server shows that it works, kLongestWait at most for kAtOnce ranges.
  void read(std::uint32_t file, const ServedState& state, std::span<Range> ranges) noexcept;
  /// The longest time that a request waits while the server does not show that it works, and in all, in ns.
  static constexpr std::int64_t kMostWait = 1'000'000'000, kLongestWait = 30'000'000'000;
  /// Returns whether the server has answered lately.  False in a forked child.
  bool answers() const noexcept;

  /// Lock and unlock the list of services around a fork, and forget it in the child.
  static void lock_registry() noexcept;
  static void unlock_registry() noexcept;
  static void forget_all() noexcept;

 private:
  struct Registry;
  struct Question;
  struct Asked;
  explicit Service(Segment segment) noexcept;
  ServiceLayout& layout() const noexcept;
  bool lives() const noexcept;
  bool is_inherited() const noexcept;
  Result<Asked> ask(const Question& question, bool waits) noexcept;
  Result<std::int64_t> answer(const Question& question, const Asked& asked, MutableBytes to) noexcept;
  void wake_server() noexcept;
  bool is_over(std::int64_t begun, std::int64_t now) const noexcept;
  bool is_pausing(std::int64_t now) const noexcept;
  void answered_late(std::int64_t now, bool hangs) noexcept;

  Segment segment_;
  const unsigned forks_;                       ///< number of forks before it was made
  std::atomic<unsigned> next_{0};              ///< the slot to try first
  std::atomic<std::int64_t> silent_until_{0};  ///< no requests are made until then
  std::atomic<std::int64_t> silence_{0};       ///< how long the last pause was, less for each answer, in ns
};

/// Requests of programs, as a server sees them.  The segment of this node and models implement it.  One
/// thread.
class ServiceRequests {
 public:
  enum class Kind : std::uint32_t { open, read };
  struct Request {
    unsigned slot;
    Kind kind;
    std::uint32_t file;    ///< read: number of the file
    std::uint64_t offset;  ///< read: in the file
    std::size_t bytes;     ///< read: how many; open: length of the path
    ServedState state;     ///< of the file
  };
  virtual ~ServiceRequests() = default;
  /// Shows programs that requests go on, although none of theirs may have been finished.
  virtual void show_work() noexcept = 0;
  /// Returns a request that has not been returned yet.
  virtual std::optional<Request> next() noexcept = 0;
  /// Returns the path of a request to open a file.  May throw bad_alloc.
  virtual std::string path(const Request& request) const = 0;
  /// Ends a request.  `result`: the number of bytes, with kPackedResult if they are compressed; or of the
  /// file, with kStoresResult; or a negative errno.  `bytes`: those
  /// that were read, or the path.
  virtual void finish(const Request& request, std::int64_t result, Bytes bytes) noexcept = 0;
  /// Frees slots that programs left when they died.  Call it about once a second.
  virtual void free_slots_of_dead() noexcept {}
  /// Shows what the server did so far.  Call it about once a second.
  virtual void show_counts(const ServiceCounts&) noexcept {}
};

/// The segment, as the server sees it.  One thread, except stop_waiting().
class ServiceHost final : public ServiceRequests {
 public:
  /// Makes the segment.  Errors: EEXIST if another server of this user lives on this node; others as
  /// shmget(2).
  static Result<std::unique_ptr<ServiceHost>> make() noexcept;
  /// Removes the segment.
  ~ServiceHost() override;
  ServiceHost(const ServiceHost&) = delete;
  ServiceHost& operator=(const ServiceHost&) = delete;

  /// Tells programs that there are so many nodes, this one included.  Before, they ask nothing.
  void set_nodes(std::uint32_t nodes) noexcept;
  void show_work() noexcept override;
  std::optional<Request> next() noexcept override;
  std::string path(const Request& request) const override;
  void finish(const Request& request, std::int64_t result, Bytes bytes) noexcept override;
  void free_slots_of_dead() noexcept override;
  void show_counts(const ServiceCounts& counts) noexcept override;
  /// Waits for a request, `timeout_ns` at most.
  void wait(std::int64_t timeout_ns) noexcept;
  /// Ends a wait() of another thread, also from a signal handler.
  void stop_waiting() noexcept;
  /// Returns how many requests were made and are not served yet.
  unsigned waiting() const noexcept;
  /// Returns how often programs have the segment attached.
  unsigned programs() const noexcept;

 private:
  ServiceHost(Segment segment, Segment life) noexcept;
  ServiceLayout& layout() const noexcept;
  std::byte* memory(unsigned slot) const noexcept;

  Segment segment_, life_;
  std::array<std::uint32_t, kServiceSlots> numbers_{};  ///< of the requests that are served
  std::array<std::uint32_t, kServiceSlots> left_{};     ///< words that free_slots_of_dead() has seen
  unsigned next_ = 0;
};

}  // namespace lmdbio::node
