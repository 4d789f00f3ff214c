// lmdbio-fuse: shows a database as a read-only file system (`lmdbio mount`).
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/files/names.h"
#include "lmdbio/fuse/file_system.h"
#include "lmdbio/fuse/snapshot.h"

namespace {

using lmdbio::UniqueFd;
using lmdbio::files::ValuePart;
using lmdbio::fuse::FileSystem;
using lmdbio::fuse::Names;
using lmdbio::fuse::Snapshot;

constexpr int kUnusable = 2;
/// Between two looks for a signal that libfuse has missed.
constexpr std::chrono::milliseconds kLook{500};

struct Options {
  std::string path, directory, database;
  bool foreground = false;
  bool for_all = false;
  FileSystem::Options show;
};

int fail(const std::string& why) {
  std::fprintf(stderr, "lmdbio: %s\n", why.c_str());
  return kUnusable;
}

/// A session, mounted while this object exists.
class Session {
 public:
  Session(FileSystem& fs, const std::string& options, const std::string& directory) {
    std::string words[] = {"lmdbio", "-o", options};
    char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
    fuse_args args = FUSE_ARGS_INIT(3, argv);
    session_ = fuse_session_new(&args, &FileSystem::operations(), sizeof(fuse_lowlevel_ops), &fs);
    fuse_opt_free_args(&args);
    // Before the mount: a signal that comes now ends run(), and leaves no mount without a server.  SIGPIPE is
    // ignored.
    handled_ = session_ != nullptr && fuse_set_signal_handlers(session_) == 0;
    mounted_ = handled_ && fuse_session_mount(session_, directory.c_str()) == 0;
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    if (mounted_) fuse_session_unmount(session_);
    if (handled_) fuse_remove_signal_handlers(session_);
    if (session_ != nullptr) fuse_session_destroy(session_);
  }
  bool is_mounted() const noexcept { return mounted_; }
  /// Returns true if a signal has ended it before run().
  bool is_over() const noexcept { return fuse_session_exited(session_) != 0; }
  /// Answers requests until the file system is unmounted, or SIGINT, SIGTERM or SIGHUP comes.
  int run() {
    fuse_loop_config* const config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_max_threads(config, Snapshot::kViews);
    fuse_loop_cfg_set_idle_threads(config, Snapshot::kViews);
    // libfuse looks whether a signal has come, and then waits.  This thread wakes it after one that came in
    // between.
    const std::jthread waker([this, loop = ::pthread_self()](const std::stop_token& ended) {
      std::mutex mutex;
      std::condition_variable_any changed;
      std::unique_lock lock(mutex);
      while (!changed.wait_for(lock, ended, kLook, [&] { return ended.stop_requested(); }))
        if (is_over()) (void)::pthread_kill(loop, SIGTERM);
    });
    const int rc = fuse_session_loop_mt(session_, config);
    fuse_loop_cfg_destroy(config);
    return rc;
  }

 private:
  fuse_session* session_ = nullptr;
  bool handled_ = false, mounted_ = false;
};

/// Leaves the terminal, and tells the parent that the file system can be used.  Returns false if the parent
/// has ended.  Stays in the directory, because settings may have relative paths.
bool become_daemon(const UniqueFd& parent) {
  (void)::setsid();  // not before: signals of the terminal are for both until now
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) (void)::dup2(null.get(), fd);
  return ::write(parent.get(), "", 1) == 1;
}

int serve(const Options& options, UniqueFd parent) {
  Snapshot snapshot(options.path, options.database);
  FileSystem fs(snapshot, options.show);
  // The kernel checks permissions by the mode and owner of the files.
  std::string mount = "ro,nosuid,nodev,default_permissions,subtype=lmdbio,fsname=lmdbio";
  if (options.for_all) mount += ",allow_other";
  Session session(fs, mount, options.directory);
  if (!session.is_mounted()) return kUnusable;  // libfuse has said why
  if (parent && (session.is_over() || !become_daemon(parent))) return kUnusable;
  parent.reset();
  const int rc = session.run();
  return rc == 0 || rc > 0 ? 0 : kUnusable;  // above 0: a signal
}

/// Starts a child that serves, and waits until the file system can be used.
int start(const Options& options) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(std::strerror(errno));
  UniqueFd ready(ends[0]), tell(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return fail(std::strerror(errno));
  if (pid == 0) {
    ready.reset();
    return serve(options, std::move(tell));
  }
  tell.reset();
  char byte = 0;
  ssize_t n;
  while ((n = ::read(ready.get(), &byte, 1)) < 0 && errno == EINTR) {
  }
  if (n == 1) return 0;
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int parse(int argc, char** argv, Options& options, bool& goes_on) {
  CLI::App app("Shows a database as a read-only file system; fusermount3 -u DIR ends it", "lmdbio mount");
  app.add_option("DB", options.path, "directory that contains data.mdb, or the data file")->required();
  app.add_option("DIR", options.directory, "directory where the files appear")->required();
  app.add_option("--db", options.database, "use this named database instead of the main database")
      ->type_name("NAME");
  app.add_flag("-f,--foreground", options.foreground, "stay in the foreground");
  app.add_option("--suffix", options.show.suffix, "append this to each name, for example .jpg")
      ->type_name("SUFFIX");
  const std::map<std::string, Names> names{
      {"text", Names::text}, {"hex", Names::hex}, {"number", Names::number}};
  app.add_option("--names", options.show.names,
                 "text: keys are paths (default); hex: hexadecimal digits; number: integer keys as numbers")
      ->transform(CLI::CheckedTransformer(names).description(""))
      ->type_name("text|hex|number");
  const std::map<std::string, ValuePart> parts{{"raw", ValuePart::raw}, {"datum", ValuePart::datum}};
  app.add_option("--value", options.show.part,
                 "raw: whole values (default); datum: the pixels or the encoded image of Caffe's Datum")
      ->transform(CLI::CheckedTransformer(parts).description(""))
      ->type_name("raw|datum");
  app.add_flag("--allow-other", options.for_all,
               "other users may use the files, too (by others than root: if /etc/fuse.conf allows it)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUnusable;
  }
  goes_on = true;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options options;
    bool goes_on = false;
    const int status = parse(argc, argv, options, goes_on);
    if (!goes_on) return status;
    if (options.show.suffix.size() > lmdbio::files::kMostSuffixBytes ||
        options.show.suffix.find('/') != std::string::npos)
      return fail("--suffix: a suffix has no slash, and at most 128 bytes");
    const std::unique_ptr<char, decltype(&std::free)> real(::realpath(options.directory.c_str(), nullptr),
                                                           &std::free);
    if (real == nullptr) return fail(options.directory + ": " + std::strerror(errno));
    options.directory = real.get();
    struct stat st {};
    if (::stat(real.get(), &st) != 0) return fail(options.directory + ": " + std::strerror(errno));
    if (!S_ISDIR(st.st_mode)) return fail(options.directory + ": not a directory");
    return options.foreground ? serve(options, UniqueFd()) : start(options);
  } catch (const std::exception& e) {
    return fail(e.what());
  }
}
