// The role alone, as `dtrain-agent supervise` runs it: NODE_ROOT JOB ATTEMPT LINGER_MS [LOCK]. With
// TEST_PLACES in its environment that folder stands for /proc/self and for /. Or `task`, that role.

#include <cstdlib>
#include <string_view>

#include "agent/supervise/supervise.hpp"
#include "agent/supervise/task.hpp"

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "task") return dtrain::supervise::task_main();
  if (argc < 5 || argc > 6) return 2;
  dtrain::supervise::SuperviseOptions options;
  options.root = argv[1];
  options.program = argv[0];
  options.job = dtrain::JobId(argv[2]);
  options.attempt = std::atoi(argv[3]);
  if (argc == 6) options.lock = std::atoi(argv[5]);
  options.linger = std::chrono::milliseconds(std::atoi(argv[4]));
  if (const char* places = std::getenv("TEST_PLACES")) {
    options.places.proc = places;
    options.places.root = places;
  }
  return dtrain::supervise::supervise_main(options);
}
