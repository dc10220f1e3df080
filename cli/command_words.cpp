#include "cli/command_words.hpp"

#include <unistd.h>

#include <filesystem>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::cli {

namespace fs = std::filesystem;

std::optional<CommandWords> command_words(const std::optional<std::vector<std::string>>& tail,
                                          const std::vector<std::string>& before) {
  if (tail && !before.empty()) {
    throw Error(ErrorCode::usage, "a command stands before and after --");
  }
  if (tail && tail->empty()) throw Error(ErrorCode::usage, "a program is wanted after --");
  if (tail) return CommandWords{*tail, false};
  if (before.empty()) return std::nullopt;
  return CommandWords{before, before.size() == 1};
}

bool is_shell_line(const std::string& word) {
  return word.find_first_of(" \t\n|&;<>$`") != std::string::npos;
}

bool is_file(const std::string& word) {
  std::error_code failed;
  const bool there = fs::exists(word, failed);
  if (failed && !is_shell_line(word)) throw errno_error("cannot look at " + word, failed.value());
  return there;
}

bool looks_like_program(const std::string& file) {
  if (file.ends_with(".yaml") || file.ends_with(".yml")) return false;
  std::error_code none;
  return fs::is_regular_file(file, none) &&
         (::access(file.c_str(), X_OK) == 0 || file.ends_with(".py") || file.ends_with(".sh"));
}

std::vector<std::string> started_words(std::vector<std::string> words) {
  if (words.empty()) return words;
  std::string& program = words.front();
  std::error_code none;
  if (fs::is_regular_file(program, none) && program.find('/') == std::string::npos) {
    program = "./" + program;
  }
  if (program.ends_with(".py") && ::access(program.c_str(), X_OK) != 0) {
    words.insert(words.begin(), "python3");
  }
  return words;
}

}  // namespace dtrain::cli
