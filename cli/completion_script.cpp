#include "cli/completion_script.hpp"

#include <algorithm>
#include <vector>

#include <CLI/CLI.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::cli {
namespace {

// What stands where a value is wanted.
enum class Value : std::uint8_t { none, words, files, folders, jobs, searches, clusters, nodes };

struct OptionInfo {
  std::vector<std::string> names;  // with their dashes
  std::string description;
  Value value = Value::none;
  std::vector<std::string> words;  // for Value::words
};
struct VerbInfo {
  std::string name;  // "submit", "tune status"
  std::string description;
  std::vector<OptionInfo> options;
  Value positional = Value::none;
  std::vector<std::string> words;
  std::vector<VerbInfo> subs;  // verbs behind it: their names are words in its place, too
};

// By the type's name, which the help shows too.
Value value_of(const CLI::Option& option, std::vector<std::string>& words) {
  const std::string type = option.get_type_name();
  if (option.get_items_expected_max() == 0) return Value::none;
  if (type == "DIR") return Value::folders;
  if (type.find(".yaml") != std::string::npos) return Value::files;
  if (type.starts_with("JOB")) return Value::jobs;
  if (type.starts_with("SEARCH")) return Value::searches;
  if (type == "NODE") return Value::nodes;
  if (option.check_lname("cluster")) return Value::clusters;
  if (type.find('|') != std::string::npos) {
    for (const std::string& word : split(type, '|')) {
      const bool literal =
          word.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos;
      if (literal) words.push_back(word);
    }
    return Value::words;
  }
  // A number, a name: nothing to propose.
  return type.starts_with("CMD") ? Value::files : Value::words;
}

VerbInfo describe(const CLI::App& app, const std::string& before = {}) {
  VerbInfo verb;
  verb.name = before + app.get_name();
  verb.description = app.get_description();
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // not for show
    if (option->get_positional()) {
      verb.positional = value_of(*option, verb.words);
      continue;
    }
    OptionInfo info;
    for (const std::string& name : option->get_snames()) info.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) info.names.push_back("--" + name);
    info.description = option->get_description();
    info.value = value_of(*option, info.words);
    verb.options.push_back(std::move(info));
  }
  return verb;
}

std::vector<VerbInfo> verbs_of(const CLI::App& app) {
  std::vector<VerbInfo> verbs;
  for (const CLI::App* sub : app.get_subcommands({})) {
    if (sub->get_group().empty()) continue;
    verbs.push_back(describe(*sub));
    for (const CLI::App* behind : sub->get_subcommands({})) {
      verbs.back().subs.push_back(describe(*behind, sub->get_name() + " "));
    }
  }
  return verbs;
}

// "status stop", of verbs behind `verb`.
std::string sub_names(const VerbInfo& verb) {
  std::vector<std::string> names;
  for (const VerbInfo& sub : verb.subs) names.push_back(sub.name.substr(verb.name.size() + 1));
  return join(names, " ");
}

