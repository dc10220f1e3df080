#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/error.hpp"

// What can be seen of a program before, or after, it could not be started. Looks at files of this
// machine and starts nothing.
namespace dtrain {

// What spawn() throws when the program or its folder is not there, or is nothing that can be
// started: trying again is of no use.
class NotStartable : public Error {
 public:
  using Error::Error;
};

// An executable file of that name in the folders of a PATH; `name` has no slash. Folders that are
// not absolute are passed over.
std::optional<std::filesystem::path> find_in_path(std::string_view name, std::string_view path);

// Where interpreters of scripts are looked for.
enum class Interpreters { here, elsewhere };

// Why `file` cannot be started, as words that follow its name ("is not executable: did you mean
// python3 ./train.py?"); absent when nothing is seen that is wrong. `word` is the file as it was
// typed. With Interpreters::elsewhere nothing is said about interpreters, which another machine
// may have. `path` is the PATH that env finds them by.
std::optional<std::string> why_not_startable(const std::filesystem::path& file,
                                             const std::string& word, Interpreters interpreters,
                                             std::string_view path);

// The same for a word without a slash that no folder of `path` has, started in `workdir`.
std::string why_not_in_path(const std::string& word, const std::filesystem::path& workdir,
                            std::string_view path);

// Whether exec(2) or chdir(2) that failed with this errno would fail again, the machine being as it
// is.
bool fails_again(int error) noexcept;

}  // namespace dtrain
