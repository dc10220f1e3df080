#include <CLI/CLI.hpp>

#include "cli/completion_script.hpp"
#include "cli/context.hpp"

namespace dtrain::cli {

Verb add_completion(CLI::App& root) {
  auto shell = std::make_shared<std::string>();
  CLI::App* app = add_verb(root, "completion", "Print the completion script of a shell",
                           "  source <(dtrain completion bash)\n"
                           "  source <(dtrain completion zsh)\n"
                           "  dtrain completion fish | source\n");
  app->add_option("shell", *shell, "The shell")->type_name("bash|zsh|fish")->required();
  return {app,
          [shell, app](Context& context) {
            context.print(completion_script(*app->get_parent(), *shell));
            return 0;
          },
          std::nullopt, false};
}

}  // namespace dtrain::cli
