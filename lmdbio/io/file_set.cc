#include "lmdbio/io/file_set.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/io/engine_hosted.h"

namespace lmdbio {

namespace {

/// Returns true if `now` is the file `then`, and was not written since.  After a file was removed, another
/// one may get the number of its inode.
bool is_same(const Result<FileIdentity>& now, const FileIdentity& then) noexcept {
  return now && now.value().dev == then.dev && now.value().ino == then.ino &&
         now.value().mtime_ns == then.mtime_ns;
}

/// Returns how many files may be open for reads.  An open takes longer than the read of a small record, so
/// there should be room for all files of most sets.
std::size_t most_read(bool direct) noexcept {
  constexpr rlim_t kMost = 1024;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = 0;
  const auto most = static_cast<std::size_t>(std::min(limit.rlim_cur / 4, kMost));
  return std::max(most, FileSet::kMostRead) / (direct ? 2 : 1);
}

class Reads final : public RangeReader {
 public:
  Reads(std::shared_ptr<FileSet> files, bool direct, bool fills) noexcept
      : files_(std::move(files)), direct_(direct), fills_(fills) {}
  long fill(std::uint64_t offset, MutableBytes to) noexcept override {
    return files_->read(offset, to, direct_, fills_);
  }
  unsigned threads() const noexcept override { return files_->threads(); }

