#include "cli/manual.hpp"

#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/context.hpp"
#include "launcher/core/capture.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"

using namespace dtrain;
using namespace dtrain::cli;

namespace {

std::string without_breaks(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ' && c != '\n') out += c;
  }
  return out;
}

// As man(1) sets it, in plain letters and without hyphenation; fails on any warning.
std::string formatted(const std::string& page) {
  SpawnOptions options;
  options.argv = {"groff", "-man", "-Tutf8", "-ww", "-P-cbou", "-rHY=0"};
  options.env = {"PATH=/usr/bin:/bin"};
  const Captured captured = capture(options, page, std::chrono::seconds(60));
  CHECK(captured.exit.ok());
  CHECK(captured.err == "");
  return captured.out;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("an option takes one word each time, and leaves the next to what has no dash") {
  const CommandLine line;
  std::vector<const CLI::App*> verbs{line.app.get()};
  for (std::size_t i = 0; i < verbs.size(); ++i) {
    for (const CLI::App* verb : verbs[i]->get_subcommands({})) verbs.push_back(verb);
    for (const CLI::Option* option : verbs[i]->get_options()) {
      CAPTURE(verbs[i]->get_name() + " " + option->get_name());
      CHECK((option->get_positional() || option->get_items_expected_max() == 0 ||
             !option->get_allow_extra_args()));
    }
  }
  line.app->parse("plot --metric loss mnist-a --metric accuracy mnist-b");
  const CLI::App* plot = line.app->get_subcommand("plot");
  CHECK(plot->get_option("job")->results() == std::vector<std::string>{"mnist-a", "mnist-b"});
  CHECK(plot->get_option("--metric")->results() == std::vector<std::string>{"loss", "accuracy"});
}

TEST_CASE("each command has a page with all that its --help shows") {
  const CommandLine line;
  const auto pages = manual_pages(*line.app);
  REQUIRE(pages.contains("dtrain.1"));
  CHECK(!pages.contains("dtrain-man.1"));  // hidden
  const std::string all = without_breaks(formatted(pages.at("dtrain.1")));
  std::size_t shown = 1;
  // A verb, and the page that lists it.
  std::vector<std::tuple<const CLI::App*, std::string, std::string>> verbs;
  for (const CLI::App* verb : line.app->get_subcommands({})) {
    const std::string own = "dtrain-" + verb->get_name();
    if (verb->get_group().empty()) continue;
    verbs.emplace_back(verb, own, all);
    if (verb->get_subcommands({}).empty()) continue;
    REQUIRE(pages.contains(own + ".1"));
    const std::string list = without_breaks(formatted(pages.at(own + ".1")));
    for (const CLI::App* sub : verb->get_subcommands({})) {
      verbs.emplace_back(sub, own + "-" + sub->get_name(), list);
    }
  }
  for (const auto& [verb, own, list] : verbs) {
    ++shown;
    const std::string name_of_page = own;
    CAPTURE(name_of_page);
    REQUIRE(pages.contains(own + ".1"));
    const std::string text = without_breaks(formatted(pages.at(own + ".1")));
    for (const CLI::Option* option : verb->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        CAPTURE(name);
        CHECK((option->get_group().empty() || contains(text, "--" + name)));
      }
      CHECK((option->get_group().empty() ||
             contains(text, without_breaks(option->get_description()))));
    }
    for (const std::string& part : split(verb->get_footer(), '\n')) {
      CAPTURE(part);
      CHECK((part.ends_with(':') || contains(text, without_breaks(part))));
    }
    CHECK(contains(list, own + "(1)"));
  }
  CHECK(pages.size() == shown);
}

TEST_CASE("letters that roff would take for its own come out as they are") {
  CLI::App app("Says .this and 'that'", "odd");
  bool flag = false;
  app.add_flag("--dash-ed", flag, "back\\slash, `tick`, ~home, ^up, \"quoted\"")
      ->group("Odd \"group\"");
  app.footer("Examples:\n  odd --x '~/a' \\\n.begins with a dot\n'quoted line\n");
  const std::string text = formatted(manual_pages(app).at("odd.1"));
  for (const char* part : {"Says .this and 'that'", "--dash-ed", "ODD \"GROUP\"",
                           "back\\slash, `tick`, ~home, ^up, \"quoted\"", "  odd --x '~/a' \\\n",
                           "\n       .begins with a dot\n", "\n       'quoted line\n"}) {
    CAPTURE(part);
    CHECK(contains(text, part));
  }
}
