#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/records/joined_locations.h"

namespace lmdbio::records {
namespace {

/// Record i is in leaf page 10 + i / 10, with a value in the overflow run 1000 + i.  Its key is its number.
class Numbers final : public RecordLocations {
 public:
  explicit Numbers(std::uint64_t records, UnknownOrdinals unknown = {})
      : records_(records), unknown_(unknown) {}
  std::uint64_t records() const noexcept override { return records_; }
  void locations(std::uint64_t first, std::span<RecordLocation> out) const noexcept override {
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = {.leaf = 10 + (first + i) / 10,
                .slot = static_cast<std::uint32_t>((first + i) % 10),
                .overflow = 1000 + first + i};
  }
  UnknownOrdinals unknown(std::uint64_t) const noexcept override { return unknown_; }
  Status ordinal_of(std::uint64_t leaf, unsigned slot, const format::PageView&,
                    std::uint64_t& out) const override {
    out = (leaf - 10) * 10 + slot;
    return out < records_ ? Status() : Status::from_mdb(MDB_CORRUPTED);
  }

 private:
  const std::uint64_t records_;
  const UnknownOrdinals unknown_;
};

const std::atomic<bool> kNever{false};
constexpr std::uint64_t kPages = 1 << 20;

class JoinedLocationsTest : public ::testing::Test {
 protected:
  /// `excluded`: for each part, its records and the numbers that are left out, as {first, count}.
  struct Given {
    std::uint64_t records;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> excluded;
  };
  std::unique_ptr<JoinedLocations> make(const std::vector<Given>& given) {
    std::vector<JoinedLocations::Part> parts;
    for (const Given& g : given) {
      JoinedLocations::Part p;
      p.name = "part" + std::to_string(parts.size());
      p.records = g.records;
      p.first_page = kPages * parts.size();
      for (const auto& [first, count] : g.excluded) p.excluded.push_back({std::to_string(first), count});
      for (std::uint64_t i = 0; i < g.records; ++i) {
        bool out = false;
        for (const auto& [first, count] : g.excluded) out = out || (i >= first && i < first + count);
        if (!out) wanted_.push_back({kPages * parts.size(), i});
      }
      parts.push_back(std::move(p));
    }
    auto made = std::make_unique<JoinedLocations>(
        std::move(parts), [this, given](std::size_t i, const std::atomic<bool>&,
                                        std::unique_ptr<RecordLocations>& out, std::string& why) {
          ++opened_;
          if (i == broken_) {
            why = "broken";
            return Status::from_errno(EIO);
          }
          out = std::make_unique<Numbers>(given[i].records, UnknownOrdinals{20, 30, 12});
          return Status();
        });
    made->set_find([](std::size_t part, std::span<const MDB_val> keys, const JoinedLocations::Tell& tell,
                      std::string&) {
      for (std::size_t k = 0; k < keys.size(); ++k) {
        const auto n = std::stoull(std::string(static_cast<const char*>(keys[k].mv_data), keys[k].mv_size));
        tell(k, kPages * part + 10 + n / 10, static_cast<unsigned>(n % 10), format::PageView::none());
      }
      return Status();
    });
    return made;
  }
  /// Prepares the records and compares their locations.
  void expect(const JoinedLocations& j, std::uint64_t first, std::size_t n) {
    std::vector<std::uint64_t> ordinals;
    for (std::uint64_t o = first; o < first + n; ++o) ordinals.push_back(o);
    std::string why;
    ASSERT_TRUE(j.prepare(ordinals, kNever, why).ok()) << why;
    std::vector<RecordLocation> got(n);
    j.locations(first, got);
    for (std::size_t i = 0; i < n; ++i) {
      const auto [base, raw] = wanted_[first + i];
      ASSERT_EQ(got[i].overflow, base + 1000 + raw) << first + i;
      ASSERT_EQ(got[i].leaf, base + 10 + raw / 10);
      ASSERT_EQ(got[i].dup_leaf, 0u);
    }
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> wanted_;  ///< first page of the part, ordinal in it
  std::atomic<unsigned> opened_{0};
  std::size_t broken_ = SIZE_MAX;
};

TEST_F(JoinedLocationsTest, OrdinalsSkipWhatIsLeftOut) {
  const auto j =
      make({{100, {{50, 3}, {0, 2}, {2, 1}, {99, 1}}}, {0, {}}, {5, {{0, 5}}}, {30, {}}, {40, {{10, 20}}}});
  ASSERT_EQ(j->records(), wanted_.size());
  EXPECT_EQ(std::vector<std::uint64_t>(j->firsts().begin(), j->firsts().end()),
            (std::vector<std::uint64_t>{0, 93, 93, 93, 123, 143}));
  for (std::size_t n = 1; n < 70; n += 17)
    for (std::uint64_t first = 0; first + n <= wanted_.size(); ++first) expect(*j, first, n);
  for (std::size_t o = 0; o < wanted_.size(); ++o) {
    std::uint64_t out = 0;
    const auto [base, raw] = wanted_[o];
    ASSERT_TRUE(
        j->ordinal_of(base + 10 + raw / 10, static_cast<unsigned>(raw % 10), format::PageView::none(), out)
            .ok());
    EXPECT_EQ(out, o);
  }
  for (const std::uint64_t raw : {0u, 2u, 51u, 99u}) {
    std::uint64_t out = 0;
    ASSERT_TRUE(
        j->ordinal_of(10 + raw / 10, static_cast<unsigned>(raw % 10), format::PageView::none(), out).ok());
    EXPECT_EQ(out, UINT64_MAX);
  }
}

TEST_F(JoinedLocationsTest, OpensWhatIsNeededOnce) {
  const auto j = make({{10, {}}, {10, {}}, {10, {}}, {10, {}}, {10, {}}, {10, {}}, {10, {}}});
  EXPECT_EQ(opened_, 0u);
  expect(*j, 3, 2);
  EXPECT_EQ(opened_, 1u);
  expect(*j, 0, 10);
  EXPECT_EQ(opened_, 1u);
  expect(*j, 10, 1);
  EXPECT_EQ(opened_, 5u) << "one part after the other: some are opened in advance";
  expect(*j, 0, 70);
  EXPECT_EQ(opened_, 7u);
}

TEST_F(JoinedLocationsTest, AFailureConcernsOnePart) {
  const auto j = make({{10, {}}, {10, {}}, {10, {}}});
  broken_ = 1;
  std::string why;
  const std::uint64_t three[] = {0, 10, 29};
  EXPECT_EQ(j->prepare(three, kNever, why).raw(), EIO);
  EXPECT_EQ(why, "broken");
  expect(*j, 0, 10);
  expect(*j, 20, 10);
  EXPECT_EQ(j->await(kNever, why).raw(), EIO);
  broken_ = SIZE_MAX;
  expect(*j, 0, 30);
  EXPECT_TRUE(j->await(kNever, why).ok());
}

TEST_F(JoinedLocationsTest, UnknownOrdinalsAreThoseOfTheDatabase) {
  const auto j = make({{100, {{5, 2}}}, {100, {{25, 10}}}});
  expect(*j, 0, 188);
  UnknownOrdinals u = j->unknown(3);
  EXPECT_EQ(u.begin, 18u);
  EXPECT_EQ(u.end, 28u);
  EXPECT_EQ(u.leaf, 12u);
  u = j->unknown(98);
  EXPECT_EQ(u.begin, 98u + 20);
  EXPECT_EQ(u.end, 98u + 25);
  EXPECT_EQ(u.leaf, kPages + 12);
}

}  // namespace
}  // namespace lmdbio::records
