#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/staging.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::cli {
namespace {

nlohmann::json bundle_json(const BundlePlan& plan) {
  nlohmann::json files = nlohmann::json::array();
  std::uint64_t size = 0;
  for (const BundleFile& file : plan.files) {
    nlohmann::json row;
    row["name"] = file.name;
    row["path"] = file.file.empty() ? nlohmann::json() : nlohmann::json(file.file.string());
    row["size"] = file.size;
    row["taken"] = file.taken;
    row["reason"] = file.reason;
    files.push_back(std::move(row));
    if (file.taken) size += file.size;
  }
  nlohmann::json all;
  all["program"] = plan.program.string();
  all["bundle"] = plan.wanted;
  all["reason"] = plan.why_not;
  all["size"] = size;
  all["glibc"] = plan.glibc ? nlohmann::json(plan.glibc->str()) : nlohmann::json();
  all["glibc_of"] = plan.glibc_of;
  all["files"] = std::move(files);
  all["missing"] = plan.missing;
  return all;
}

int run_bundle(Context& context, const std::string& program) {
  JobSpec spec;
  spec.command = {program};
  spec.workdir = fs::current_path().string();
  const char* search = std::getenv("PATH");
  const auto found = program_of(spec, search == nullptr ? "" : search);
  if (!found) {
    throw Error(ErrorCode::not_found, "there is no program " + printable(program, false));
  }
  FileFactsCache cache(paths::file_sums());
  const BundlePlan plan = plan_bundle(*found, bundle_options(), cache);
  cache.save();
  const int code = plan.missing.empty() ? 0 : 1;
  if (context.globals.json) {
    context.print_json(bundle_json(plan));
    return code;
  }
  const bool color = context.terminal.color_out;
  std::vector<std::vector<Cell>> goes;
  std::vector<std::vector<Cell>> stays;
  std::uint64_t size = 0;
  for (const BundleFile& file : plan.files) {
    const Cell bytes = file.size == 0 ? "" : human_bytes(file.size);
    if (file.taken) {
      goes.push_back({file.name, bytes, file.reason, {file.file.string(), Color::dim}});
      size += file.size;
    } else {
      stays.push_back({file.name, file.reason});
    }
  }
  std::string text = paint(printable_path(plan.program), Color::bold, color) + ": ";
  if (plan.wanted) {
    text += "these go along, " + human_bytes(size) + ", once for all jobs\n" +
            table({"LIBRARY", "SIZE", "WHY", "FROM"}, goes, color);
  } else {
    text += "no libraries go along: " + plan.why_not + "\n";
  }
  if (!stays.empty()) text += "\nThe nodes have these:\n" + table({"LIBRARY", "WHY"}, stays, color);
  if (plan.glibc) {
    text += "\nThe nodes need glibc " + plan.glibc->str() +
            " or newer: " + printable(plan.glibc_of, false) + " wants it.\n";
  }
  for (const std::string& missing : plan.missing) {
    text += paint("not found here: ", Color::red, color) + printable(missing, false) + "\n";
  }
  context.print(text);
  return code;
}

}  // namespace

Verb add_bundle(CLI::App& root) {
  auto program = std::make_shared<std::string>();
  CLI::App* app = add_verb(root, "bundle", "Show which libraries go along with a program, and why",
                           "  dtrain bundle ./build/train\n"
                           "  dtrain bundle --json ./build/train\n"
                           "Exit code: 1 when a library that it needs is not found.\n");
  app->add_option("program", *program, "The program")->type_name("PROGRAM")->required();
  return {app, [program](Context& context) { return run_bundle(context, *program); }, std::nullopt};
}

}  // namespace dtrain::cli
