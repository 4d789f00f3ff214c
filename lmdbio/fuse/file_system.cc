#include "lmdbio/fuse/file_system.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>

#include "lmdbio/base/mix.h"
#include "lmdbio/files/names.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace lmdbio::fuse {

namespace {

/// Seconds for which the kernel may keep names and attributes: until it needs the memory.
constexpr double kKept = 1e9;
constexpr blksize_t kBlock = 128 << 10;

FileSystem& self(fuse_req_t request) { return *static_cast<FileSystem*>(fuse_req_userdata(request)); }

std::string joined(const std::string& directory, std::string_view name) {
  return directory.empty() ? std::string(name) : (directory + "/").append(name);
}

/// Returns false if a mapped page of a value cannot be read, because the storage fails or the file was
/// truncated. An access would end the process by SIGBUS.  Reads the value.
bool is_readable(std::string_view value) noexcept {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(value.data()) & ~(page - 1);
  const std::size_t bytes = reinterpret_cast<std::uintptr_t>(value.data()) + value.size() - begin;
  // EINVAL: a kernel before 5.14
  return value.empty() || ::madvise(reinterpret_cast<void*>(begin), bytes, MADV_POPULATE_READ) == 0 ||
         errno == EINVAL || errno == EAGAIN || errno == ENOMEM;
}

/// Calls `answer`, and answers ENOMEM if memory is short.
template <class Answer>
void guarded(fuse_req_t request, Answer&& answer) noexcept {
  try {
    answer();
  } catch (const std::bad_alloc&) {
    (void)fuse_reply_err(request, ENOMEM);
  } catch (const std::exception&) {
    (void)fuse_reply_err(request, EIO);
  }
}

}  // namespace

/// An open directory.  The kernel reads it from its start to its end, and rarely elsewhere.
struct FileSystem::Directory {
  std::mutex mutex;
  std::uint64_t number;
  std::string path, prefix;
  std::string after;  ///< the next entry is the first one after this key ...
  std::string from;   ///< ... or, if `after` is empty, not before this one
  bool ended = false;
  int error = 0;                  ///< of the next entry: it stays, so that no listing leaves it out
  off_t offset = 2;               ///< of the next entry; 0 and 1 are "." and ".."
  std::set<std::string> divided;  ///< directories of divided names, which may come again
  // The next entry, if it did not fit into the last answer.
  bool has_next = false;
  std::string next_name;
  Found next;

  void rewind() {
    after.clear();
    from = prefix;
    ended = has_next = false;
    error = 0;
    offset = 2;
    divided.clear();
  }
};

FileSystem::~FileSystem() = default;

FileSystem::FileSystem(Snapshot& snapshot, const Options& options)
    : snapshot_(snapshot),
      options_(options),
      naming_(options.names, options.suffix, snapshot.database().has_integer_keys()) {
  const files::Database& database = snapshot.database();
  const bool other_order = database.has_other_order();
  if (other_order && options.names == Names::text)
    throw files::Error(
        database.path() +
        ": keys are integers or in reverse order, so that they have no directories; choose --names "
        "hex or number");
  const Snapshot::Lease view(snapshot);
  const int rc = view->seek("");
  if (rc != MDB_NOTFOUND) database.check(rc);
  if (rc == 0) like_ = view->key();
  if (options.names == Names::number &&
      (!database.has_integer_keys() || (rc == 0 && !naming_.path_of(like_))))
    throw files::Error(database.path() + ": keys are not integers (MDB_INTEGERKEY) of 4 or 8 bytes");
}

struct stat FileSystem::attributes(std::string_view path, bool is_directory,
                                   std::uint32_t size) const noexcept {
  const struct stat& file = snapshot_.database().file();
  struct stat st {};
  // A number that is always the same for a path.  Numbers of nodes are used again for others.
  st.st_ino = path.empty() ? 1 : mix(std::hash<std::string_view>()(path)) | 2;
  // Who may read the data file may read the files, and nobody else.
  const mode_t readable = file.st_mode & (S_IRUSR | S_IRGRP | S_IROTH);
  st.st_mode = is_directory ? S_IFDIR | readable | readable >> 2 : S_IFREG | readable;
  st.st_nlink = 1;  // of a directory: the number of its directories is not known
  st.st_uid = file.st_uid;
  st.st_gid = file.st_gid;
  st.st_size = is_directory ? 0 : static_cast<off_t>(size);
  st.st_blksize = kBlock;
  st.st_blocks = (st.st_size + 511) / 512;
  st.st_atim = st.st_mtim = st.st_ctim = file.st_mtim;
  return st;
}

