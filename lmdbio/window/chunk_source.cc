#include "lmdbio/window/chunk_source.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "lmdbio/base/config.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/io/content_state.h"
#include "lmdbio/io/private_table.h"
#include "lmdbio/window/window_file.h"

namespace lmdbio::window {

namespace {

/// After a failure to make a chunk file, the next try is made after this time, in ns.
constexpr std::int64_t kTryAgain = 1'000'000'000;
/// The processes of a job start within this time, in ns.  Chunks that the first process reads in this time
/// are kept for the other processes.
constexpr std::int64_t kOthersStart = 2'000'000'000;
/// Upper limit on the chunks kept for processes that have yet to start, in bytes.  The limit exists because
/// memory that is used for the first time is slow.
constexpr std::uint64_t kKeptForStart = std::uint64_t{64} << 20;
/// The limit does not apply if a process starts kApart or more after the first one.  All chunks are then kept
/// for kNextStarts after the start of each such process.  Both in ns.
constexpr std::int64_t kApart = 20'000'000, kNextStarts = 250'000'000;
/// Memory that must stay free in addition to a new chunk file, in bytes.
constexpr std::uint64_t kLeastFree = std::uint64_t{64} << 20;

class FileSource final : public ChunkSource {
 public:
  explicit FileSource(WindowFile& file) noexcept
      : file_(file), limit_(config().memory_limit(memory_facts().total)) {}
  ~FileSource() override {
    forget_inherited();
    if (!has_noted_) return;
    if (const Table table = file_.node.table(); table != nullptr)
      table->note_memory(limit_, left_.load(std::memory_order_relaxed));
  }

  Answer claim(const Wanted& wanted, Staging& memory) noexcept override {
    forget_inherited();
    is_leaving_.store(false, std::memory_order_relaxed);
    const ChunkIndex chunk = wanted.chunk;
    const bool is_for_all =
        wanted.target == Target::page_cache || (wanted.target == Target::memory && file_.shares_chunks);
    std::shared_ptr<node::Table> table = file_.node.table();
    claiming_ = table != nullptr ? table->others(false).processes + 1 : 1;
    if (!is_for_all) table.reset();
    if (table == nullptr || !has_room()) return is_there(chunk) ? Answer::ready : Answer::yours;
    return wanted.target == Target::page_cache ? claim_pages(table, chunk)
                                               : claim_memory(table, wanted, memory);
  }

  Filled filled(ChunkIndex chunk, bool good) noexcept override {
    forget_inherited();
    const auto at =
        std::find_if(claims_.begin(), claims_.end(), [chunk](const Claim& c) { return c.chunk == chunk; });
    if (at == claims_.end()) return {good};
    std::optional<node::ChunkName> name;
    if (at->file && good) {
      if (const Status st = node::link_chunk_file(at->file, at->name, {at->memory, file_.chunk_bytes});
          st.ok()) {
        name = at->name;
        files_.fetch_add(1, std::memory_order_relaxed);
      } else {
        cannot_share(st);
        good = st.raw() != EBADMSG;
      }
    }
    at->table->release(raw(chunk), at->value, at->file ? name.has_value() : good, now_ns() - at->begun_ns);
    claims_.erase(at);
    return {good, name};
  }

  void drop(const node::ChunkName& name) noexcept override {
    if (is_leaving_.load(std::memory_order_relaxed) && is_to_come(ChunkIndex{name.chunk}))
      left_.fetch_add(1, std::memory_order_relaxed);
    else
      (void)node::unlink_chunk_file(name);
    files_.fetch_sub(1, std::memory_order_relaxed);
  }
  void leave() noexcept override {
    is_leaving_.store(processes_.load(std::memory_order_relaxed) != 0, std::memory_order_relaxed);
  }
  bool is_to_come(ChunkIndex chunk) const noexcept override {
    const std::uint64_t range = to_come_.load(std::memory_order_relaxed);
    return node::reaches(static_cast<std::uint32_t>(range), static_cast<std::uint32_t>(range >> 32),
                         raw(chunk), file_.chunks());
  }
  unsigned processes() const noexcept override { return born_ == PrivateTable::generation() ? claiming_ : 0; }
  bool is_full() const noexcept override { return is_full_.load(std::memory_order_relaxed); }

  Waited wait(ChunkIndex chunk) noexcept override {
    const std::shared_ptr<node::Table> table = file_.node.table();
    const bool in_memory = file_.path() == ReadPath::direct;
    const std::uint32_t tag = in_memory ? memory_tag_of(chunk) : tag_of(chunk);
    if (table == nullptr || table->wait(raw(chunk), tag) != node::Ended::brought) return Waited::not_read;
    return in_memory ? Waited::given : Waited::there;
  }

