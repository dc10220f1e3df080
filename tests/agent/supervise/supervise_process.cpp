// The role alone, as `dtrain-agent supervise` runs it: NODE_ROOT JOB ATTEMPT LINGER_MS.

#include <cstdlib>

#include "agent/supervise/supervise.hpp"

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  dtrain::supervise::SuperviseOptions options;
  options.root = argv[1];
  options.job = dtrain::JobId(argv[2]);
  options.attempt = std::atoi(argv[3]);
  options.linger = std::chrono::milliseconds(std::atoi(argv[4]));
  return dtrain::supervise::supervise_main(options);
}
