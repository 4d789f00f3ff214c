// Load, first use, fork: the library's global state.
#pragma once

namespace lmdbio::compat {

/// When the library is loaded, or at an mdb_env_create before its constructor ran: registers the fork
/// handlers. Any thread, any number of times.
void first_use() noexcept;

}  // namespace lmdbio::compat
