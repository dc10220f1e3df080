#include "launcher/remote/transport.hpp"

#include "launcher/core/error.hpp"
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

}  // namespace dtrain
