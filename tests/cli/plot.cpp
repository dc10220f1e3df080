#include "cli/plot.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "launcher/core/error.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::cli;
using nlohmann::json;

namespace {

json row(int rank, int step, json metrics) {
  return {{"attempt", 1}, {"rank", rank}, {"step", step}, {"metrics", std::move(metrics)}};
}

std::vector<std::pair<std::string, json>> two_jobs() {
  json first = json::array();
  first.push_back(row(0, 2, {{"loss", 0.5}, {"lr", 0.1}}));
  first.push_back(row(0, 1, {{"loss", 0.7}, {"accuracy", "nan"}}));
  first.push_back(row(1, 1, {{"loss", 9.0}}));
  first.push_back(row(0, 2, {{"loss", 0.4}}));  // again, after a restart
  json second = json::array();
  second.push_back(row(0, 1, {{"loss", 0.9}}));
  return {{"a-1", {{"metrics", first}}}, {"b-2", {{"metrics", second}}}};
}

std::string what_of(const std::vector<std::string>& metrics) {
  try {
    charts_of(two_jobs(), metrics);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("charts: rank 0's finite values by step, each job a curve") {
  const std::vector<Chart> charts = charts_of(two_jobs(), {});
  REQUIRE(charts.size() == 1);
  CHECK(charts[0].metric == "loss");
  REQUIRE(charts[0].curves.size() == 2);
  using Points = std::vector<std::pair<double, double>>;
  CHECK((charts[0].curves[0].points == Points{{1, 0.7}, {2, 0.4}}));
  CHECK(charts[0].curves[1].label == "b-2");
  CHECK(charts_of(two_jobs(), {"lr", "loss"})[0].metric == "lr");
  CHECK(what_of({"los"}).find("there are: loss, lr") != std::string::npos);
}

TEST_CASE("names in a script cannot be commands of gnuplot") {
  Chart chart{"lo\"ss\n", {{"a\\`id`", {{1, 2}}}}};
  const std::string script = gnuplot_script({chart}, PlotKind::svg, {80, 24});
  CHECK(script.find("set title \"lo\\\"ss \"") != std::string::npos);
  CHECK(script.find("\"a\\\\'id'\"") != std::string::npos);
  CHECK(script.find("set output") == std::string::npos);  // gnuplot is told no file's name at all
  CHECK(gnuplot_text("a\x7f\u009b2J\u00e4") == "\"a  2J\u00e4\"");
}

TEST_CASE("files by their endings") {
  CHECK((plot_kind_of("a/b.svg") == PlotKind::svg));
  CHECK((plot_kind_of("b.png") == PlotKind::png));
  CHECK(!plot_kind_of("b.pdf"));
}

TEST_CASE("gnuplot draws it") {
  if (std::system("command -v gnuplot >/dev/null 2>&1") != 0) {
    MESSAGE("gnuplot is not installed");
    return;
  }
  const testing::TemporaryFolder folder;
  const std::string file = (folder.path() / "plot.svg").string();
  const std::string script =
      gnuplot_script(charts_of(two_jobs(), {"loss", "lr"}), PlotKind::svg, {80, 24});
  draw_picture(script, file);
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  CHECK(text.str().find("<svg") != std::string::npos);
  CHECK(text.str().find("b-2") != std::string::npos);
  const fs::path odd = folder.path() / "x\"`id`.svg";
  draw_picture(script, odd);
  CHECK(fs::file_size(odd) == text.str().size());

  // What cannot be written is not said to be.
  const fs::path full = folder.path() / "full.svg";
  fs::create_symlink("/dev/full", full);
  CHECK_THROWS_WITH_AS(draw_picture(script, full), doctest::Contains("No space left"), Error);
  CHECK_THROWS_WITH_AS(draw_picture(script, folder.path() / "no" / "x.svg"),
                       doctest::Contains("No such file"), Error);
}

TEST_CASE("without gnuplot one line says what to install") {
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", "/nonexistent", 1);
  std::string message;
  try {
    draw_picture("", "");
  } catch (const Error& error) {
    message = error.what();
  }
  ::setenv("PATH", path.c_str(), 1);
  CHECK(message.find("apt-get install gnuplot-nox") != std::string::npos);
}
