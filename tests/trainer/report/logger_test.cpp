#include "trainer/report/logger.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/error.hpp"
#include "trainer/core/files.hpp"
#include "trainer/report/csv_logger.hpp"
#include "trainer/report/json_lines_logger.hpp"

using namespace dtrain::train;
using nlohmann::json;
using test::contains;
using test::message_of;
using test::read_file;
using test::TemporaryFolder;

namespace {

std::vector<json> lines_of(const std::filesystem::path& path) {
  std::vector<json> lines;
  std::istringstream in(read_file(path));
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

void append_to(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::app | std::ios::binary) << text;
}

// Writes down what it is told, and throws where it is asked to.
class Recording final : public Logger {
 public:
  std::string name() const override { return "recording"; }
  void start(std::optional<std::int64_t> step) override {
    if (throws_at == -1) throw Error("no such folder");
    told += "start" + (step ? std::to_string(*step) : "") + " ";
  }
  void log_hyperparams(const json& values) override { told += values.dump() + " "; }
  void log_metrics(std::int64_t step, std::optional<std::int64_t> epoch,
                   const Metrics& metrics) override {
    if (step == throws_at) throw Error("the disk is full");
    told += std::to_string(step) + "/" + std::to_string(epoch.value_or(-1)) +
            metrics_to_json(metrics).dump() + " ";
  }
  void finalize(Status status) override {
    told += status == Status::success ? "success" : "failed";
  }
  std::int64_t throws_at = -2;
  std::string told;
};

}  // namespace

TEST_CASE("JSON lines: a resume drops the steps that come again, and nothing else") {
  const TemporaryFolder folder;
  const auto path = folder / "runs/metrics.jsonl";
  const auto log = [&](std::optional<std::int64_t> resumed, std::vector<std::int64_t> steps) {
    JsonLinesLogger logger(path);
    logger.start(resumed);
    for (const std::int64_t step : steps) {
      logger.log_metrics(step, step / 100, {{"loss", static_cast<double>(step)}});
    }
  };
  {
    const JsonLinesLogger unused(path);
    CHECK(!std::filesystem::exists(folder / "runs"));  // only start() writes
    JsonLinesLogger first(path);
    first.start(std::nullopt);
    first.log_hyperparams({{"lr", 0.1}});
  }
  log(0, {50, 100, 130});
  append_to(path, R"({"step":140,"met)");  // a crash
  log(100, {110, 120});
  const std::vector<json> lines = lines_of(path);
  REQUIRE(lines.size() == 5);
  CHECK(lines[0]["hyperparameters"] == json{{"lr", 0.1}});
  std::vector<std::int64_t> steps;
  for (std::size_t i = 1; i < lines.size(); ++i) steps.push_back(lines[i]["step"]);
  CHECK(steps == std::vector<std::int64_t>{50, 100, 110, 120});
  CHECK(lines[4]["epoch"] == 1);
  CHECK(lines[4]["metrics"] == json{{"loss", 120.0}});

  log(std::nullopt, {7});  // another training: the old one's lines are kept beside
  CHECK(lines_of(path).size() == 1);
  CHECK(lines_of(folder / "runs/metrics.1.jsonl") == lines);
  log(std::nullopt, {});
  CHECK(lines_of(folder / "runs/metrics.2.jsonl").at(0)["step"] == 7);
}

TEST_CASE("what can only be written to is neither moved nor replaced") {
  const TemporaryFolder folder;
  const auto pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const FileDescriptor reader = open_file(pipe, O_RDONLY | O_NONBLOCK);
  for (const auto& resumed : {std::optional<std::int64_t>(), std::optional<std::int64_t>(5)}) {
    JsonLinesLogger logger(pipe);
    logger.start(resumed);
    logger.log_metrics(7, {}, {});
    char text[200];
    const ssize_t got = ::read(reader.get(), text, sizeof text);
    REQUIRE(got > 0);
    CHECK(json::parse(std::string(text, static_cast<std::size_t>(got)))["step"] == 7);
  }
  CHECK(std::filesystem::is_fifo(pipe));
  CHECK(contains(message_of<Error>([&] { CsvLogger(pipe).start({}); }), "written anew"));
}

TEST_CASE("CSV: a metric that comes up later is a column at the end") {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.csv";
  CsvLogger logger(path);
  logger.start(std::nullopt);
  CHECK(read_file(path) == "step,epoch\n");
  logger.log_hyperparams({{"lr", 0.1}});
  CHECK(json::parse(read_file(folder / "metrics.hparams.json")) == json{{"lr", 0.1}});
  logger.log_metrics(1, 0, {{"loss", 0.1}});
  logger.log_metrics(2, {}, {{"loss", std::nan("")}, {"a,\"b\"", 1e-7}});
  logger.log_metrics(3, 1, {{"val", -INFINITY}});
  CHECK(read_file(path) ==
        "step,epoch,loss,\"a,\"\"b\"\"\",val\n1,0,0.1,,\n2,,nan,1e-07,\n3,1,,,-inf\n");

  append_to(path, "4,1,0.");  // a crash
  CsvLogger resumed(path);
  resumed.start(2);
  resumed.log_metrics(3, 1, {{"a,\"b\"", 5}});
  CHECK(read_file(path) ==
        "step,epoch,loss,\"a,\"\"b\"\"\",val\n1,0,0.1,,\n2,,nan,1e-07,\n3,1,,5,\n");

  append_to(folder / "other.csv", "time,x\n1,2\n");
  CHECK(contains(message_of<Error>([&] { CsvLogger(folder / "other.csv").start(5); }),
                 "not that of a table of metrics"));
  CHECK(read_file(folder / "other.csv") == "time,x\n1,2\n");
}

TEST_CASE("one's own logger is told all of it, once and in order") {
  const auto own = std::make_shared<Recording>();
  Loggers loggers({own});
  loggers.finalize(Logger::Status::failed);  // before the start there is nothing to end
  loggers.start(4, {{"lr", 1}});
  loggers.start({}, {});
  loggers.log_metrics(5, 2, {{"loss", 0.5}});
  loggers.finalize(Logger::Status::failed);
  loggers.finalize(Logger::Status::success);
  CHECK(own->told == R"(start4 {"lr":1} 5/2{"loss":0.5} failed)");
  CHECK(contains(message_of<Error>([] { Loggers({nullptr}); }), "null"));
}

TEST_CASE("a logger that cannot start is an error, one that fails later does not stop others") {
  const auto bad = std::make_shared<Recording>();
  const auto good = std::make_shared<Recording>();
  bad->throws_at = -1;
  CHECK(message_of<Error>([&] { Loggers({bad}).start({}, {}); }) ==
        "logger recording: no such folder");
  bad->throws_at = 2;
  Loggers loggers({bad, good});
  loggers.start({}, json::object());
  for (const std::int64_t step : {1, 2, 3}) loggers.log_metrics(step, {}, {});
  loggers.finalize(Logger::Status::success);
  CHECK(bad->told == "start 1/-1{} 3/-1{} success");
  CHECK(good->told == "start 1/-1{} 2/-1{} 3/-1{} success");
}
