// What lmdbio_error() tells: a line for each thread.
#pragma once

#include <string>

namespace lmdbio::compat {

/// Of the calling thread; cut at some hundred bytes.  Out of memory: there is none.  errno preserved.
void set_error_text(const std::string& text) noexcept;
/// "" if none was set.  Valid until the next set_error_text() of this thread, or its end.
const char* error_text() noexcept;

}  // namespace lmdbio::compat
