#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/spec/report.hpp"

// What is wrong with a text that is not YAML, in words for who wrote it. Nothing here decides
// whether a text is YAML: that is yaml-cpp's matter.
namespace dtrain::spec {

struct Mistake {
  Place place;
  std::string message;
  std::string hint;
};

Place place_at(std::string_view text, std::size_t offset);

// What can be told without parsing: too large, no text, not UTF-8, too many brackets.
std::optional<Mistake> mistake_in(std::string_view text);

// Where yaml-cpp could not go on, and its own message: what was probably meant. A slip often shows
// only lines below it: then the place is that of the slip.
Mistake explain_syntax(std::string_view text, Place place, std::string_view message);

// The offset of the quote that closes the one at `open`; npos: none does.
std::size_t closing_quote(std::string_view text, std::size_t open);

// "key: value" for a text like `key:value`, which YAML takes as one word; absent for any other.
std::optional<std::string> with_space_after_colon(std::string_view text);

}  // namespace dtrain::spec
