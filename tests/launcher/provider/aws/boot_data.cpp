#include "launcher/provider/aws/boot_data.hpp"

#include <doctest/doctest.h>

#include "launcher/core/capture.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/process.hpp"

using namespace dtrain;
using namespace std::chrono_literals;

namespace {

std::string unpacked(const std::string& data) {
  SpawnOptions options;
  options.argv = {"gzip", "-dc"};
  return capture(std::move(options), data, 60s).out;
}

}  // namespace

TEST_CASE("aws boot data: one script is itself, several are chosen by their number") {
  CHECK(aws::packed({}).empty());
  CHECK(unpacked(aws::packed({{"#!/bin/sh\necho one\n"}, "", ""})) == "#!/bin/sh\necho one\n");
  const std::string both =
      unpacked(aws::packed({{"#!/bin/sh\necho \"$1\" 'a'", "echo two\n"}, "", ""}));
  CHECK(both.starts_with("#!/bin/sh\n"));
  CHECK(both.find(
            "0) exec sh -s <<'dtrain-script-0'\n#!/bin/sh\necho \"$1\" 'a'\ndtrain-script-0\n;;\n"
            "1) exec sh -s <<'dtrain-script-1'\necho two\ndtrain-script-1\n;;\n") !=
        std::string::npos);
}

TEST_CASE("aws boot data: settings, and what a person gives, are parts of their own") {
  CHECK(unpacked(aws::packed({{}, "#cloud-config\n{}\n", ""})) == "#cloud-config\n{}\n");
  const std::string parts = unpacked(
      aws::packed({{"#!/bin/sh\n"}, "#cloud-config\nssh_keys: {}\n", "#!/bin/sh\necho theirs\n"}));
  CHECK(parts.starts_with("MIME-Version: 1.0\n"));
  const auto theirs = parts.find("text/plain; charset=\"utf-8\"\n\n#!/bin/sh\necho theirs\n");
  const auto ours =
      parts.find("text/cloud-config; charset=\"utf-8\"\n\n#cloud-config\nssh_keys: {}\n");
  CHECK(theirs != std::string::npos);
  CHECK(ours != std::string::npos);
  CHECK(theirs < ours);  // the later one says how they are merged
}

TEST_CASE("aws boot data: what scripts have in common counts once") {
  std::string common;
  for (int i = 0; i < 40; ++i) common += "# " + random_hex(50) + "\n";
  std::vector<std::string> scripts;
  for (int i = 0; i < 8; ++i) scripts.push_back("#!/bin/sh\n" + common + random_hex(200) + "\n");
  CHECK(aws::packed({scripts, "", ""}).size() < aws::kMostBootData);
  CHECK(common.size() * scripts.size() > 2 * aws::kMostBootData);
}