 private:
  const std::shared_ptr<FileSet> files_;
  const bool direct_, fills_;
};

}  // namespace

FileSet::FileSet(std::vector<Part> parts, bool direct)
    : parts_(std::move(parts)),
      direct_(direct),
      most_read_(most_read(direct)),
      recent_ns_(std::max(kRecentNs, kRecentPerFileNs * static_cast<std::int64_t>(parts_.size()))),
      states_(new State[parts_.size()]),
      probed_(parts_.size(), kMostProbed, kMostProbed),
      read_(parts_.size(), most_read_, kMostRead / (direct ? 2 : 1)) {
  for (const Part& p : parts_) {
    firsts_.push_back(bytes_);
    bytes_ = align_up(bytes_ + p.bytes, kSpacing) + kSpacing;  // the gap keeps reads of two files apart
  }
}

std::size_t FileSet::at(std::uint64_t offset) const noexcept {
  return static_cast<std::size_t>(std::upper_bound(firsts_.begin(), firsts_.end(), offset) -
                                  firsts_.begin()) -
         1;
}

Result<std::unique_ptr<FileSet::Probed>> FileSet::open_probed(std::size_t i) noexcept {
  const Part& p = parts_[i];
  // O_NONBLOCK: the open must not wait if a pipe has replaced the file.
  UniqueFd fd(::open(p.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) return Status::from_errno(errno);
  if (!is_same(identity_of(fd.get()), p.id)) return Status::from_errno(ESTALE);
  // No other thread opens this file now.
  std::atomic<const Residency*>& known = states_[i].residency;
  if (known.load() == nullptr) {
    const Residency first(fd.get());
    known.store(new (std::nothrow) Residency(first, -1, Residency::Sampling::yes), std::memory_order_release);
    if (known.load() == nullptr) return Status::from_errno(ENOMEM);
  }
  const Residency by(*known.load(), fd.get(), Residency::Sampling::yes);
  std::unique_ptr<Probed> made(new (std::nothrow) Probed(std::move(fd), p.id, by));
  if (made == nullptr) return Status::from_errno(ENOMEM);
  return made;
}

template <class Body>
Status FileSet::probe(std::size_t i, Body&& body) noexcept {
  return probed_.with(
      i, [this](std::size_t k) noexcept { return open_probed(k); }, body);
}

std::uint64_t FileSet::length(std::size_t i) noexcept {
  std::uint64_t bytes = 0;
  if (probed_.if_open(i, [&](Probed& p) noexcept { bytes = size_if_inode(p.fd.get(), p.id).value_or(0); }) &&
      bytes != 0)
    return bytes;
  // This takes less time than an open.
  struct ::stat st;
  if (::stat(parts_[i].path.c_str(), &st) != 0) return 0;
  const FileIdentity now = identity_of(st);
  return is_same(now, parts_[i].id) ? now.size : 0;
}

std::uint64_t FileSet::recent_length(std::size_t i, std::int64_t now) noexcept {
  State& s = states_[i];
  if (now - s.length_ns.load(std::memory_order_acquire) < recent_ns_)
    return s.length.load(std::memory_order_relaxed);
  const std::uint64_t bytes = length(i);
  s.length.store(bytes, std::memory_order_relaxed);
  s.length_ns.store(now, std::memory_order_release);
  return bytes;
}

std::optional<double> FileSet::mapped_share(std::size_t i, std::uint64_t offset,
                                            std::uint64_t bytes) const noexcept {
  const Residency* const by = states_[i].residency.load(std::memory_order_acquire);
  const std::byte* const there = mapped(i);
  if (by == nullptr || there == nullptr || offset - firsts_[i] + bytes > parts_[i].bytes) return {};
  return by->share_read(offset - firsts_[i], bytes, there);
}

std::optional<double> FileSet::resident(std::uint64_t offset, std::uint64_t bytes) noexcept {
  const std::size_t i = at(offset);
  std::optional<double> share = mapped_share(i, offset, bytes);
  if (share) return share;
  (void)probe(i, [&](Probed& p) noexcept { share = p.residency.share(offset - firsts_[i], bytes); });
  return share;
}

bool FileSet::map(std::size_t i, std::byte* to) noexcept {
  bool mapped = false;
  (void)probe(i, [&](Probed& p) noexcept {
    const std::size_t bytes = align_up(static_cast<std::size_t>(parts_[i].bytes), system_page());
    mapped = size_if_inode(p.fd.get(), p.id) &&
             ::mmap(to, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, p.fd.get(), 0) != MAP_FAILED;
  });
  if (mapped) states_[i].mapped.store(to, std::memory_order_release);
  return mapped;
}

Status FileSet::read_here(std::size_t i, std::uint64_t offset, MutableBytes to) noexcept {
  Status st;
  const Status opened = probe(i, [&](Probed& p) noexcept {
    ssize_t n;
    do n = ::pread(p.fd.get(), to.data(), to.size(), static_cast<off_t>(offset));
    while (n < 0 && errno == EINTR);
    if (n != static_cast<ssize_t>(to.size())) st = Status::from_errno(n < 0 ? errno : EIO);
    if (!size_if_inode(p.fd.get(), p.id))
      st = Status::from_errno(ESTALE);  // the program has reused the number
  });
  return opened.ok() ? st : opened;
}

Result<std::shared_ptr<const OpenFile>> FileSet::open(std::size_t i) const noexcept {
  Result<std::shared_ptr<const OpenFile>> file =
      OpenFile::get({-1, parts_[i].path.c_str(), parts_[i].id}, OpenFile::With::exact_alone);
  if (file && !is_same(file.value()->base().identity(), parts_[i].id)) return Status::from_errno(ESTALE);
  return file;
}

Result<std::unique_ptr<FileSet::Read>> FileSet::open_read(std::size_t i) const noexcept {
  Result<std::unique_ptr<Read>> made = Status::from_errno(EIO);
  (void)PrivateTable::run([&]() noexcept { made = open_read_here(i); });
  return made;
}

// Call in a thread of the private table.
Result<std::unique_ptr<FileSet::Read>> FileSet::open_read_here(std::size_t i) const noexcept {
  const Result<std::shared_ptr<const OpenFile>> file = open(i);
  if (!file) return file.error();
  std::unique_ptr<Read> made(new (std::nothrow) Read);
  if (made == nullptr) return Status::from_errno(ENOMEM);
  made->file = file.value();
  const File* const exact = made->file->exact();
  const File& buffered = exact != nullptr ? *exact : made->file->buffered();
  made->buffered = buffered.fd();
  if (const File* const direct = direct_ ? made->file->direct() : nullptr; direct != nullptr)
    made->direct = direct->fd();
  if (made->buffered < 0) return Status::from_errno(EIO);
  made->is_crowded = PrivateTable::crowded(made->buffered);
  if (direct_ || parts_[i].bytes < 2 * PageFiller::kPiece) return made;
  if (Result<std::unique_ptr<PageFiller>> filler = PageFiller::make(buffered, PageFiller::Bytes::copied);
      filler)
    made->filler = std::move(filler).value();
  return made;
}

long FileSet::read(std::uint64_t offset, MutableBytes to, bool direct, bool fills) noexcept {
  const std::size_t i = at(offset);
  const std::uint64_t from = offset - firsts_[i];
  long n = 0;
  const Status opened = read_.with(
      i, [this](std::size_t k) noexcept { return open_read(k); },
      [&](const Read& r) noexcept {
        if (fills && r.filler != nullptr) {
          n = r.filler->fill(from, to);
          return;
        }
        const int fd = direct && r.direct >= 0 ? r.direct : r.buffered;
        n = ::pread(fd, to.data(), to.size(), static_cast<off_t>(from));
        if (n < 0) n = -static_cast<long>(errno);
      });
  if (!opened.ok()) n = -static_cast<long>(opened.raw());
  if (n != -EINTR && n != -EAGAIN)
    states_[i].error.store(n < 0 ? static_cast<int>(-n) : 0, std::memory_order_relaxed);
  if (n < 0 || from + static_cast<std::uint64_t>(n) < parts_[i].bytes) return n;
  const auto got = static_cast<std::size_t>(n);
  std::memset(to.data() + got, 0, to.size() - got);
  return static_cast<long>(to.size());
}

Result<std::unique_ptr<IoEngine>> FileSet::engine(std::shared_ptr<FileSet> files, const File& like,
                                                  unsigned depth, EngineKind wanted) noexcept {
  const auto make = [&](EngineKind kind, EventCount* results) -> Result<std::unique_ptr<IoEngine>> {
    std::unique_ptr<RangeReader> reader(new (std::nothrow)
                                            Reads(files, like.direct(), kind == EngineKind::populate_copied));
    if (reader == nullptr) return Status::from_errno(ENOMEM);
    return threads_engine(like, depth, 0, std::move(reader), results);
  };
  if (!like.kept() || PrivateTable::inside()) return make(wanted, nullptr);
  return hosted_engine({like.alignment(), depth, like.direct()}, wanted, make);
}

}  // namespace lmdbio
