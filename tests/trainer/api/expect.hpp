#pragma once

#include <doctest/doctest.h>

#include <map>
#include <sstream>
#include <string>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/jobs.hpp"
#include "trainer/train/tensors.hpp"

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

// The lines "PLACE: …" that a rank wrote to STEM-RANK; of a place that came twice, both must be
// equal.
inline std::map<std::string, std::string> lines_of(const TemporaryFolder& folder,
                                                   const std::string& stem, int rank) {
  std::map<std::string, std::string> lines;
  std::istringstream in(read_file(folder / (stem + "-" + std::to_string(rank))));
  for (std::string line; std::getline(in, line);) {
    const auto [at, fresh] = lines.emplace(line.substr(0, line.find(':')), line);
    if (!fresh) CHECK(at->second == line);
  }
  return lines;
}

// A training that was resumed has the weights, bit for bit, and the lines of one that was not.
inline void check_same_end(const TemporaryFolder& whole, const TemporaryFolder& resumed, int ranks,
                           const std::string& stem) {
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    const std::string name = "final-" + std::to_string(rank) + ".safetensors";
    const TensorMap expected = read_tensors(whole / name);
    REQUIRE(!expected.empty());
    for (const auto& [key, tensor] : read_tensors(resumed / name)) {
      CHECK(tensor.equal(expected.at(key)));
    }
    CHECK(lines_of(whole, stem, rank) == lines_of(resumed, stem, rank));
  }
}

}  // namespace dtrain::train::test
