// parse_report: docs/rank_contract.md, line by line.

#include <doctest/doctest.h>

#include "launcher/core/error.hpp"
#include "launcher/wire/attempt.hpp"

using namespace dtrain;
using nlohmann::json;

namespace {

std::string refused_line(const std::string& line) {
  try {
    wire::parse_report(line);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid);
    CHECK(error.message().size() < 500);
    return error.message();
  }
  return "not refused";
}

std::string metrics(const json& of) {
  return json{{"type", "metrics"}, {"step", 1}, {"metrics", of}}.dump();
}

}  // namespace

TEST_CASE("what the contract allows") {
  const char* const lines[] = {
      R"({"type":"metrics","step":0,"metrics":{}})",
      R"({"type":"metrics","step":10,"metrics":{"loss":0.5,"n":3,"bad":"nan","up":"inf","down":"-inf"}})",
      R"({"type":"metrics","step":10,"metrics":{"x":1},"ack":true})",
      R"({"type":"progress","step":1})",
      R"({"type":"progress","step":1,"total":10,"epoch":0,"message":"é","metrics":{"a":1}})",
      R"({"type":"heartbeat"})",
      R"({"type":"heartbeat","step":4,"ack":false})",
      R"({"type":"checkpoint","step":4,"path":"/c"})",
      R"({"type":"checkpoint","step":4,"path":"c","shard":1,"shards":2,"metrics":{"a":1},"keep":true})",
      R"({"type":"heartbeat","step":4,"phase":"data","collective":12})",
      R"({"type":"heartbeat","collective":null})",
      R"({"type":"heartbeat","collective":{"sequence":12}})",
      R"({"type":"heartbeat","collective":{"sequence":12,"name":"all_reduce","bytes":4096,"entered":1767323045.5,"done":true}})",
      R"( {"type":"heartbeat","more":[1,{"of":"the future"}]} )",
  };
  for (const char* line : lines) {
    CAPTURE(line);
    CHECK(wire::parse_report(line) == json::parse(line));
    CHECK(wire::parse_report(std::string(line) + "\r") == json::parse(line));
  }
}

TEST_CASE("what it refuses, and why") {
  const std::pair<const char*, const char*> lines[] = {
      {"", "is not JSON"},
      {"nonsense", "is not JSON"},
      {"[]", "must be a JSON object"},
      {"3", "must be a JSON object"},
      {"{}", "\"type\" is missing"},
      {R"({"type":3})", "\"type\" must be a string"},
      {R"({"type":"dance"})", "\"type\" must be metrics, progress, heartbeat or checkpoint"},
      {R"({"type":"metrics","metrics":{}})", "\"step\" is missing"},
      {R"({"type":"metrics","step":-1,"metrics":{}})", "\"step\" must be from 0"},
      {R"({"type":"metrics","step":1.5,"metrics":{}})", "\"step\" must be a whole number"},
      {R"({"type":"metrics","step":99999999999999999999,"metrics":{}})", "\"step\""},
      {R"({"type":"metrics","step":1})", "\"metrics\" is missing"},
      {R"({"type":"metrics","step":1,"metrics":[]})", "\"metrics\" must be an object"},
      {R"({"type":"metrics","step":1,"metrics":{"a":null}})", "metric a must be a number"},
      {R"({"type":"metrics","step":1,"metrics":{"a":true}})", "metric a must be a number"},
      {R"({"type":"metrics","step":1,"metrics":{"a":"NaN"}})", "metric a must be a number"},
      {R"({"type":"metrics","step":1,"metrics":{"":1}})", "1 to 128 characters"},
      {R"({"type":"metrics","step":1,"metrics":{"a\nb":1}})", "must be printable"},
      {R"({"type":"metrics","step":1,"metrics":{"a\tb":1}})", "must be printable"},
      {R"({"type":"metrics","step":1,"metrics":{"\u001b[2J":1}})", "must be printable"},
      {R"({"type":"metrics","step":1,"metrics":{},"ack":1})", "\"ack\" must be true or false"},
      {R"({"type":"progress"})", "\"step\" is missing"},
      {R"({"type":"progress","step":1,"total":-1})", "\"total\""},
      {R"({"type":"progress","step":1,"message":3})", "\"message\""},
      {R"({"type":"heartbeat","step":"x"})", "\"step\""},
      {R"({"type":"heartbeat","phase":""})", "\"phase\" must have 1 to 32 bytes"},
      {R"({"type":"heartbeat","phase":"a\nb"})", "\"phase\" must be printable"},
      {R"({"type":"heartbeat","collective":-1})", "\"collective\" must be from 0"},
      {R"({"type":"heartbeat","collective":"x"})", "\"collective\""},
      {R"({"type":"heartbeat","collective":{}})", "\"sequence\" is missing"},
      {R"({"type":"heartbeat","collective":{"sequence":1,"name":"\u001b"}})", "\"name\" must be"},
      {R"({"type":"heartbeat","collective":{"sequence":1,"bytes":-1}})", "\"bytes\""},
      {R"({"type":"heartbeat","collective":{"sequence":1,"entered":-1}})", "\"entered\" must be"},
      {R"({"type":"heartbeat","collective":{"sequence":1,"done":1}})", "\"done\""},
      {R"({"type":"checkpoint","step":1})", "\"path\" is missing"},
      {R"({"type":"checkpoint","step":1,"path":""})", "\"path\" must have"},
      {R"({"type":"checkpoint","step":1,"path":"a\u0000b"})", "NUL"},
      {R"({"type":"checkpoint","step":1,"path":"/c","shard":1})", "\"shard\" must be from 0 to 0"},
      {R"({"type":"checkpoint","step":1,"path":"/c","shards":0})", "\"shards\""},
      {R"({"type":"checkpoint","step":1,"path":"/c","keep":"yes"})", "\"keep\""},
      {"{\"type\":\"heartbeat\",\"x\":\"\xff\"}", "is not JSON"},
  };
  for (const auto& entry : lines) {
    const auto& line = entry.first;
    const auto& why = entry.second;
    CAPTURE(line);
    CHECK(refused_line(line).find(why) != std::string::npos);
  }
}

TEST_CASE("bounds: bytes, depth, numbers of metrics, length of names and of what is said") {
  const std::string head = R"({"type":"heartbeat","x":")";
  const auto padded = [&](std::size_t size) {
    return head + std::string(size - head.size() - 2, 'x') + "\"}";
  };
  CHECK_NOTHROW(wire::parse_report(padded(wire::kReportLimit - 1)));
  CHECK(refused_line(padded(wire::kReportLimit)).find("longer than 65536 bytes") !=
        std::string::npos);
  CHECK(refused_line(std::string(60000, '[')).find("deeper") != std::string::npos);
  CHECK(refused_line(std::string(60000, '\1')).find("is not JSON") != std::string::npos);

  json many;
  for (int i = 0; i < 256; ++i) many["m" + std::to_string(i)] = i;
  CHECK_NOTHROW(wire::parse_report(metrics(many)));
  many["more"] = 1;
  CHECK(refused_line(metrics(many)).find("at most 256") != std::string::npos);

  std::string name;
  for (int i = 0; i < 128; ++i) name += "é";
  CHECK_NOTHROW(wire::parse_report(metrics({{name, 1}})));
  CHECK(refused_line(metrics({{name + "x", 1}})).find("1 to 128 characters") != std::string::npos);
}