bool FileSystem::is_record(std::string_view key, std::string_view value) {
  return !snapshot_.is_named_database(files::value_of(key), files::value_of(value));
}

/// Sets `size` to the size of the file for a value.  Only for Datum, the value is read.  Returns 0, or the
/// error of this read.
int FileSystem::size_of(View& view, std::string_view key, std::string_view value, std::uint32_t& size) {
  std::optional<std::string_view> contents = value;
  if (options_.part != files::ValuePart::raw) {
    std::string_view whole;
    if (const int rc = view.get(key, whole); rc != 0) return rc;
    if (!is_readable(whole)) return EIO;
    contents = files::contents_of(whole, options_.part);
  }
  size = contents ? static_cast<std::uint32_t>(contents->size()) : 0;
  return 0;
}

/// Returns whether there is a key in the directory `path`.
bool FileSystem::is_directory(View& view, const std::string& path, int& error) {
  if (!naming_.has_directories()) return false;
  const std::string prefix = files::key_of(path + "/"), start = path + "/";
  int rc = view.seek(prefix);
  // A key with the prefix may have another name: "a/" itself, or one that is not divided.
  for (; rc == 0 && view.key().starts_with(prefix); rc = view.next()) {
    const auto name = naming_.path_of(view.key());
    if (name && name->starts_with(start)) return true;
  }
  if (rc != 0 && rc != MDB_NOTFOUND) error = EIO;
  return false;
}

FileSystem::Found FileSystem::find(View& view, const std::string& path) {
  Found found;
  if (const auto key = naming_.key_of(path, like_); key) {
    std::string_view value;
    const int rc = view.find(*key, value);
    if (rc != 0 && rc != MDB_NOTFOUND) return {EIO};
    if (rc == 0 && is_record(*key, value)) {
      if (size_of(view, *key, value, found.size) != 0) found.error = EIO;
      return found;
    }
  }
  found.is_directory = is_directory(view, path, found.error);
  if (!found.is_directory && found.error == 0) found.error = ENOENT;
  return found;
}

void FileSystem::lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  const NodeTable::Entry directory = nodes_.get(parent);
  const std::string path = joined(directory.path, name);
  fuse_entry_param e{};
  e.attr_timeout = e.entry_timeout = kKept;
  Found found{ENOENT};
  if (directory.is_directory) {
    const Snapshot::Lease view(snapshot_);
    found = view ? find(*view, path) : Found{EIO};
  }
  if (found.error == ENOENT) {  // the kernel may keep that, too
    (void)fuse_reply_entry(request, &e);
    return;
  }
  if (found.error != 0) {
    (void)fuse_reply_err(request, found.error);
    return;
  }
  e.attr = attributes(path, found.is_directory, found.size);
  e.ino = nodes_.use(parent, name, found.is_directory, found.size);
  if (fuse_reply_entry(request, &e) != 0) nodes_.forget(e.ino, 1);
}

void FileSystem::get_attributes(fuse_req_t request, fuse_ino_t number) {
  const NodeTable::Entry node = nodes_.get(number);
  const struct stat st = attributes(node.path, node.is_directory, node.size);
  (void)fuse_reply_attr(request, &st, kKept);
}

void FileSystem::read(fuse_req_t request, fuse_ino_t number, std::size_t size, off_t offset) {
  const NodeTable::Entry node = nodes_.get(number);
  const auto key = naming_.key_of(node.path, like_);
  Snapshot::Lease view(snapshot_);
  std::string_view value;
  if (!key || !view || view->get(*key, value) != 0) {
    (void)fuse_reply_err(request, EIO);
    return;
  }
  if (options_.part != files::ValuePart::raw && !is_readable(value)) {
    (void)fuse_reply_err(request, EIO);
    return;
  }
  const auto contents = files::contents_of(value, options_.part);
  if (!contents) {
    (void)fuse_reply_err(request, EIO);
    return;
  }
  const std::string_view part =
      contents->substr(std::min(contents->size(), static_cast<std::size_t>(offset)), size);
  // The next request may come before this call returns.  It is to use the same view, so that the order of the
  // lookups is seen.
  view.end();
  // The kernel copies the bytes.  If it cannot read them, because the file was truncated, the request ends
  // with EIO, without a signal.
  (void)fuse_reply_buf(request, part.data(), part.size());
}

