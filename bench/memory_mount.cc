// memory_mount FILES BYTES DIR: a read-only file system without a database, as the limit for `lmdbio mount`.
//
// It has FILES files of BYTES bytes in directories of 1000, with the names of bench/mount, and the same
// answers from memory for all.  It gives the kernel the same permissions to keep what it knows.  In the
// foreground.
#include <fuse_lowlevel.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr std::uint64_t kInDirectory = 1000, kFirstDirectory = 2;
constexpr double kKept = 1e9;
std::uint64_t files, directories;
std::string contents;

std::uint64_t first_file() { return kFirstDirectory + directories; }

fuse_entry_param entry(std::uint64_t number) {
  fuse_entry_param e{};
  e.ino = e.attr.st_ino = number;
  e.attr_timeout = e.entry_timeout = kKept;
  const bool is_file = number >= first_file();
  e.attr.st_mode = is_file ? S_IFREG | 0444 : S_IFDIR | 0555;
  e.attr.st_nlink = 1;
  e.attr.st_size = is_file ? static_cast<off_t>(contents.size()) : 0;
  return e;
}

std::string name_of(std::uint64_t number) {
  char name[32];
  if (number < first_file())
    (void)std::snprintf(name, sizeof name, "n%04llu",
                        static_cast<unsigned long long>(number - kFirstDirectory));
  else
    (void)std::snprintf(name, sizeof name, "%07llu.jpg",
                        static_cast<unsigned long long>(number - first_file()));
  return name;
}

void lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  const std::uint64_t n = std::strtoull(parent == FUSE_ROOT_ID ? name + 1 : name, nullptr, 10);
  const std::uint64_t number = n + (parent == FUSE_ROOT_ID ? kFirstDirectory : first_file());
  fuse_entry_param e = entry(number);
  if (name_of(number) != name || number >= first_file() + files) e.ino = 0;
  fuse_reply_entry(request, &e);
}

void list(fuse_req_t request, fuse_ino_t directory, std::size_t size, off_t offset, fuse_file_info*) {
  const std::uint64_t first = directory == FUSE_ROOT_ID
                                  ? kFirstDirectory
                                  : first_file() + (directory - kFirstDirectory) * kInDirectory;
  const std::uint64_t end = directory == FUSE_ROOT_ID
                                ? first_file()
                                : std::min<std::uint64_t>(first + kInDirectory, first_file() + files);
  std::vector<char> out(size);
  std::size_t used = 0;
  for (std::uint64_t i = first + static_cast<std::uint64_t>(offset); i < end; ++i) {
    const fuse_entry_param e = entry(i);
    const std::size_t n = fuse_add_direntry_plus(request, out.data() + used, size - used, name_of(i).c_str(),
                                                 &e, static_cast<off_t>(i - first + 1));
    if (n > size - used) break;
    used += n;
  }
  fuse_reply_buf(request, out.data(), used);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  files = std::strtoull(argv[1], nullptr, 10);
  directories = (files + kInDirectory - 1) / kInDirectory;
  contents.assign(std::strtoull(argv[2], nullptr, 10), 'x');
  fuse_lowlevel_ops o{};
  o.init = [](void*, fuse_conn_info* c) {
    c->want &= ~static_cast<unsigned>(FUSE_CAP_READDIRPLUS_AUTO);
    c->want |= c->capable & (FUSE_CAP_READDIRPLUS | FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_ASYNC_READ);
  };
  o.lookup = lookup;
  o.readdirplus = list;
  o.getattr = [](fuse_req_t r, fuse_ino_t number, fuse_file_info*) {
    const fuse_entry_param e = entry(number);
    fuse_reply_attr(r, &e.attr, kKept);
  };
  o.open = [](fuse_req_t r, fuse_ino_t, fuse_file_info*) { fuse_reply_err(r, ENOSYS); };
  o.opendir = [](fuse_req_t r, fuse_ino_t, fuse_file_info* info) {
    info->cache_readdir = info->keep_cache = 1;
    fuse_reply_open(r, info);
  };
  o.read = [](fuse_req_t r, fuse_ino_t, std::size_t size, off_t offset, fuse_file_info*) {
    const std::size_t at = std::min(contents.size(), static_cast<std::size_t>(offset));
    fuse_reply_buf(r, contents.data() + at, std::min(size, contents.size() - at));
  };
  char program[] = "memory_mount", option[] = "-oro,fsname=memory_mount";
  char* words[] = {program, option, nullptr};
  fuse_args args = FUSE_ARGS_INIT(2, words);
  fuse_session* const session = fuse_session_new(&args, &o, sizeof o, nullptr);
  if (session == nullptr || fuse_set_signal_handlers(session) != 0 ||
      fuse_session_mount(session, argv[3]) != 0)
    return 77;
  fuse_loop_config* const config = fuse_loop_cfg_create();
  fuse_session_loop_mt(session, config);
  fuse_loop_cfg_destroy(config);
  fuse_session_unmount(session);
  fuse_remove_signal_handlers(session);
  fuse_session_destroy(session);
  return 0;
}
