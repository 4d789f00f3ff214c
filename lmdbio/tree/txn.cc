#include "lmdbio/tree/txn.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/uncancelled.h"
#include "lmdbio/tree/cursor.h"
#include "lmdbio/tree/descend.h"
#include "lmdbio/tree/prefetch_file.h"
#include "lmdbio/tree/txn_prefetch.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::tree {

void Counters::add(const Counters& c) noexcept {
  get += c.get;
  get_missed += c.get_missed;
  for (unsigned i = 0; i <= kCursorOps; ++i) cursor_op[i] += c.cursor_op[i];
  cursor_failed += c.cursor_failed;
  bytes += c.bytes;
  begun += c.begun;
  renewed += c.renewed;
  prefetch.add(c.prefetch);
}

Txn::Txn(Env& env)
    : dbs_(zeroed_array<format::DbRecord>(env.max_dbs())),
      dbi_state_(zeroed_array<unsigned char>(env.max_dbs())),
      env_(&env) {}

Txn::~Txn() {
  forget_prefetch();
  if (entered_ != nullptr) leave_window();
}

void Txn::start(std::uint32_t window, const window::WindowView& view) noexcept {
  stamp_.set_window(window);
  leaf_seen_ = nullptr;
  view_ = view;
  if (loader_ != nullptr) [[unlikely]]
    view_.load_by(loader_.get());
  std::memcpy(dbs_.get(), snapshot_.dbs, sizeof snapshot_.dbs);
  dbi_state_[kFreeDbi] = kValid;
  dbi_state_[kMainDbi] = kValid | kUserValid;
  restart();
}

Status Txn::begin_unmapped() noexcept {
  const Uncancelled wait;
  const AsyncSignalsBlocked allocates;
  ahead::UnmappedFile* const file = env_->file().unmapped_file();
  if (loader_ == nullptr) loader_.reset(new (std::nothrow) Loader);
  if (file == nullptr || loader_ == nullptr) return Status::from_errno(ENOMEM);
  if (const Status st = env_->read_metas(loader_->metas); !st.ok()) return st;
  const MetaSource source(loader_->metas.records());
  Snapshot now;
  if (const Status st = source.renew(now.txnid); !st.ok()) return st;
  if (const Status st = read_snapshot(loader_->metas.records(), source, now); !st.ok()) return st;
  if (env_->outgrown(now.last_pg)) return Status::from_mdb(MDB_MAP_RESIZED);
  const unsigned shift = env_->page_shift();
  const int saved = errno;
  const Result<ahead::UnmappedFile::Entry*> entered =
      file->enter(now.txnid, (now.last_pg + 1) << shift, env_->file_pages(now.txnid) << shift);
  errno = saved;
  if (!entered) return entered.error();
  entered_ = entered.value();
  if (now.txnid == snapshot_.txnid && stamp_.window() == entered_->number) {
    restart();
    return {};
  }
  snapshot_ = now;
  loader_->file = entered_->file;
  loader_->page_shift = shift;
  // View only pages that the file had when the window got this snapshot.  The window's chunks cover no more.
  start(entered_->number,
        entered_->window->view(std::min(now.last_pg + 1, entered_->file->file_bytes.load() >> shift)));
  return {};
}

// Leaves the window of an unmapped file, whose memory may then be released.
void Txn::leave_window() noexcept {
  const int saved = errno;
  const Uncancelled wait;
  const AsyncSignalsBlocked allocates;
  env_->file().unmapped_file()->leave(std::exchange(entered_, nullptr));
  errno = saved;
}

bool Txn::Loader::load(std::uint64_t first, std::uint64_t n) noexcept {
  const window::ChunkIndex a = file->chunk_at(first << page_shift),
                           b = file->chunk_at(((first + n) << page_shift) - 1);
  for (std::uint32_t c = raw(a); c <= raw(b); ++c) {
    if (file->resident_now(window::ChunkIndex{c})) [[likely]]
      continue;
    const int saved = errno;
    const Uncancelled wait;
    const AsyncSignalsBlocked allocates;
    failed = window::Prefetcher::existing()->read_chunk(*file, window::ChunkIndex{c});
    errno = saved;
    if (!failed.ok()) return false;
  }
  failed = {};
  return true;
}

