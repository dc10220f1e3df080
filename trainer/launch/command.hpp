#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/core/environment.hpp"
#include "trainer/core/error.hpp"

namespace dtrain::train {

// What the `dtrain` command says went wrong; `code` as in docs/cli.md.
class CommandError : public Error {
 public:
  CommandError(std::string code, const std::string& message)
      : Error(message), code_(std::move(code)) {}
  const std::string& code() const { return code_; }

 private:
  std::string code_;
};

// The `dtrain` command, run as a person would. For one thread.
class DtrainCommand {
 public:
  explicit DtrainCommand(std::filesystem::path program) : program_(std::move(program)) {}
  // $DTRAIN, a path or a name in PATH, else the dtrain in PATH. Throws Error, with what to do,
  // where there is none.
  static DtrainCommand find(const Lookup& lookup = process_variable);

  const std::filesystem::path& program() const { return program_; }
  // Runs `dtrain WORDS` and returns the JSON document of its last line; stdin is empty, stderr this
  // process's. Throws CommandError with its error, and Error if it printed no JSON.
  nlohmann::json ask(const std::vector<std::string>& words) const;
  // Runs `dtrain WORDS` on this process's stdin, stdout and stderr and returns its exit code (128+n
  // for signal n). SIGINT meanwhile is the command's alone; SIGTERM and SIGHUP, unless this process
  // ignores them, are passed on to it, and raised here once it has ended.
  int show(const std::vector<std::string>& words) const;

 private:
  std::filesystem::path program_;
};

// Of the command's JSON: null, or empty, where it is not there.
nlohmann::json member(const nlohmann::json& of, const char* key);
std::string text(const nlohmann::json& of, const char* key);

}  // namespace dtrain::train
