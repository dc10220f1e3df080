#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/doctor_words.hpp"
#include "launcher/core/error.hpp"

namespace dtrain::cli {
namespace {

struct DoctorFlags {
  bool fix = false;
};

constexpr std::chrono::seconds kDoctorLimit{60};  // longer than the head waits for its nodes

int run_doctor(Context& context, const DoctorFlags& options) {
  const wire::ApiClient client = context.client();
  const nlohmann::json answer = [&] {
    try {
      return client.post("/v1/doctor", {{"fix", options.fix}}, kDoctorLimit);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;  // that there is no such request
      throw Error(ErrorCode::conflict, "the head's agent is too old to be asked what is wrong")
          .with_hint("`dtrain up` with this dtrain brings it up to date");
    }
  }();
  if (context.globals.json) {
    context.print_json(answer);
  } else if (!context.globals.quiet) {
    context.print(doctor_words(answer, context.globals.verbose, context.terminal.color_out));
  }
  return is_well(answer) ? 0 : 1;
}

}  // namespace

Verb add_doctor(CLI::App& root) {
  auto options = std::make_shared<DoctorFlags>();
  CLI::App* app =
      add_verb(root, "doctor", "Look for what is wrong on the head and all nodes; changes nothing",
               "  dtrain doctor                  what is wrong, and what to do\n"
               "  dtrain doctor -v               also what is well, and the clocks\n"
               "  dtrain doctor --fix            put right what dtrain can\n"
               "  dtrain doctor --json           for scripts\n");
  app->add_flag("--fix", options->fix,
                "Put right what can be: stray processes, stale sockets, permissions, leftovers");
  return {app, [options](Context& context) { return run_doctor(context, *options); }, std::nullopt};
}

}  // namespace dtrain::cli
