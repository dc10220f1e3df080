#pragma once

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/jobs.hpp"

namespace dtrain::train::test {

using Variables = std::map<std::string, std::string>;

// Runs a job on some ranks, all of which must end with this code.
inline void expect(const std::string& job, int ranks, const TemporaryFolder& folder, int code,
                   const Variables& env = {}) {
  const auto exits = launch(job, ranks, folder.path(), env);
  for (std::size_t rank = 0; rank < exits.size(); ++rank) {
    CHECK_MESSAGE(exits[rank].code == code,
                  read_file(folder / ("rank-" + std::to_string(rank) + ".log")));
  }
}

}  // namespace dtrain::train::test
