// Reads the dynamic section of a loaded object: which functions it defines, and which it calls through the
// loader.  May run at any time, because it only reads memory: it opens no file and takes no lock of the
// loader.
#pragma once

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>

namespace lmdbio::compat {

class LoadedObject {
 public:
  LoadedObject(ElfW(Addr) base, const ElfW(Dyn) * dynamic) noexcept;

  /// Returns whether the object exports a function `prefix` + `name`.
  bool defines(const char* prefix, const char* name) const noexcept { return index_of(prefix, name) != 0; }
  /// Returns whether the object exports the function and also calls it, or takes its address, through the
  /// loader.  The loader may have bound it to another object's function.
  bool calls(const char* prefix, const char* name) const noexcept;

 private:
  /// Returns the index of a defined symbol; 0 if there is none.
  std::uint32_t index_of(const char* prefix, const char* name) const noexcept;
  bool is_at(std::uint32_t index, const char* prefix, const char* name) const noexcept;

  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
  const std::uint32_t* gnu_hash_ = nullptr;
  const std::uint32_t* hash_ = nullptr;
  struct {
    const ElfW(Rela) * first = nullptr;
    std::size_t bytes = 0;
  } relocations_[2];
};

/// Returns whether calls of the LMDB that `object` contains and exports were inlined into their callers, as
/// link-time optimization with clang does.  The LMDB's functions start with `prefix`.  Inlined calls would
/// use our handles as handles of that LMDB.
bool has_inlined_calls(const LoadedObject& object, const char* prefix) noexcept;

/// Finds a loaded object that exports an LMDB whose calls do not reach LMDBIO, or get no handle of ours.
/// Skips libraries named liblmdb.  Copies its path.  Returns false if there is none.
bool find_unreached(char* path, std::size_t bytes) noexcept;

}  // namespace lmdbio::compat
