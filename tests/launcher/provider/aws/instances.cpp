#include "launcher/provider/aws/instances.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "launcher/core/error.hpp"
#include "tests/launcher/provider/aws/support.hpp"

using namespace dtrain;
using namespace std::chrono_literals;
using testing::AwsWorld;

namespace {

std::string listed(const std::string& id, const std::string& state, bool has_node = true) {
  const auto tag = [](const std::string& key, const std::string& value) {
    return "<item><key>" + key + "</key><value>" + value + "</value></item>";
  };
  return "<DescribeInstancesResponse><reservationSet><item><instancesSet><item><instanceId>" + id +
         "</instanceId><instanceState><name>" + state + "</name></instanceState><tagSet>" +
         tag("dtrain-cluster", "c") + tag("dtrain-cluster-id", "c-abcdef") +
         (has_node ? tag("dtrain-node", "gpu-1") + tag("dtrain-type", "gpu") : "") +
         "</tagSet></item></instancesSet></item></reservationSet></DescribeInstancesResponse>";
}

Machine machine(const std::string& id, MachineState state) {
  Machine machine;
  machine.node = NodeId("gpu-1");
  machine.id = id;
  machine.state = state;
  machine.cluster = ClusterId("c-abcdef");
  return machine;
}

struct Followed {
  explicit Followed(MachineState state) { machines = {machine("i-1", state)}; }

  void follow(const std::stop_token& stop = {}) {
    aws::Client client(aws.config(), aws.world(), "us-west-2");
    aws::Instances instances(client, "c", aws.home.path() / "intents", {});
    instances.follow(
        machines, [&](const MachineOutcome& each) { told.push_back(each); }, stop);
  }
  void otherwise(int status, const std::string& body) {
    aws.http.otherwise = [=](const HttpRequest&) { return HttpAnswer{status, {}, body}; };
  }

  AwsWorld aws;
  std::vector<Machine> machines;
  std::vector<MachineOutcome> told;
};

}  // namespace

TEST_CASE("aws: one that stays pending is told of, and not waited for without end") {
  Followed each(MachineState::pending);
  each.otherwise(200, listed("i-1", "pending"));
  const Monotonic begin = each.aws.clock.now();
  each.follow();
  REQUIRE(each.told.size() == 7);  // after 30 s, a minute, 2, 4, 8, 16, and at the end
  CHECK(each.told.front().machine.reason.starts_with(std::string(kTakesLong) +
                                                     "EC2 says pending since 3"));
  CHECK(!each.told.front().error);
  REQUIRE(each.told.back().error);
  CHECK(each.told.back().error->code() == ErrorCode::timeout);
  CHECK(each.told.back().machine.state == MachineState::pending);
  const auto waited = each.aws.clock.now() - begin;
  CHECK(waited >= aws::Instances::kFollowed);
  CHECK(waited <= aws::Instances::kFollowed + aws::Instances::kLastLook);
}

TEST_CASE("aws: looks that fail end nothing") {
  Followed each(MachineState::stopping);
  each.aws.http.says(403,
                     "<Response><Errors><Error><Code>UnauthorizedOperation</Code>"
                     "<Message>no</Message></Error></Errors></Response>");
  each.aws.http.says(200, listed("i-1", "shutting-down"));
  each.aws.http.says(200, listed("i-1", "terminated"));
  each.follow();
  REQUIRE(!each.told.empty());
  CHECK(each.told.back().machine.state == MachineState::gone);
  for (const MachineOutcome& told : each.told) CHECK(!told.error);

  // All of them: what failed last is said.
  Followed other(MachineState::stopping);
  other.otherwise(403,
                  "<Response><Errors><Error><Code>UnauthorizedOperation</Code>"
                  "<Message>no</Message></Error></Errors></Response>");
  other.follow();
  REQUIRE(other.told.back().error);
  CHECK(other.told.back().error->message().find("stopping since 30 m") != std::string::npos);
  CHECK(other.told.back().error->message().find("the last look failed: EC2 DescribeInstances") !=
        std::string::npos);
}

TEST_CASE("aws: who stops waits no longer") {
  Followed each(MachineState::pending);
  std::stop_source stop;
  each.aws.http.otherwise = [&](const HttpRequest&) {
    stop.request_stop();
    return HttpAnswer{200, {}, listed("i-1", "pending")};
  };
  each.follow(stop.get_token());
  CHECK(each.told.empty());
  CHECK(each.aws.http.asked.size() == 1);
}

TEST_CASE(
    "aws: an instance with the cluster's tag and no node's is none of its machines, and seen") {
  AwsWorld aws;
  aws::Client client(aws.config(), aws.world(), "us-west-2");
  aws::Instances instances(client, "c", aws.home.path() / "intents", {});
  aws.http.otherwise = [](const HttpRequest&) {
    return HttpAnswer{200, {}, listed("i-9", "running", false)};
  };
  CHECK(instances.list().empty());
  const std::vector<Machine> all = instances.all();
  REQUIRE(all.size() == 1);
  CHECK(all.front().id == "i-9");
  CHECK(all.front().state == MachineState::running);
}

