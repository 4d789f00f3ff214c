// What the servers tell the program that has started them.
#pragma once

namespace lmdbio::serve {

/// The line that one of the servers prints, after --announce, as soon as all of them serve.
inline constexpr const char* kReady = "lmdbio serve: ready\n";

}  // namespace lmdbio::serve
