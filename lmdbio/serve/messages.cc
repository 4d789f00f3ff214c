#include "lmdbio/serve/messages.h"

#include <cstring>

namespace lmdbio::serve {

namespace {

// What precedes the path, or the bytes, of an entry.  All servers run the same program, so they share the
// layout of its structs.
struct QuestionHead {
  node::ServedState state;
  std::uint64_t offset;
  std::uint32_t bytes, slot, number;
  Question::To to;
  std::uint32_t path_bytes;
};

struct AnswerHead {
  Answer::Kind kind;
  std::uint32_t slot, number, bytes;
};

static_assert(sizeof(QuestionHead) + kMostPath <= kMessageBytes);
static_assert(sizeof(AnswerHead) + kInlineBytes <= kMessageBytes);

template <class Head>
void append_entry(std::vector<std::byte>& message, const Head& head, Bytes rest) {
  const Bytes bytes = std::as_bytes(std::span(&head, 1));
  message.insert(message.end(), bytes.begin(), bytes.end());
  message.insert(message.end(), rest.begin(), rest.end());
}

// Removes `n` bytes from the front.
Bytes take(Bytes& message, std::size_t n) noexcept {
  const Bytes taken = message.first(n);
  message = message.subspan(n);
  return taken;
}

template <class Head>
std::optional<Head> take_head(Bytes& message) noexcept {
  if (message.size() < sizeof(Head)) return {};
  Head head;
  std::memcpy(&head, take(message, sizeof head).data(), sizeof head);
  return head;
}

}  // namespace

std::size_t size_of(const Question& question) noexcept { return sizeof(QuestionHead) + question.path.size(); }

std::size_t size_of(const Answer& answer) noexcept { return sizeof(AnswerHead) + answer.contents.size(); }

void append(std::vector<std::byte>& message, const Question& q) {
  append_entry(message,
               QuestionHead{q.state, q.offset, q.bytes, q.slot, q.number, q.to,
                            static_cast<std::uint32_t>(q.path.size())},
               std::as_bytes(std::span(q.path)));
}

void append(std::vector<std::byte>& message, const Answer& a) {
  append_entry(message, AnswerHead{a.kind, a.slot, a.number, a.bytes}, a.contents);
}

std::optional<Question> next_question(Bytes& message) noexcept {
  const auto head = take_head<QuestionHead>(message);
  if (!head || head->path_bytes > kMostPath || head->path_bytes > message.size()) return {};
  const Bytes path = take(message, head->path_bytes);
  return Question{head->state,
                  head->offset,
                  head->bytes,
                  head->slot,
                  head->number,
                  head->to,
                  {reinterpret_cast<const char*>(path.data()), path.size()}};
}

std::optional<Answer> next_answer(Bytes& message) noexcept {
  const auto head = take_head<AnswerHead>(message);
  if (!head) return {};
  Answer answer{head->kind, head->slot, head->number, head->bytes, {}};
  if (head->kind != Answer::Kind::inline_bytes) return answer;
  if (head->bytes > kInlineBytes || head->bytes > message.size()) return {};
  answer.contents = take(message, head->bytes);
  return answer;
}

}  // namespace lmdbio::serve
