#include "lmdbio/ranks/index_exchange.h"

#include <lmdbio/lmdbio.h>
#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "lmdbio/node/segment.h"

namespace lmdbio::ranks {

using records::IndexPartSizes;
using records::RecordIndex;

namespace {

/// Channels of the transport.
enum : unsigned { kHeaders, kParts, kNode };

/// Code in a header.  The sender has closed its reader before it has built its part.
constexpr int kLeft = ECANCELED;

template <class T>
std::span<const std::byte> bytes_of(const T& value) noexcept {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
std::span<std::byte> room_of(T& value) noexcept {
  return std::as_writable_bytes(std::span(&value, 1));
}

template <std::size_t n>
void put(char (&to)[n], const std::string& from) noexcept {
  std::memset(to, 0, n);
  std::memcpy(to, from.data(), std::min(from.size(), n - 1));
}

}  // namespace

class IndexExchange::Storage {
 public:
  /// Allocates memory.  Uses shared memory if `share` is true and shared memory is available.
  Storage(std::size_t bytes, bool share, const std::shared_ptr<records::Memory>& memory) {
    if (share) {
      Result<node::Segment> made = node::Segment::make_unnamed(bytes);
      if (made) adopt(std::move(made).value());
    }
    if (bytes_.empty()) {
      own_.reset(static_cast<std::byte*>(std::calloc(bytes, 1)));
      if (own_ == nullptr) throw std::bad_alloc();
      bytes_ = {own_.get(), bytes};
    }
    taken_.count(memory, records::MemoryUse::index, bytes);
  }
  /// Attaches memory of another rank of the node.  If this fails, or if the size is wrong, bytes() is empty.
  Storage(int id, std::size_t bytes) noexcept {
    Result<node::Segment> found = node::Segment::open_read_only(id);
    if (found && found.value().size() == bytes) adopt(std::move(found).value());
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  ~Storage() = default;

  std::span<std::byte> bytes() const noexcept { return bytes_; }
  int id() const noexcept { return segment_ ? segment_.id() : -1; }

  static std::size_t table_bytes(std::size_t parts) noexcept {
    return sizeof(std::uint64_t) + parts * sizeof(IndexPartSizes);
  }
  std::uint64_t parts() const noexcept {
    std::uint64_t n = 0;
    if (bytes_.size() >= sizeof n) std::memcpy(&n, bytes_.data(), sizeof n);
    return n <= bytes_.size() / sizeof(IndexPartSizes) ? n : 0;
  }
  IndexPartSizes sizes(std::size_t part) const noexcept {
    IndexPartSizes s;
    std::memcpy(&s, bytes_.data() + sizeof(std::uint64_t) + part * sizeof s, sizeof s);
    return s;
  }
  void set_table(std::span<const IndexPartSizes> parts) noexcept {
    const std::uint64_t n = parts.size();
    std::memcpy(bytes_.data(), &n, sizeof n);
    std::memcpy(bytes_.data() + sizeof n, parts.data(), parts.size_bytes());
  }
  /// Returns the bytes of a part.  Returns an empty span with null data() if the table is wrong.
  std::span<std::byte> part(std::size_t which) const noexcept {
    std::uint64_t at = table_bytes(parts());
    for (std::size_t i = 0;; ++i) {
      const std::uint64_t n = sizes(i).bytes();
      if (at > bytes_.size() || n > bytes_.size() - at) return {};
      if (i == which) return bytes_.subspan(at, n);
      at += n;
    }
  }

 private:
  void adopt(node::Segment segment) noexcept {
    segment_ = std::move(segment);
    // A forked child must be able to read inherited memory.
    if (::madvise(segment_.data(), segment_.size(), MADV_DOFORK) != 0) {
      segment_ = {};
      return;
    }
    bytes_ = {segment_.data(), segment_.size()};
  }

  struct Free {
    void operator()(std::byte* p) const noexcept { std::free(p); }
  };
  node::Segment segment_;
  std::unique_ptr<std::byte, Free> own_;
  std::span<std::byte> bytes_;
  records::TakenMemory taken_;
};

IndexExchange::IndexExchange(const Settings& settings, Transport& transport)
    : transport_(transport),
      records_(settings.records),
      host_(settings.host),
      name_(settings.name),
      share_(settings.share),
      memory_(settings.memory) {
  const std::uint32_t rank = transport.rank();
  for (std::uint32_t r = 0; r < settings.nodes.size(); ++r) {
    if (settings.nodes[r] == leaders_.size()) leaders_.push_back(r);
  }
  part_ = settings.nodes[rank];
  leader_ = leaders_[part_] == rank;
  if (!leader_) return;
  for (std::uint32_t p = 0; p < leaders_.size(); ++p) {
    others_.push_back(p == part_ ? nullptr : std::make_unique<Leader>());
    if (p != part_) others_.back()->rank = leaders_[p];
  }
  for (std::uint32_t r = 0; r < settings.nodes.size(); ++r) {
    if (settings.nodes[r] != part_ || r == rank) continue;
    followers_.push_back(std::make_unique<Follower>());
    followers_.back()->rank = r;
  }
}

IndexExchange::~IndexExchange() = default;

void IndexExchange::end(Outcome outcome, int code, std::string why) {
  why_ = std::move(why);
  code_ = code;
  outcome_ = outcome;
}

IndexExchange::PartMessage& IndexExchange::header(std::uint32_t part) noexcept {
  return part == part_ ? own_ : others_[part]->header;
}

Status IndexExchange::progress(IndexWork* work) { return leader_ ? lead(work) : follow(); }

Status IndexExchange::send_header(IndexWork* work) {
  if (sent_ || (work != nullptr && !work->done())) return {};
  if (work == nullptr) {
    own_.code = kLeft;
  } else {
    Status st;
    std::string why;
    const RecordIndex* const made = work->made(st, why);
    if (made != nullptr) {
      own_.sizes = records::sizes_of(*made);
    } else {
      // Replace kLeft, which would mean that this rank has left.
      own_.code = st.raw() == kLeft ? EREMOTEIO : st.raw();
      put(own_.why, "rank " + std::to_string(transport_.rank()) + " (" + host_ + "): " + why);
    }
  }
  sent_ = true;
  for (const std::unique_ptr<Leader>& l : others_)
    if (l != nullptr)
      if (const Status st = transport_.send(l->rank, kHeaders, bytes_of(own_), l->header_out); !st.ok())
        return st;
  return {};
}

// Determines the outcome, after all headers have arrived.  It is the same on all leaders.
Status IndexExchange::judge(IndexWork* work) {
  std::uint64_t records = 0, bytes = Storage::table_bytes(parts());
  std::vector<IndexPartSizes> table;
  bool left = false;
  for (std::uint32_t p = 0; p < parts(); ++p) left = left || header(p).code == kLeft;
  if (left) {
    end(Outcome::alone, kLeft, "");
    return {};
  }
  for (std::uint32_t p = 0; p < parts(); ++p) {
    const PartMessage& h = header(p);
    if (h.code != 0) {
      end(Outcome::failed, h.code, h.why);
      return {};
    }
    records += h.sizes.totals.records;
    bytes += h.sizes.bytes();
    table.push_back(h.sizes);
  }
  if (records != records_) {
    end(Outcome::failed, MDB_CORRUPTED,
        name_ + ": the record index cannot be built: number of entries: " + std::to_string(records_) +
            " in the record, " + std::to_string(records) + " in the tree");
    return {};
  }
  auto storage = std::make_shared<Storage>(bytes, share_ && !followers_.empty(), memory_);
  storage->set_table(table);
  Status st;
  std::string why;
  assert(work != nullptr);
  records::write_part(*work->made(st, why), storage->part(part_));
  storage_ = std::move(storage);
  written_ = true;
  for (std::uint32_t p = 0; p < parts(); ++p) {
    if (p == part_) continue;
    Leader& l = *others_[p];
    st = transport_.receive(l.rank, kParts, storage_->part(p), l.bytes_in);
    if (st.ok()) st = transport_.send(l.rank, kParts, storage_->part(part_), l.bytes_out);
    if (!st.ok()) return st;
  }
  return {};
}

// Checks the parts in `storage_`.
Status IndexExchange::check_parts() const {
  std::uint64_t records = 0;
  for (std::size_t p = 0; p < storage_->parts(); ++p) {
    RecordIndex one;
    if (!records::view_part(storage_->sizes(p), storage_->part(p), one))
      return Status::from_mdb(MDB_CORRUPTED);
    records += one.records();
  }
  return records == records_ ? Status() : Status::from_mdb(MDB_CORRUPTED);
}

Status IndexExchange::lead(IndexWork* work) {
  if (!std::exchange(begun_, true))
    for (const std::unique_ptr<Leader>& l : others_)
      if (l != nullptr)
        if (const Status st = transport_.receive(l->rank, kHeaders, room_of(l->header), l->header_in);
            !st.ok())
          return st;
  if (const Status st = send_header(work); !st.ok()) return st;
  const auto all = [&](const auto& done) {
    return std::all_of(others_.begin(), others_.end(),
                       [&](const auto& l) { return l == nullptr || done(*l); });
  };
  if (outcome_ == Outcome::pending && storage_ == nullptr) {
    if (!sent_ || !all([](const Leader& l) { return l.header_in.done(); })) return {};
    for (const std::unique_ptr<Leader>& l : others_)
      if (l != nullptr && !l->header_in.status.ok()) return l->header_in.status;
    if (const Status st = judge(work); !st.ok()) return st;
  }
  if (outcome_ == Outcome::pending) {
    if (!all([](const Leader& l) { return l.bytes_in.done(); })) return {};
    for (const std::unique_ptr<Leader>& l : others_)
      if (l != nullptr && !l->bytes_in.status.ok()) return l->bytes_in.status;
    if (check_parts().ok())
      end(Outcome::whole, 0, "");
    else
      end(Outcome::alone, kLeft, "");
  }
  written_ = true;
  if (const Status st = tell_followers(); !st.ok()) return st;
  return answer_followers();
}

Status IndexExchange::tell_followers() {
  if (told_) return {};
  to_followers_.outcome = static_cast<std::uint32_t>(outcome_);
  to_followers_.code = code_;
  put(to_followers_.why, why_);
  if (outcome_ == Outcome::whole) {
    to_followers_.bytes = storage_->bytes().size();
    to_followers_.segment = storage_->id();
  }
  told_ = true;
  for (const std::unique_ptr<Follower>& f : followers_) {
    Status st = transport_.send(f->rank, kNode, bytes_of(to_followers_), f->told);
    if (st.ok() && outcome_ == Outcome::whole)
      st = transport_.receive(f->rank, kNode, room_of(f->attached), f->answer);
    if (!st.ok()) return st;
  }
  return {};
}

Status IndexExchange::answer_followers() {
  if (outcome_ != Outcome::whole) return {};
  for (const std::unique_ptr<Follower>& f : followers_) {
    if (f->answered || !f->answer.done()) continue;
    if (!f->answer.status.ok()) return f->answer.status;
    f->answered = true;
    if (f->attached != 0) continue;
    if (const Status st = transport_.send(f->rank, kParts, storage_->bytes(), f->bytes); !st.ok()) return st;
  }
  return {};
}

Status IndexExchange::follow() {
  const std::uint32_t leader = leaders_[part_];
  if (!std::exchange(begun_, true))
    if (const Status st = transport_.receive(leader, kNode, room_of(from_leader_), heard_); !st.ok())
      return st;
  if (outcome_ != Outcome::pending || !heard_.done()) return {};
  if (!heard_.status.ok()) return heard_.status;
  const auto outcome = static_cast<Outcome>(from_leader_.outcome);
  if (outcome != Outcome::whole) {
    end(outcome, from_leader_.code, from_leader_.why);
    return {};
  }
  if (!answers_) {
    auto storage = from_leader_.segment >= 0 && share_
                       ? std::make_shared<Storage>(from_leader_.segment, from_leader_.bytes)
                       : nullptr;
    attached_ = storage != nullptr && !storage->bytes().empty();
    takes_bytes_ = attached_ == 0;
    if (takes_bytes_) storage = std::make_shared<Storage>(from_leader_.bytes, false, memory_);
    storage_ = std::move(storage);
    answers_ = true;
    if (takes_bytes_)
      if (const Status st = transport_.receive(leader, kParts, storage_->bytes(), bytes_in_); !st.ok())
        return st;
    if (const Status st = transport_.send(leader, kNode, bytes_of(attached_), answered_); !st.ok()) return st;
  }
  if (takes_bytes_ && !bytes_in_.done()) return {};
  if (!bytes_in_.status.ok()) return bytes_in_.status;
  if (check_parts().ok())
    end(Outcome::whole, 0, "");
  else
    end(Outcome::alone, kLeft, "");
  return {};
}

std::vector<RecordIndex> IndexExchange::take(std::shared_ptr<const void>& keep) {
  keep = storage_;
  std::vector<RecordIndex> index(storage_->parts());
  for (std::size_t p = 0; p < index.size(); ++p)
    (void)records::view_part(storage_->sizes(p), storage_->part(p), index[p]);
  return index;
}

bool IndexExchange::closed() const noexcept {
  if (outcome_ == Outcome::pending) return false;
  if (!leader_) return heard_.done() && answered_.done() && bytes_in_.done();
  const bool leaders = std::all_of(others_.begin(), others_.end(), [](const auto& l) {
    return l == nullptr ||
           (l->header_in.done() && l->header_out.done() && l->bytes_in.done() && l->bytes_out.done());
  });
  return leaders && told_ && std::all_of(followers_.begin(), followers_.end(), [this](const auto& f) {
           return f->told.done() && f->answer.done() && f->bytes.done() &&
                  (f->answered || outcome_ != Outcome::whole);
         });
}

}  // namespace lmdbio::ranks