 private:
  using Table = std::shared_ptr<node::Table>;
  struct Claim {
    ChunkIndex chunk;
    node::ClaimValue value;
    std::int64_t begun_ns;
    Table table;
    UniqueFd file;  ///< a chunk file; empty: reads into the page cache
    node::ChunkName name;
    const std::byte* memory = nullptr;  ///< the mapping of the chunk file
  };

  Answer claim_pages(const Table& table, ChunkIndex chunk) noexcept {
    // Claims the chunk before it looks for the chunk in the page cache.  A chunk that another process is
    // reading may look resident although parts of it are missing.  And pages that this process reads in the
    // meantime are not read again.
    node::ClaimValue value;
    if (!table->claim(raw(chunk), tag_of(chunk), value)) return Answer::wait;
    if (is_there(chunk)) {
      table->found(raw(chunk), value);
      return Answer::ready;
    }
    claims_.push_back({chunk, value, now_ns(), table, {}, {}, {}});
    return Answer::yours;
  }

  Answer claim_memory(const Table& table, const Wanted& wanted, Staging& memory) noexcept {
    const ChunkIndex chunk = wanted.chunk;
    if (is_there(chunk)) return Answer::ready;
    const std::int64_t now = now_ns();
    if (first_ns_ == 0) first_ns_ = now;
    // A process that is alone reads into its own memory, which costs less.
    const bool may_start = now - first_ns_ < kOthersStart;
    if ((!look_at_others(*table, now) && !may_start) || !table->has_word(raw(chunk)) ||
        now < share_again_ns_ || !learn_state(wanted))
      return Answer::yours;
    node::ChunkName name = name_of(chunk);
    node::ClaimValue value;
    node::Look found = table->claim_file(raw(chunk), memory_tag_of(chunk), value);
    if (found == node::Look::filled) {
      name.life = table->claimer_life(value);
      Result<Mapping> mapped = node::open_chunk_file(name, file_.chunk_bytes);
      if (mapped) {
        memory = Staging::adopt(std::move(mapped).value());
        return Answer::given;
      }
      if (mapped.error().raw() == EBADMSG) {
        cannot_share(mapped.error());
        (void)node::unlink_chunk_file(name);
        return Answer::yours;
      }
      found = table->claim_gone(raw(chunk), value) ? node::Look::mine : node::Look::claimed;
    }
    if (found != node::Look::mine) return Answer::wait;
    if (!wanted.awaited && is_full()) {  // otherwise several processes would read the same chunks ahead
      table->unclaim(raw(chunk), value);
      return Answer::wait;
    }
    Result<node::UnnamedChunk> made = make_file();
    if (!made) {  // each process reads for itself
      table->unclaim(raw(chunk), value);
      return Answer::yours;
    }
    memory = Staging::adopt(std::move(made.value().memory));
    name.life = table->life();
    claims_.push_back({chunk, value, now, table, std::move(made.value().fd), name, memory.data()});
    table->note_memory(limit_, files_now());
    return Answer::yours;
  }

  // Updates the facts about the other processes.  Returns false if there are none.
  bool look_at_others(node::Table& table, std::int64_t now) noexcept {
    const std::uint32_t own = files_now();
    table.note_memory(limit_, own);
    has_noted_ = true;
    const node::Table::Others others = table.others(is_full());
    const unsigned before = processes_.exchange(others.processes, std::memory_order_relaxed);
    if (others.processes > before && now - first_ns_ >= kApart) late_start_ns_ = now;
    // Processes that have yet to start begin with the first chunk, so all chunks may be kept for them.
    const std::uint64_t files = others.files + own;
    const bool keeps_all =
        now - first_ns_ < kOthersStart && (files * file_.chunk_bytes <= kKeptForStart ||
                                           (late_start_ns_ != 0 && now - late_start_ns_ < kNextStarts));
    to_come_.store(keeps_all ? std::uint64_t{~0u} << 32 : std::uint64_t{others.last} << 32 | others.first,
                   std::memory_order_relaxed);
    const std::uint64_t limit = std::min(limit_, others.least_limit);
    is_full_.store((files + 1) * file_.chunk_bytes > limit ||
                       (files != 0 && node::chunk_room().left < file_.chunk_bytes),
                   std::memory_order_relaxed);
    return others.processes != 0;
  }

  // Returns how many chunk files this process keeps or is filling.
  std::uint32_t files_now() const noexcept {
    const auto being_read = std::count_if(claims_.begin(), claims_.end(),
                                          [](const Claim& c) { return static_cast<bool>(c.file); });
    return files_.load(std::memory_order_relaxed) + static_cast<std::uint32_t>(being_read);
  }

  Result<node::UnnamedChunk> make_file() noexcept {
    if (memory_facts().available < kLeastFree + file_.chunk_bytes) {
      cannot_share(Status::from_errno(ENOMEM));
      return Status::from_errno(ENOMEM);
    }
    Result<node::UnnamedChunk> made = node::make_chunk_file(file_.chunk_bytes);
    if (!made) cannot_share(made.error());
    return made;
  }

