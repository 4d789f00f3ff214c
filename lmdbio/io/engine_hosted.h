// An engine whose descriptors are in the private table (private_table.h), for threads of the program.
#pragma once

#include <functional>
#include <memory>

#include "lmdbio/base/futex.h"
#include "lmdbio/io/engine_select.h"
#include "lmdbio/io/io_engine.h"

namespace lmdbio {

/// Makes an engine for `file`, a kept file.  A thread of the private table, "lmdbio-ring", runs the engine
/// that select_engine_here() chooses for the file; requests and results go through memory.  ready_fd()
/// returns -1, so wait with wait_briefly().  A thread of the program may end with reads in flight.  Errors:
/// as select_engine(), and EBADF if there is no private table (any more).
Result<std::unique_ptr<IoEngine>> hosted_engine(const File& file, unsigned depth, EngineKind wanted,
                                                const char** name) noexcept;

/// Makes an engine in a thread of the private table.  `results`: as in select_engine_here().
using MakeHere = std::function<Result<std::unique_ptr<IoEngine>>(EngineKind wanted, EventCount* results)>;
/// As above, for the engine that `make` returns, whose caps are `caps`.
Result<std::unique_ptr<IoEngine>> hosted_engine(IoEngine::Caps caps, EngineKind wanted,
                                                const MakeHere& make) noexcept;

}  // namespace lmdbio
