#include "launcher/spec/job_spec.hpp"

#include <doctest/doctest.h>

#include <limits>

#include <nlohmann/json.hpp>

#include "launcher/spec/limits.hpp"
#include "launcher/spec/values.hpp"

using namespace dtrain;
using nlohmann::json;

namespace {

JobSpec good() {
  JobSpec spec;
  spec.name = "mnist";
  spec.command = {"./train"};
  spec.workdir = "/work";
  return spec;
}

JobSpec full() {
  JobSpec spec = good();
  spec.command = {"./train --epochs 3 | tee log"};
  spec.shell = true;
  spec.env = {{"A", "1"}, {"B", ""}};
  spec.secrets = {{"TOKEN", std::nullopt}, {"KEY", "/home/me/key"}};
  spec.setup = "make\n";
  spec.nnodes = {2, 8};
  spec.nproc_per_node = {ProcsKind::gpu, 1};
  spec.max_restarts = 3;
  spec.restart = {{{"hang"}}, {"node_lost"}, std::chrono::seconds(60), std::chrono::seconds(5)};
  spec.resources = {2, 1, 4ULL << 30};
  spec.resources_given = true;
  spec.storage_path = "/shared";
  spec.checkpoint = {3, "val_accuracy", ScoreOrder::min};
  spec.bundle = BundleMode::off;
  spec.on_head_lost = OnHeadLost::stop;
  spec.launcher = Launcher::srun;
  spec.cpu_bind = CpuBind::cores;
  spec.stop_grace = std::chrono::seconds(5);
  spec.timeout = std::chrono::seconds(3600);
  spec.queue_timeout = std::chrono::seconds(0);
  spec.hang_timeout = std::chrono::seconds(90);
  spec.on_hang = OnHang::nothing;
  spec.log_limit = 0;
  spec.priority = -7;
  spec.after = {"first-abcdef"};
  return spec;
}

// The messages of validate() after `change`.
template <typename Change>
std::vector<std::string> job_problems_after(Change change) {
  JobSpec spec = good();
  change(spec);
  std::vector<std::string> messages;
  for (const Error& error : validate(spec)) messages.push_back(error.message());
  return messages;
}

}  // namespace

TEST_CASE("threads of a rank: its CPUs, of a trial one, else any") {
  JobSpec spec;
  CHECK(spec.rank_threads() == 0);
  spec.trial = TrialOfSearch{};
  CHECK(spec.rank_threads() == 1);
  spec.resources.cpu = 0.25;
  CHECK(spec.rank_threads() == 1);
  spec.trial.reset();
  CHECK(spec.rank_threads() == 1);
  spec.resources.cpu = 3.5;
  CHECK(spec.rank_threads() == 3);
}

TEST_CASE("a job survives its JSON") {
  for (const JobSpec& spec : {good(), full(), JobSpec{}}) {
    const json sent = json::parse(to_json(spec).dump());
    CHECK(job_spec_from_json(sent) == spec);
    CHECK(to_json(job_spec_from_json(sent)) == sent);
  }
  CHECK(validate(good()).empty());
  CHECK(validate(full()).empty());
}

TEST_CASE("GPUs are whole numbers where they are whole, as earlier heads know them") {
  JobSpec spec = good();
  for (const int whole : {0, 1, 8}) {
    spec.resources.gpu = whole;
    CHECK(to_json(spec)["resources"]["GPU"].dump() == std::to_string(whole));
  }
  spec.resources.gpu->parts = 2500;
  CHECK(to_json(spec)["resources"]["GPU"].dump() == "0.25");
  for (int parts = 0; parts <= GpuAmount::kOne; ++parts) {
    spec.resources.gpu->parts = parts;
    const json sent = json::parse(to_json(spec.resources.gpu.value()).dump());
    REQUIRE(gpus_from(sent.get<double>()) == *spec.resources.gpu);
  }
}

TEST_CASE("the JSON of a job has the keys of the YAML") {
  const json sent = to_json(full());
  CHECK(sent["command"] == "./train --epochs 3 | tee log");
  CHECK(sent["nnodes"] == "2:8");
  CHECK(sent["nproc_per_node"] == "gpu");
  CHECK(sent["secrets"] == json::parse(R"(["TOKEN", {"KEY": {"file": "/home/me/key"}}])"));
  CHECK(sent["stop_grace_s"] == 5);
  CHECK(sent["on_head_lost"] == "stop");
  CHECK(sent["launcher"] == "srun");
  CHECK(to_json(good())["nnodes"] == 1);
  CHECK(to_json(good())["command"] == json::parse(R"(["./train"])"));
}

