#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/provider/aws/client.hpp"
#include "tests/support/fake_clock.hpp"
#include "tests/support/fake_http.hpp"
#include "tests/support/temporary_folder.hpp"

namespace dtrain::testing {

// A world whose time passes only by pauses, and whose variables and files a test says.
struct AwsWorld {
  FakeHttp http;
  FakeClock clock;
  TemporaryFolder home;
  std::vector<std::chrono::milliseconds> pauses;
  double random = 1;
  std::map<std::string, std::string> variables{{"HOME", home.path().string()},
                                               {"AWS_ACCESS_KEY_ID", "AKIA-me"},
                                               {"AWS_SECRET_ACCESS_KEY", "secret-of-me"},
                                               {"AWS_SESSION_TOKEN", "token-of-me"}};

  aws::World world() {
    return {http, clock,
            [this](std::chrono::milliseconds time, const std::stop_token&) {
              pauses.push_back(time);
              clock.advance(time);
            },
            [this] { return random; }};
  }
  aws::Config config() {
    return aws::Config([this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
  }
};

}  // namespace dtrain::testing
