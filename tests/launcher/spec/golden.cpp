#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "launcher/spec/table.hpp"
#include "launcher/spec/yaml.hpp"

using namespace dtrain;

// The files that are written from the tables. `DTRAIN_ACCEPT=1 spec_tests` writes them anew.
namespace {

const std::filesystem::path kSource = DTRAIN_SOURCE_ROOT;

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void check_golden(const std::filesystem::path& path, const std::string& expected) {
  const char* accept = std::getenv("DTRAIN_ACCEPT");
  if (accept != nullptr && std::string(accept) == "1") {
    std::ofstream(path, std::ios::binary) << expected;
  }
  CAPTURE(path.string());
  // Compared as a bool: the texts are long.
  const bool equal = read(path) == expected;
  CHECK_MESSAGE(equal, "differs from the tables; DTRAIN_ACCEPT=1 writes it anew");
}

// The page with what stands between the two marks replaced.
std::string with_keys(const std::filesystem::path& path, const std::string& keys) {
  const std::string begin = "<!-- keys -->\n";
  const std::string end = "<!-- end of keys -->";
  const std::string page = read(path);
  const std::size_t from = page.find(begin);
  const std::size_t to = page.find(end);
  REQUIRE(from != std::string::npos);
  REQUIRE(to != std::string::npos);
  return page.substr(0, from + begin.size()) + "\n" + keys + page.substr(to);
}

}  // namespace

TEST_CASE("the JSON Schemas in configs/ are those of the tables") {
  check_golden(kSource / "configs/cluster.schema.json", cluster_schema().dump(2) + "\n");
  check_golden(kSource / "configs/job.schema.json", job_schema().dump(2) + "\n");
}

TEST_CASE("the pages in docs/ list the keys of the tables") {
  check_golden(kSource / "docs/cluster_yaml.md",
               with_keys(kSource / "docs/cluster_yaml.md", spec::cluster_keys_markdown()));
  check_golden(kSource / "docs/job_yaml.md",
               with_keys(kSource / "docs/job_yaml.md", spec::job_keys_markdown()));
}
