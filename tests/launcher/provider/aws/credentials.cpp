#include <doctest/doctest.h>

#include "launcher/provider/aws/credential_chain.hpp"
#include "tests/launcher/provider/aws/support.hpp"

using namespace dtrain;
using namespace std::chrono_literals;
using testing::AwsWorld;

// Where credentials are found is compared with botocore's in beside_botocore.py.
namespace {

// A container's host, whose credentials are good for so long from now.
struct Container {
  AwsWorld aws;
  std::chrono::seconds good_for{3600};
  int handed_out = 0;
  bool broken = false;

  Container() {
    aws.variables = {{"HOME", aws.home.path().string()},
                     {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x"}};
    aws.http.otherwise = [this](const HttpRequest&) {
      if (broken) return HttpAnswer{400, {}, "no"};
      ++handed_out;
      return HttpAnswer{200,
                        {},
                        R"({"AccessKeyId":"AKIA-)" + std::to_string(handed_out) +
                            R"(","SecretAccessKey":"s","Token":"t","Expiration":")" +
                            rfc3339(aws.clock.wall() + good_for) + "\"}"};
    };
  }
};

}  // namespace

TEST_CASE("aws credentials: they are got again before they expire") {
  Container container;
  const aws::Config config = container.aws.config();
  const aws::Api api(config, container.aws.world());
  aws::CredentialSource source(config, api, "us-west-2");
  CHECK(source.get({}).access_key == "AKIA-1");
  CHECK(container.aws.http.asked.at(0).url == "http://169.254.170.2/x");
  CHECK(container.aws.http.asked.at(0).direct);
  container.aws.clock.advance(44min);
  CHECK(source.get({}).access_key == "AKIA-1");
  container.aws.clock.advance(2min);
  CHECK(source.get({}).access_key == "AKIA-2");
  // Old ones do while they are good, where no new ones are to be had.
  container.broken = true;
  container.aws.clock.advance(58min);
  CHECK(source.get({}).access_key == "AKIA-2");
  container.aws.clock.advance(90s);
  CHECK_THROWS_AS(source.get({}), Error);
  container.broken = false;
  CHECK(source.get({}).access_key == "AKIA-3");
  source.forget();
  CHECK(source.get({}).access_key == "AKIA-4");
  source.forget();
  container.good_for = -1s;
  CHECK_THROWS_AS(source.get({}), Error);
}

TEST_CASE("aws credentials: nobody but this machine is shown a container's token") {
  for (const char* url :
       {"http://192.0.2.1/x", "http://127.evil.example/x", "http://localhost.evil.example/x",
        "http://[::2]/x", "ftp://localhost/x", "http://localhost@192.0.2.1/x", "x"}) {
    Container container;
    container.aws.variables = {{"AWS_CONTAINER_CREDENTIALS_FULL_URI", url},
                               {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "secret"}};
    const aws::Config config = container.aws.config();
    const aws::Api api(config, container.aws.world());
    aws::CredentialSource source(config, api, "us-west-2");
    CHECK_THROWS_AS(source.get({}), Error);
    CHECK(container.aws.http.asked.empty());
  }
}

TEST_CASE("aws credentials: an instance that does not answer is none without a role") {
  const auto found = [](const std::function<void(testing::FakeHttp&)>& service) {
    AwsWorld aws;
    aws.variables = {{"HOME", aws.home.path().string()}};
    service(aws.http);
    const aws::Config config = aws.config();
    const aws::Api api(config, aws.world());
    aws::CredentialSource source(config, api, "us-west-2");
    try {
      return source.get({}).access_key;
    } catch (const Error& error) {
      return std::string(to_string(error.code()));
    }
  };
  CHECK(found([](auto& http) { http.fails(ErrorCode::timeout); }) == "denied");
  CHECK(found([](auto& http) {
          http.says(200, "token");
          http.says(404, "");
        }) == "denied");
  CHECK(found([](auto& http) {
          http.says(200, "token");
          http.says(503, "");
        }) == "unreachable");
  CHECK(found([](auto& http) {
          http.says(200, "token");
          http.says(200, "role");
          http.fails(ErrorCode::timeout);
        }) == "unreachable");
  CHECK(found([](auto& http) {
          http.says(200, "token");
          http.says(200, "role");
          http.says(200, R"({"AccessKeyId": "AKIA-it", "SecretAccessKey": "s", "Token": "t"})");
        }) == "AKIA-it");
}

TEST_CASE("aws credentials: times") {
  const WallTime time = parse_rfc3339("2026-11-24T11:02:15.000Z");
  for (const char* text :
       {"2026-11-24T11:02:15Z", "2026-11-24T11:02:15.123456Z", "2026-11-24T11:02:15UTC",
        "2026-11-24 11:02:15+00:00", "2026-11-24T13:02:15+02:00", "2026-11-24T05:32:15-05:30"}) {
    CHECK(aws::time_of(text) == time);
  }
  CHECK(aws::time_of("9999-12-31T23:59:59Z") == parse_rfc3339("2200-12-31T23:59:59.000Z"));
  for (const char* text : {"", "2026-11-24", "2026-11-24T11:02:15", "2026-11-24T11:02:15X", "x"}) {
    CHECK_THROWS_AS(aws::time_of(text), Error);
  }
}

TEST_CASE("aws config: words of a shell") {
  using Words = std::vector<std::string>;
  CHECK(aws::shell_words(R"(a 'b c' "d \"e\" \n" f\ g '' x"y"z)") ==
        Words{"a", "b c", R"(d "e" \n)", "f g", "", "xyz"});
  CHECK(aws::shell_words("  ").empty());
  CHECK_THROWS_AS(aws::shell_words("'a"), Error);
}

TEST_CASE("aws config: what counts") {
  AwsWorld aws;
  testing::write(aws.home / ".aws/config",
                 "[default]\nregion = eu-west-1\nendpoint_url = http://all\nservices = "
                 "s\n[services s]\nec2 =\n  endpoint_url = "
                 "http://ec2\n[profile other]\nca_bundle = ~/ca\n");
  CHECK(aws.config().region() == "eu-west-1");
  CHECK(aws.config().endpoint("ec2") == "http://ec2");
  CHECK(aws.config().endpoint("sts") == "http://all");
  CHECK(aws.config().ca_bundle().empty());
  aws.variables["AWS_DEFAULT_REGION"] = "us-east-1";
  CHECK(aws.config().region() == "us-east-1");
  aws.variables["AWS_REGION"] = "us-east-2";
  CHECK(aws.config().region() == "us-east-2");
  aws.variables["AWS_ENDPOINT_URL"] = "http://variable";
  CHECK(aws.config().endpoint("ec2") == "http://variable");
  aws.variables["AWS_ENDPOINT_URL_EC2"] = "http://own";
  CHECK(aws.config().endpoint("ec2") == "http://own");
  aws.variables["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "true";
  CHECK(!aws.config().endpoint("ec2"));
  aws.variables["AWS_PROFILE"] = "other";
  CHECK(aws.config().ca_bundle() == (aws.home / "ca").string());
  aws.variables["AWS_PROFILE"] = "nobody";
  CHECK_THROWS_AS(aws.config(), Error);
}
