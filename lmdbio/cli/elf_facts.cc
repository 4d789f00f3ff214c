#include "lmdbio/cli/elf_facts.h"

#include <elf.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace lmdbio::cli {
namespace {

constexpr std::uint64_t kSymbolBytes = std::uint64_t{256} << 20;  // of one table; larger ones count as empty
constexpr std::uint64_t kTextBytes = std::uint64_t{64} << 20;     // searched for a message

/// Returns false if the file does not have these bytes.
bool read_at(int fd, std::uint64_t at, void* to, std::size_t size) {
  auto* p = static_cast<char*>(to);
  while (size != 0) {
    const ssize_t n = ::pread(fd, p, size, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n, at += static_cast<std::uint64_t>(n), size -= static_cast<std::size_t>(n);
  }
  return true;
}

template <class T>
std::vector<T> table(int fd, std::uint64_t at, std::uint64_t bytes) {
  const auto end = static_cast<std::uint64_t>(::lseek(fd, 0, SEEK_END));
  if (at > end || bytes > end - at || bytes > kSymbolBytes) return {};
  std::vector<T> out(bytes / sizeof(T));
  if (!read_at(fd, at, out.data(), out.size() * sizeof(T))) out.clear();
  return out;
}

bool defines(int fd, const std::vector<Elf64_Shdr>& sections, std::string_view name) {
  for (const Elf64_Shdr& s : sections) {
    if ((s.sh_type != SHT_SYMTAB && s.sh_type != SHT_DYNSYM) || s.sh_link >= sections.size()) continue;
    const Elf64_Shdr& strings = sections[s.sh_link];
    const auto text = table<char>(fd, strings.sh_offset, strings.sh_size);
    for (const Elf64_Sym& sym : table<Elf64_Sym>(fd, s.sh_offset, s.sh_size)) {
      if (sym.st_shndx == SHN_UNDEF || sym.st_name >= text.size()) continue;
      const std::size_t room = text.size() - sym.st_name;
      if (room > name.size() && std::memcmp(text.data() + sym.st_name, name.data(), name.size()) == 0 &&
          text[sym.st_name + name.size()] == '\0')
        return true;
    }
  }
  return false;
}

/// Returns true if the file contains mdb_strerror()'s text for MDB_NOTFOUND.
bool has_messages(int fd) {
  constexpr std::string_view kMessage = "MDB_NOTFOUND: No matching key/data pair found";
  const auto end = static_cast<std::uint64_t>(::lseek(fd, 0, SEEK_END));
  const auto bytes = table<char>(fd, 0, end < kTextBytes ? end : kTextBytes);
  return ::memmem(bytes.data(), bytes.size(), kMessage.data(), kMessage.size()) != nullptr;
}

}  // namespace

ElfFacts read_elf(int fd) {
  ElfFacts f;
  Elf64_Ehdr h;
  unsigned char ident[EI_NIDENT];
  if (!read_at(fd, 0, ident, sizeof ident) || std::memcmp(ident, ELFMAG, SELFMAG) != 0) return f;
  f.elf = true;
  if (ident[EI_CLASS] != ELFCLASS64 || ident[EI_DATA] != ELFDATA2LSB || !read_at(fd, 0, &h, sizeof h))
    return f;
#if defined(__x86_64__)
  f.native = h.e_machine == EM_X86_64;
#elif defined(__aarch64__)
  f.native = h.e_machine == EM_AARCH64;
#else
  f.native = true;
#endif
  if (h.e_phentsize == sizeof(Elf64_Phdr))
    for (const Elf64_Phdr& p :
         table<Elf64_Phdr>(fd, h.e_phoff, std::uint64_t{h.e_phnum} * sizeof(Elf64_Phdr)))
      f.interpreter |= p.p_type == PT_INTERP;
  if (h.e_shentsize == sizeof(Elf64_Shdr))
    f.defines_lmdb = defines(
        fd, table<Elf64_Shdr>(fd, h.e_shoff, std::uint64_t{h.e_shnum} * sizeof(Elf64_Shdr)), "mdb_env_open");
  f.defines_lmdb = f.defines_lmdb || has_messages(fd);
  return f;
}

}  // namespace lmdbio::cli
