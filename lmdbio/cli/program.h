// Programs to be run: where they are, and why a preloaded library might not reach them.
#pragma once

#include <string>
#include <vector>

namespace lmdbio::cli {

/// The file that execvp(3) would execute, with a slash in it.  Throws Failure: kNotFound or kNotExecutable.
std::string find_program(const std::string& name);

/// One line for each reason for which LD_PRELOAD, or LMDBIO in it, would not do what is expected in `file`
/// run with `args` (without the program's name).  Scripts are judged by their interpreters, "env" by what it
/// starts.
std::vector<std::string> obstacles(const std::string& file, const std::vector<std::string>& args);

}  // namespace lmdbio::cli
