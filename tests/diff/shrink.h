// Cuts a failing program down.
#pragma once

#include "tests/diff/campaign.h"

namespace lmdbio::diff {

/// The shortest program found that still fails in the same way (same signal, or a difference in the same
/// function).  Each attempt runs in a process of its own; at most `attempts` of them.
Program shrink(Campaign& campaign, Program program, Failure* failure, int attempts);

}  // namespace lmdbio::diff
