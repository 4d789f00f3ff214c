#include "lmdbio/files/append_writer_10.h"

#include <fcntl.h>
#include <lmdb.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/base/bytes.h"
#include "lmdbio/files/database.h"
#include "lmdbio/files/output.h"

namespace lmdbio::files {

namespace {

constexpr format::Version kV = format::Version::v10;
constexpr std::size_t kHeader = format::page_header(kV), kSlot = sizeof(std::uint16_t);
constexpr std::uint64_t kTxnid = 1;
constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
/// So many bytes are written between two commits.
constexpr std::uint64_t kCommitBytes = std::uint64_t{64} << 20;

/// At the start of page 1, until the meta page is written there.
struct CommitRecord {
  static constexpr std::uint64_t kMagic = 0x4b506f6962646d6c;  // "lmdbioPK"
  std::uint64_t magic;
  std::uint64_t pages;  ///< the first pages of the file, which are committed
};

constexpr std::size_t even(std::size_t n) noexcept { return n + n % 2; }

template <class T>
void put(std::byte* at, T value) noexcept {
  std::memcpy(at, &value, sizeof value);
}
template <class T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Puts a node of `bytes` bytes above the nodes that the page at `at` has, and its slot behind the others.
/// Returns where the node is.  `top`: where the last node was put.
std::byte* add_node(std::byte* at, std::size_t slot, std::size_t bytes, std::size_t& top) noexcept {
  top -= bytes;
  const auto offset = static_cast<std::uint16_t>(top - format::slot_base(kV));
  put(at + kHeader + kSlot * slot, offset);
  put(at + format::at_lower(kV), static_cast<std::uint16_t>(kSlot * (slot + 1)));
  put(at + format::at_upper(kV), offset);
  return at + top;
}

}  // namespace

std::string AppendWriter10::Node::key() const { return bytes.substr(format::kNodeHeader, key_bytes); }

AppendWriter10::AppendWriter10(const std::string& directory)
    : path_(directory), page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
  fd_.reset(::open((path_ + "/data.mdb").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!fd_) fail(errno);
  resume();
}

void AppendWriter10::fail(int error) const {
  throw Error(path_ + ": " + error_text(error) + (error == EIO ? "; the file system may be full" : ""));
}
void AppendWriter10::fail_contents() const {
  throw Error(path_ + "/data.mdb: is not what this command has written");
}

// --- resuming ---

bool AppendWriter10::read(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = ::pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(errno);
    if (n == 0) return false;
    offset += static_cast<std::uint64_t>(n);
    to = to.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

/// Returns the number of pages from the start of the file that are committed, or the whole tree if the file
/// was finished.
std::uint64_t AppendWriter10::committed_pages() const {
  std::byte page[format::meta_bytes(kV)];
  if (!read(page_, page)) return 0;
  if (const auto record = load<CommitRecord>(page); record.magic == CommitRecord::kMagic) return record.pages;
  const auto meta = load<format::MetaRecord>(page + kHeader);
  const bool is_meta = meta.magic == format::kMagic && meta.version == format::meta_version(kV);
  return is_meta ? meta.last_pg + 1 : 0;
}

/// Reads the leaf pages that are committed.  The branch pages above them are written again.
void AppendWriter10::resume() {
  const std::uint64_t end = committed_pages();
  std::vector<std::byte> page(page_);
  while (next_page_ < end) {
    const std::uint64_t p = next_page_;
    if (!read(p * page_, page) || load<std::uint64_t>(page.data()) != p) fail_contents();
    const unsigned flags = load<std::uint16_t>(page.data() + format::at_flags(kV));
    if (flags == format::kBranch) break;  // written by finish()
    if (flags == format::kLeaf) {
      ++next_page_;
      resume_leaf(page.data(), p);
      flush();
    } else {
      const std::uint64_t pages = load<std::uint32_t>(page.data() + format::at_pages(kV));
      if (flags != format::kOverflow || pages == 0 || pages > end - p) fail_contents();
      overflow_pages_ += pages;
      next_page_ += pages;
    }
  }
  if (next_page_ != whole_pages_) fail_contents();
  committed_ = whole_records_;
  last_key_ = last_appended_ = whole_key_;
  waiting_ = 0;
}

void AppendWriter10::resume_leaf(const std::byte* leaf, std::uint64_t page) {
  const std::size_t count = load<std::uint16_t>(leaf + format::at_lower(kV)) / kSlot;
  if (count == 0 || kHeader + kSlot * count > page_) fail_contents();
  const auto key = [&](std::size_t slot) {
    const std::size_t at =
        format::slot_base(kV) + std::size_t{load<std::uint16_t>(leaf + kHeader + kSlot * slot)};
    if (at + format::kNodeHeader > page_) fail_contents();
    const std::size_t bytes = load<std::uint16_t>(leaf + at + 6);
    if (at + format::kNodeHeader + bytes > page_) fail_contents();
    return std::string(reinterpret_cast<const char*>(leaf) + at + format::kNodeHeader, bytes);
  };
  leaf_is_written(page, count, key(0), key(count - 1));
}

// --- writing ---

/// Returns memory of `count` new pages, filled with zeros but for the header of the first one.  Valid until
/// the next call.
std::byte* AppendWriter10::new_pages(std::uint64_t count, unsigned flags) {
  if (buffer_.size() >= kBufferBytes) flush();
  const std::size_t at = buffer_.size();
  buffer_.resize(at + count * page_);
  auto* const page = reinterpret_cast<std::byte*>(buffer_.data()) + at;
  put(page, next_page_);
  put(page + format::kAtTxnid, kTxnid);
  put(page + format::at_flags(kV), static_cast<std::uint16_t>(flags));
  next_page_ += count;
  waiting_ += count * page_;
  return page;
}

void AppendWriter10::flush() {
  const std::uint64_t offset = next_page_ * page_ - buffer_.size();
  if (::lseek(fd_.get(), static_cast<off_t>(offset), SEEK_SET) < 0) fail(errno);
  if (const int e = write_all(fd_.get(), buffer_); e != 0) fail(e);
  buffer_.clear();
}

void AppendWriter10::commit() {
  flush();
  const CommitRecord record{CommitRecord::kMagic, whole_pages_};
  if (::pwrite(fd_.get(), &record, sizeof record, static_cast<off_t>(page_)) != sizeof record) fail(errno);
  committed_ = whole_records_;
  last_key_ = whole_key_;
  waiting_ = 0;
  (void)::sync_file_range(fd_.get(), static_cast<off_t>(flushed_), 0, SYNC_FILE_RANGE_WRITE);
  flushed_ = next_page_ * page_;
}

std::uint64_t AppendWriter10::write_run(std::string_view value) {
  const std::uint64_t first = next_page_;
  const std::uint64_t pages =
      format::overflow_pages(kV, value.size(), static_cast<unsigned>(std::countr_zero(page_)));
  std::byte* const at = new_pages(pages, format::kOverflow);
  put(at + format::at_pages(kV), static_cast<std::uint32_t>(pages));
  std::memcpy(at + kHeader, value.data(), value.size());
  overflow_pages_ += pages;
  return first;
}

void AppendWriter10::append(std::string_view key, std::string_view value) {
  using format::kNodeHeader;
  const std::size_t room = page_ - kHeader;
  // Two records have to fit into a page.
  const std::size_t most_node = (room / 2 & ~std::size_t{1}) - kSlot;
  if (kNodeHeader + even(key.size()) + format::run_record(kV) > most_node || key.empty())
    throw Error(path_ + ": a key of " + std::to_string(key.size()) + " bytes");
  if (key <= last_appended_) throw Error(path_ + ": the key is not greater than the last one");
  if (value.size() > UINT32_MAX) throw Error(path_ + ": a value of more than 4 GiB");
  const bool big = kNodeHeader + even(key.size()) + even(value.size()) > most_node;
  const std::size_t bytes =
      kNodeHeader + even(key.size()) + (big ? format::run_record(kV) : even(value.size()));
  if (leaf_used_ + kSlot + bytes > room) write_leaf();

  Node node{{}, key.size()};
  put(node.bytes, static_cast<std::uint32_t>(value.size()));
  put(node.bytes, static_cast<std::uint16_t>(big ? format::kBigData : 0));
  put(node.bytes, static_cast<std::uint16_t>(key.size()));
  node.bytes += key;
  node.bytes.resize(even(node.bytes.size()));
  if (big) {
    const std::uint64_t first = write_run(value);
    put(node.bytes, first);
    put(node.bytes, kTxnid);
    put(node.bytes, next_page_ - first);
  } else {
    node.bytes += value;
    node.bytes.resize(bytes);
  }
  leaf_.push_back(std::move(node));
  leaf_used_ += kSlot + bytes;
  last_appended_ = key;
  if (waiting_ >= kCommitBytes) commit();
}

void AppendWriter10::write_leaf() {
  const std::uint64_t page = next_page_;
  std::byte* const at = new_pages(1, format::kLeaf);
  std::size_t top = page_;
  for (std::size_t i = 0; i < leaf_.size(); ++i) {
    const std::string& bytes = leaf_[i].bytes;
    std::memcpy(add_node(at, i, bytes.size(), top), bytes.data(), bytes.size());
  }
  leaf_is_written(page, leaf_.size(), leaf_.front().key(), leaf_.back().key());
  leaf_.clear();
  leaf_used_ = 0;
}

void AppendWriter10::leaf_is_written(std::uint64_t page, std::uint64_t records, std::string first_key,
                                     std::string last_key) {
  ++leaf_pages_;
  add_child(0, {std::move(first_key), page});
  whole_pages_ = next_page_;
  whole_records_ += records;
  whole_key_ = std::move(last_key);
}

std::uint64_t AppendWriter10::write_branch(const std::vector<Child>& children, std::size_t count) {
  const std::uint64_t page = next_page_;
  std::byte* const at = new_pages(1, format::kBranch);
  std::size_t top = page_;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view key = i == 0 ? std::string_view() : children[i].key;
    std::byte* const node = add_node(at, i, format::kNodeHeader + even(key.size()), top);
    put(node, static_cast<std::uint32_t>(children[i].page));
    put(node + 4, static_cast<std::uint16_t>(children[i].page >> 32));
    put(node + 6, static_cast<std::uint16_t>(key.size()));
    if (!key.empty()) std::memcpy(node + format::kNodeHeader, key.data(), key.size());
  }
  ++branch_pages_;
  return page;
}

void AppendWriter10::add_child(std::size_t level, Child child) {
  const auto bytes_of = [](const Child& c) { return kSlot + format::kNodeHeader + even(c.key.size()); };
  if (level == levels_.size()) levels_.emplace_back();
  if (levels_[level].used + bytes_of(child) > page_ - kHeader) {
    // The last child goes to the next page, which gets two children in this way: branch pages have at least
    // two.
    std::vector<Child> full = std::exchange(levels_[level].children, {});
    const std::uint64_t page = write_branch(full, full.size() - 1);
    levels_[level].used = bytes_of(full.back());
    levels_[level].children.push_back(std::move(full.back()));
    add_child(level + 1, {std::move(full.front().key), page});
  }
  levels_[level].used += bytes_of(child);
  levels_[level].children.push_back(std::move(child));
}

void AppendWriter10::finish() {
  if (!leaf_.empty()) write_leaf();
  commit();
  format::DbRecord main{};
  main.root = format::kNoPage;
  for (std::size_t l = 0; l < levels_.size(); ++l) {
    const std::vector<Child> children = levels_[l].children;
    if (l + 1 < levels_.size() || children.size() > 1) {
      add_child(l + 1, {children[0].key, write_branch(children, children.size())});
    } else {
      main.root = format::Pgno{children[0].page};
      main.depth = static_cast<std::uint16_t>(l + 1);
    }
  }
  main.branch_pages = branch_pages_;
  main.leaf_pages = leaf_pages_;
  main.overflow_pages = overflow_pages_;
  main.entries = whole_records_;
  flush();
  if (::ftruncate(fd_.get(), static_cast<off_t>(next_page_ * page_)) != 0) fail(errno);
  write_metas(main);
  if (::fsync(fd_.get()) != 0) fail(errno);
}

/// Writes the meta page of an empty environment, and the one of the transaction that has written everything.
void AppendWriter10::write_metas(const format::DbRecord& main) {
  format::MetaRecord meta{};
  meta.magic = format::kMagic;
  meta.version = format::meta_version(kV);
  meta.mapsize = align_up(next_page_ * page_, std::uint64_t{1} << 20);
  meta.dbs[0].pad = static_cast<std::uint32_t>(page_);
  meta.dbs[0].flags = MDB_INTEGERKEY;
  meta.dbs[0].root = meta.dbs[1].root = format::kNoPage;
  meta.last_pg = format::kMetaPages - 1;
  std::string pages(format::kMetaPages * page_, '\0');
  for (std::uint64_t i = 0; i < format::kMetaPages; ++i) {
    auto* const page = reinterpret_cast<std::byte*>(pages.data()) + i * page_;
    if (i == 1) {
      meta.dbs[1] = main;
      meta.last_pg = next_page_ - 1;
      meta.txnid = kTxnid;
    }
    put(page, i);
    put(page + format::at_flags(kV), static_cast<std::uint16_t>(format::kMeta));
    put(page + kHeader, meta);
  }
  if (::lseek(fd_.get(), 0, SEEK_SET) < 0) fail(errno);
  if (const int e = write_all(fd_.get(), pages); e != 0) fail(e);
}

}  // namespace lmdbio::files
