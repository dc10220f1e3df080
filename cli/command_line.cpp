#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command_words.hpp"
#include "cli/context.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/open_files.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/table.hpp"

namespace dtrain::cli {
namespace {

constexpr const char* kGlobalGroup = "Everywhere";

// The same four on the program and on every verb, so that they may stand before or after it.
void add_globals(CLI::App& app, Globals& globals, bool json = true) {
  app.add_option("-c,--cluster,--cluster-name", globals.cluster,
                 "The cluster (else $DTRAIN_CLUSTER, else that of the last up)")
      ->group(kGlobalGroup)
      ->type_name("NAME");
  app.add_flag("--json", globals.json, "One JSON document, or one JSON line per event")
      ->group(json ? kGlobalGroup : "");
  app.add_flag("-q,--quiet", globals.quiet, "Only results and errors")->group(kGlobalGroup);
  app.add_flag("-v,--verbose", globals.verbose, "More of everything")->group(kGlobalGroup);
}

// All long and short names that `app` knows, for "did you mean".
std::vector<std::string> known_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

const CLI::App& chosen(const CLI::App& root) {
  const auto used = root.get_subcommands();
  return used.empty() ? root : chosen(*used.front());
}

// "submit", "tune status"; empty for the program.
std::string path_of_verb(const CLI::App& app) {
  if (app.get_parent() == nullptr) return {};
  const std::string before = path_of_verb(*app.get_parent());
  return before + (before.empty() ? "" : " ") + app.get_name();
}

// Whether a verb runs what stands after `--`.
bool takes_program(const std::string& verb) {
  return verb == "submit" || verb == "tune" || verb == "exec";
}

// "dtrain submit job.yaml -- python3 fit.py --lr 1": where the program's own options begin. Absent
// for other verbs, and where no program stands before them.
std::optional<std::string> with_separator(const CLI::App& app,
                                          const std::vector<std::string>& words,
                                          const std::string& unknown) {
  const std::string verb = path_of_verb(app);
  const CLI::Option* words_of = app.get_option_no_throw(verb == "exec" ? "command" : "file");
  if (words_of == nullptr || !takes_program(verb)) return std::nullopt;
  for (const std::string& word : words_of->results()) {
    if (word.ends_with(".yaml") || word.ends_with(".yml")) continue;
    const auto at = std::find(words.begin(), words.end(), word);
    if (at >= std::find(words.begin(), words.end(), unknown)) return std::nullopt;
    return "dtrain " + shell_join(std::vector<std::string>(words.begin(), at)) + " -- " +
           shell_join(started_words({at, words.end()}));
  }
  return std::nullopt;
}

// "--restart" of submit and tune: the key of a job YAML that is meant.
std::optional<std::string> job_key(const CLI::App& app, const std::string& option) {
  const std::string verb = path_of_verb(app);
  if ((verb != "submit" && verb != "tune") || !option.starts_with("--")) return std::nullopt;
  std::string name = option.substr(2);
  std::replace(name.begin(), name.end(), '-', '_');
  if (spec::job_table().find(name) == nullptr) return std::nullopt;
  return name;
}

// They would be passed over silently, and a verb without a name take another one than is meant.
void check_no_tail(const CLI::App& root, const std::optional<std::vector<std::string>>& tail) {
  const std::string verb = path_of_verb(chosen(root));
  if (!tail || tail->empty() || takes_program(verb)) return;
  throw Error(ErrorCode::usage, "dtrain " + verb + " takes nothing after --")
      .with_hint("dtrain " + verb + " " + shell_join(*tail));
}

// CLI11 takes "[a, b]" apart at its commas. A word that looks so travels through it with a NUL
// behind, which no argument has.
bool looks_like_list(const std::string& word) {
  return word.size() > 1 && word.front() == '[' && word.back() == ']';
}

void take_mark_off(std::string& word) {
  if (word.ends_with('\0')) word.pop_back();
}

// Whether there are any.
bool mark_lists(std::vector<std::string>& words) {
  bool any = false;
  for (std::string& word : words) {
    if (!looks_like_list(word)) continue;
    word.push_back('\0');
    any = true;
  }
  return any;
}

// Each option's values lose the mark before anything else looks at them.
void take_marks_off(CLI::App& app) {
  CLI::Validator plain(
      [](std::string& word) {
        take_mark_off(word);
        return std::string();
      },
      "");
  for (CLI::Option* option : app.get_options({})) option->transform(plain);
  for (CLI::App* sub : app.get_subcommands({})) take_marks_off(*sub);
}

// CLI11's complaint as ours: what is wrong, the nearest known word, where the help is.
Error usage_error(const CLI::App& root, const CLI::ParseError& error,
                  const std::vector<std::string>& words) {
  const CLI::App& app = chosen(root);
  const std::string verb = &app == &root ? "" : " " + path_of_verb(app);
  std::string message = error.what();
  std::string hint = "dtrain" + verb + " --help";
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    std::vector<std::string> extras = app.remaining(true);
    if (extras.empty()) extras = root.remaining(true);
    if (!extras.empty()) {
      std::string first = extras.front();
      take_mark_off(first);
      const bool option = first.starts_with("-");
      std::vector<std::string> known;
      if (option) {
        known = known_options(app);
      } else if (&app == &root) {
        for (const CLI::App* sub : root.get_subcommands({})) known.push_back(sub->get_name());
      }
      message = (option          ? "unknown option "
                 : &app == &root ? "unknown command "
                                 : "too many arguments: ") +
                printable(first, false);
      const std::string bare = first.substr(0, first.find('='));
      const auto near = nearest(bare, known);
      if (near) hint = *near + ", or dtrain" + verb + " --help";
      // --secrets is a misspelt --secret; --restart is no --start.
      if (const auto key = job_key(app, bare); key && !(near && bare.starts_with(*near))) {
        hint = *key + ": in a job YAML, no flag has this name";
      }
      // Ray's --cluster-name; no short form of it, for elsewhere -n is a dry run.
      if (option && first.starts_with("-n"))
        hint = "-c NAME for the cluster, or dtrain" + verb + " --help";
      if (const auto separated = option ? with_separator(app, words, first) : std::nullopt) {
        hint = "a program's own options come after --: " + *separated;
      }
    } else if (&app == &root && words.empty()) {
      message = "a command is wanted";
    }
  }
  return Error(ErrorCode::usage, message).with_hint(hint);
}

void show_error(const Context& context, const Error& error) {
  if (context.globals.json) {
    context.print_json(error_json(error));
  } else {
    write_all(2, error_text(error, context.terminal.color_err, context.globals.verbose));
  }
}

// torchrun writes --nproc_per_node: any option of ours may be written with _ for -.
void put_dashes(std::vector<std::string>& words, const std::vector<Verb>& verbs) {
  std::set<std::string> known;
  for (std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (!name.starts_with("--") || name.find('_') == std::string::npos) continue;
    if (known.empty()) {
      for (const Verb& verb : verbs) {
        for (std::string& option : known_options(*verb.app)) known.insert(std::move(option));
        for (const CLI::App* sub : verb.app->get_subcommands({})) {
          for (std::string& option : known_options(*sub)) known.insert(std::move(option));
        }
      }
    }
    std::string dashed = name;
    std::replace(dashed.begin(), dashed.end(), '_', '-');
    if (known.contains(dashed)) word.replace(0, name.size(), dashed);
  }
}

bool mentions(const std::vector<std::string>& words, std::string_view word) {
  for (const std::string& each : words) {
    if (each == word) return true;
  }
  return false;
}

}  // namespace

