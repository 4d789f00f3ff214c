// Load, first use, fork: the library's global state.
#pragma once

namespace lmdbio::compat {

/// At the first mdb_env_create: registers the fork handlers.  Any thread, any number of times.
void first_use() noexcept;

}  // namespace lmdbio::compat
