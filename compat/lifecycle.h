// The library's global state: load, first use, fork.
#pragma once

namespace lmdbio::compat {

/// Registers the fork handlers.  Called when the library is loaded, or by an mdb_env_create that runs before
/// its constructor.  Any thread, any number of times.
void first_use() noexcept;

}  // namespace lmdbio::compat
