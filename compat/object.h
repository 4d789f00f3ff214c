// What the dynamic section of a loaded object says: which functions it defines, and which it calls through
// the loader.  Reads memory only, so that it may run at any time; nothing is opened, and no lock of the
// loader is taken.
#pragma once

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>

namespace lmdbio::compat {

class LoadedObject {
 public:
  LoadedObject(ElfW(Addr) base, const ElfW(Dyn) * dynamic) noexcept;

  /// It exports a function `prefix` + `name`.
  bool defines(const char* prefix, const char* name) const noexcept { return index_of(prefix, name) != 0; }
  /// It exports the function, and calls it, or takes its address, as the loader bound it: perhaps to another
  /// object's.
  bool calls(const char* prefix, const char* name) const noexcept;

 private:
  /// Of a defined symbol; 0: none.
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

/// An object that contains an LMDB whose functions start with `prefix`, and that exports them: calls of it
/// were compiled into their callers, as link-time optimization does with clang.  They would use a handle of
/// ours as one of that LMDB's.
bool has_inlined_calls(const LoadedObject& object, const char* prefix) noexcept;

/// Finds a loaded object, not a library of the name liblmdb, that exports an LMDB of version 0.9 whose calls
/// do not come here, or get no handle of ours.  Copies its path.  False: there is none.
bool find_unreached(char* path, std::size_t bytes) noexcept;

}  // namespace lmdbio::compat
