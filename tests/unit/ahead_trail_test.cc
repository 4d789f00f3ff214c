// Turns of a walk, and the chunks it has been in since the last one.
#include <gtest/gtest.h>

#include <vector>

#include "lmdbio/ahead/trail.h"

namespace lmdbio::ahead {
namespace {

bool turns(Trail& trail, const std::vector<std::uint16_t>& taken, bool forward, bool edge = false) {
  WalkPlace place;
  place.taken = taken;
  place.forward = forward;
  return trail.turns_at(place, edge);
}

TEST(Trail, TurnsAtEdgesByDirectionAndByJumps) {
  for (const bool forward : {true, false}) {
    Trail trail;
    EXPECT_TRUE(turns(trail, {0, 5}, forward, true));
    trail.enter(7);
    EXPECT_FALSE(turns(trail, {0, 5}, forward));
    EXPECT_TRUE(trail.been_in(7));
    EXPECT_FALSE(trail.been_in(6));
    EXPECT_FALSE(trail.been_in(8));
    EXPECT_FALSE(turns(trail, {0, static_cast<std::uint16_t>(forward ? 6 : 4)}, forward));
    EXPECT_FALSE(turns(
        trail, {static_cast<std::uint16_t>(forward ? 1 : 0), static_cast<std::uint16_t>(forward ? 0 : 3)},
        forward));
    EXPECT_TRUE(trail.been_in(7)) << "on and on";
    EXPECT_TRUE(turns(trail, {0, static_cast<std::uint16_t>(forward ? 9 : 8)}, forward))
        << "a jump against it";
    EXPECT_FALSE(trail.been_in(7));
    trail.enter(2);
    EXPECT_TRUE(turns(trail, {0, static_cast<std::uint16_t>(forward ? 9 : 8)}, !forward))
        << "the other direction";
    EXPECT_FALSE(trail.been_in(2));
    EXPECT_TRUE(turns(trail, {0}, !forward)) << "a tree of another depth";
    EXPECT_TRUE(turns(trail, {0}, !forward, true)) << "an edge";
  }
}

}  // namespace
}  // namespace lmdbio::ahead
