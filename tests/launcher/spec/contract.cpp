#include "launcher/spec/contract.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"

using namespace dtrain;

namespace {

// The names between backquotes in the first column of each table below "## Environment".
std::vector<std::set<std::string>> tables_of_docs() {
  const std::string page = read_file(fs::path(DTRAIN_SOURCE_ROOT) / "docs/rank_contract.md");
  const std::size_t begin = page.find("## Environment");
  const std::string part = page.substr(begin, page.find("## Reports") - begin);
  std::vector<std::set<std::string>> tables;
  for (const std::string& line : split(part, '\n')) {
    if (line.starts_with("| variable")) tables.emplace_back();
    if (!line.starts_with("| `")) continue;
    const std::vector<std::string> names = split(line.substr(0, line.find('|', 1)), '`');
    for (std::size_t i = 1; i < names.size(); i += 2) tables.back().insert(names[i]);
  }
  return tables;
}

template <typename Names>
void add(std::set<std::string>& all, const Names& names) {
  for (const std::string_view name : names) all.emplace(name);
}

}  // namespace

TEST_CASE("docs/rank_contract.md lists the names that are set, and those that are only defaults") {
  const auto tables = tables_of_docs();
  REQUIRE(tables.size() == 3);
  std::set<std::string> documented = tables[0];
  documented.insert(tables[1].begin(), tables[1].end());
  std::set<std::string> set;
  add(set, contract::kOfAttempt);
  add(set, contract::kOfRank);
  add(set, contract::kOfTrial);
  CHECK(documented == set);
  std::set<std::string> defaults;
  add(defaults, contract::kUnlessSet);
  CHECK(tables[2] == defaults);
}

TEST_CASE("a job may set what dtrain does not") {
  for (const char* ours : {"RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "LOCAL_RANK",
                           "DTRAIN_JOB_ID", "DTRAIN_CHECKPOINT", "CUDA_VISIBLE_DEVICES"}) {
    CHECK(contract::sets(ours));
  }
  for (const char* free : {"OMP_NUM_THREADS", "PYTHONUNBUFFERED", "RANKS", "DTRAIN_TRANSPORT",
                           "DTRAIN_TENSOR_CACHE", "TORCHELASTIC_ENABLE_FILE_TIMER"}) {
    CHECK_FALSE(contract::sets(free));
  }
}
