#include "tests/diff/shrink.h"

#include <algorithm>
#include <cstring>

namespace lmdbio::diff {
namespace {

/// "tested: mdb_cursor_get(" of "tested: mdb_cursor_get(cur1, ..".
std::string kind_of(const Failure& f) {
  const char* end = std::strchr(f.text, '(');
  return std::to_string(f.signal) + (end == nullptr ? std::string(f.text) : std::string(f.text, end));
}

}  // namespace

Program shrink(Campaign& campaign, Program program, Failure* failure, int attempts) {
  const std::string wanted = kind_of(*failure);
  const auto still_fails = [&](const Program& p, Program* made) {
    --attempts;
    Failure f;
    if (campaign.run_program(p, &f, made) || kind_of(f) != wanted) return false;
    *failure = f;
    return true;
  };
  Program made;
  if (!still_fails(program, &made)) return program;  // not reproducible: show it whole
  program = made;
  for (std::size_t piece = program.size() / 2; piece >= 1 && attempts > 0;) {
    bool cut = false;
    for (std::size_t at = program.size(); at > 0 && attempts > 0;) {
      const std::size_t from = at > piece ? at - piece : 0;
      Program candidate(program.begin(), program.begin() + static_cast<std::ptrdiff_t>(from));
      candidate.insert(candidate.end(), program.begin() + static_cast<std::ptrdiff_t>(at), program.end());
      if (!candidate.empty() && still_fails(candidate, &made)) {
        program = made.size() <= candidate.size() ? made : candidate;  // without what could not be called
        cut = true;
        at = std::min(from, program.size());
      } else {
        at = from;
      }
    }
    if (piece > 1)
      piece /= 2;
    else if (!cut)
      break;
  }
  Program simpler = program;  // plainer environments
  for (Call& c : simpler)
    if (c.fn == Fn::kEnvOpen) c.flags = MDB_RDONLY | MDB_NOTLS;
  if (attempts > 0 && still_fails(simpler, &made)) program = made;
  return program;
}

}  // namespace lmdbio::diff