// Returns the error of a failed read and clears it.  Returns OK if no read has failed.  A page that cannot be
// read now is not damaged: the next attempt may succeed.
Status Txn::unread() noexcept {
  return loader_ != nullptr ? std::exchange(loader_->failed, Status()) : Status();
}

void Txn::restart() noexcept {
  dbs_[kMainDbi].flags = snapshot_.dbs[kMainDbi].flags;  // mdb_dbi_open may have added flags
  const unsigned n = env_->num_dbs();
  for (unsigned i = kCoreDbs; i < n; ++i) {
    const unsigned f = env_->slot_flags(i);
    dbs_[i].flags = static_cast<std::uint16_t>(f & kPersistentFlags);
    dbi_state_[i] = (f & kSlotValid) != 0 ? kValid | kUserValid | kStale : 0;
  }
  num_dbs_ = n;
  used_dbs_ = std::max(used_dbs_, n);
  blocked_ = 0;
  stamp_.bits &= ~Stamp::kBlocked;
}

void Txn::end(bool keep) noexcept {
  for (unsigned i = num_dbs_; i-- > kCoreDbs;) {
    if ((dbi_state_[i] & kNew) == 0) continue;
    if (!keep) {
      env_->close_dbi(i);
      continue;
    }
    env_->slot_flags(i) = static_cast<std::uint16_t>(dbs_[i].flags | kSlotValid);
    env_->raise_num_dbs(num_dbs_);
  }
  num_dbs_ = 0;
  if (prefetch_ != nullptr) [[unlikely]]
    forget_prefetch();
  block(kFinished);
  if (entered_ != nullptr) [[unlikely]]
    leave_window();
}

void Txn::recycle() noexcept {
  for (; used_dbs_ > kCoreDbs; --used_dbs_) dbs_[used_dbs_ - 1] = {};
  stamp_.next_use();
}

bool Txn::savable() const noexcept {
  if (finished()) return true;
  if (blocked() || prefetch_ != nullptr || entered_ != nullptr ||
      dbs_[kMainDbi].flags != snapshot_.dbs[kMainDbi].flags)
    return false;
  for (unsigned i = kCoreDbs; i < num_dbs_; ++i)
    if ((dbi_state_[i] & kNew) != 0) return false;
  return true;
}

void Txn::restore(const Saved& saved) noexcept {
  snapshot_ = saved.snapshot;
  stamp_.set_window(0);
  if (!saved.runs) return;
  if (env_->window() == nullptr) {
    block(kError);
    blocked_ &= ~unsigned{kFinished};
    return;
  }
  start(env_->window_number(),
        env_->view(std::min(snapshot_.last_pg + 1, env_->file_pages(snapshot_.txnid))));
  num_dbs_ = std::min(num_dbs_, saved.num_dbs);
}

Status Txn::corrupted(const char* what, const std::byte* at) noexcept {
  block(kDamage);
  env_->report_damage(view_, what, at);
  return Status::from_mdb(MDB_CORRUPTED);
}

Status Txn::bad_page(format::Pgno p) noexcept {
  if (const Status st = unread(); !st.ok()) return st;
  block(kDamage);
  env_->report_damage(view_, p);
  return Status::from_mdb(format::raw(p) > snapshot_.last_pg ? MDB_PAGE_NOTFOUND : MDB_CORRUPTED);
}

Status Txn::bad_run(format::Pgno p, std::uint64_t bytes) noexcept {
  if (const Status st = unread(); !st.ok()) return st;
  block(kDamage);
  env_->report_bad_run(view_, p, bytes);
  return Status::from_mdb(format::raw(p) > snapshot_.last_pg ? MDB_PAGE_NOTFOUND : MDB_CORRUPTED);
}