TEST_CASE("what a report says of where its rank is") {
  const auto beat = [](const char* line) { return wire::beat_of(3, json::parse(line)); };
  wire::RankBeat all{3, 4, "data", wire::RankBeat::Collective{12, "all_reduce", 4096, 7.5, true}};
  CHECK(beat(R"({"type":"heartbeat","step":4,"phase":"data","collective":
      {"sequence":12,"name":"all_reduce","bytes":4096,"entered":7.5,"done":true}})") == all);
  CHECK(beat(R"({"type":"heartbeat","collective":{"sequence":12}})").collective->done == false);
  // The number alone does not say whether the rank is still in it.
  const auto number = beat(R"({"type":"heartbeat","collective":12})");
  CHECK(number.collective->sequence == 12);
  CHECK_FALSE(number.collective->done.has_value());
  CHECK(beat(R"({"type":"heartbeat"})") == wire::RankBeat{3, std::nullopt, "", std::nullopt});
  const wire::RankBeat step{3, 4, "", std::nullopt};
  CHECK(beat(R"({"type":"metrics","step":4,"metrics":{},"phase":"data"})") == step);
  // From a supervisor that does not look at them.
  CHECK(beat(R"({"type":"heartbeat","step":4,"phase":"data","collective":"x"})") == step);
  CHECK(beat(R"({"type":"heartbeat","step":4,"step_times":{"steps":-1,"seconds":1}})") == step);
}

TEST_CASE("what a heartbeat says of its rank's steps") {
  const auto times = [](const char* said) {
    return wire::beat_of(0, wire::parse_report(R"({"type":"heartbeat","step_times":)" +
                                               std::string(said) + "}"))
        .step_times;
  };
  using Times = wire::RankBeat::StepTimes;
  CHECK(times(R"({"steps":40,"seconds":8.5,"data":0.5,"compute":6.25,"communication":0.25,
                  "wait":1.5,"p50":0.2,"p90":0.25,"max":0.75,"more":1})") ==
        Times{40, 8.5, 0.5, 6.25, 0.25, 1.5, 0.2, 0.25, 0.75});
  CHECK(times(R"({"steps":0,"seconds":0})") == Times{});
  CHECK(times("null") == std::nullopt);
  const auto refused = [](const std::string& said) {
    return refused_line(R"({"type":"heartbeat","step_times":)" + said + "}");
  };
  CHECK(refused("7").find("\"step_times\" must be an object") != std::string::npos);
  CHECK(refused(R"({"seconds":1})").find("steps") != std::string::npos);
  CHECK(refused(R"({"steps":1})").find("seconds") != std::string::npos);
  CHECK(refused(R"({"steps":1.5,"seconds":1})").find("steps") != std::string::npos);
  CHECK(refused(R"({"steps":1,"seconds":-1})").find("\"seconds\" must be seconds, 0 or more") !=
        std::string::npos);
  CHECK(refused(R"({"steps":1,"seconds":1,"wait":1e999})").find("wait") != std::string::npos);
  CHECK(refused(R"({"steps":1,"seconds":1,"data":"1"})").find("data") != std::string::npos);
}

TEST_CASE("Python's NaN gets advice") {
  try {
    wire::parse_report(R"({"type":"metrics","step":1,"metrics":{"loss":NaN}})");
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.hint().find("\"nan\"") != std::string::npos);
  }
}
