#include "lmdbio/io/content_state.h"

#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace lmdbio {

std::optional<std::array<std::uint64_t, 2>> content_state(const File& file, std::size_t head_bytes,
                                                          std::uint64_t more) noexcept {
  constexpr std::size_t kMost = 256;  // bytes of each page; a meta page uses 152
  struct {
    std::uint64_t ino, size, changed_s, changed_ns, modified_s, modified_ns, more;
    unsigned char heads[2][kMost];
  } facts{};
  bool known = false;
  const std::size_t page = head_bytes / 2, bytes = std::min(page, kMost);
  (void)file.with_fd([&](int fd) noexcept {
    struct stat st;
    if (::fstat(fd, &st) != 0) return;
    facts.ino = st.st_ino;
    facts.size = static_cast<std::uint64_t>(st.st_size);
    facts.changed_s = static_cast<std::uint64_t>(st.st_ctim.tv_sec);
    facts.changed_ns = static_cast<std::uint64_t>(st.st_ctim.tv_nsec);
    facts.modified_s = static_cast<std::uint64_t>(st.st_mtim.tv_sec);
    facts.modified_ns = static_cast<std::uint64_t>(st.st_mtim.tv_nsec);
    known = true;
    for (std::size_t i = 0; i < 2; ++i)
      known = known &&
              ::pread(fd, facts.heads[i], bytes, static_cast<off_t>(i * page)) == static_cast<ssize_t>(bytes);
  });
  if (!known) return {};
  facts.more = more;
  const XXH128_hash_t hash = ::XXH3_128bits(&facts, sizeof facts);
  return std::array<std::uint64_t, 2>{hash.low64, hash.high64};
}

}  // namespace lmdbio
