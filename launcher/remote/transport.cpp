#include "launcher/remote/transport.hpp"

#include <array>
#include <cstdio>

#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kShownLines = 5;

std::string last_lines(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  std::vector<std::string> lines = split(text, '\n');
  if (lines.size() > kShownLines) {
    lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kShownLines));
  }
  return printable(join(lines, " | "), false);
}

}  // namespace

std::string run_or_throw(Transport& transport, const std::vector<std::string>& argv,
                         std::string_view input, std::chrono::milliseconds deadline,
                         const std::string& what) {
  Captured captured = transport.run(argv, input, deadline);
  if (captured.exit.ok()) return std::move(captured.out);
  std::string said = last_lines(captured.err.empty() ? captured.out : captured.err);
  if (said.empty()) said = "it said nothing";
  throw Error(ErrorCode::failed, what + " failed with " + captured.exit.str() + ": " + said)
      .with_hint("the command was: " + shell_join(argv));
}

void put_by_shell(Transport& transport, std::string_view content, const fs::path& path, mode_t mode,
                  std::chrono::milliseconds deadline) {
  const std::string& target = path.native();
  const std::string temporary = target + "." + random_hex(6) + ".part";
  std::array<char, 8> octal{};
  std::snprintf(octal.data(), octal.size(), "%04o", static_cast<unsigned>(mode & 07777));
  // The size is looked at because a connection that breaks ends cat as well as a whole file does.
  const std::string script =
      "umask 077 && mkdir -p -- \"$1\" && cat >\"$2\" && [ $(wc -c <\"$2\") -eq \"$4\" ] && "
      "chmod \"$5\" \"$2\" && { sync \"$2\" 2>/dev/null || :; } && mv -f -- \"$2\" \"$3\" || "
      "{ rm -f -- \"$2\"; exit 1; }";
  std::string folder = path.parent_path().native();
  if (folder.empty()) folder = ".";
  run_or_throw(transport,
               {"/bin/sh", "-c", script, "put", folder, temporary, target,
                std::to_string(content.size()), octal.data()},
               content, deadline, "the copy");
}

}  // namespace dtrain
