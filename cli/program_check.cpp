#include "cli/program_check.hpp"

#include <cstdlib>
#include <filesystem>

#include "cli/command_words.hpp"
#include "launcher/core/program.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::cli {
namespace {

namespace fs = std::filesystem;

// Of the job's own, the nodes' and this command's PATH: what none of them has is not there.
std::string path_of(const JobSpec& spec, const JobPlace& place) {
  if (const auto own = spec.env.find("PATH"); own != spec.env.end()) return own->second;
  const char* ours = std::getenv("PATH");
  return place.login_path.value_or("") + ":" + (ours == nullptr ? "" : ours);
}

bool lies_in(const fs::path& file, const fs::path& folder) {
  const fs::path relative =
      file.lexically_normal().lexically_relative((folder / "").lexically_normal());
  return !relative.empty() && *relative.begin() != "..";
}

[[noreturn]] void refuse(ErrorCode code, const std::string& word, const std::string& why,
                         bool shell_line) {
  Error error(code, "the program " + shell_quote(word) + " " + why);
  if (shell_line) {
    error.with_hint("a line for the shell is one argument without --: dtrain submit " +
                    shell_quote(word));
  }
  throw error;
}

}  // namespace

void check_program(const JobSpec& spec, const JobPlace& place) {
  std::error_code none;
  const fs::path workdir = spec.workdir;
  const fs::file_status folder = fs::status(workdir, none);
  const bool gone = folder.type() == fs::file_type::not_found;
  if (gone || (fs::exists(folder) && !fs::is_directory(folder))) {
    throw Error(ErrorCode::not_found, "the workdir " + printable(spec.workdir, false) +
                                          (gone ? " is not there" : " is no folder"))
        .with_hint("workdir is where the ranks run; a path in a YAML is relative to the YAML");
  }
  // What a line for the shell begins with may be anything that the shell knows.
  if (spec.shell || spec.command.empty()) return;
  // What setup, or a job before it, makes or mends is not seen yet.
  if (!spec.setup.empty() || (place.here && !spec.after.empty())) return;
  const std::string& word = spec.command.front();
  // Nor what a search puts there.
  if (word.find('{') != std::string::npos) return;
  const bool shell_line = spec.command.size() == 1 && is_shell_line(word);
  const std::string path = path_of(spec, place);
  if (word.find('/') == std::string::npos) {
    if (find_in_path(word, path)) return;
    // Other machines have other programs, but none has a script of ours or a line of words.
    const bool ours = shell_line || fs::is_regular_file(workdir / word, none);
    if (!place.here && !ours) return;
    if (place.here && !place.login_path && !shell_line) return;
    refuse(ErrorCode::not_found, word, why_not_in_path(word, workdir, path), shell_line);
  }
  const fs::path file = workdir / word;
  const bool there = fs::exists(file, none);
  if (!place.here && !lies_in(file, workdir)) return;
  const auto interpreters =
      place.here && place.login_path ? Interpreters::here : Interpreters::elsewhere;
  const auto why = why_not_startable(file, word, interpreters, path);
  if (!why) return;
  refuse(there ? ErrorCode::invalid : ErrorCode::not_found, word, *why, shell_line && !there);
}

}  // namespace dtrain::cli
