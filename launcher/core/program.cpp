#include "launcher/core/program.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <utility>
#include <vector>

#include "launcher/core/text.hpp"

namespace dtrain {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kLooked = 256;  // bytes of a file; the kernel reads as many of a #! line
constexpr std::size_t kMostNames = 20'000;  // of a folder, for "did you mean"

constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kInterpreters{{
    {".py", "python3"},
    {".sh", "sh"},
    {".bash", "bash"},
    {".pl", "perl"},
    {".jl", "julia"},
    {".R", "Rscript"},
}};

bool executable_file(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

std::string did_you_mean(std::string_view what) {
  return ": did you mean " + std::string(what) + "?";
}

// "python3 ./train.py", by the name; empty when it says nothing.
std::string by_interpreter(const std::string& word) {
  for (const auto& [suffix, program] : kInterpreters) {
    if (word.ends_with(suffix)) return std::string(program) + " " + shell_quote(word);
  }
  return {};
}

std::string begin_of(const fs::path& file) {
  std::string text(kLooked, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

void add_programs(std::vector<std::string>& names, const fs::path& folder) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (names.size() >= kMostNames) return;
    if (executable_file(entry.path())) names.push_back(entry.path().filename().string());
  }
}

// What is wrong with the interpreter that a #! line names.
std::optional<std::string> wrong_interpreter(std::string_view line, std::string_view path) {
  if (!line.empty() && line.back() == '\r') {
    return "has Windows' line ends: its interpreter would be " + printable(line.substr(2), false) +
           " (dos2unix mends it)";
  }
  std::vector<std::string> words;
  std::string rest(line.substr(2));
  std::replace(rest.begin(), rest.end(), '\t', ' ');  // the kernel takes both
  for (std::string& word : split(rest, ' ')) {
    if (!word.empty()) words.push_back(std::move(word));
  }
  if (words.empty()) return "names no interpreter behind its #!";
  if (words.front().front() == '/' && !executable_file(words.front())) {
    return "wants the interpreter " + printable(words.front(), false) + ", which is not there";
  }
  const bool by_env = fs::path(words.front()).filename() == "env" && words.size() == 2 &&
                      words[1].front() != '-' && words[1].find_first_of("=/") == std::string::npos;
  if (by_env && !find_in_path(words[1], path)) {
    return "wants the interpreter " + printable(words[1], false) + ", which PATH does not have";
  }
  return std::nullopt;
}

std::string not_there(const fs::path& file, const std::string& word) {
  std::string said = "is not there";
  if (!fs::path(word).has_filename()) return said;
  std::vector<std::string> names;
  add_programs(names, file.parent_path());
  if (const auto near = nearest(file.filename().string(), names)) {
    std::string folder = word.substr(0, word.rfind('/') + 1);
    said += did_you_mean(shell_quote(folder + *near));
  }
  return said;
}

}  // namespace

std::optional<fs::path> find_in_path(std::string_view name, std::string_view path) {
  for (const std::string& folder : split(path, ':')) {
    if (folder.empty() || folder.front() != '/') continue;
    fs::path candidate = fs::path(folder) / name;
    if (executable_file(candidate)) return candidate;
  }
  return std::nullopt;
}

std::optional<std::string> why_not_startable(const fs::path& file, const std::string& word,
                                             Interpreters interpreters, std::string_view path) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return not_there(file, word);
    return std::nullopt;  // it may be seen elsewhere
  }
  if (S_ISDIR(status.st_mode)) return "is a folder";
  const std::string by_name = by_interpreter(word);
  if (::access(file.c_str(), X_OK) != 0) {
    const bool script = !by_name.empty();
    return "is not executable" + did_you_mean(script ? by_name : "chmod +x " + shell_quote(word));
  }
  const std::string begin = begin_of(file);
  if (begin.starts_with("#!")) {
    if (interpreters == Interpreters::elsewhere) return std::nullopt;
    return wrong_interpreter(std::string_view(begin).substr(0, begin.find('\n')), path);
  }
  // What is no text may be a format that the kernel was taught.
  if (!S_ISREG(status.st_mode) || begin.find('\0') != std::string::npos) return std::nullopt;
  if (begin.empty()) {
    return status.st_size == 0 ? std::optional<std::string>("is empty") : std::nullopt;
  }
  return "is a script without a #! line" +
         did_you_mean(by_name.empty() ? "sh " + shell_quote(word) : by_name);
}

std::string why_not_in_path(const std::string& word, const fs::path& workdir,
                            std::string_view path) {
  std::error_code none;
  std::string said = "is not in PATH";
  const std::string script = by_interpreter(word);
  if (!script.empty() && fs::is_regular_file(workdir / word, none)) {
    return said + did_you_mean(script);
  }
  if (executable_file(workdir / word)) return said + did_you_mean("./" + shell_quote(word));
  std::vector<std::string> names;
  for (const std::string& folder : split(path, ':')) {
    if (!folder.empty() && folder.front() == '/') add_programs(names, folder);
  }
  if (const auto near = nearest(word, names)) return said + did_you_mean(*near);
  return said;
}

bool fails_again(int error) noexcept {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case ENOEXEC:
    case ELOOP:
    case ENAMETOOLONG:
    case E2BIG:
      return true;
    default:
      return false;
  }
}

}  // namespace dtrain
