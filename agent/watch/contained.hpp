#pragma once

#include <chrono>
#include <optional>
#include <string>

// The foreground form of the watch, for containers and srun tasks: what it tells its children, and
// how it leaves nothing behind.
namespace dtrain::watch {

using Milliseconds = std::chrono::milliseconds;

// What a child of a contained watch is to know, from its environment.
struct Contained {
  Milliseconds limit{0};  // from the signal on, for all that it has to do
  int told = 0;           // the signal that was sent before it began; 0: none
};
inline constexpr const char* kContained = "DTRAIN_CONTAINED";
std::string to_environment(const Contained& contained);  // the value of kContained
// Absent in a process whose watch is another, or none.
std::optional<Contained> from_environment();

// A line for whoever looks at this process, on stdout; dropped when nobody reads.
void say(const std::string& line);

// Ends all processes that this one inherits, or will, as PID 1 or as a subreaper: SIGTERM to its
// children, again and again to those that the dying leave to it, after `grace` SIGKILL; reaps all
// of them. False when some would not die until `limit`. Nobody else may wait for children.
bool end_descendants(Milliseconds grace, Milliseconds limit);

}  // namespace dtrain::watch
