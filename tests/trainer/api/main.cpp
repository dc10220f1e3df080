#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/trainer/api/api_jobs.hpp"

// The tests, or, with --job NAME FOLDER, one rank of a test of several ranks.
int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--job") {
    return dtrain::train::test::run_api_job(argv[2], argv[3]);
  }
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // what is tested here is the same on every machine
  return doctest::Context(argc, argv).run();
}
