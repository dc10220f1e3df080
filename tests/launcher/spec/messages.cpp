#include <doctest/doctest.h>

#include <chrono>

#include "tests/launcher/spec/yaml_support.hpp"

using namespace dtrain;
using namespace dtrain::testing;
using Lines = std::vector<std::string>;

// What a slip of writing is answered with: its place, and what to do.

TEST_CASE("a tab is named, wherever it stands in the indentation") {
  const std::string tab = " not YAML: a tab in the indentation [indent with spaces]";
  CHECK(cluster_problems("setup_commands:\n\t- echo a\n") == Lines{"2:1" + tab});
  CHECK(cluster_problems("provider:\n\ttype: local\n") == Lines{"2:1" + tab});
  CHECK(cluster_problems("setup_commands:\n  - a\n\t- b\n") == Lines{"3:1" + tab});
  CHECK(job_problems("env:\n  \tA: b\n") == Lines{"2:3" + tab});
  CHECK(job("command: \"a\tb\"\nname: x\t# a tab after a value is none\n").name == "x");
}

TEST_CASE("an unclosed quote is named where it opens") {
  const std::string never = " not YAML: the quote that opens here is never closed";
  CHECK(cluster_problems("cluster_name: \"abc\nprovider: {type: local}\n") ==
        Lines{"1:15" + never});
  CHECK(cluster_problems("setup_commands:\n  - 'echo a\n  - echo b\n") == Lines{"2:5" + never});
  CHECK(job_problems("command: x\nname: \"abc") == Lines{"2:7" + never});
  CHECK(job_problems("\xef\xbb\xbf"
                     "name: 'it''s\ncommand: x\n") == Lines{"1:7" + never});
  CHECK(
      cluster_problems("cluster_name: \"abc\nprovider: {type: local}\nsetup_commands: [\"a\"]\n") ==
      Lines{"1:15 not YAML: the quote that opens here is closed only in line 3, where a text "
            "begins [put the closing quote at the end of its line]"});
  // Quotes in a block text or a comment open nothing, and those over lines are fine.
  CHECK(contains(job_problems("setup: |\n  echo \"\n  # don't\n# it's\ncommand: [a, b\n"),
                 "a ']' is"));
  CHECK(job("command: \"a\n  b\"\nname: 'n'").command.at(0) == "a b");
}

TEST_CASE("a missing space after a colon is named in its own line") {
  const std::string space = " not YAML: a key and its value need a space between ";
  CHECK(cluster_problems("cluster_name:minimal\nprovider:\n  type: local\n") ==
        Lines{"1:13" + space + "[put a space after the colon: cluster_name: minimal]"});
  CHECK(cluster_problems("provider:\n  type:local\n\n  # simulated\n  nodes: 2\n") ==
        Lines{"2:7" + space + "[put a space after the colon: type: local]"});
  CHECK(cluster_problems("provider:\n  type:local\n") ==
        Lines{"2:3 provider: must be a mapping, not a text [put a space after the colon: type: "
              "local]"});
  CHECK(contains(cluster_problems("auth:\n  ssh_user:me\nprovider: {type: local}"),
                 "2:3 auth: must be a mapping, not a text [put a space after the colon: ssh_user: "
                 "me]"));
  CHECK(job_problems("command: x\nname:n\n") ==
        Lines{"2:1 name:n: no such key in a job YAML [put a space after the colon: name: n]"});
  CHECK(contains(job_problems("command: a: b"), "put quotes around a text that contains ': '"));
}

