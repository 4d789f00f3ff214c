#include "tests/support/slowfs/trace.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

namespace lmdbio::slowfs {

std::int64_t Trace::process_of(std::int64_t thread) {
  std::ifstream in("/proc/" + std::to_string(thread) + "/status");
  for (std::string word; in >> word;) {
    std::int64_t process = 0;
    if (word == "Tgid:" && in >> process) return process;
  }
  return 0;
}

void Trace::ended(const Read& read) const {
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
  const nlohmann::json line{{"begin_ns", read.begin_ns}, {"end_ns", now.count()}, {"process", read.process},
                            {"thread", read.thread},     {"file", read.file},     {"offset", read.offset},
                            {"bytes", read.bytes},       {"direct", read.direct}};
  const std::string text = line.dump() + "\n";
  static_cast<void>(!::write(file_.get(), text.data(), text.size()));  // one write: lines are whole
}

}  // namespace lmdbio::slowfs