  void cannot_share(Status why) noexcept {
    const bool is_damaged = why.raw() == EBADMSG;
    share_again_ns_ = is_damaged ? INT64_MAX : std::max(share_again_ns_, now_ns() + kTryAgain);
    if (std::exchange(complained_, true) && !is_damaged) return;
    const char* const text =
        is_damaged ? "one had other bytes than were written to it" : ::strerrordesc_np(why.raw());
    log_line(is_damaged ? LogLevel::warn : LogLevel::info,
             "%s: each process reads the file itself, because chunk files in /dev/shm are not available: %s",
             file_.name.c_str(), text != nullptr ? text : "unknown error");
  }

  // Reads the state of the file's contents under the newest snapshot that this process knows.  Returns
  // false if it cannot be read.
  bool learn_state(const Wanted& wanted) noexcept {
    if (wanted.snapshot == state_of_ && state_[0] != 0) return true;
    const auto state = content_state(file_.buffered(), std::size_t{2} << file_.page_shift, wanted.snapshot);
    state_of_ = wanted.snapshot;
    state_ = state.value_or(std::array<std::uint64_t, 2>{});
    tagged_.store(state_[0], std::memory_order_relaxed);
    return state_[0] != 0;
  }
  node::ChunkName name_of(ChunkIndex chunk) const noexcept {
    return {0, {state_[0], state_[1] + file_.bytes_in(chunk)}, raw(chunk)};
  }

  bool is_there(ChunkIndex chunk) const noexcept {
    return file_.decision.uses_resident &&
           file_.residency().share(file_.offset(chunk), file_.bytes_in(chunk)).value_or(0) >= kMostlyResident;
  }
  // Reserves room for one more claim.  Returns false if out of memory.
  bool has_room() noexcept {
    try {
      claims_.reserve(claims_.size() + 1);
      return true;
    } catch (...) {
      return false;
    }
  }

  // The tag of a chunk in the page cache: its length.  The page cache has the bytes of all snapshots.  But
  // the file grows, and a process that has not noticed the growth yet reads less of the last chunk.
  std::uint32_t tag_of(ChunkIndex chunk) const noexcept {
    return static_cast<std::uint32_t>(file_.bytes_in(chunk) >> 12);
  }
  // The tag of a chunk in a chunk file, which has the bytes of one state of the file.
  std::uint32_t memory_tag_of(ChunkIndex chunk) const noexcept {
    constexpr std::uint32_t kChunkFile = 0x8000'0000;
    return static_cast<std::uint32_t>(tagged_.load(std::memory_order_relaxed) + tag_of(chunk)) | kChunkFile;
  }
  // In a forked child: forgets the parent's claims without reading or freeing them, since the parent's I/O
  // thread may have been changing them.
  void forget_inherited() noexcept {
    if (std::exchange(born_, PrivateTable::generation()) == PrivateTable::generation()) return;
    new (&claims_) std::vector<Claim>;
    files_ = 0;
    claiming_ = 0;
    left_ = 0;
    has_noted_ = false;
  }

  WindowFile& file_;
  const std::uint64_t limit_;  ///< upper limit on this process's memory, in bytes
  unsigned born_ = PrivateTable::generation();
  // The members up to has_noted_ are used only by the I/O thread.
  std::vector<Claim> claims_;  ///< the claims of this process
  std::uint64_t state_of_ = 0;
  std::array<std::uint64_t, 2> state_{};  ///< of the file's contents under snapshot state_of_; 0: not known
  std::int64_t first_ns_ = 0;             ///< of the first claim_memory(); 0: none yet
  std::int64_t late_start_ns_ = 0;        ///< when the last late process was seen to start; 0: none
  std::int64_t share_again_ns_ = 0;
  unsigned claiming_ = 0;  ///< see processes()
  bool complained_ = false;
  bool has_noted_ = false;  ///< has written to the table how many chunk files it keeps
  // Other threads read the members below, too.
  std::atomic<std::uint64_t> tagged_{0};   ///< copy of state_[0]
  std::atomic<std::uint32_t> files_{0};    ///< chunk files that this process keeps
  std::atomic<std::uint64_t> to_come_{1};  ///< chunks that others will reach: last << 32 | first
  std::atomic<bool> is_full_{false};
  std::atomic<unsigned> processes_{0};  ///< other processes in the table
  std::atomic<bool> is_leaving_{false};
  std::atomic<std::uint32_t> left_{0};  ///< chunk files that this process has left to others
};

}  // namespace

std::unique_ptr<ChunkSource> file_source(WindowFile& file) noexcept {
  return std::unique_ptr<ChunkSource>(new (std::nothrow) FileSource(file));
}

}  // namespace lmdbio::window
