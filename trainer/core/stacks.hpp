#pragma once

#include <cstdint>
#include <string>

namespace dtrain::train {

// The native stacks of all threads of this process, innermost call first, one paragraph each;
// threads that do not answer within 100 ms are named as such. Names of functions come from the
// dynamic symbols: `addr2line -e PROGRAM ADDRESS` has the rest. Not from a signal handler; takes
// the last real-time signal.
std::string native_stacks();

// From now on a fatal signal (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) leaves a message with the
// step and the thread's stack on stderr, and in TORCHELASTIC_ERROR_FILE if it is set, before it
// ends the process as ever. run() calls it; calling it again reads the variable again. Where
// somebody handles the signal already, it is left alone.
void install_crash_reports();
// The step that a crash report names; any thread.
void set_crash_step(std::int64_t step);

// Stacks that belong to an error which is about to be thrown; the error file gets them. The first
// ones stay.
void note_stacks(std::string stacks);
std::string noted_stacks();

}  // namespace dtrain::train
