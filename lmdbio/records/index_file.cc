#include "lmdbio/records/index_file.h"

#include <fcntl.h>
#include <lmdb.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "lmdbio/base/align.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/file_size_signal.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/records/index_path.h"
#include "lmdbio/records/new_file.h"

namespace lmdbio::records {
namespace {

constexpr char kMagic[8] = {'L', 'M', 'D', 'B', 'I', 'O', 'i', 'x'};
constexpr std::uint32_t kFileVersion = 1;

struct ColumnSizes {
  std::uint64_t values, frame_bytes, distance_bytes;
};

/// The header of the file.  After it, the file has the database name and the columns, each padded to 8 bytes.
/// The file ends with the XXH3 of everything before.
struct Header {
  char magic[8];
  std::uint32_t version, header_bytes;  ///< header_bytes: size of header, name and padding of the name
  std::uint64_t file_bytes;             ///< size of the whole file
  std::uint32_t page_size, name_bytes;
  std::uint64_t txnid, root, entries;
  std::uint64_t inode, size;
  std::int64_t mtime_ns;
  std::uint16_t flags, depth;
  std::uint32_t pad;
  std::uint64_t records, branch_pages, leaf_pages, overflow_values, overflow_bytes, largest_overflow;
  ColumnSizes columns[6];  ///< leaf, first, start, where, run_page, run_bytes
};
static_assert(sizeof(Header) == 280 && std::endian::native == std::endian::little);
constexpr std::size_t kChecksum = sizeof(std::uint64_t);

std::array<const PackedColumn*, 6> all(const IndexColumns& c) noexcept {
  return {&c.leaf, &c.first, &c.start, &c.where, &c.run_page, &c.run_bytes};
}
std::array<PackedColumn*, 6> all(IndexColumns& c) noexcept {
  return {&c.leaf, &c.first, &c.start, &c.where, &c.run_page, &c.run_bytes};
}

/// Returns a header in which the caller must set the sizes of the columns and the totals.
Header header_of(const IndexTag& tag) noexcept {
  Header h{};
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.version = kFileVersion;
  h.header_bytes = static_cast<std::uint32_t>(align_up(sizeof h + tag.database.size(), 8));
  h.page_size = static_cast<std::uint32_t>(tag.page_size);
  h.name_bytes = static_cast<std::uint32_t>(tag.database.size());
  h.txnid = tag.txnid;
  h.root = format::raw(tag.record.root);
  h.entries = tag.record.entries;
  h.inode = tag.identity.ino;
  h.size = tag.identity.size;
  h.mtime_ns = tag.identity.mtime_ns;
  h.flags = tag.record.flags;
  h.depth = tag.record.depth;
  h.pad = tag.record.pad;
  return h;
}

[[gnu::format(printf, 2, 3)]] void say(std::span<char> why, const char* format, ...) noexcept {
  if (why.empty()) return;
  va_list args;
  va_start(args, format);
  (void)std::vsnprintf(why.data(), why.size(), format, args);
  va_end(args);
}

const char* errno_text(int e) noexcept {
  const char* const text = ::strerrordesc_np(e);
  return text != nullptr ? text : "unknown error";
}

Status write_all(int fd, Bytes b) noexcept {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  while (!b.empty()) {
    const ssize_t n = ::write(fd, b.data(), std::min(b.size(), kMost));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Status::from_errno(errno);
    b = b.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Status read_all(int fd, std::uint64_t at, MutableBytes to) noexcept {
  while (!to.empty()) {
    const ssize_t n = ::pread(fd, to.data(), to.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Status::from_errno(errno);
    if (n == 0) return Status::from_mdb(MDB_CORRUPTED);  // the file was truncated meanwhile
    at += static_cast<std::uint64_t>(n);
    to = to.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

/// Writes the parts of the file one after the other, and hashes them.
class Writer {
 public:
  explicit Writer(int fd) : fd_(fd), state_(XXH3_createState()) {
    if (state_ != nullptr) (void)XXH3_64bits_reset(state_);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() { (void)XXH3_freeState(state_); }

  void write(Bytes b) noexcept {
    if (state_ == nullptr) {
      status_ = Status::from_errno(ENOMEM);
      return;
    }
    constexpr std::byte kZeros[8]{};
    for (const Bytes piece : {b, Bytes(kZeros).first(align_up(b.size(), 8) - b.size())}) {
      if (!status_.ok() || piece.empty()) continue;
      (void)XXH3_64bits_update(state_, piece.data(), piece.size());
      status_ = write_all(fd_, piece);
    }
  }
  Status finish() noexcept {
    if (!status_.ok()) return status_;
    const std::uint64_t sum = XXH3_64bits_digest(state_);
    return write_all(fd_, std::as_bytes(std::span(&sum, 1)));
  }

 private:
  int fd_;
  XXH3_state_t* state_;
  Status status_;
};

Status save(const RecordIndex& index, const IndexTag& tag, int fd, std::uint64_t& bytes) noexcept {
  Header h = header_of(tag);
  const IndexTotals& t = index.totals();
  h.records = t.records;
  h.branch_pages = t.branch_pages;
  h.leaf_pages = t.leaf_pages;
  h.overflow_values = t.overflow_values;
  h.overflow_bytes = t.overflow_bytes;
  h.largest_overflow = t.largest_overflow;
  h.file_bytes = h.header_bytes + kChecksum;
  const auto columns = all(index.columns());
  for (std::size_t i = 0; i < columns.size(); ++i) {
    h.columns[i] = {columns[i]->size(), columns[i]->frame_bytes().size(),
                    columns[i]->distance_bytes().size()};
    h.file_bytes += align_up(h.columns[i].frame_bytes, 8) + align_up(h.columns[i].distance_bytes, 8);
  }
  Writer out(fd);
  out.write(std::as_bytes(std::span(&h, 1)));
  out.write(std::as_bytes(std::span(tag.database)));
  for (const PackedColumn* const c : columns) {
    out.write(c->frame_bytes());
    out.write(c->distance_bytes());
  }
  bytes = h.file_bytes;
  return out.finish();
}

/// Writes the file, and sets its group and mode.  Does all of save_index() except the rename.
Status fill(const RecordIndex& index, const IndexTag& tag, const struct ::stat& data, int fd,
            std::uint64_t& bytes) noexcept {
  if (const Status st = save(index, tag, fd, bytes); !st.ok()) return st;
  ::mode_t mode = S_IRUSR | S_IWUSR | (data.st_mode & (S_IRGRP | S_IROTH));
  if (::fchown(fd, static_cast<::uid_t>(-1), data.st_gid) != 0)
    mode &= ~::mode_t{S_IRGRP};  // the index file has another group
  if (::fchmod(fd, mode) != 0 || ::fsync(fd) != 0) return Status::from_errno(errno);
  return {};
}

Status damaged(std::span<char> why, const char* what) noexcept {
  say(why, "damaged: %s", what);
  return Status::from_mdb(MDB_CORRUPTED);
}

/// Returns true if the data file may be a copy with the same modification time (cp -a, rsync -a).  The caller
/// compares size, modification time and transaction.  A time in whole seconds proves nothing, because
/// archives store times in whole seconds, possibly the same time for all files.
bool may_be_copy(const Header& h, const IndexTag& tag) noexcept {
  constexpr std::int64_t kSecond = 1'000'000'000;
  if (h.mtime_ns % kSecond == 0) return false;
  // LMDB's own page counts do not include trees of duplicates.
  return (tag.record.flags & MDB_DUPSORT) != 0 ||
         (h.branch_pages == tag.record.branch_pages && h.leaf_pages == tag.record.leaf_pages);
}

Status judge(const Header& h, const IndexTag& tag, std::uint64_t size, std::span<char> why) noexcept {
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) {
    say(why, "not a record index");
    return Status::from_mdb(MDB_CORRUPTED);
  }
  if (h.version != kFileVersion) {
    say(why, "format version %" PRIu32 "; this version of LMDBIO uses %" PRIu32, h.version, kFileVersion);
    return Status::from_mdb(MDB_VERSION_MISMATCH);
  }
  const Header want = header_of(tag);
  if (h.size != want.size || h.mtime_ns != want.mtime_ns || (h.inode != want.inode && !may_be_copy(h, tag))) {
    say(why, "the database file was copied or changed since the index was built");
    return Status::from_errno(ESTALE);
  }
  if (h.txnid != want.txnid) {
    say(why, "built from transaction %" PRIu64 "; the database is at %" PRIu64, h.txnid, want.txnid);
    return Status::from_errno(ESTALE);
  }
  if (h.root != want.root || h.entries != want.entries || h.page_size != want.page_size ||
      h.flags != want.flags || h.depth != want.depth || h.pad != want.pad ||
      h.name_bytes != want.name_bytes) {
    say(why, "built from another database");
    return Status::from_errno(ESTALE);
  }
  if (h.file_bytes != size || h.header_bytes != want.header_bytes) return damaged(why, "wrong size");
  if (h.records != h.entries) return damaged(why, "wrong number of records");
  // Each block has at least one record, and each run is one record.  The database's number of records
  // therefore limits the bytes to read.
  std::uint64_t sum = h.header_bytes + kChecksum;
  for (const ColumnSizes& c : h.columns) {
    const std::uint64_t frames = c.values / PackedColumn::kFrame + (c.values % PackedColumn::kFrame != 0);
    if (c.values > h.records || c.frame_bytes != frames * sizeof(PackedColumn::Frame) ||
        c.frame_bytes > size || c.distance_bytes > size)  // larger sizes could make the sum wrap around
      return damaged(why, "invalid column");
    sum += align_up(c.frame_bytes, 8) + align_up(c.distance_bytes, 8);
    // A distance has at most 8 bytes.
    if (c.distance_bytes / 8 > c.values + 1) return damaged(why, "invalid column");
  }
  if (sum != size) return damaged(why, "wrong column sizes");
  return {};
}

Status load(const std::string& path, const IndexTag& tag, RecordIndex& out, std::span<char> why) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat st;
  if (!fd || ::fstat(fd.get(), &st) != 0) {
    const int e = errno;
    say(why, "%s", errno_text(e));
    return Status::from_errno(e);
  }
  // Check the owner, because every user can write to a shared directory such as /tmp.  Root and the owner of
  // the database are trusted, because they could change the database itself.
  if (st.st_uid != ::geteuid() && st.st_uid != 0 && st.st_uid != tag.owner) {
    say(why, "belongs to user %u, not to this user, root or the owner of the database", unsigned{st.st_uid});
    return Status::from_errno(EPERM);
  }
  const auto size = static_cast<std::uint64_t>(st.st_size);
  if (!S_ISREG(st.st_mode) || size < sizeof(Header) + kChecksum) return damaged(why, "too short");
  Header h;
  Status got = read_all(fd.get(), 0, std::as_writable_bytes(std::span(&h, 1)));
  if (!got.ok()) {
    say(why, "cannot be read");
    return got;
  }
  if (const Status s = judge(h, tag, size, why); !s.ok()) return s;
  const std::unique_ptr<std::byte[]> bytes(new std::byte[size]);
  got = read_all(fd.get(), 0, {bytes.get(), size});
  if (!got.ok()) {
    say(why, "cannot be read");
    return got;
  }
  const Bytes file(bytes.get(), size);
  if (std::memcmp(file.data(), &h, sizeof h) != 0) return damaged(why, "changed while it was being read");
  if (lmdbio::load<std::uint64_t>(file, size - kChecksum) != XXH3_64bits(file.data(), size - kChecksum))
    return damaged(why, "wrong checksum");
  if (std::string_view(reinterpret_cast<const char*>(file.data() + sizeof h), h.name_bytes) != tag.database) {
    say(why, "built from another database");
    return Status::from_errno(ESTALE);
  }
  IndexColumns columns;
  const auto parts = all(columns);
  std::uint64_t at = h.header_bytes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ColumnSizes& c = h.columns[i];
    const std::uint64_t distances = at + align_up(c.frame_bytes, 8);
    if (!parts[i]->adopt(c.values, file.subspan(at, c.frame_bytes),
                         file.subspan(distances, c.distance_bytes)))
      return damaged(why, "invalid column");
    at = distances + align_up(c.distance_bytes, 8);
  }
  IndexTotals t;
  t.records = h.records;
  t.branch_pages = h.branch_pages;
  t.leaf_pages = h.leaf_pages;
  t.overflow_values = h.overflow_values;
  t.overflow_bytes = h.overflow_bytes;
  t.largest_overflow = h.largest_overflow;
  RecordIndex made(std::move(columns), t);
  if (!made.consistent(tag.file_pages, {tag.page_size, tag.version}))
    return damaged(why, "inconsistent columns");
  out = std::move(made);
  return {};
}

}  // namespace

Status save_index(const RecordIndex& index, const IndexTag& tag, const std::string& path,
                  const struct ::stat& data, std::uint64_t* bytes) noexcept {
  try {
    const NoFileSizeSignal limited;
    NewFile file(path);
    Status st = file.make_unnamed();
    if (!st.ok()) st = file.make_named();
    if (!st.ok()) return st;
    file.remove_abandoned();
    std::uint64_t written = 0;
    st = fill(index, tag, data, file.fd(), written);
    if (!st.ok()) return st;
    st = file.replace();
    if (!st.ok() && !file.named()) {  // /proc is not mounted
      st = file.make_named();
      if (st.ok()) st = fill(index, tag, data, file.fd(), written);
      if (st.ok()) st = file.replace();
    }
    if (!st.ok()) return st;
    if (bytes != nullptr) *bytes = written;
    return {};
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

Status load_index(const std::string& path, const IndexTag& tag, RecordIndex& out,
                  std::span<char> why) noexcept {
  try {
    return load(path, tag, out, why);
  } catch (...) {
    say(why, "out of memory");
    return Status::from_errno(ENOMEM);
  }
}

bool find_index(const std::string& data_path, const IndexTag& tag, RecordIndex& out) noexcept {
  static std::atomic<bool> told{false};
  const Result<std::string> path = index_path(data_path, tag.database, tag.identity.ino, config().index_dir);
  if (!path) return false;
  char why[128] = "";
  const Status st = load_index(path.value(), tag, out, why);
  if (st.ok()) return true;
  if (st.raw() != ENOENT && st.raw() != ENOTDIR)
    log_line(told.exchange(true) ? LogLevel::debug : LogLevel::warn,
             "%s: record index ignored: %s; to rebuild it, run lmdbio index", path.value().c_str(), why);
  return false;
}

}  // namespace lmdbio::records
