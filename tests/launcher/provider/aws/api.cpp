#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "launcher/provider/aws/retry.hpp"
#include "launcher/provider/aws/signature.hpp"
#include "tests/launcher/provider/aws/support.hpp"

using namespace dtrain;
using namespace std::chrono_literals;
using testing::AwsWorld;
using Milliseconds = std::vector<std::chrono::milliseconds>;

namespace {

constexpr const char* kGood =
    "<DescribeThingsResponse><requestId>r</requestId></DescribeThingsResponse>";

std::string refusal(const std::string& code, const std::string& message = "for a reason") {
  return "<?xml version=\"1.0\"?><Response><Errors><Error><Code>" + code + "</Code><Message>" +
         message + "</Message></Error></Errors><RequestID>r</RequestID></Response>";
}

aws::ApiError error_of(aws::Client& client, const aws::CallOptions& options = {},
                       const aws::Form& form = {}) {
  try {
    client.ec2("DescribeThings", form, options);
  } catch (const aws::ApiError& error) {
    return error;
  }
  FAIL("there was an answer");
  return {ErrorCode::internal, "", ""};
}

}  // namespace

TEST_CASE("aws: AWS's own vectors of signatures") {
  const aws::Credentials credentials{
      "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "", {}, ""};
  const WallTime time = parse_rfc3339("2015-08-30T12:36:00.000Z");
  HttpRequest request;  // post-vanilla
  request.method = "POST";
  request.url = "https://example.amazonaws.com/";
  aws::sign(request, {"us-east-1", "service"}, credentials, time);
  CHECK(request.fields.back().second ==
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        "SignedHeaders=host;x-amz-date, "
        "Signature=5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
  request.fields = {
      {"Content-Type", "application/x-www-form-urlencoded"}};  // post-x-www-form-urlencoded
  request.body = "Param1=value1";
  aws::sign(request, {"us-east-1", "service"}, credentials, time);
  CHECK(request.fields.back().second.ends_with(
      "Signature=ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"));
  request.url = "https://example.amazonaws.com/?a=b";
  CHECK_THROWS_AS(aws::sign(request, {"us-east-1", "service"}, credentials, time), Error);
}

TEST_CASE("aws: what is sent") {
  AwsWorld aws;
  aws::Client client(aws.config(), aws.world(), "us-west-2");
  aws.http.says(200, kGood);
  client.ec2("DescribeThings", {{"Filter.1.Name", "tag:a b"}, {"Filter.1.Value.1", "ü&"}});
  const HttpRequest& sent = aws.http.asked.at(0);
  CHECK(sent.url == "https://ec2.us-west-2.amazonaws.com");
  CHECK(sent.body ==
        "Action=DescribeThings&Version=2016-11-15&Filter.1.Name=tag%3Aa+b&Filter.1.Value.1=%C3%BC%"
        "26");
  CHECK(sent.fields.at(2) ==
        std::pair<std::string, std::string>("X-Amz-Security-Token", "token-of-me"));
  CHECK(sent.fields.at(3).second.find("/us-west-2/ec2/aws4_request") != std::string::npos);
  for (const char* region : {"", "us west", "us-west-2.evil.example", "-a", "A"}) {
    aws::Client wrong(aws.config(), aws.world(), region);
    CHECK_THROWS_AS(wrong.ec2("DescribeThings", {}), Error);
  }
  CHECK(aws.http.asked.size() == 1);
  aws.variables["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1/x";
  aws.variables["AWS_ENDPOINT_URL_SSM"] = "http://127.0.0.1:2";
  aws::Client other(aws.config(), aws.world(), "us-west-2");
  aws.http.says(200, kGood);
  aws.http.says(200, "{}");
  other.ec2("DescribeThings", {});
  other.ssm("GetParameter", {{"Name", "/a"}});
  CHECK(aws.http.asked.at(1).url == "http://127.0.0.1:1/x");
  CHECK(aws.http.asked.at(2).url == "http://127.0.0.1:2");
  CHECK(aws.http.asked.at(2).body == R"({"Name":"/a"})");
  for (const char* url :
       {"ftp://x", "https://", "https:///x", "https://a b", "https://u@h", "https://h?q"}) {
    aws.variables["AWS_ENDPOINT_URL"] = url;
    aws::Client wrong(aws.config(), aws.world(), "us-west-2");
    CHECK_THROWS_AS(wrong.ec2("DescribeThings", {}), Error);
  }
}

TEST_CASE("aws: transient faults are tried three times in all") {
  AwsWorld aws;
  aws::Client client(aws.config(), aws.world(), "us-west-2");
  aws.http.says(503, "<html>busy</html>");
  aws.http.fails(ErrorCode::unreachable);
  aws.http.says(200, kGood);
  client.ec2("DescribeThings", {});
  CHECK(aws.pauses == Milliseconds{50ms, 100ms});
  for (int i = 0; i < 3; ++i) aws.http.says(500, refusal("InternalError"));
  const aws::ApiError error = error_of(client);
  CHECK(error.aws_code() == "InternalError");
  CHECK(error.code() == ErrorCode::unreachable);
  CHECK(
      std::string(error.what()) ==
      "EC2 DescribeThings is refused: InternalError: for a reason, while trying 3 times in 150 ms");
  // What is no answer of AWS's is none.
  for (const char* body : {"", "<Half", "<html><body>Log in</body></html>", "{}"})
    aws.http.says(200, body);
  CHECK(error_of(client).code() == ErrorCode::invalid);
  CHECK(aws.http.answers.size() == 1);
  aws.http.answers.clear();
  aws.variables["AWS_MAX_ATTEMPTS"] = "1";
  aws::Client once(aws.config(), aws.world(), "us-west-2");
  aws.http.fails(ErrorCode::timeout);
  CHECK(error_of(once).code() == ErrorCode::timeout);
  aws.variables["AWS_MAX_ATTEMPTS"] = "often";
  CHECK_THROWS_AS(aws::Client(aws.config(), aws.world(), "us-west-2"), Error);
}

TEST_CASE("aws: throttling is waited out, until the deadline") {
  AwsWorld aws;
  aws::Client client(aws.config(), aws.world(), "us-west-2");
  for (int i = 0; i < 5; ++i) aws.http.says(503, refusal("RequestLimitExceeded"));
  aws.http.says(429, "", {{"x-amz-retry-after", "22000"}});
  aws.http.says(200, kGood);
  client.ec2("DescribeThings", {});
  CHECK(aws.pauses == Milliseconds{1s, 2s, 4s, 8s, 16s, 22s});
  CHECK(aws.http.asked.at(0).fields != aws.http.asked.at(2).fields);  // signed anew
  aws.pauses.clear();
  aws.http.otherwise = [&](const HttpRequest& request) {
    CHECK(request.timeout <= 60s);
    aws.clock.advance(1s);
    return HttpAnswer{503, {}, refusal("RequestLimitExceeded")};
  };
  const Monotonic begin = aws.clock.now();
  const aws::ApiError error = error_of(client);
  CHECK(error.aws_code() == "RequestLimitExceeded");
  CHECK(aws.clock.now() - begin <= 120s);
  CHECK(aws.clock.now() - begin >= 90s);
}

TEST_CASE("aws: refusals end at once, by their names") {
  AwsWorld aws;
  aws::Client client(aws.config(), aws.world(), "us-west-2");
  const auto refused = [&](int status, const std::string& code, const aws::Form& form = {}) {
    aws.http.says(status, refusal(code));
    const aws::ApiError error = error_of(client, {}, form);
    CHECK(error.aws_code() == code);
    CHECK(aws.pauses.empty());
    return error;
  };
  CHECK(refused(500, "InsufficientInstanceCapacity").code() == ErrorCode::exhausted);
  CHECK(refused(400, "InvalidInstanceID.NotFound").code() == ErrorCode::not_found);
  CHECK(refused(400, "InvalidGroup.Duplicate").code() == ErrorCode::conflict);
  CHECK(refused(400, "IdempotentParameterMismatch").code() == ErrorCode::conflict);
  CHECK(refused(400, "InvalidParameterValue").code() == ErrorCode::invalid);
  CHECK(refused(403, "UnauthorizedOperation").code() == ErrorCode::denied);
  CHECK(refused(400, "Unheard").code() == ErrorCode::failed);
  const aws::ApiError quota = refused(400, "VcpuLimitExceeded", {{"InstanceType", "p3.2xlarge"}});
  CHECK(quota.code() == ErrorCode::exhausted);
  CHECK(quota.hint().find("\"Running On-Demand P instances\", region us-west-2") !=
        std::string::npos);
  CHECK(refused(400, "ReservationCapacityExceeded").code() == ErrorCode::exhausted);
  for (const char* other :
       {"TagLimitExceeded", "VolumeLimitExceeded", "InsufficientInstanceCapacity"}) {
    CHECK(refused(400, other, {{"InstanceType", "p3.2xlarge"}}).hint().empty());
  }
  CHECK(refused(400, "MaxSpotInstanceCountExceeded",
                {{"InstanceType", "p3.2xlarge"}, {"InstanceMarketOptions.MarketType", "spot"}})
            .hint()
            .find("All P4, P3 and P2 Spot Instance Requests") != std::string::npos);
  CHECK(aws::quota_of("g5.xlarge", false) == "Running On-Demand G and VT instances");
  CHECK(aws::quota_of("m5.large", false) ==
        "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances");
  CHECK(aws::quota_of("trn1.2xlarge", true) == "All Trn Spot Instance Requests");
  CHECK(aws::quota_of("p5en.48xlarge", true) == "All P5 Spot Instance Requests");
  CHECK(aws::quota_of("", true).empty());
}

TEST_CASE("aws: what was just made may not be known yet") {
  AwsWorld aws;
  aws::Client client(aws.config(), aws.world(), "us-west-2");
  aws::CallOptions options;
  options.again = [](const std::string& code) { return code == "InvalidInstanceID.NotFound"; };
  for (int i = 0; i < 7; ++i) aws.http.says(400, refusal("InvalidInstanceID.NotFound"));
  aws.http.says(200, kGood);
  client.ec2("DescribeThings", {}, options);
  CHECK(aws.pauses.size() == 7);
  aws.http.otherwise = [](const HttpRequest&) {
    return HttpAnswer{400, {}, refusal("InvalidInstanceID.NotFound")};
  };
  options.deadline = 10s;
  CHECK(error_of(client, options).code() == ErrorCode::not_found);
}

TEST_CASE("aws: a clock that is off is named with both times") {
  AwsWorld aws;
  aws::Client client(aws.config(), aws.world(), "us-west-2");
  aws.http.says(403, refusal("AuthFailure"), {{"date", "Fri, 02 Jan 2026 03:24:05 GMT"}});
  CHECK(error_of(client).hint().find(
            "this machine's clock says 2026-01-02T03:04:05.000Z, AWS's 2026-01-02T03:24:05") == 0);
  aws.http.says(403, refusal("AuthFailure"), {{"date", "Fri, 02 Jan 2026 03:05:05 GMT"}});
  CHECK(error_of(client).hint().empty());
}

TEST_CASE("aws: nothing that is secret is said") {
  AwsWorld aws;
  aws::Client client(aws.config(), aws.world(), "us-west-2");
  aws.http.says(
      403, refusal("SignatureDoesNotMatch",
                   "should have been x-amz-security-token:token-of-me and\x1b[2J secret-of-me"));
  const std::string said = error_of(client).what();
  CHECK(said.find("-of-me") == std::string::npos);
  CHECK(said.find('\x1b') == std::string::npos);
}

TEST_CASE("aws: credentials that expire before their time are got anew once") {
  AwsWorld aws;
  aws::Client client(aws.config(), aws.world(), "us-west-2");
  aws.http.says(403, refusal("ExpiredTokenException"));
  aws.http.says(200, kGood);
  client.ec2("DescribeThings", {});
  for (int i = 0; i < 3; ++i) aws.http.says(403, refusal("ExpiredTokenException"));
  CHECK(error_of(client).code() == ErrorCode::denied);
  CHECK(aws.http.answers.size() == 1);
}

TEST_CASE("aws: pages until there is none") {
  AwsWorld aws;
  aws::Client client(aws.config(), aws.world(), "us-west-2");
  const auto page = [](const std::string& token) {
    return "<DescribeThingsResponse><thingSet><item>1</item></thingSet><nextToken>" + token +
           "</nextToken></DescribeThingsResponse>";
  };
  for (const char* token : {"a", "b", ""}) aws.http.says(200, page(token));
  std::size_t seen = 0;
  const auto take = [&](const aws::Xml& one) { seen += one.list("thingSet").size(); };
  client.ec2_pages("DescribeThings", {{"MaxResults", "1"}}, take);
  CHECK(seen == 3);
  CHECK(aws.http.asked.at(2).body.ends_with("&MaxResults=1&NextToken=b"));
  for (const char* token : {"a", "b", "a"}) aws.http.says(200, page(token));
  CHECK_THROWS_AS(client.ec2_pages("DescribeThings", {}, take), aws::ApiError);
}

TEST_CASE("aws: answers in XML") {
  const aws::Xml root = aws::parse_xml(
      "<?xml version='1.0' encoding='UTF-8'?>\n<!-- c --><r xmlns='http://ec2'>\n <a x='1'>one "
      "&amp; <![CDATA[<two>]]></a>\n"
      " <set><item><n:id xmlns:n='m'>1</n:id></item><item><id>2</id></item></set>\n "
      "<a>second</a></r>\n");
  CHECK(root.name == "r");
  CHECK(root.text.empty());
  CHECK(root.at("a") == "one & <two>");
  CHECK(root.list("set").size() == 2);
  CHECK(root.list("set")[1].at("id") == "2");
  CHECK(root.at("set/item/id") == "1");
  CHECK(root.at("set/item/other").empty());
  CHECK(root.list("none").empty());
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "<a>";
  for (const std::string& wrong :
       {std::string(), std::string("x"), std::string("<a>"), std::string("<a></b>"), deep,
        std::string("<!DOCTYPE r [<!ENTITY e 'x'>]><r>&e;</r>"), std::string("<r>&e;</r>"),
        std::string("<r/><r/>")}) {
    CHECK_THROWS_AS(aws::parse_xml(wrong), Error);
  }
}

TEST_CASE("aws: how long is waited") {
  const aws::Try throttled{503, "RequestLimitExceeded", std::nullopt};
  CHECK(aws::pause_after(throttled, 3, 0.5) == 2s);
  CHECK(aws::pause_after(throttled, 60, 1) == 20s);
  CHECK(aws::pause_after({503, "", std::nullopt}, 2, 0) == 0s);
  CHECK(aws::pause_after({503, "", 1s}, 1, 1) == 1s);
  CHECK(aws::pause_after({503, "", 60s}, 1, 1) == 5050ms);
}
