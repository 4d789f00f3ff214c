// The text of lmdbio_error(), one line per thread.
#pragma once

#include <string>

namespace lmdbio::compat {

/// Sets the calling thread's text, cut at some hundred bytes.  If memory is short, there is none.  Preserves
/// errno.
void set_error_text(const std::string& text) noexcept;
/// Returns the calling thread's text, or "" if none was set.  Valid until its next set_error_text(), or until
/// it ends.
const char* error_text() noexcept;

}  // namespace lmdbio::compat
