#include "lmdbio/cli/program.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/cli/command.h"
#include "lmdbio/cli/elf_facts.h"

namespace lmdbio::cli {
namespace {

constexpr int kInterpreters = 4;  // the kernel's limit

bool executable(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

std::vector<std::string> words(std::string_view line) {
  std::vector<std::string> out;
  for (std::size_t at = 0; (at = line.find_first_not_of(" \t", at)) != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(" \t", at), line.size());
    out.emplace_back(line.substr(at, end - at));
    at = end;
  }
  return out;
}

/// Returns the words of a "#!" line.
std::vector<std::string> interpreter(int fd) {
  char head[256];
  const ssize_t n = ::pread(fd, head, sizeof head, 0);
  if (n < 3 || head[0] != '#' || head[1] != '!') return {};
  const std::string_view text(head + 2, static_cast<std::size_t>(n) - 2);
  return words(text.substr(0, text.find('\n')));
}

/// Returns the program that env(1) would start, or an empty string.
std::string started_by_env(const std::vector<std::string>& args) {
  for (const std::string& a : args) {
    if (a.empty() || a.find('=') != std::string::npos || a == "-S" || a == "-i" || a == "--") continue;
    if (a[0] == '-') return "";  // an option that may have an argument
    try {
      return find_program(a);
    } catch (const Failure&) {
      return "";
    }
  }
  return "";
}

/// Returns a hint for a script that is not executable.
std::string how_to_start(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  const std::string end = dot == std::string::npos ? "" : name.substr(dot);
  const char* const by = end == ".py" ? "python3 " : end == ".sh" ? "sh " : nullptr;
  return by != nullptr ? std::string("; start it with: lmdbio run ") + by + name : "";
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.empty()) throw Failure("the program name is empty", kNotFound);
  if (name.find('/') != std::string::npos) {
    struct stat st {};
    if (::stat(name.c_str(), &st) != 0 && (errno == ENOENT || errno == ENOTDIR))
      throw Failure(name + ": no such file", kNotFound);
    if (!executable(name)) throw Failure(name + ": not executable" + how_to_start(name), kNotExecutable);
    return name;
  }
  const char* const path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/bin:/usr/bin";
  std::string refused;
  for (;;) {
    const std::size_t colon = rest.find(':');
    const std::string dir(rest.substr(0, colon));
    const std::string candidate = (dir.empty() ? "." : dir) + "/" + name;
    if (executable(candidate)) return candidate;
    if (::access(candidate.c_str(), F_OK) == 0) refused = candidate;
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  if (!refused.empty()) throw Failure(refused + ": not executable", kNotExecutable);
  throw Failure(
      name + ": not found in PATH" +
          (::access(name.c_str(), F_OK) == 0 ? "; to run the file in this directory, give ./" + name : ""),
      kNotFound);
}

std::string sibling_program(const std::string& name, const std::string& package) {
  std::string program = std::filesystem::read_symlink("/proc/self/exe").replace_filename(name);
  if (::access(program.c_str(), F_OK) != 0)
    throw Failure(program + ": not installed; the package " + package + " has it", kNotFound);
  return program;
}

void execute(const std::string& program, std::vector<std::string> words) {
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  (void)::execv(program.c_str(), argv.data());
  throw Failure(program + ": " + std::strerror(errno), kNotExecutable);
}

std::vector<std::string> obstacles(const std::string& file, const std::vector<std::string>& args) {
  std::vector<std::string> out;
  std::string at = file;
  std::vector<std::string> given = args;
  for (int i = 0; i <= kInterpreters && !at.empty(); ++i) {
    const UniqueFd fd(::open(at.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat st {};
    if (!fd || ::fstat(fd.get(), &st) != 0) return out;  // executable, but not readable: nothing is known
    if (std::vector<std::string> line = interpreter(fd.get()); !line.empty()) {
      at = line[0];
      given.insert(given.begin(), line.begin() + 1, line.end());
      continue;
    }
    const ElfFacts elf = read_elf(fd.get());
    if (!elf.elf) return out;
    const bool changes_user = (st.st_mode & S_ISUID) != 0 && st.st_uid != ::geteuid();
    const bool changes_group =
        (st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && st.st_gid != ::getegid();
    if (changes_user || changes_group)
      out.push_back(
          at +
          " is setuid or setgid: the loader ignores LD_PRELOAD for it; link it with -llmdbio before -llmdb");
    if (::geteuid() != 0 && ::fgetxattr(fd.get(), "security.capability", nullptr, 0) > 0)
      out.push_back(at +
                    " has file capabilities: the loader ignores LD_PRELOAD for it; link it with -llmdbio "
                    "before -llmdb");
    if (!elf.native)
      out.push_back(at + " is built for another architecture: the loader cannot preload LMDBIO into it");
    else if (!elf.interpreter)
      out.push_back(at + " is a static executable: LMDBIO cannot be preloaded into it; link it dynamically");
    if (elf.defines_lmdb)
      out.push_back(
          at + " has LMDB linked into it: its calls do not reach LMDBIO; link it with the shared liblmdb");
    if (at.substr(at.rfind('/') + 1) != "env") return out;
    at = started_by_env(given);
    given.clear();
  }
  return out;
}

}  // namespace lmdbio::cli
