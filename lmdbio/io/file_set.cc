#include "lmdbio/io/file_set.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "lmdbio/base/align.h"
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

class Reads final : public RangeReader {
 public:
  Reads(std::shared_ptr<FileSet> files, bool direct) noexcept : files_(std::move(files)), direct_(direct) {}
  long fill(std::uint64_t offset, MutableBytes to) noexcept override {
    return files_->read(offset, to, direct_);
  }
  unsigned threads() const noexcept override { return files_->threads(); }

 private:
  const std::shared_ptr<FileSet> files_;
  const bool direct_;
};

}  // namespace

FileSet::FileSet(std::vector<Part> parts, bool direct)
    : parts_(std::move(parts)),
      direct_(direct),
      most_read_(direct ? kMostRead / 2 : kMostRead),
      errors_(new std::atomic<int>[parts_.size()]()),
      probed_(parts_.size(), kMostProbed),
      read_(parts_.size(), most_read_) {
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

Result<std::unique_ptr<FileSet::Probed>> FileSet::open_probed(std::size_t i) const noexcept {
  const Part& p = parts_[i];
  // O_NONBLOCK: the open must not wait if a pipe has replaced the file.
  UniqueFd fd(::open(p.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) return Status::from_errno(errno);
  if (!is_same(identity_of(fd.get()), p.id)) return Status::from_errno(ESTALE);
  std::unique_ptr<Probed> made(new (std::nothrow) Probed(std::move(fd), p.id));
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
  (void)probe(i, [&](Probed& p) noexcept { bytes = size_if_inode(p.fd.get(), p.id).value_or(0); });
  return bytes;
}

std::optional<double> FileSet::resident(std::uint64_t offset, std::uint64_t bytes) noexcept {
  const std::size_t i = at(offset);
  std::optional<double> share;
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
  const Result<std::shared_ptr<const OpenFile>> file = open(i);
  if (!file) return file.error();
  std::unique_ptr<Read> made(new (std::nothrow) Read);
  if (made == nullptr) return Status::from_errno(ENOMEM);
  made->file = file.value();
  const auto number = [](const File& f) noexcept {
    int fd = -1;
    (void)f.with_fd([&fd](int n) noexcept { fd = n; });
    return fd;
  };
  const File* const exact = made->file->exact();
  made->buffered = number(exact != nullptr ? *exact : made->file->buffered());
  if (const File* const direct = direct_ ? made->file->direct() : nullptr; direct != nullptr)
    made->direct = number(*direct);
  if (made->buffered < 0) return Status::from_errno(EIO);
  return made;
}

long FileSet::read(std::uint64_t offset, MutableBytes to, bool direct) noexcept {
  const std::size_t i = at(offset);
  const std::uint64_t from = offset - firsts_[i];
  long n = 0;
  const Status opened = read_.with(
      i, [this](std::size_t k) noexcept { return open_read(k); },
      [&](const Read& r) noexcept {
        const int fd = direct && r.direct >= 0 ? r.direct : r.buffered;
        n = ::pread(fd, to.data(), to.size(), static_cast<off_t>(from));
        if (n < 0) n = -static_cast<long>(errno);
      });
  if (!opened.ok()) n = -static_cast<long>(opened.raw());
  if (n != -EINTR && n != -EAGAIN)
    errors_[i].store(n < 0 ? static_cast<int>(-n) : 0, std::memory_order_relaxed);
  if (n < 0 || from + static_cast<std::uint64_t>(n) < parts_[i].bytes) return n;
  const auto got = static_cast<std::size_t>(n);
  std::memset(to.data() + got, 0, to.size() - got);
  return static_cast<long>(to.size());
}

Result<std::unique_ptr<IoEngine>> FileSet::engine(std::shared_ptr<FileSet> files, const File& like,
                                                  unsigned depth, EngineKind wanted) noexcept {
  const auto make = [&](EngineKind, EventCount* results) -> Result<std::unique_ptr<IoEngine>> {
    std::unique_ptr<RangeReader> reader(new (std::nothrow) Reads(files, like.direct()));
    if (reader == nullptr) return Status::from_errno(ENOMEM);
    return threads_engine(like, depth, 0, std::move(reader), results);
  };
  if (!like.kept() || PrivateTable::inside()) return make(wanted, nullptr);
  return hosted_engine({like.alignment(), depth, like.direct()}, wanted, make);
}

}  // namespace lmdbio