void FileSystem::open_directory(fuse_req_t request, fuse_ino_t number, fuse_file_info* info) {
  auto made = std::make_unique<Directory>();
  Directory* const d = made.get();
  d->number = number;
  d->path = nodes_.get(number).path;
  if (!d->path.empty()) d->prefix = files::key_of(d->path + "/");
  d->rewind();
  info->fh = reinterpret_cast<std::uintptr_t>(d);
  info->cache_readdir = info->keep_cache = 1;
  {
    const std::lock_guard lock(directories_mutex_);
    directories_.emplace(d, std::move(made));
  }
  if (fuse_reply_open(request, info) != 0) close_directory(info);
}

void FileSystem::close_directory(const fuse_file_info* info) noexcept {
  const std::lock_guard lock(directories_mutex_);
  directories_.erase(reinterpret_cast<Directory*>(info->fh));
}

/// Sets `name` and `found` to the next entry.  Returns 0, MDB_NOTFOUND at the end, or another error.
int FileSystem::next_entry(View& view, Directory& d, std::string& name, Found& found) {
  const std::string start = d.path.empty() ? "" : d.path + "/";
  for (;;) {
    const int rc = d.ended ? MDB_NOTFOUND : d.after.empty() ? view.seek(d.from) : view.seek_after(d.after);
    if (rc != 0) return rc;
    if (!view.key().starts_with(d.prefix)) return MDB_NOTFOUND;
    const std::string key(view.key());
    const auto path = naming_.path_of(key);
    d.after = key;
    if (!path || !path->starts_with(start)) continue;
    const std::size_t slash = path->find('/', start.size());
    name = path->substr(start.size(), slash == std::string::npos ? slash : slash - start.size());
    std::string_view value;
    if (slash == std::string::npos) {
      if (const int found_rc = view.find(key, value); found_rc != 0) return found_rc;
      if (!is_record(key, value)) continue;
      found = {};
      return size_of(view, key, value, found.size);
    }
    const std::string child = path->substr(0, slash);
    const std::string prefix = files::key_of(child + "/");
    if (child.ends_with("%+")) {  // other names with this prefix may be between those of the directory
      if (!d.divided.insert(child).second) continue;
    } else {
      d.from = files::KeyRange::of_prefix(prefix).end;
      d.after.clear();
      d.ended = d.from.empty();
    }
    // A file with the name of the directory hides it, as lookup() does.
    const auto file = naming_.key_of(child, like_);
    if (file) {
      const int file_rc = view.find(*file, value);
      if (file_rc != 0 && file_rc != MDB_NOTFOUND) return file_rc;
      if (file_rc == 0 && is_record(*file, value)) continue;
    }
    found = {0, true, 0};
    return 0;
  }
}

/// Adds entries from `offset` on to `out`, as many as fit.  Returns 0, MDB_NOTFOUND at the end, or another
/// error.
int FileSystem::fill(fuse_req_t request, Directory& d, off_t offset, bool plus, EntryBuffer& out) {
  const std::lock_guard lock(d.mutex);
  const auto add = [&](const std::string& name, const fuse_entry_param& e, off_t next) {
    char* const to = out.bytes.data() + out.used;
    const std::size_t room = out.bytes.size() - out.used;
    const std::size_t n = plus ? fuse_add_direntry_plus(request, to, room, name.c_str(), &e, next)
                               : fuse_add_direntry(request, to, room, name.c_str(), &e.attr, next);
    if (n > room) return false;
    out.used += n;
    return true;
  };
  fuse_entry_param e{};
  e.attr_timeout = e.entry_timeout = kKept;
  for (; offset < 2; ++offset) {
    const std::uint64_t number = offset == 0 ? d.number : nodes_.parent(d.number);
    e.attr = attributes(nodes_.get(number).path, true, 0);
    if (!add(offset == 0 ? "." : "..", e, offset + 1)) return 0;
  }
  const Snapshot::Lease view(snapshot_);
  if (!view) return EIO;
  if (offset < d.offset) d.rewind();
  for (;; d.has_next = false, ++d.offset) {
    if (!d.has_next && d.error == 0) d.error = next_entry(*view, d, d.next_name, d.next);
    if (d.error != 0) return d.error;
    d.has_next = true;
    if (d.offset < offset) continue;
    e.attr = attributes(joined(d.path, d.next_name), d.next.is_directory, d.next.size);
    if (plus) e.ino = nodes_.use(d.number, d.next_name, d.next.is_directory, d.next.size);
    if (add(d.next_name, e, d.offset + 1)) continue;
    if (plus) nodes_.forget(e.ino, 1);
    return 0;
  }
}

