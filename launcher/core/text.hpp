#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain {

// The candidate nearest to `word` by edit distance (transpositions count one, case none), if it is
// near enough to be a slip: at most a third of the word's length, at least 1. For "did you mean".
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

// Splits at each separator; an empty text gives one empty part.
std::vector<std::string> split(std::string_view text, char separator);
std::string join(std::span<const std::string> parts, std::string_view separator);
// The first `most` of them: "a, b and 997 more".
std::string join_some(std::span<const std::string> parts, std::size_t most,
                      std::string_view separator = ", ");

// The text with every control character but tab and newline shown as \xNN, and bytes that are not
// UTF-8 too, so that it cannot drive a terminal. Newlines stay only with keep_newlines.
std::string printable(std::string_view text, bool keep_newlines = true);

// True when every byte sequence is well-formed UTF-8 (RFC 3629).
bool is_utf8(std::string_view text) noexcept;

// The one quoting function: a word that a POSIX shell reads back as exactly `text`.
// NUL cannot be quoted: throws Error(invalid).
std::string shell_quote(std::string_view text);
std::string shell_join(std::span<const std::string> words);

// "850 ms", "12.3 s", "4 m 05 s", "3 h 07 m".
std::string human_duration(std::chrono::nanoseconds duration);
// Of what a step takes, to two or three digits: "0.42 ms", "8.3 ms", "412 ms", "1.52 s", "75.0 s".
std::string short_time(double seconds);
// "17 B", "1.2 KiB", "44.7 MiB".
std::string human_bytes(std::uint64_t bytes);
// "$12.24"
std::string human_dollars(double dollars);

std::string to_hex(std::span<const unsigned char> bytes);

// As people write it: "20", "0.001", "1e+20".
std::string number_text(double value);

// The first `bytes` of it at most, less what would be left of a character.
std::string_view cut(std::string_view text, std::size_t bytes);

// Less the 3 bytes at most at its end that may be the beginning of a character.
std::string_view whole_characters(std::string_view text) noexcept;

// Without white space at both ends, line ends included.
std::string trimmed(std::string_view text);

// Of ASCII's letters.
std::string lower_case(std::string_view text);

}  // namespace dtrain
