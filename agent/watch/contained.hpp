#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>

// The foreground form of the watch, for containers and srun tasks: what it tells its children, and
// how it leaves nothing behind.
namespace dtrain::watch {

using Milliseconds = std::chrono::milliseconds;

// What a child of a contained watch is to know, from its environment.
struct Contained {
  Milliseconds limit{0};  // from the signal on, for all that it has to do
  int told = 0;           // the signal that was sent before it began; 0: none
  int why = -1;           // a descriptor for read_why(); -1: none
};
inline constexpr const char* kContained = "DTRAIN_CONTAINED";
std::string to_environment(const Contained& contained);  // the value of kContained
// Absent in a process whose watch is another, or none.
std::optional<Contained> from_environment();

// A file without a name, which children inherit: why all is to end, once that is known. -1 where
// the kernel has none (Linux 3.17).
int make_why();
void write_why(int why, const std::string& reason);
std::string read_why(int why);  // empty: not yet

// A line for whoever looks at this process, on stdout; dropped when nobody reads.
void say(const std::string& line);

// Of a process that inherits, as PID 1 or as a subreaper, what the dying leave: ends all of it, by
// looking again and again.
class Leftovers {
 public:
  // SIGTERM to the children that have not had it yet, or SIGKILL to all. False when there is none
  // any more, not even one to be reaped.
  bool end(bool kill);

 private:
  std::set<pid_t> told_;
};

}  // namespace dtrain::watch
