// Where the engines of files come from.
#pragma once

#include <memory>

#include "lmdbio/base/result.h"
#include "lmdbio/io/engine_select.h"

namespace lmdbio::cache {

/// How engines are made: select_engine, unless a test has put another function there.  Changed while no
/// thread reads ahead.
using EngineFactory = Result<std::unique_ptr<IoEngine>> (*)(const File& file, unsigned depth,
                                                            EngineKind wanted, const char** name) noexcept;
EngineFactory& engine_factory() noexcept;

}  // namespace lmdbio::cache