void FileSystem::read_directory(fuse_req_t request, std::size_t size, off_t offset, fuse_file_info* info,
                                bool plus) {
  EntryBuffer out{std::vector<char>(size)};
  const int rc = fill(request, *reinterpret_cast<Directory*>(info->fh), offset, plus, out);
  // After the answer, the kernel may close the directory.  An error is reported when the entries before it
  // have been.
  if (rc != 0 && rc != MDB_NOTFOUND && out.used == 0)
    (void)fuse_reply_err(request, EIO);
  else
    (void)fuse_reply_buf(request, out.bytes.data(), out.used);
}

void FileSystem::status(fuse_req_t request) {
  const MDB_stat s = snapshot_.database().stat();
  struct statvfs st {};
  st.f_bsize = st.f_frsize = s.ms_psize;
  st.f_blocks = s.ms_branch_pages + s.ms_leaf_pages + s.ms_overflow_pages;
  st.f_files = s.ms_entries;
  st.f_namemax = files::kMostPartBytes;
  (void)fuse_reply_statfs(request, &st);
}

const fuse_lowlevel_ops& FileSystem::operations() noexcept {
  static const fuse_lowlevel_ops kOperations = [] {
    fuse_lowlevel_ops o{};
    o.init = [](void*, fuse_conn_info* c) {
      // With readdirplus always, a listing makes all later stat calls free.
      c->want &= ~static_cast<unsigned>(FUSE_CAP_READDIRPLUS_AUTO);
      c->want |= c->capable & (FUSE_CAP_READDIRPLUS | FUSE_CAP_NO_OPEN_SUPPORT | FUSE_CAP_PARALLEL_DIROPS |
                               FUSE_CAP_ASYNC_READ);
    };
    o.lookup = [](fuse_req_t r, fuse_ino_t parent, const char* name) {
      guarded(r, [&] { self(r).lookup(r, parent, name); });
    };
    o.forget = [](fuse_req_t r, fuse_ino_t number, std::uint64_t uses) {
      self(r).forget(number, uses);
      fuse_reply_none(r);
    };
    o.forget_multi = [](fuse_req_t r, std::size_t n, fuse_forget_data* all) {
      for (std::size_t i = 0; i < n; ++i) self(r).forget(all[i].ino, all[i].nlookup);
      fuse_reply_none(r);
    };
    o.getattr = [](fuse_req_t r, fuse_ino_t number, fuse_file_info*) {
      guarded(r, [&] { self(r).get_attributes(r, number); });
    };
    // Not implemented: the kernel then reads without opening, and keeps what it has read.
    o.open = [](fuse_req_t r, fuse_ino_t, fuse_file_info*) { (void)fuse_reply_err(r, ENOSYS); };
    o.read = [](fuse_req_t r, fuse_ino_t number, std::size_t size, off_t offset, fuse_file_info*) {
      guarded(r, [&] { self(r).read(r, number, size, offset); });
    };
    o.opendir = [](fuse_req_t r, fuse_ino_t number, fuse_file_info* info) {
      guarded(r, [&] { self(r).open_directory(r, number, info); });
    };
    o.readdir = [](fuse_req_t r, fuse_ino_t, std::size_t size, off_t offset, fuse_file_info* info) {
      guarded(r, [&] { self(r).read_directory(r, size, offset, info, false); });
    };
    o.readdirplus = [](fuse_req_t r, fuse_ino_t, std::size_t size, off_t offset, fuse_file_info* info) {
      guarded(r, [&] { self(r).read_directory(r, size, offset, info, true); });
    };
    o.releasedir = [](fuse_req_t r, fuse_ino_t, fuse_file_info* info) {
      self(r).close_directory(info);
      (void)fuse_reply_err(r, 0);
    };
    o.statfs = [](fuse_req_t r, fuse_ino_t) { guarded(r, [&] { self(r).status(r); }); };
    return o;
  }();
  return kOperations;
}

}  // namespace lmdbio::fuse