namespace {

// Zones a and b, as spot instances before those on demand; named so.
aws::Launch spot_first() {
  aws::Launch launch;
  for (const char* name : {"spot-a", "spot-b", "demand-a", "demand-b"}) {
    aws::Launch::Place& place = launch.places.emplace_back();
    place.zone = name;
    place.config["Placement"]["AvailabilityZone"] = name;
    if (place.zone.starts_with("demand")) place.config["InstanceMarketOptions"] = nullptr;
  }
  return launch;
}

const HttpAnswer kNone{200, {}, "<DescribeInstancesResponse></DescribeInstancesResponse>"};
const HttpAnswer kOne{200,
                      {},
                      "<RunInstancesResponse><instancesSet><item><instanceId>i-1</instanceId>"
                      "</item></instancesSet></RunInstancesResponse>"};

HttpAnswer refused(int status, const std::string& code) {
  return {status,
          {},
          "<Response><Errors><Error><Code>" + code +
              "</Code><Message>no</Message></Error></Errors></Response>"};
}

}  // namespace

TEST_CASE("aws: a zone that had no room is asked behind the others for a while") {
  AwsWorld aws;
  aws::Client client(aws.config(), aws.world(), "us-west-2");
  const aws::Launch launch = spot_first();
  aws::Instances instances(client, "c", aws.home.path() / "intents",
                           [&](const Request&) { return launch; });
  std::set<std::string> full;
  std::vector<std::string> asked;  // zones
  aws.http.otherwise = [&](const HttpRequest& request) {
    if (request.body.find("Action=RunInstances") == std::string::npos) {
      return kNone;
    }
    for (const aws::Launch::Place& place : launch.places) {
      if (request.body.find("AvailabilityZone=" + place.zone) == std::string::npos) continue;
      asked.push_back(place.zone);
      if (!full.contains(place.zone)) break;
      return refused(500, "InsufficientInstanceCapacity");
    }
    return kOne;
  };
  int number = 0;
  const auto ask = [&] {
    asked.clear();
    Request request;
    request.type = "gpu";
    request.cluster = ClusterId("c-abcdef");
    request.nodes = {NodeId("gpu-" + std::to_string(++number))};
    instances.create({request}, [](const MachineOutcome&) {});
    return asked;
  };
  using Zones = std::vector<std::string>;
  CHECK(ask() == Zones{"spot-a"});
  full = {"spot-a"};
  CHECK(ask() == Zones{"spot-a", "spot-b"});
  CHECK(ask() == Zones{"spot-b"});
  aws.clock.advance(31s);
  CHECK(ask() == Zones{"spot-a", "spot-b"});
  aws.clock.advance(31s);
  CHECK(ask() == Zones{"spot-b"});  // a minute now
  // Spot stays first.
  full = {"spot-a", "spot-b"};
  CHECK(ask() == Zones{"spot-b", "spot-a", "demand-a"});
  full.clear();
  aws.clock.advance(10min);
  CHECK(ask() == Zones{"spot-a"});
  full = {"spot-a"};
  CHECK(ask() == Zones{"spot-a", "spot-b"});  // that it had room counts
  aws.clock.advance(31s);
  CHECK(ask() == Zones{"spot-a", "spot-b"});
}

TEST_CASE("aws: a quota is of all zones, and an answer of no doubt") {
  AwsWorld aws;
  aws::Client client(aws.config(), aws.world(), "us-west-2");
  const aws::Launch launch = spot_first();
  const auto home = aws.home.path() / "intents";
  aws::Instances instances(client, "c", home, [&](const Request&) { return launch; });
  std::vector<std::string> asked;
  bool is_lost = true;
  aws.http.otherwise = [&](const HttpRequest& request) {
    if (request.body.find("Action=RunInstances") == std::string::npos) {
      return kNone;
    }
    if (std::exchange(is_lost, false)) throw Error(ErrorCode::unreachable, "no answer");
    const bool is_spot = request.body.find("AvailabilityZone=spot") != std::string::npos;
    asked.emplace_back(is_spot ? "spot" : "demand");
    if (!is_spot) {
      return kOne;
    }
    return refused(400, "MaxSpotInstanceCountExceeded");
  };
  Request request;
  request.type = "gpu";
  request.cluster = ClusterId("c-abcdef");
  request.nodes = {NodeId("gpu-1")};
  std::vector<MachineOutcome> told;
  instances.create({request}, [&](const MachineOutcome& each) { told.push_back(each); });
  CHECK(asked == std::vector<std::string>{"spot", "demand"});
  REQUIRE(told.size() == 1);
  CHECK(told.front().machine.id == "i-1");
  // Of the spot request, though its first answer was lost, nothing is awaited.
  CHECK(aws::Intents(home).all().size() == 1);
}
