// Messages between servers.  Each message has several entries, because a message costs far more than the
// bytes of a small record: questions, or answers.  Nothing in a message is trusted to have a valid size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "lmdbio/base/bytes.h"
#include "lmdbio/node/service.h"

namespace lmdbio::serve {

/// The longest path of a file that is served, in bytes.
inline constexpr std::size_t kMostPath = 4096;
/// The longest message with questions or answers, in bytes.
inline constexpr std::size_t kMessageBytes = std::size_t{32} << 10;
/// An answer with at most so many bytes carries them.  More bytes follow in a message of their own.
inline constexpr std::size_t kInlineBytes = std::size_t{8} << 10;

/// Asks the home of a chunk for bytes of it, or a server that has got them from it.
struct Question {
  node::ServedState state;
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0, slot = 0, number = 0;
  enum class To : std::uint32_t {
    home,
    holder,           ///< a server that the home has named
    home_for_itself,  ///< the home shall not name another server
  };
  To to = To::home;
  std::string_view path{};  ///< empty: the home knows the file.  Valid as long as the message
};

struct Answer {
  enum class Kind : std::uint32_t {
    bytes,         ///< a message with `bytes` bytes follows
    packed,        ///< as `bytes`, but they are compressed (cache/packed_range.h)
    inline_bytes,  ///< the answer has them
    none,          ///< the home cannot bring the bytes
    other_file,    ///< the home sees another file under this path
    working,       ///< of no question: the home has finished reads since it last said so
    elsewhere,     ///< another server has the bytes: the one with the number `bytes`
  };
  Kind kind = Kind::none;
  std::uint32_t slot = 0, number = 0;  ///< of the question
  std::uint32_t bytes = 0;             ///< or the number of a server
  Bytes contents{};                    ///< inline_bytes: `bytes` bytes.  Valid as long as the message
};

/// Returns the size of an entry in a message, in bytes: at most kMessageBytes.
std::size_t size_of(const Question& question) noexcept;
std::size_t size_of(const Answer& answer) noexcept;
/// Appends an entry to a message.  May throw bad_alloc.
void append(std::vector<std::byte>& message, const Question& question);
void append(std::vector<std::byte>& message, const Answer& answer);
/// Removes the first entry of a message, and returns it.  Returns nullopt at the end, and if the rest is no
/// valid entry.
std::optional<Question> next_question(Bytes& message) noexcept;
std::optional<Answer> next_answer(Bytes& message) noexcept;

}  // namespace lmdbio::serve
