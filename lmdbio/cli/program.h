// Finds programs to run, and the reasons why a preloaded library might not reach them.
#pragma once

#include <string>
#include <vector>

namespace lmdbio::cli {

/// Returns the file that execvp(3) would execute, as a path with a slash.  Throws Failure with kNotFound or
/// kNotExecutable.
std::string find_program(const std::string& name);

/// Returns the path of a program that is beside this one.  Throws Failure with kNotFound if it is not
/// installed; `package` has it.
std::string sibling_program(const std::string& name, const std::string& package);
/// Executes a program in place of this one.  `words`: its arguments, without its name.  Throws Failure.
[[noreturn]] void execute(const std::string& program, std::vector<std::string> words);
/// Returns the path of the program lmdbio-serve, which is beside this one.  Throws Failure with kNotFound if
/// it is not installed.
std::string server_program();

/// Returns one line for each reason why LD_PRELOAD, or LMDBIO in it, would not work as expected in `file`
/// when it runs with `args` (without the program's name).  For a script it checks the interpreter, for
/// "env" the program that env starts.
std::vector<std::string> obstacles(const std::string& file, const std::vector<std::string>& args);

}  // namespace lmdbio::cli