Result<const format::DbRecord*> Txn::record(MDB_dbi dbi) {
  if ((dbi_state_[dbi] & kStale) != 0) [[unlikely]] {
    if (const Status st = look_up(dbi); !st.ok()) return st;
  }
  return &dbs_[dbi];
}

// Finds the node of an entry of a leaf page that may not exist.
static bool node_at(const window::WindowView& view, std::uint64_t page, unsigned index,
                    format::Node& node) noexcept {
  format::PageView leaf;
  const std::byte* const bytes = page < format::kMetaPages ? nullptr : view.at(format::Pgno{page});
  return bytes != nullptr &&
         format::PageView::open(view.version(), bytes, view.page_size(), format::Pgno{page}, leaf) &&
         leaf.is_leaf() && !leaf.is_leaf2() && index < leaf.count() && leaf.node(index, node);
}

bool Txn::get_at(MDB_dbi dbi, std::uint64_t page, unsigned index, const MDB_val& key,
                 MDB_val& data) noexcept {
  format::Node node;
  if (blocked() || !node_at(view_, page, index, node) || node.key_size() != key.mv_size ||
      std::memcmp(node.key(), key.mv_data, key.mv_size) != 0)
    return false;
  if (node.flags() == format::kBigData) {
    const format::DbRecord& db = dbs_[dbi];
    Status st;
    const std::byte* run;
    if (prefetch_ != nullptr && !stale(dbi) &&
        prefetch_->answer({dbi, format::raw(db.root), db.flags, env_->dbx(dbi).key_order}, key, view_, data,
                          st)) {
      if (!st.ok()) return false;
    } else {
      if (!view_.find(node.overflow(), node.data_size(), run)) return false;
      data = {node.data_size(), const_cast<std::byte*>(run)};
    }
  } else {
    if (node.flags() != 0) return false;
    data = {node.data_size(), const_cast<std::byte*>(node.data())};
  }
  ++counters_->get;
  counters_->bytes += data.mv_size;
  return true;
}

bool Txn::is_resident(std::uint64_t page, unsigned index) noexcept {
  const std::shared_ptr<PrefetchFile> file = env_->prefetch_file(snapshot_.last_pg + 1);
  if (file == nullptr) return true;  // nothing can be read ahead
  const unsigned shift = view_.shift();
  const auto is_there = [&](std::uint64_t first, std::uint64_t pages) {
    return file->residency().share(first << shift, pages << shift, view_.base()).value_or(0) >= 1;
  };
  if (page >= view_.pages() || !is_there(page, 1)) return false;
  format::Node node;
  if (!node_at(view_, page, index, node)) return false;
  return (node.flags() & format::kBigData) == 0 ||
         is_there(format::raw(node.overflow()), view_.overflow_pages(node.data_size()));
}

void Txn::prefetch(MDB_dbi dbi, std::span<const MDB_val> keys) noexcept {
  if (own_prefetch_ == nullptr) {
    std::shared_ptr<PrefetchFile> file = env_->prefetch_file(snapshot_.last_pg + 1);
    if (file == nullptr) return;
    own_prefetch_ = TxnPrefetch::make(std::move(file));
    if (own_prefetch_ == nullptr) return;
  }
  prefetch_ = own_prefetch_.get();
  ask_in_ = 1;
  prefetch_->add(*this, dbi, keys);
}

void Txn::forget_prefetch() noexcept {
  if (own_prefetch_ == nullptr) return;
  if (own_prefetch_->lost()) {
    (void)own_prefetch_.release();  // belongs to a thread that does not exist in this process
  } else if (prefetch_ != nullptr) {
    prefetch_->end();
    counters_->prefetch.add(prefetch_->take_counters());
  }
  prefetch_ = nullptr;
}

}  // namespace lmdbio::tree
