#include "lmdbio/files/names.h"

#include <algorithm>

namespace lmdbio::files {

namespace {

struct Quotation {
  std::string_view code;  ///< what follows the percent sign
  char byte;
};
constexpr Quotation kQuotations[] = {{"00", '\0'}, {"25", '%'}, {"2E", '.'}, {"2F", '/'}};
constexpr std::string_view kDivision = "%+/";

const Quotation* quotation_at(std::string_view after_percent) noexcept {
  const auto* const found =
      std::find_if(std::begin(kQuotations), std::end(kQuotations),
                   [&](const Quotation& q) { return after_percent.starts_with(q.code); });
  return found == std::end(kQuotations) ? nullptr : found;
}

/// Appends a part of a path, divided if it has more than `most` bytes.
void append_part(std::string& out, std::string_view part, std::size_t most) {
  if (part == "." || part == "..") {
    for (std::size_t i = 0; i < part.size(); ++i) out += "%2E";
    return;
  }
  while (part.size() > most) {
    std::size_t cut = most - 2;
    for (const std::size_t back : {std::size_t{1}, std::size_t{2}})  // not inside a quotation
      if (part[cut - back] == '%' && quotation_at(part.substr(cut - back + 1)) != nullptr) {
        cut -= back;
        break;
      }
    out.append(part.substr(0, cut)).append(kDivision);
    part.remove_prefix(cut);
  }
  out += part;
}

}  // namespace

std::string name_of(std::string_view key, std::string_view suffix) {
  std::string out, part;
  for (std::size_t i = 0; i < key.size(); ++i) {
    const std::string_view rest = key.substr(i + 1);
    switch (key[i]) {
      case '\0':
        part += "%00";
        break;
      case '%':
        part += quotation_at(rest) != nullptr || rest.starts_with('+') ? "%25" : "%";
        break;
      case '/':
        if (part.empty() || rest.empty()) {
          part += "%2F";
        } else {
          append_part(out, part, kMostPartBytes);
          out += '/';
          part.clear();
        }
        break;
      default:
        part += key[i];
    }
  }
  append_part(out, part, kMostPartBytes - suffix.size());
  return out.append(suffix);
}

std::string key_of(std::string_view name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name.substr(i).starts_with(kDivision)) {
      i += kDivision.size() - 1;
      continue;
    }
    const Quotation* const q = name[i] == '%' ? quotation_at(name.substr(i + 1)) : nullptr;
    out += q != nullptr ? q->byte : name[i];
    if (q != nullptr) i += q->code.size();
  }
  return out;
}

std::string key_for_file(std::string_view name) {
  std::string key = key_of(name);
  return !key.empty() && name_of(key) == name ? key : std::string(name);
}

}  // namespace lmdbio::files
