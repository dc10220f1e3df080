#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/jobs.hpp"

using namespace dtrain::train;
using test::launch;
using test::read_file;
using test::TemporaryFolder;

namespace {

void compare(const std::filesystem::path& golden) {
  for (const char* transport : {"shared_memory", "gloo"}) {
    CAPTURE(transport);
    const TemporaryFolder folder;
    const auto exits = launch("parity", 2, folder.path(),
                              {{"DTRAIN_TRANSPORT", transport}, {"TEST_GOLDEN", golden.string()}});
    for (std::size_t rank = 0; rank < exits.size(); ++rank) {
      CHECK_MESSAGE(exits[rank].code == 0,
                    read_file(folder / ("rank-" + std::to_string(rank) + ".log")));
    }
  }
}

}  // namespace

TEST_CASE("each of 50 steps is Python DDP's: loss, gradient norm, weights and buffers") {
  compare(std::filesystem::path(std::getenv("DTRAIN_GOLDEN")) / "python_ddp/adamw.safetensors");
}

TEST_CASE("and that of this machine's Python") {
  const char* python = std::getenv("DTRAIN_PYTHON_TORCH");
  if (python == nullptr || *python == 0) {
    MESSAGE("no python3 with torch here: scripts/bench_train --install-only brings one");
    return;
  }
  const TemporaryFolder folder;
  const std::string golden = (folder / "fresh.safetensors").string();
  const std::string script =
      std::string(std::getenv("DTRAIN_GOLDEN")) + "/../trainer/train/python_ddp_golden.py";
  REQUIRE(std::system((std::string(python) + " " + script + " " + golden).c_str()) == 0);
  compare(golden);
}
