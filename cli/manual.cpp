#include "cli/manual.hpp"

#include <array>
#include <cctype>

#include <CLI/CLI.hpp>

#include "cli/context.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::cli {
namespace {

// What roff would take for typography, and how it is spelled out.
constexpr std::string_view kSpecial = "\\-'`^~\"";
constexpr std::array kSpelled = {"\\e", "\\-", "\\(aq", "\\(ga", "\\(ha", "\\(ti", "\\(dq"};
static_assert(kSpelled.size() == kSpecial.size());

// Text as roff shows it unchanged.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '.' && (out.empty() || out.back() == '\n')) out += "\\&";  // no request
    const std::size_t special = kSpecial.find(c);
    out += special == std::string_view::npos ? std::string(1, c) : kSpelled.at(special);
  }
  return out;
}

std::string bold(const std::string& text) {
  return "\\fB" + roff(text) + "\\fR";
}

std::string italic(const std::string& text) {
  return "\\fI" + roff(text) + "\\fR";
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string section(const std::string& title) {
  return ".SH " + roff(upper(title)) + "\n";
}

std::string entry(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back(bold("-" + name));
  for (const std::string& name : option.get_lnames()) names.push_back(bold("--" + name));
  if (option.get_positional()) names = {italic(option.get_name(true))};
  std::string value = CLI::Formatter().make_option_opts(&option);  // as --help has it, blank first
  if (!value.empty()) value = " " + italic(value.substr(value.find_first_not_of(' ')));
  return ".TP\n" + join(names, ", ") + value + "\n" + roff(option.get_description()) + "\n";
}

// Headings as --help has them; what it leaves out has an empty group.
std::string options(const CLI::App& app) {
  std::string out;
  const auto group = [&](const std::string& title, const auto& belongs) {
    const auto chosen = app.get_options(belongs);
    if (!chosen.empty()) out += section(title);
    for (const CLI::Option* option : chosen) out += entry(*option);
  };
  group("Arguments",
        [](const CLI::Option* o) { return o->get_positional() && !o->get_group().empty(); });
  for (const std::string& title : app.get_groups()) {
    if (title.empty()) continue;
    group(title,
          [&](const CLI::Option* o) { return !o->get_positional() && o->get_group() == title; });
  }
  return out;
}

// "Examples:" and indented lines as they are; other lines are a paragraph each.
std::string footer(const CLI::App& app) {
  std::string out;
  bool literal = false;
  const auto set_literal = [&](bool now) {
    if (now != literal) out += now ? ".PP\n.nf\n" : ".fi\n";
    literal = now;
  };
  for (const std::string& line : split(app.get_footer(), '\n')) {
    if (line.empty()) continue;
    set_literal(line.starts_with(' '));
    if (literal) {
      out += roff(line) + "\n";
    } else if (line.ends_with(':')) {
      out += section(line.substr(0, line.size() - 1));
    } else {
      out += ".PP\n" + roff(line) + "\n";
    }
  }
  set_literal(false);
  return out;
}

std::string page(const CLI::App& app, const std::string& name, const std::string& command) {
  std::string usage = CLI::Formatter().make_usage(&app, command);
  usage = usage.substr(usage.find(command) + command.size());
  usage.erase(usage.find_last_not_of(" \n") + 1);
  return ".TH " + roff(upper(name)) + " 1 \"\" \"dtrain " DTRAIN_VERSION "\" \"dtrain\"\n" +
         section("Name") + roff(name) + " \\- " + roff(app.get_description()) + "\n" +
         section("Synopsis") + bold(command) + roff(usage) + "\n" + options(app);
}

// A page's place in the list of others.
std::string reference(const std::string& name) {
  return bold(name) + "(1)";
}

// The page of a command, and those of the commands behind it.
void add_pages(const CLI::App& app, const std::string& name, const std::string& command,
               const std::string& parent, std::map<std::string, std::string>& pages) {
  std::string commands;
  for (const CLI::App* verb :
       app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); })) {
    const std::string own = name + "-" + verb->get_name();
    add_pages(*verb, own, command + " " + verb->get_name(), name, pages);
    commands += ".TP\n" + reference(own) + "\n" + roff(verb->get_description()) + "\n";
  }
  pages[name + ".1"] = page(app, name, command) +
                       (commands.empty() ? "" : section("Commands") + commands) + footer(app) +
                       (parent.empty() ? "" : section("See also") + reference(parent) + "\n");
}

}  // namespace

std::map<std::string, std::string> manual_pages(const CLI::App& program) {
  std::map<std::string, std::string> pages;
  add_pages(program, program.get_name(), program.get_name(), "", pages);
  return pages;
}

Verb add_man(CLI::App& root) {
  auto folder = std::make_shared<std::string>();
  CLI::App* app = add_verb(root, "man", "Write the manual pages, one for each command",
                           "  dtrain man ~/.local/share/man/man1\n");
  app->group("");  // for those who package it
  app->add_option("folder", *folder, "Where to")->type_name("DIR")->required();
  return {app,
          [folder, app](Context&) {
            std::error_code failed;
            fs::create_directories(*folder, failed);
            if (failed) throw errno_error("cannot make " + printable_path(*folder), failed.value());
            for (const auto& [name, text] : manual_pages(*app->get_parent())) {
              write_file_atomic(fs::path(*folder) / name, text, 0644);
            }
            return 0;
          },
          std::nullopt};
}

}  // namespace dtrain::cli