CLI::App* add_verb(CLI::App& root, const std::string& name, const std::string& description,
                   const std::string& examples) {
  CLI::App* app = root.add_subcommand(name, description);
  app->footer("Examples:\n" + examples);
  return app;
}

CommandLine::CommandLine() : app(std::make_unique<CLI::App>()) {
  app->name("dtrain");
  app->description("Turns a cluster YAML into running machines and a program into ranks on them.");
  app->set_version_flag("--version", std::string("dtrain ") + DTRAIN_VERSION);
  app->require_subcommand(1);
  app->get_formatter()->column_width(32);
  app->footer(
      "Examples:\n"
      "  dtrain up\n"
      "  dtrain submit train_job.yaml\n"
      "  dtrain submit --local --nproc-per-node 2 -- ./train --epochs 3\n"
      "  dtrain down\n");
  add_globals(*app, globals);
  for (const auto add :
       {add_up,      add_down,         add_status,     add_submit,      add_tune,
        add_logs,    add_stop,         add_stack,      add_result,      add_plot,
        add_pull,    add_prune,        add_doctor,     add_rm,          add_bundle,
        add_drain,   add_join_command, add_exec,       add_attach,      add_forward,
        add_sync,    add_rsync_up,     add_rsync_down, add_get_head_ip, add_get_worker_ips,
        add_monitor, add_completion,   add_man,        add_version}) {
    verbs.push_back(add(*app));
    add_globals(*verbs.back().app, globals, verbs.back().json);
    // Also of verbs behind verbs.
    for (CLI::App* sub : verbs.back().app->get_subcommands({})) add_globals(*sub, globals);
  }
}

CommandLine::~CommandLine() = default;

int run(int argc, char** argv) {
  raise_open_files();  // for many followed streams and forwarded connections
  std::vector<std::string> words(argv + 1, argv + argc);
  Context context;
  context.terminal = detect_terminal();
  // The words after `--` are the user's own: no option of ours is looked for in them.
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != "--") continue;
    context.tail.emplace(words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
    words.resize(i);
    break;
  }
  std::optional<int> error_code;
  std::optional<int> unreachable_code;
  const auto fail = [&](const Error& error) {
    try {
      show_error(context, error);
    } catch (const Error&) {  // neither stdout nor stderr can be written
    }
    if (error_code) return *error_code;
    const bool unreachable = error.code() == ErrorCode::unreachable;
    return unreachable && unreachable_code ? *unreachable_code : exit_code_for(error);
  };
  try {
    CommandLine line;
    put_dashes(words, line.verbs);
    try {
      std::vector<std::string> reversed(words.rbegin(), words.rend());
      if (mark_lists(reversed)) take_marks_off(*line.app);
      line.app->parse(reversed);
    } catch (const CLI::Success& success) {  // --help, --version
      return line.app->exit(success);
    } catch (const CLI::ParseError& error) {
      context.globals = line.globals;
      // What was parsed before the complaint may not have reached --json yet.
      context.globals.json = context.globals.json || mentions(words, "--json");
      for (const Verb& verb : line.verbs) {
        if (verb.app->parsed() && verb.error_code) error_code = verb.error_code;
      }
      throw usage_error(*line.app, error, words);
    }
    context.globals = line.globals;
    for (const Verb& verb : line.verbs) {
      if (!verb.app->parsed()) continue;
      error_code = verb.error_code;
      unreachable_code = verb.unreachable_code;
      check_no_tail(*line.app, context.tail);
      if (context.globals.json && !verb.json) {
        throw Error(ErrorCode::usage, verb.app->get_name() + " knows no --json");
      }
      return verb.run(context);
    }
    throw Error(ErrorCode::internal, "a command without a body");
  } catch (const Error& error) {
    return fail(error);
  } catch (const std::exception& error) {
    return fail(as_defect(error));
  }
}

}  // namespace dtrain::cli
