// How walks over a file are read ahead: decided once a file, from facts alone.
#pragma once

#include <cstdint>

#include "lmdbio/base/config.h"
#include "lmdbio/base/memory_facts.h"

namespace lmdbio::cache {

enum class Way : unsigned char {
  mapping,   ///< page faults do it all
  buffered,  ///< reads into the page cache, ahead of the program
  direct,    ///< reads past the page cache, published over the window
};

struct RegimeFacts {
  IoMode setting = IoMode::automatic;
  bool local = true;            ///< the file system keeps its data on this machine
  bool direct = false;          ///< O_DIRECT works
  bool can_map = true;          ///< the file can be mapped
  std::uint64_t readahead = 0;  ///< bytes that the kernel reads ahead of page faults
  std::uint64_t limit = 0;      ///< bytes of private memory that may be used
  std::uint64_t file_bytes = 0;
  std::uint64_t available = 0;  ///< memory that the page cache could grow by
};

struct Regime {
  Way way;
  const char* why;  ///< for statistics; a literal
};

/// The page cache is shared by all processes and serves the next epoch and the next run, so what fits it goes
/// there; by page faults alone on a local file system if the kernel's read-ahead is large, which costs least
/// (docs/decisions/0007).  Elsewhere its requests are too small and one at a time: it is filled ahead.
constexpr Regime choose_way(const RegimeFacts& f) noexcept {
  if (!f.can_map) return {Way::direct, "the file cannot be mapped"};
  switch (f.setting) {
    case IoMode::mmap:
      return {Way::mapping, "LMDBIO_IO=mmap"};
    case IoMode::buffered:
      return {Way::buffered, "LMDBIO_IO=buffered"};
    case IoMode::direct:
      return f.limit != 0 ? Regime{Way::direct, "LMDBIO_IO=direct"}
                          : Regime{Way::buffered, "LMDBIO_IO=direct, but LMDBIO_MEMORY=0"};
    case IoMode::automatic:
      break;
  }
  if (f.limit == 0) return {Way::buffered, "LMDBIO_MEMORY=0"};
  if (!f.direct) return {Way::buffered, "no direct reads here"};
  if (!fits_comfortably(f.file_bytes, f.available))
    return {Way::direct, "larger than the memory that is free"};
  constexpr std::uint64_t kEnough = std::uint64_t{2} << 20;
  if (f.local && f.readahead >= kEnough)
    return {Way::mapping, "local file system, the kernel reads ahead far enough"};
  return {Way::buffered, "fits the page cache"};
}

/// What was brought into the page cache and was gone again before a walk came to it, bytes: of the last 64
/// MiB that walks came to, and in all.  Who goes on so reads the file twice; but once in a while another
/// process may drop it (see OpenedAnew::drops_cache).
constexpr bool too_much_vanished(std::uint64_t lately, std::uint64_t in_all) noexcept {
  return lately >= std::uint64_t{16} << 20 && in_all >= std::uint64_t{32} << 20;
}

}  // namespace lmdbio::cache
