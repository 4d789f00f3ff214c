// Reads the end of a file that another node extends, with each engine.
//   growing_reads FILE SOURCE    SOURCE: the file behind FILE, which is extended there
// Prints a line for each engine: its name, and the bytes that it read at the new end, or the error.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/engine_select.h"

namespace {

using namespace lmdbio;

constexpr std::size_t kBlock = 4096;

void must(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::exit(1);
}

std::unique_ptr<std::byte, decltype(&std::free)> block(int fill) {
  auto* const bytes = static_cast<std::byte*>(std::aligned_alloc(kBlock, kBlock));
  must(bytes != nullptr, "aligned_alloc");
  std::memset(bytes, fill, kBlock);
  return {bytes, &std::free};
}

void extend(const UniqueFd& source, int fill) {
  const auto bytes = block(fill);
  must(::lseek(source.get(), 0, SEEK_END) >= 0, "lseek");
  must(::write(source.get(), bytes.get(), kBlock) == ssize_t{kBlock}, "write");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const UniqueFd source(::open(argv[2], O_RDWR | O_CLOEXEC));
  must(static_cast<bool>(source), argv[2]);
  for (const EngineKind kind : {EngineKind::uring, EngineKind::threads, EngineKind::pread}) {
    const Result<File> file = File::open(argv[1], File::Mode::direct_if_possible);
    must(static_cast<bool>(file), argv[1]);
    const Result<std::uint64_t> end = file.value().size();  // the kernel remembers this length
    must(static_cast<bool>(end), "size");
    const char* name = "";
    const auto engine = select_engine(file.value(), 4, kind, &name);
    must(static_cast<bool>(engine), "select_engine");
    const int fill = 1 + static_cast<int>(kind);
    extend(source, fill);
    const auto to = block(0), expected = block(fill);
    const Status st = read_fully(*engine.value(), end.value(), MutableBytes(to.get(), kBlock));
    const bool right = st.ok() && std::memcmp(to.get(), expected.get(), kBlock) == 0;
    // There is nothing behind the end.
    const Status behind = read_fully(*engine.value(), end.value() + kBlock, MutableBytes(to.get(), kBlock));
    std::printf("%s: %s, then %d\n", name,
                right     ? "right"
                : st.ok() ? "wrong"
                          : std::strerror(st.raw()),
                behind.raw());
  }
  return 0;
}