TEST_CASE("lines that stand too deep, or not deep enough") {
  CHECK(cluster_problems("provider: {type: local}\nauth:\n  ssh_user: me\n   ssh_port: 22\n") ==
        Lines{"4:4 not YAML: this line stands deeper than line 3, which has a value already [the "
              "keys of one mapping stand in one column]"});
  CHECK(cluster_problems("provider:\ntype: local\n") ==
        Lines{"1:1 provider: is empty [indent the lines below it]",
              "2:1 type: no such key in a cluster YAML [indent it: it seems to belong to provider "
              "in line 1]"});
  CHECK(cluster_problems("provider: {type: local}\nauth:\nssh_user: x\n") ==
        Lines{"3:1 ssh_user: no such key in a cluster YAML [indent it: it seems to belong to auth "
              "in line 2]"});
  CHECK(contains(cluster_problems("provider: {type: aws}\navailable_node_types:\nhead: {}\n"),
                 "not empty [indent the lines below it]"));
  CHECK(contains(job_problems("command: x\nenv:\nA: b\n"), "it seems to belong to env in line 2"));
  // What belongs elsewhere is still said where nothing is empty.
  CHECK(cluster_problems("provider: {type: local}\nssh_user: x\nauth: {}\n") ==
        Lines{"2:1 ssh_user: no such key in a cluster YAML [it belongs under auth]"});
}

TEST_CASE("values and keys have their nearest too") {
  CHECK(contains(cluster_problems("provider: {type: AWS}"), "[did you mean aws?]"));
  CHECK(
      contains(cluster_problems("provider: {type: aws}\navailable_node_types: {headx: {}, w: {}}\n"
                                "head_node_type: head"),
               "3:17 head_node_type: 'head' is not one of available_node_types [did you mean "
               "headx?]"));
  CHECK(cluster_problems("provider: {type: local}\nauth: {user: a, private_key: /k}\n") ==
        Lines{"2:8 auth.user: no such key in auth [did you mean ssh_user?]",
              "2:17 auth.private_key: no such key in auth [did you mean ssh_private_key?]"});
  CHECK(contains(job_problems("command: x\nresources: {cpu: 1}"), "[did you mean CPU?]"));
  CHECK(contains(job_problems("command: x\nbundle: OFF_"), "bundle: must be one of"));
}

TEST_CASE("quotes around a number or a truth") {
  CHECK(
      cluster_problems("provider: {type: local, nodes: \"2\"}\nmax_workers: '3'\n"
                       "file_mounts_sync_continuously: \"true\"\n") ==
      Lines{"1:32 provider.nodes: must be a whole number of 1 to 1000, not the text '2' [remove "
            "the quotes]",
            "2:14 max_workers: must be a whole number of 0 to 10000, not the text '3' [remove the "
            "quotes]",
            "3:32 file_mounts_sync_continuously: must be true or false, not the text 'true' "
            "[remove the quotes]"});
  CHECK(contains(job_problems("command: x\nmax_restarts: \"2\""), "[remove the quotes]"));
  CHECK_FALSE(contains(job_problems("command: x\nmax_restarts: \"a\""), "remove the quotes"));
}

TEST_CASE("hosts that are none are named in their line") {
  const Lines problems = cluster_problems(
      "provider:\n  type: local\n  head_ip: 10.0.0.1\n  worker_ips:\n    - 10.0.0.2\n    - ...\n"
      "    - 10.0.0.300\n    - <ip>\n    - a..b\n    - 10.0.0.5.6\n    - fe80::1\n    - "
      "my-alias_2\n");
  REQUIRE(problems.size() == 5);
  CHECK(problems[0] == "6:7 provider.worker_ips[1]: '...' is neither an address nor a host name");
  CHECK(problems[1].starts_with("7:7 provider.worker_ips[2]: '10.0.0.300' is neither"));
  CHECK(problems[2].starts_with("8:7 "));
  CHECK(problems[3].starts_with("9:7 "));
  CHECK(problems[4].starts_with("10:7 "));
}

TEST_CASE("a message costs no more than its file") {
  // An error at the very end of the largest file, with nothing and with quotes before it.
  for (const std::string& line :
       {std::string("\n"), std::string("- 'a\n  b'\n"), std::string("# \"\n")}) {
    std::string text;
    while (text.size() < 500'000) text += line;
    const auto begin = std::chrono::steady_clock::now();
    CHECK_FALSE(job_problems(text + "x:y\nz: 1\n\tw: \"").empty());
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  }
}
