#include "lmdbio/cli/database.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "lmdbio/base/align.h"
#include "lmdbio/cli/command.h"
#include "lmdbio/cli/text.h"

namespace lmdbio::cli {
namespace {

using format::MetaRecord;

std::string errno_text(int e) {
  return ::strerrordesc_np(e) != nullptr ? ::strerrordesc_np(e) : "unknown error";
}

const char* kind_of(const struct stat& st) {
  switch (st.st_mode & S_IFMT) {
    case S_IFIFO:
      return "a FIFO";
    case S_IFCHR:
      return "a character device";
    case S_IFBLK:
      return "a block device";
    case S_IFSOCK:
      return "a socket";
    default:
      return "not a regular file";
  }
}

/// Reads up to `size` bytes at offset `at`; fewer at the end of the file.
std::vector<std::byte> read_at(int fd, std::uint64_t at, std::size_t size, const std::string& path) {
  std::vector<std::byte> out(size);
  std::size_t have = 0;
  while (have < size) {
    const ssize_t n = ::pread(fd, out.data() + have, size - have, static_cast<off_t>(at + have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Failure(path + ": cannot be read: " + errno_text(errno));
    if (n == 0) break;
    have += static_cast<std::size_t>(n);
  }
  out.resize(have);
  return out;
}

// For the handler of SIGBUS, which occurs if a mapped file is truncated.  A command maps at most two files.
struct Mapped {
  std::atomic<const std::byte*> begin;
  std::size_t bytes;
  char message[512];
  std::size_t length;
};
Mapped mapped[2];
extern "C" void on_sigbus(int, siginfo_t* info, void*) {
  const auto* const at = static_cast<const std::byte*>(info->si_addr);
  const std::byte* const second = mapped[1].begin.load(std::memory_order_relaxed);
  const Mapped& m = mapped[second != nullptr && at >= second && at < second + mapped[1].bytes ? 1 : 0];
  (void)!::write(STDERR_FILENO, m.message, m.length);
  ::_exit(kUnusable);
}

void expect_truncation(const std::string& path, const window::Window& window) {
  const std::string text =
      "lmdbio: " + path + ": was truncated or became unreadable while it was being read\n";
  static std::string paths[2];
  const unsigned which = paths[0].empty() || paths[0] == path ? 0 : 1;
  paths[which] = path;
  Mapped& m = mapped[which];
  m.begin.store(nullptr, std::memory_order_relaxed);
  m.length = text.copy(m.message, sizeof m.message);
  m.bytes = window.length();
  m.begin.store(window.base(), std::memory_order_relaxed);
  struct sigaction act {};
  act.sa_sigaction = on_sigbus;
  act.sa_flags = SA_SIGINFO;
  (void)::sigaction(SIGBUS, &act, nullptr);
}

}  // namespace

Database::Database(const std::string& path) : path_(path) {
  if (::stat(path_.c_str(), &status_) != 0)
    throw Failure(path_ + ": " + (errno == ENOENT ? "no such file or directory" : errno_text(errno)));
  if (S_ISDIR(status_.st_mode)) {
    in_directory_ = true;
    if (path_.back() != '/') path_ += '/';
    path_ += "data.mdb";
    if (::stat(path_.c_str(), &status_) != 0)
      throw Failure(errno == ENOENT ? path + ": a directory without data.mdb"
                                    : path_ + ": " + errno_text(errno));
  }
  if (S_ISDIR(status_.st_mode)) throw Failure(path_ + ": a directory");
  if (!S_ISREG(status_.st_mode)) throw Failure(path_ + ": " + kind_of(status_) + ", not a database file");
  Result<std::shared_ptr<const OpenFile>> file = OpenFile::open(path_.c_str());
  if (!file)
    throw Failure(
        path_ + ": " +
        (file.error().raw() == EACCES ? "no permission to read it" : errno_text(file.error().raw())));
  file_ = std::move(file).value();
  if (::fstat(fd(), &status_) != 0) throw Failure(path_ + ": " + errno_text(errno));
  judge_metas();
}

void Database::judge_metas() {
  const auto size = static_cast<std::uint64_t>(status_.st_size);
  if (size == 0) throw Failure(path_ + ": empty (0 bytes): nothing has been committed to it yet");
  const std::vector<std::byte> head = read_at(fd(), 0, 4096, path_);
  // The first meta page gives the page size, and so the offset of the second one.  If it is damaged, try
  // every page size.
  if (format::judge_meta(head) == format::MetaKind::good) {
    const MetaRecord first = format::parse_meta(head).value();
    page_size_ = format::page_size(first);
    version_ = format::version(first);
  } else {
    constexpr std::size_t kMost = format::max_page_size(format::Version::v10);
    for (std::size_t p = format::kMinPageSize; p <= kMost && page_size_ == 0; p *= 2) {
      const std::vector<std::byte> second = read_at(fd(), p, format::kMetaBytes, path_);
      const Result<MetaRecord> m = format::parse_meta(second);
      if (!m || load<std::uint64_t>(second, 0) != 1 || format::page_size(m.value()) != p) continue;
      page_size_ = p;
      version_ = format::version(m.value());
    }
  }
  if (page_size_ == 0) refuse_format(head);
  if (size < 2 * page_size_)
    throw Failure(format_text("%s: truncated: %llu bytes are less than two pages of %zu bytes", path_.c_str(),
                              static_cast<unsigned long long>(size), page_size_));
  for (unsigned i = 0; i < 2; ++i) {
    const std::vector<std::byte> page = read_at(fd(), i * page_size_, format::kMetaBytes, path_);
    Meta& m = metas_[i];
    if (page.size() == format::kMetaBytes) m.record = load<MetaRecord>(page, format::page_header(version_));
    switch (format::judge_meta(page)) {
      case format::MetaKind::other:
        m.problem = format_text("not a meta page of data format %u: wrong flags, magic number or version",
                                format::meta_version(version_));
        continue;
      case format::MetaKind::encrypted:
        m.problem = "the pages are encrypted";
        continue;
      case format::MetaKind::bad_page_size:
        m.problem = format_text("its page size is %zu", format::page_size(m.record));
        continue;
      case format::MetaKind::good:
        break;
    }
    const auto number = load<std::uint64_t>(page, 0);
    const unsigned long long id = m.record.txnid;
    if (format::page_size(m.record) != page_size_) {
      m.problem = format_text("its page size is %zu, but %zu on the other meta page",
                              format::page_size(m.record), page_size_);
      continue;
    }
    m.usable = true;
    if (number != i)
      m.problem =
          format_text("the page number in its header is %llu", static_cast<unsigned long long>(number));
    else if (id != 0 && id % 2 != i)
      m.problem = format_text("transaction %llu belongs on the other meta page", id);
    else if (m.record.last_pg < 1)
      m.problem = "the last page that it gives is a meta page";
  }
}

void Database::refuse_format(Bytes head) const {
  const auto word = [&](std::size_t at) { return at + 4 <= head.size() ? load<std::uint32_t>(head, at) : 0; };
  constexpr std::uint32_t kSwapped = __builtin_bswap32(format::kMagic);
  std::string why;
  const format::Version v = word(format::page_header(format::Version::v09)) == format::kMagic
                                ? format::Version::v09
                                : format::Version::v10;
  const std::size_t at = format::page_header(v);
  if (word(at) == format::kMagic && word(at + 4) != format::meta_version(v))
    why =
        format_text("data format version %u; LMDB 0.9 has version %u, and LMDB 1.0 version %u", word(at + 4),
                    format::meta_version(format::Version::v09), format::meta_version(format::Version::v10));
  else if (format::judge_meta(head) == format::MetaKind::encrypted)
    why = "the pages are encrypted";
  else if (word(at) == format::kMagic)
    why = format_text("both meta pages are damaged (the first: flags 0x%x, page size %u)",
                      word(format::at_flags(v)) & 0xffff, word(at + offsetof(MetaRecord, dbs)));
  else if (word(16) == kSwapped)
    why = "written on a machine with the other byte order";
  else if (word(12) == format::kMagic)
    why = "written by a 32-bit LMDB";
  else if (word(12) == kSwapped)
    why = "written by a 32-bit LMDB on a machine with the other byte order";
  else if (head.size() < format::kMetaBytes)
    why = format_text("truncated, or not an LMDB file: %zu bytes", head.size());
  else
    why = "not an LMDB file";
  throw Failure(path_ + ": " + why);
}

void Database::read_exactly() noexcept { exactly_ = ::posix_fadvise(fd(), 0, 0, POSIX_FADV_RANDOM) == 0; }

window::WindowView Database::view() {
  struct stat now {};
  if (::fstat(fd(), &now) != 0) throw Failure(path_ + ": " + errno_text(errno));
  const auto bytes = align_down(static_cast<std::uint64_t>(now.st_size), page_size_);
  if (bytes < 2 * page_size_) throw Failure(path_ + ": truncated while it was being read");
  if (!window_ || bytes != mapped_bytes_) {
    Result<window::Window> window = window::Window::map(fd(), bytes, {page_size_, version_}, exactly_);
    if (!window) throw Failure(path_ + ": cannot be mapped: " + errno_text(window.error().raw()));
    window_.emplace(std::move(window).value());
    expect_truncation(path_, *window_);
    mapped_bytes_ = bytes;
  }
  return window_->view(bytes / page_size_);
}

tree::Snapshot Database::snapshot(std::optional<unsigned> which) {
  if (!which && metas_[0].problem.empty() && metas_[1].problem.empty()) {
    const window::WindowView v = view();
    const std::size_t header = format::page_header(version_);
    const std::byte* const mapped[2] = {v.at(format::Pgno{0}) + header, v.at(format::Pgno{1}) + header};
    const tree::MetaSource source(mapped);
    tree::Snapshot s;
    (void)source.renew(s.txnid);
    const Status st = tree::read_snapshot(mapped, source, s);
    if (!st.ok()) throw Failure(path_ + ": a writer commits faster than a meta page can be read; try again");
    return s;
  }
  unsigned from = which.value_or(0);
  if (!which && (!metas_[0].usable || (metas_[1].usable && metas_[1].record.txnid > metas_[0].record.txnid)))
    from = 1;
  if (!metas_[from].usable)
    throw Failure(format_text("%s: meta page %u: %s", path_.c_str(), from, metas_[from].problem.c_str()));
  // A commit during a read may tear the copy: read until two reads agree.
  const auto read = [&] { return read_at(fd(), from * page_size_, format::kMetaBytes, path_); };
  std::vector<std::byte> page = read();
  for (std::vector<std::byte> again = read(); again != page; again = read()) page = std::move(again);
  if (page.size() < format::kMetaBytes) throw Failure(path_ + ": truncated while it was being read");
  const auto m = load<MetaRecord>(Bytes(page), format::page_header(version_));
  tree::Snapshot s;
  s.txnid = m.txnid;
  s.last_pg = m.last_pg;
  s.dbs[0] = m.dbs[0];
  s.dbs[1] = m.dbs[1];
  return s;
}

std::uint64_t Database::newest() const noexcept {
  std::uint64_t newest = 0;
  for (unsigned i = 0; i < 2; ++i) {
    std::uint64_t id = 0;
    if (metas_[i].usable &&
        ::pread(fd(), &id, sizeof id,
                static_cast<off_t>(i * page_size_ + format::page_header(version_) +
                                   tree::detail::kAtTxnid)) == sizeof id &&
        id > newest)
      newest = id;
  }
  return newest;
}

}  // namespace lmdbio::cli