std::vector<std::string> all_names(const VerbInfo& verb) {
  std::vector<std::string> names;
  for (const OptionInfo& option : verb.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

// Ids from the head, names from our own folder: asked when Tab is pressed.
constexpr const char* kJobs =
    "dtrain status --all --json 2>/dev/null | tr '{' '\\n' | "
    "sed -n 's/.*\"job\":\"\\([^\"]*\\)\".*/\\1/p'";
constexpr const char* kSearches =
    "dtrain tune list --json 2>/dev/null | tr '{' '\\n' | "
    "sed -n 's/.*\"search\":\"\\([^\"]*\\)\".*/\\1/p'";
constexpr const char* kNodes =
    "dtrain status --json 2>/dev/null | tr '{' '\\n' | "
    "sed -n 's/.*\"node\":\"\\([^\"]*\\)\".*/\\1/p'";
constexpr const char* kClusters =
    "ls \"${XDG_STATE_HOME:-$HOME/.local/state}/dtrain/clusters\" 2>/dev/null";

std::string bash_value(Value value, const std::vector<std::string>& words) {
  const auto from = [](const std::string& list) {
    return "COMPREPLY=($(compgen -W \"" + list + "\" -- \"$word\"))";
  };
  switch (value) {
    case Value::none:
      return ":";
    case Value::words:
      return from(join(words, " "));
    case Value::files:
      return "COMPREPLY=($(compgen -f -- \"$word\"))";
    case Value::folders:
      return "COMPREPLY=($(compgen -d -- \"$word\"))";
    case Value::jobs:
      return from("$(__dtrain_jobs)");
    case Value::searches:
      return from("$(__dtrain_searches)");
    case Value::nodes:
      return from("$(__dtrain_nodes)");
    case Value::clusters:
      return from("$(__dtrain_clusters)");
  }
  return ":";
}

std::string helpers() {
  return std::string("__dtrain_jobs() { ") + kJobs + "; }\n" + "__dtrain_searches() { " +
         kSearches + "; }\n" + "__dtrain_nodes() { " + kNodes + "; }\n" + "__dtrain_clusters() { " +
         kClusters + "; }\n";
}

std::string bash_script(const CLI::App& app) {
  const VerbInfo root = describe(app);
  const std::vector<VerbInfo> verbs = verbs_of(app);
  std::vector<std::string> names;
  std::vector<std::string> behind;  // patterns of verbs of two words
  for (const VerbInfo& verb : verbs) {
    names.push_back(verb.name);
    for (const VerbInfo& sub : verb.subs) behind.push_back("'" + sub.name + "'");
  }
  std::string out = "# bash completion for dtrain: source <(dtrain completion bash)\n" + helpers();
  out +=
      "_dtrain() {\n"
      "  local word=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
      "  local verb=\"\" i\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"${COMP_WORDS[i]}\" in\n"
      "      --) compopt -o default 2>/dev/null; COMPREPLY=($(compgen -f -- \"$word\")); return "
      ";;\n"
      "      -c|--cluster) ((i++)) ;;\n"
      "      -*) ;;\n"
      "      *) if [[ -z $verb ]]; then verb=\"${COMP_WORDS[i]}\"; else\n"
      "        case \"$verb ${COMP_WORDS[i]}\" in\n          " +
      join(behind, "|") +
      ") verb+=\" ${COMP_WORDS[i]}\" ;;\n"
      "        esac\n"
      "      fi ;;\n"
      "    esac\n"
      "  done\n"
      "  case \"$verb $before\" in\n";
  const auto arms = [&](const VerbInfo& verb, const std::string& name) {
    for (const OptionInfo& option : verb.options) {
      if (option.value == Value::none) continue;
      std::vector<std::string> patterns;
      for (const std::string& each : option.names)
        patterns.push_back("'" + name + " " + each + "'");
      out += "    " + join(patterns, "|") + ") " + bash_value(option.value, option.words) +
             "; return ;;\n";
    }
  };
  arms(root, "");
  for (const VerbInfo& verb : verbs) {
    arms(verb, verb.name);
    for (const VerbInfo& sub : verb.subs) arms(sub, sub.name);
  }
  out +=
      "  esac\n"
      "  case \"$verb\" in\n";
  const auto words_of = [&](const VerbInfo& verb, const std::string& pattern,
                            const std::string& positional) {
    out += "    " + pattern + ")\n      if [[ $word == -* ]]; then COMPREPLY=($(compgen -W \"" +
           join(all_names(verb), " ") + "\" -- \"$word\")); else " + positional + "; fi ;;\n";
  };
  words_of(root, "''", "COMPREPLY=($(compgen -W \"" + join(names, " ") + "\" -- \"$word\"))");
  for (const VerbInfo& verb : verbs) {
    std::string positional = bash_value(verb.positional, verb.words);
    if (!verb.subs.empty()) {
      positional += "; COMPREPLY+=($(compgen -W \"" + sub_names(verb) + "\" -- \"$word\"))";
    }
    words_of(verb, verb.name, positional);
    for (const VerbInfo& sub : verb.subs) {
      words_of(sub, "'" + sub.name + "'", bash_value(sub.positional, sub.words));
    }
  }
  out += "  esac\n}\ncomplete -o filenames -F _dtrain dtrain\n";
  return out;
}

// For zsh's _arguments, in single quotes: brackets and colons of the text are its own.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out;
}

std::string zsh_value(Value value, const std::vector<std::string>& words) {
  switch (value) {
    case Value::none:
      return "";
    case Value::words:
      return words.empty() ? ":value:" : ":value:(" + join(words, " ") + ")";
    case Value::files:
      return ":file:_files";
    case Value::folders:
      return ":folder:_files -/";
    case Value::jobs:
      return ":job:($(__dtrain_jobs))";
    case Value::searches:
      return ":search:($(__dtrain_searches))";
    case Value::nodes:
      return ":node:($(__dtrain_nodes))";
    case Value::clusters:
      return ":cluster:($(__dtrain_clusters))";
  }
  return "";
}

std::string zsh_script(const CLI::App& app) {
  std::string out =
      "#compdef dtrain\n# zsh completion for dtrain: source <(dtrain completion zsh)\n";
  out += helpers();
  const auto specs = [](const VerbInfo& verb) {
    std::string lines;
    for (const OptionInfo& option : verb.options) {
      for (const std::string& name : option.names) {
        lines += " \\\n        '" + name + "[" + zsh_text(option.description) + "]" +
                 zsh_value(option.value, option.words) + "'";
      }
    }
    return lines;
  };
  const std::vector<VerbInfo> verbs = verbs_of(app);
  out += "_dtrain() {\n  local context state line\n  local -A opt_args\n  _arguments -C" +
         specs(describe(app)) +
         " \\\n        '1:command:->verb' \\\n        '*::argument:->rest'\n"
         "  case $state in\n    verb)\n      local -a verbs=(\n";
  for (const VerbInfo& verb : verbs) {
    out += "        '" + verb.name + ":" + zsh_text(verb.description) + "'\n";
  }
  out += "      )\n      _describe command verbs ;;\n    rest)\n      case $line[1] in\n";
  const auto arguments = [&](const VerbInfo& verb) {
    const std::string positional = zsh_value(verb.positional, verb.words);
    return "_arguments" + specs(verb) +
           (positional.empty() ? "" : " \\\n        '*" + positional + "'");
  };
  for (const VerbInfo& verb : verbs) {
    out += "      " + verb.name + ") ";
    if (!verb.subs.empty()) {
      out += "if (( CURRENT == 2 )); then compadd -- " + sub_names(verb) +
             "; else case $words[2] in\n";
      for (const VerbInfo& sub : verb.subs) {
        out += "        " + sub.name.substr(verb.name.size() + 1) +
               ") shift words; (( CURRENT-- )); " + arguments(sub) + "; return ;;\n";
      }
      out += "        esac; fi\n        ";
    }
    out += arguments(verb) + " ;;\n";
  }
  out +=
      "      esac ;;\n  esac\n}\n"
      // Found in $fpath it is the function's body at the first Tab; else it is sourced.
      "if [ \"$funcstack[1]\" = _dtrain ]; then _dtrain \"$@\"; else compdef _dtrain dtrain; fi\n";
  return out;
}

std::string fish_quote(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string fish_value(Value value, const std::vector<std::string>& words) {
  switch (value) {
    case Value::none:
      return "";
    case Value::words:
      return words.empty() ? " -x" : " -x -a " + fish_quote(join(words, " "));
    case Value::files:
      return " -r -F";
    case Value::folders:
      return " -x -a '(__fish_complete_directories)'";
    case Value::jobs:
      return " -x -a '(__dtrain_jobs)'";
    case Value::searches:
      return " -x -a '(__dtrain_searches)'";
    case Value::nodes:
      return " -x -a '(__dtrain_nodes)'";
    case Value::clusters:
      return " -x -a '(__dtrain_clusters)'";
  }
  return "";
}

std::string fish_script(const CLI::App& app) {
  std::string out = "# fish completion for dtrain: dtrain completion fish | source\n";
  out += std::string("function __dtrain_jobs; ") + kJobs + "; end\n";
  out += std::string("function __dtrain_searches; ") + kSearches + "; end\n";
  out += std::string("function __dtrain_nodes; ") + kNodes + "; end\n";
  out +=
      "function __dtrain_clusters; set -l home $XDG_STATE_HOME; "
      "test -n \"$home\"; or set home $HOME/.local/state; "
      "ls $home/dtrain/clusters 2>/dev/null; end\n";
  out += "complete -c dtrain -f\n";
  const auto lines = [&](const VerbInfo& verb, const std::string& condition) {
    for (const OptionInfo& option : verb.options) {
      out += "complete -c dtrain -n " + fish_quote(condition);
      for (const std::string& name : option.names) {
        out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      out +=
          " -d " + fish_quote(option.description) + fish_value(option.value, option.words) + "\n";
    }
  };
  const auto arguments = [&](const VerbInfo& verb, const std::string& condition) {
    lines(verb, condition);
    if (verb.positional == Value::none) return;
    out += "complete -c dtrain -n " + fish_quote(condition) +
           (verb.positional == Value::files ? " -F" : fish_value(verb.positional, verb.words)) +
           "\n";
  };
  lines(describe(app), "__fish_use_subcommand");
  const std::vector<VerbInfo> verbs = verbs_of(app);
  for (const VerbInfo& verb : verbs) {
    out += "complete -c dtrain -n '__fish_use_subcommand' -a " + verb.name + " -d " +
           fish_quote(verb.description) + "\n";
    const std::string seen = "__fish_seen_subcommand_from " + verb.name;
    std::string condition = seen;
    for (const VerbInfo& other : verbs) {  // "status" behind "tune" is another
      const std::vector<std::string> names = split(sub_names(other), ' ');
      if (std::find(names.begin(), names.end(), verb.name) != names.end()) {
        condition += "; and not __fish_seen_subcommand_from " + other.name;
      }
    }
    if (!verb.subs.empty()) {
      condition += "; and not __fish_seen_subcommand_from " + sub_names(verb);
    }
    for (const VerbInfo& sub : verb.subs) {
      const std::string own = sub.name.substr(verb.name.size() + 1);
      out += "complete -c dtrain -n " + fish_quote(condition) + " -a " + own + " -d " +
             fish_quote(sub.description) + "\n";
      arguments(sub, seen + "; and __fish_seen_subcommand_from " + own);
    }
    arguments(verb, condition);
  }
  return out;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash_script(app);
  if (shell == "zsh") return zsh_script(app);
  if (shell == "fish") return fish_script(app);
  throw Error(ErrorCode::usage, "no completion for \"" + printable(shell, false) + "\"")
      .with_hint("dtrain completion bash, zsh or fish");
}

}  // namespace dtrain::cli
