// Reads the records of a database while another program adds some, and mixes old ones in.
//
//   follow DATABASE [STATE]
//
// Each batch has 32 new records, and 8 old ones from a reservoir of 1000.  The program ends when the writer
// has put the key "end".  It then saves its state to the file STATE; if this file exists at the start, the
// program continues from there.
#include <lmdbio/follower.h>

#include <cstdio>
#include <fstream>
#include <iterator>

int main(int argc, char** argv) try {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: follow DATABASE [STATE]\n");
    return 2;
  }
  lmdbio::Follow::Options options;
  options.fields.fresh = 32;
  options.fields.old = 8;
  options.fields.capacity = 1000;
  options.fields.seed = 42;
  options.fields.append_only = 1;  // the writer only adds records behind the last key
  options.finished_key = "end";
  if (argc == 3) {
    std::ifstream in(argv[2], std::ios::binary);
    const std::string saved{std::istreambuf_iterator<char>(in), {}};
    const auto bytes = std::as_bytes(std::span(saved));
    options.state.assign(bytes.begin(), bytes.end());
  }

  lmdbio::Follow follow(argv[1], options);
  unsigned long long fresh = 0, old = 0, bytes = 0;
  while (std::optional<lmdbio::Follow::Next> next = follow.next()) {
    fresh += next->fresh;
    old += next->batch.size() - next->fresh;
    for (const lmdbio::Record record : next->batch) bytes += record.value.size();
  }
  std::printf("%llu new records, %llu old ones, %llu bytes\n", fresh, old, bytes);
  if (argc == 3) {
    const std::vector<std::byte> state = follow.state();
    std::ofstream out(argv[2], std::ios::binary);
    out.write(reinterpret_cast<const char*>(state.data()), static_cast<std::streamsize>(state.size()));
    return out.flush() ? 0 : 1;
  }
  return 0;
} catch (const lmdbio::Error& e) {
  std::fprintf(stderr, "follow: %s\n", e.what());
  return 1;
}
