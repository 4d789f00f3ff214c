// Messages between servers: entries come back as they were, and a damaged message has no effect but missing
// entries.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "lmdbio/serve/messages.h"
#include "tests/support/rng.h"

namespace lmdbio::serve {
namespace {

using Message = std::vector<std::byte>;

Question question(std::uint32_t n, std::string_view path) {
  return {{{n, 2}, 3, 4096, n + 5},
          std::uint64_t{n} << 40,
          100 + n,
          n % 64,
          n,
          static_cast<Question::To>(n % 3),
          path};
}

TEST(ServeMessages, Questions) {
  const std::string path(kMostPath, 'x');
  Message message;
  std::size_t size = 0;
  for (std::uint32_t n = 0; n < 6; ++n) {
    const Question q = question(n, std::string_view(path).substr(0, n % 2 == 0 ? 0 : path.size() - n));
    append(message, q);
    size += size_of(q);
  }
  EXPECT_EQ(message.size(), size);
  Bytes rest = message;
  for (std::uint32_t n = 0; n < 6; ++n) {
    const auto q = next_question(rest);
    ASSERT_TRUE(q);
    EXPECT_EQ(q->state, question(n, "").state);
    EXPECT_EQ(q->offset, std::uint64_t{n} << 40);
    EXPECT_EQ(q->bytes, 100 + n);
    EXPECT_EQ(q->slot, n % 64);
    EXPECT_EQ(q->number, n);
    EXPECT_EQ(q->to, static_cast<Question::To>(n % 3));
    EXPECT_EQ(q->path, std::string_view(path).substr(0, n % 2 == 0 ? 0 : path.size() - n));
  }
  EXPECT_FALSE(next_question(rest));
}

TEST(ServeMessages, Answers) {
  const Message contents(kInlineBytes, std::byte{7});
  Message message;
  append(message, Answer{Answer::Kind::inline_bytes, 1, 2, kInlineBytes, contents});
  append(message, Answer{Answer::Kind::bytes, 3, 4, 1u << 20});
  append(message, Answer{Answer::Kind::working});
  Bytes rest = message;
  const auto first = next_answer(rest), second = next_answer(rest), third = next_answer(rest);
  ASSERT_TRUE(first && second && third);
  EXPECT_EQ(first->slot, 1u);
  EXPECT_TRUE(std::equal(first->contents.begin(), first->contents.end(), contents.begin(), contents.end()));
  EXPECT_EQ(second->bytes, 1u << 20);
  EXPECT_EQ(second->number, 4u);
  EXPECT_EQ(third->kind, Answer::Kind::working);
  EXPECT_FALSE(next_answer(rest));
}

TEST(ServeMessages, EntriesThatAreCutOffAreNotThere) {
  Message message;
  append(message, question(1, "/path"));
  const std::size_t one = message.size();
  append(message, question(2, "/path"));
  for (std::size_t n = 0; n < message.size(); ++n) {
    Bytes rest = Bytes(message).first(n);
    EXPECT_EQ(next_question(rest).has_value(), n >= one);
    EXPECT_FALSE(next_question(rest));
  }
  Message answers;
  append(answers, Answer{Answer::Kind::inline_bytes, 1, 2, 9, Bytes(message).first(9)});
  for (std::size_t n = 0; n < answers.size(); ++n) {
    Bytes rest = Bytes(answers).first(n);
    EXPECT_FALSE(next_answer(rest));
  }
}

TEST(ServeMessages, AnyBytes) {
  test::Rng rng(1);
  for (unsigned i = 0; i < 20'000; ++i) {
    Message message(rng.below(300));
    for (std::byte& b : message) b = static_cast<std::byte>(rng.below(4) == 0 ? rng.below(256) : 0);
    Bytes rest = message;
    while (const auto q = next_question(rest)) EXPECT_LE(q->path.size(), kMostPath);
    rest = message;
    while (const auto a = next_answer(rest)) EXPECT_LE(a->contents.size(), kInlineBytes);
  }
}

}  // namespace
}  // namespace lmdbio::serve
