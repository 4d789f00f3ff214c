#include "lmdbio/cache/chunk_source.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "lmdbio/base/futex.h"
#include "lmdbio/cache/file_cache.h"
#include "lmdbio/io/private_table.h"

namespace lmdbio::cache {

namespace {

class FileSource final : public ChunkSource {
 public:
  explicit FileSource(FileCache& file) noexcept : file_(file) {}
  ~FileSource() override { forget_inherited(); }

  Answer claim(ChunkIndex chunk, Target target) noexcept override {
    forget_inherited();
    // What is read to private memory is of no use to others.
    if (target == Target::private_memory) return is_there(chunk) ? Answer::ready : Answer::yours;
    const std::shared_ptr<node::Table> table = file_.node.table();
    if (table == nullptr || !has_room()) return is_there(chunk) ? Answer::ready : Answer::yours;
    // Claimed before it is looked for: a chunk that another process is bringing counts as there before all of
    // it is, and what it has brought meanwhile is not brought again.
    node::ClaimValue value;
    if (!table->claim(raw(chunk), tag_of(chunk), value)) return Answer::wait;
    if (is_there(chunk)) {
      table->found(raw(chunk), value);
      return Answer::ready;
    }
    claims_.push_back({chunk, value, now_ns(), table});
    return Answer::yours;
  }

  void filled(ChunkIndex chunk, bool good) noexcept override {
    forget_inherited();
    const auto at =
        std::find_if(claims_.begin(), claims_.end(), [chunk](const Claim& c) { return c.chunk == chunk; });
    if (at == claims_.end()) return;
    at->table->release(raw(chunk), at->value, good, now_ns() - at->begun_ns);
    claims_.erase(at);
  }

  Waited wait(ChunkIndex chunk) noexcept override {
    const std::shared_ptr<node::Table> table = file_.node.table();
    return table != nullptr && table->wait(raw(chunk), tag_of(chunk)) == node::Ended::brought
               ? Waited::there
               : Waited::not_read;
  }

 private:
  struct Claim {
    ChunkIndex chunk;
    node::ClaimValue value;
    std::int64_t begun_ns;
    std::shared_ptr<node::Table> table;
  };

  bool is_there(ChunkIndex chunk) const noexcept {
    return file_.decision.uses_resident &&
           file_.residency.share(file_.offset(chunk), file_.bytes_in(chunk)).value_or(0) >= kMostlyResident;
  }
  // For one more claim.
  bool has_room() noexcept {
    try {
      claims_.reserve(claims_.size() + 1);
      return true;
    } catch (...) {
      return false;
    }
  }

  // The page cache has the bytes of all snapshots; but a file grows, and who does not know it yet brings less
  // of its last chunk.
  std::uint32_t tag_of(ChunkIndex chunk) const noexcept {
    return static_cast<std::uint32_t>(file_.bytes_in(chunk) >> 12);
  }
  // In a forked child: the parent's I/O thread may have been changing them, so they are neither looked at nor
  // freed.
  void forget_inherited() noexcept {
    if (std::exchange(born_, PrivateTable::generation()) != PrivateTable::generation())
      new (&claims_) std::vector<Claim>;
  }

  FileCache& file_;
  unsigned born_ = PrivateTable::generation();
  std::vector<Claim> claims_;  // this process's; the I/O thread's
};

}  // namespace

std::unique_ptr<ChunkSource> file_source(FileCache& file) noexcept {
  return std::unique_ptr<ChunkSource>(new (std::nothrow) FileSource(file));
}

}  // namespace lmdbio::cache
