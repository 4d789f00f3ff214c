#include "compat/object.h"

#include <cstring>
#include <initializer_list>

namespace lmdbio::compat {

namespace {

std::uint32_t gnu_hash_of(const char* prefix, const char* name) noexcept {
  std::uint32_t h = 5381;
  for (const char* part : {prefix, name})
    for (; *part != '\0'; ++part) h = h * 33 + static_cast<unsigned char>(*part);
  return h;
}

}  // namespace

LoadedObject::LoadedObject(ElfW(Addr) base, const ElfW(Dyn) * dynamic) noexcept {
  if (dynamic == nullptr) return;
  // glibc adds the base to the addresses of most objects.  Other loaders, and the kernel for its own object,
  // do not.
  const auto at = [base](const ElfW(Dyn) & d) noexcept {
    return reinterpret_cast<const void*>(d.d_un.d_ptr < base ? base + d.d_un.d_ptr : d.d_un.d_ptr);
  };
  for (const ElfW(Dyn)* d = dynamic; d->d_tag != DT_NULL; ++d) {
    switch (d->d_tag) {
      case DT_SYMTAB:
        symbols_ = static_cast<const ElfW(Sym)*>(at(*d));
        break;
      case DT_STRTAB:
        names_ = static_cast<const char*>(at(*d));
        break;
      case DT_GNU_HASH:
        gnu_hash_ = static_cast<const std::uint32_t*>(at(*d));
        break;
      case DT_HASH:
        hash_ = static_cast<const std::uint32_t*>(at(*d));
        break;
      case DT_RELA:
        relocations_[0].first = static_cast<const ElfW(Rela)*>(at(*d));
        break;
      case DT_RELASZ:
        relocations_[0].bytes = d->d_un.d_val;
        break;
      case DT_JMPREL:
        relocations_[1].first = static_cast<const ElfW(Rela)*>(at(*d));
        break;
      case DT_PLTRELSZ:
        relocations_[1].bytes = d->d_un.d_val;
        break;
      default:
        break;
    }
  }
}

bool LoadedObject::is_at(std::uint32_t index, const char* prefix, const char* name) const noexcept {
  const ElfW(Sym)& symbol = symbols_[index];
  const char* const found = names_ + symbol.st_name;
  const std::size_t n = std::strlen(prefix);
  return symbol.st_shndx != SHN_UNDEF && std::strncmp(found, prefix, n) == 0 &&
         std::strcmp(found + n, name) == 0;
}

std::uint32_t LoadedObject::index_of(const char* prefix, const char* name) const noexcept {
  if (symbols_ == nullptr || names_ == nullptr) return 0;
  if (gnu_hash_ != nullptr) {
    const std::uint32_t buckets = gnu_hash_[0], first = gnu_hash_[1], bloom_words = gnu_hash_[2];
    const std::uint32_t* const bucket = gnu_hash_ + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
    const std::uint32_t* const chain = bucket + buckets;
    const std::uint32_t wanted = gnu_hash_of(prefix, name);
    std::uint32_t i = buckets != 0 ? bucket[wanted % buckets] : 0;
    if (i < first) return 0;
    for (;; ++i) {
      const std::uint32_t h = chain[i - first];
      if ((h | 1) == (wanted | 1) && is_at(i, prefix, name)) return i;
      if ((h & 1) != 0) return 0;
    }
  }
  if (hash_ != nullptr) {
    const std::uint32_t count = hash_[1];
    for (std::uint32_t i = 1; i < count; ++i)
      if (is_at(i, prefix, name)) return i;
  }
  return 0;
}

bool LoadedObject::calls(const char* prefix, const char* name) const noexcept {
  const std::uint32_t index = index_of(prefix, name);
  if (index == 0) return false;
  for (const auto& [first, bytes] : relocations_) {
    if (first == nullptr) continue;
    for (const ElfW(Rela)* r = first; r != first + bytes / sizeof *r; ++r)
      if (r->r_info >> (sizeof(ElfW(Addr)) == 8 ? 32 : 8) == index) return true;
  }
  return false;
}

bool has_inlined_calls(const LoadedObject& object, const char* prefix) noexcept {
  // LMDB's own mdb.c calls these two functions of midl.c, so a compiler that sees one file at a time leaves
  // the calls to the loader.  They are so small that any optimization of the whole module inlines them first.
  for (const char* const name : {"midl_alloc", "midl_free"})
    if (object.defines(prefix, name) && !object.calls(prefix, name)) return true;
  // The two functions may be hidden.  But a program that reads must call the following ones.
  const auto lacks = [&](const char* name) noexcept { return !object.calls(prefix, name); };
  return lacks("env_open") || lacks("txn_begin") || (lacks("get") && lacks("cursor_open")) ||
         (lacks("txn_abort") && lacks("txn_commit") && lacks("txn_reset"));
}

bool find_unreached(char* path, std::size_t bytes) noexcept {
  struct Found {
    char* path;
    std::size_t bytes;
  } found{path, bytes};
  return ::dl_iterate_phdr(
             [](dl_phdr_info* info, std::size_t, void* out) {
               const char* const slash = std::strrchr(info->dlpi_name, '/');
               if (slash == nullptr || std::strncmp(slash + 1, "liblmdb", 7) == 0) return 0;
               const ElfW(Dyn)* dynamic = nullptr;
               for (unsigned i = 0; i < info->dlpi_phnum; ++i)
                 if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
                   dynamic = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
               const LoadedObject object(info->dlpi_addr, dynamic);
               if (object.defines("lmdbio_", "version")) return 0;  // LMDBIO under another name
               for (const char* const prefix : {"mdb_", "mdb09_", "mdb10_"}) {
                 if (!object.defines(prefix, "env_create")) continue;
                 if (object.calls(prefix, "env_create") && !has_inlined_calls(object, prefix)) continue;
                 const Found& to = *static_cast<Found*>(out);
                 if (to.bytes != 0) {
                   std::strncpy(to.path, info->dlpi_name, to.bytes - 1);
                   to.path[to.bytes - 1] = '\0';
                 }
                 return 1;
               }
               return 0;
             },
             &found) != 0;
}

}  // namespace lmdbio::compat
