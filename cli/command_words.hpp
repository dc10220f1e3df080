#pragma once

#include <optional>
#include <string>
#include <vector>

namespace dtrain::cli {

// What is to be run.
struct CommandWords {
  std::vector<std::string> words;
  bool shell = false;  // words[0] is a line for /bin/sh
};

// The one rule of exec and submit: after `--` stand a program and its arguments, also where that is
// one word; without it one argument is a line for the shell, and several are a program and its
// arguments. `tail` is what follows `--`. Absent: nothing is given. Throws Error(usage).
std::optional<CommandWords> command_words(const std::optional<std::vector<std::string>>& tail,
                                          const std::vector<std::string>& before);

// A word that only a shell makes sense of: it has blanks or operators in it.
bool is_shell_line(const std::string& word);

// Whether there is a file of that name. Throws Error where nobody can tell, but for such a line.
bool is_file(const std::string& word);

// Whether a file is meant as a program rather than as a YAML: by its name, its mode, its beginning.
bool looks_like_program(const std::string& file);

// A program as it is started: a script that is not executable by its interpreter, a file of this
// folder by its path.
std::vector<std::string> started_words(std::vector<std::string> words);

}  // namespace dtrain::cli
