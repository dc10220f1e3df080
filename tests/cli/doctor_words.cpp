#include "cli/doctor_words.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

using namespace dtrain::cli;
using nlohmann::json;

namespace {

json finding(const std::string& severity, const std::string& what, bool fixable = false) {
  return {{"kind", "disk"},     {"severity", severity}, {"what", what},    {"hint", "make room"},
          {"fixable", fixable}, {"fixed", false},       {"error", nullptr}};
}

json node(const std::string& name, json findings) {
  return {{"node", name},
          {"findings", std::move(findings)},
          {"looked", json::array({"its watch runs"})},
          {"clock", nullptr},
          {"error", nullptr}};
}

json answer(json nodes, int problems, int notes) {
  return {{"fix", false},   {"complete", true}, {"problems", problems},
          {"notes", notes}, {"fixed", 0},       {"nodes", std::move(nodes)}};
}

}  // namespace

TEST_CASE("doctor: a cluster that is well is one line") {
  const json well = answer({node("head", json::array()), node("node-0", json::array())}, 0, 0);
  CHECK(doctor_words(well, false, false) == "nothing found on 1 node\n");
  CHECK(is_well(well));
  CHECK(doctor_words(well, true, false) ==
        "NODE          IS WELL\nhead, node-0  its watch runs\n\nnothing found on 1 node\n");
}

TEST_CASE("doctor: what many nodes have alike is one row") {
  json nodes = json::array({node("head", json::array())});
  for (int i = 0; i < 1000; ++i) {
    nodes.push_back(
        node("node-" + std::to_string(i), json::array({finding("problem", "/n is full", true)})));
  }
  const json many = answer(nodes, 1000, 0);
  CHECK_FALSE(is_well(many));
  CHECK(doctor_words(many, false, false) ==
        "NODE                                 FOUND    WHAT\n"
        "node-0, node-1, node-2 and 997 more  problem  /n is full\n"
        "                                                → make room\n"
        "\n1000 problems on 1000 nodes; `dtrain doctor --fix` puts right what it can: 1000\n");
}

TEST_CASE("doctor: of what differs on each node only the first are shown") {
  json nodes = json::array();
  for (int i = 0; i < 1000; ++i) {
    nodes.push_back(
        node("node-" + std::to_string(i),
             json::array({finding("note", "/n has " + std::to_string(i) + " bytes free")})));
  }
  for (int i = 0; i < 1000; ++i) nodes[i]["looked"][0] = "clock: +" + std::to_string(i) + " ms";
  const std::string all = doctor_words(answer(nodes, 0, 1000), true, false);
  CHECK(all.find("clock: and 990 more (--json has all)") != std::string::npos);
  const std::string words = doctor_words(answer(nodes, 0, 1000), false, false);
  CHECK(std::count(words.begin(), words.end(), '\n') == 1 + 2 * kMostRows + 1 + 2);
  CHECK(words.find("and 990 more of disk") != std::string::npos);
}

TEST_CASE("doctor: notes alone are well, a node that is away is not, and problems come first") {
  json away = node("node-1", json::array({finding("problem", "it is lost")}));
  away["error"] = {{"message", "it is not connected"}, {"hint", ""}};
  json fixed = finding("problem", "open", true);
  fixed["fixed"] = true;
  json failed = finding("problem", "stays", true);
  failed["error"] = "denied";
  json all =
      answer({node("node-0", json::array({finding("note", "old"), fixed, failed})), away}, 2, 1);
  all["complete"] = false;
  all["fixed"] = 1;
  CHECK_FALSE(is_well(all));
  const std::string words = doctor_words(all, false, false);
  CHECK(words.find("node-0  fixed      open\n") != std::string::npos);
  CHECK(words.find("node-0  not fixed  stays: denied\n") != std::string::npos);
  CHECK(words.find("node-1  not asked  it is not connected\n") != std::string::npos);
  CHECK(words.find("old") > words.find("it is lost"));
  CHECK(words.find("2 problems, 1 note, 1 fixed, 1 node not asked on 2 nodes") !=
        std::string::npos);
  CHECK(is_well(answer({node("node-0", json::array({finding("note", "old")}))}, 0, 1)));
}