TEST_CASE("JSON with a key that is not known: whoever submits hears of it") {
  for (const JobSpec& spec : {good(), full()}) {
    json sent = to_json(spec);
    CHECK(job_spec_from_json(sent, UnknownKeys::refuse) == spec);
    sent["lau\ncher"] = "srun";
    CHECK(job_spec_from_json(sent) == spec);
    CHECK_THROWS_WITH_AS(job_spec_from_json(sent, UnknownKeys::refuse),
                         "lau\\x0acher: is no key of a job that is known here", Error);
  }
  // What earlier ones do not know is left out as long as it can be.
  for (const char* key :
       {"launcher", "restart", "spares", "hang_timeout_s", "on_hang", "log_limit", "cpu_bind"}) {
    CHECK_FALSE(to_json(good()).contains(key));
  }
}

TEST_CASE("JSON of a wrong type is refused by its key") {
  const auto message = [](const char* key, json value) {
    json sent = to_json(good());
    sent[key] = std::move(value);
    try {
      job_spec_from_json(sent);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto says = [](const std::string& what, std::string_view part) {
    INFO(what);
    return what.find(part) != std::string::npos;
  };
  CHECK(says(message("name", 3), "\"name\" must be a string, not number"));
  CHECK(says(message("command", json::array({1})), "\"command\" must be a string, not number"));
  CHECK(says(message("env", json::object({{"A", 1}})), "\"env\" must be a string, not number"));
  CHECK(says(message("max_restarts", "3"), "\"max_restarts\" must be a whole number"));
  CHECK(says(message("max_restarts", 3.0), "\"max_restarts\" must be a whole number"));
  CHECK(says(message("max_restarts", true), "\"max_restarts\" must be a whole number"));
  CHECK(says(message("max_restarts", 1LL << 40), "\"max_restarts\" must be from -2147483648 to"));
  CHECK(says(message("stop_grace_s", std::numeric_limits<std::uint64_t>::max()),
             "\"stop_grace_s\" must be from "));
  CHECK(says(message("resources", json::object({{"GPU", 1.5}})),
             "\"GPU\": must be a whole number of 0 to 1024, or below 1 a part of a GPU"));
  CHECK(says(message("resources", json::object({{"GPU", "1"}})), "\"GPU\" must be a number"));
  CHECK(says(message("resources", json::object({{"memory", -1}})), "\"memory\" must be from 0 to"));
  CHECK(says(message("resources", nullptr), "\"resources\" must be an object, not null"));
  CHECK(says(message("secrets", json::object({{"A", "value"}})), "\"secrets\" must be a list"));
  CHECK(says(message("secrets", json::array({json::object({{"A", "value"}})})),
             "\"secrets\" must be a list of NAME or {NAME: {file: PATH}}"));
  CHECK(says(message("bundle", "maybe"), "\"bundle\""));
  CHECK(says(message("nnodes", "x"), "\"nnodes\""));
  CHECK(says(message("after", "job"), "\"after\" must be a list, not string"));
  CHECK(says(message("resources_given", 1), "\"resources_given\" must be true or false"));
  CHECK(message("a_key_of_a_newer_cli", 1) == "accepted");
  CHECK_THROWS_AS(job_spec_from_json(json::array()), Error);
}

TEST_CASE("validate finds every problem at once") {
  const auto messages = job_problems_after([](JobSpec& spec) {
    spec.name = "../x";
    spec.command.clear();
    spec.workdir = "here";
    spec.nnodes = {0, 0};
  });
  REQUIRE(messages.size() == 4);
  CHECK(messages[0].starts_with("name: '../x' is no name"));
  CHECK(messages[1].starts_with("command: is missing"));
  CHECK(messages[2] == "workdir: 'here' is not an absolute path");
  CHECK(messages[3] == "nnodes: must be 1 to 10000, not 0");
}

TEST_CASE("unsafe names are refused") {
  for (const char* name : {"; rm -rf", "$(x)", "-oProxyCommand=x", "a\nb", "", ".", "a/b", "ä",
                           "12345678901234567890123456789012345678901"}) {
    CAPTURE(name);
    CHECK(job_problems_after([&](JobSpec& spec) { spec.name = name; }).size() == 1);
  }
  CHECK(job_problems_after([](JobSpec& spec) { spec.name = std::string(40, 'a'); }).empty());
}

TEST_CASE("ranges") {
  const auto refused = [](auto change) { return job_problems_after(change).size() == 1; };
  CHECK(refused([](JobSpec& s) { s.nnodes = {3, 2}; }));
  CHECK(refused([](JobSpec& s) { s.nnodes = {1, 10001}; }));
  CHECK(refused([](JobSpec& s) { s.nproc_per_node.number = 0; }));
  CHECK(refused([](JobSpec& s) { s.nproc_per_node.number = 4097; }));
  CHECK(refused([](JobSpec& s) { s.max_restarts = -1; }));
  CHECK(refused([](JobSpec& s) { s.spares = -1; }));
  CHECK(refused([](JobSpec& s) { s.spares = 65; }));
  CHECK(refused([](JobSpec& s) {
    s.spares = 1;
    s.launcher = Launcher::srun;
  }));
  CHECK(refused([](JobSpec& s) { s.max_restarts = 1000001; }));
  CHECK(refused([](JobSpec& s) { s.resources.cpu = std::numeric_limits<double>::quiet_NaN(); }));
  CHECK(refused([](JobSpec& s) { s.resources.cpu = -1; }));
  CHECK(refused([](JobSpec& s) { s.resources.gpu = -1; }));
  CHECK(refused([](JobSpec& s) { s.resources.memory = 0; }));
  CHECK(refused([](JobSpec& s) {
    s.nproc_per_node.kind = ProcsKind::gpu;
    s.resources.gpu = 0;
  }));
  CHECK(refused([](JobSpec& s) { s.checkpoint.num_to_keep = 0; }));
  CHECK(refused([](JobSpec& s) { s.checkpoint.score_attribute = ""; }));
  CHECK(refused([](JobSpec& s) { s.checkpoint.score_attribute = "a\tb"; }));
  CHECK(refused([](JobSpec& s) { s.stop_grace = std::chrono::seconds(-1); }));
  CHECK(refused([](JobSpec& s) { s.timeout = std::chrono::seconds(0); }));
  CHECK(refused([](JobSpec& s) { s.timeout = std::chrono::seconds::max(); }));
  CHECK(refused([](JobSpec& s) { s.queue_timeout = std::chrono::seconds(-1); }));
  CHECK(refused([](JobSpec& s) { s.hang_timeout = std::chrono::seconds(0); }));
  CHECK(refused([](JobSpec& s) { s.log_limit = 1; }));
  CHECK(refused([](JobSpec& s) { s.log_limit = limits::kLeastLog - 1; }));
  CHECK_FALSE(refused([](JobSpec& s) { s.log_limit = limits::kLeastLog; }));
  CHECK(refused([](JobSpec& s) { s.priority = 1000001; }));
  CHECK(refused([](JobSpec& s) { s.after = {"../x"}; }));
  CHECK(refused([](JobSpec& s) { s.storage_path = "s3://bucket"; }));
}

TEST_CASE("text that no program could get is refused") {
  const std::string nul("a\0b", 3);
  CHECK(job_problems_after([&](JobSpec& s) { s.command.push_back(nul); }) ==
        std::vector<std::string>{"command[1]: contains a NUL character"});
  CHECK(job_problems_after([&](JobSpec& s) { s.env["A"] = nul; }).size() == 1);
  CHECK(job_problems_after([&](JobSpec& s) { s.setup = nul; }).size() == 1);
  CHECK(job_problems_after([](JobSpec& s) { s.command.push_back("\xff"); }) ==
        std::vector<std::string>{"command[1]: is not UTF-8: '\\xff'"});
  CHECK(job_problems_after([](JobSpec& s) { s.command.emplace_back(200'000, 'a'); }).size() == 1);
  CHECK(job_problems_after([](JobSpec& s) { s.command.resize(20'000, "a"); }).size() == 1);
  CHECK(job_problems_after([](JobSpec& s) {
          for (int i = 0; i < 2000; ++i) s.env["A" + std::to_string(i)];
        }).size() == 1);
  CHECK(job_problems_after([](JobSpec& s) { s.command = {""}; }).size() == 1);
  CHECK(job_problems_after([](JobSpec& s) {
          s.shell = true;
          s.command = {" \n"};
        }).size() == 1);
}

TEST_CASE("environment names") {
  CHECK(job_problems_after([](JobSpec& s) { s.env["RANK"] = "3"; }) ==
        std::vector<std::string>{
            "env.RANK: is set by dtrain for each rank, so it cannot be set here"});
  CHECK(job_problems_after([](JobSpec& s) { s.env["DTRAIN_ATTEMPT"] = "3"; }).size() == 1);
  CHECK(job_problems_after([](JobSpec& s) { s.env["A-B"] = "3"; }).size() == 1);
  CHECK(job_problems_after([](JobSpec& s) { s.env[""] = "3"; }).size() == 1);
  CHECK(job_problems_after([](JobSpec& s) { s.env["1A"] = "3"; }).size() == 1);
  CHECK(job_problems_after([](JobSpec& s) { s.secrets = {{"RANK", std::nullopt}}; }).size() == 1);
  CHECK(job_problems_after([](JobSpec& s) {
          s.secrets = {{"A", std::nullopt}, {"A", std::nullopt}};
        }).size() == 1);
  CHECK(job_problems_after([](JobSpec& s) { s.secrets = {{"A", "relative"}}; }).size() == 1);
  CHECK(job_problems_after([](JobSpec& s) {
          s.env["A"] = "";
          s.secrets = {{"A", std::nullopt}};
        }) == std::vector<std::string>{"secrets.A: is also in env"});
}

TEST_CASE("a secret's name that holds its value is not repeated") {
  const auto messages = job_problems_after([](JobSpec& s) {
    s.secrets = {{"TOKEN=hunter2", std::nullopt}};
  });
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].find("hunter2") == std::string::npos);
}
