// The function that makes the I/O engines of files.
#pragma once

#include <memory>

#include "lmdbio/base/result.h"
#include "lmdbio/io/engine_select.h"

namespace lmdbio::cache {

/// Makes an engine.  It is select_engine() unless a test replaces it, which is allowed only while no I/O
/// thread runs.
using EngineFactory = Result<std::unique_ptr<IoEngine>> (*)(const File& file, unsigned depth,
                                                            EngineKind wanted, const char** name) noexcept;
EngineFactory& engine_factory() noexcept;

}  // namespace lmdbio::cache
