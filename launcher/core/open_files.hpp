#pragma once

#include <cstddef>

// How many descriptors this process may have open (RLIMIT_NOFILE).
namespace dtrain {

// Raises the soft limit to the hard one; to be called once, at a program's start. What spawn()
// starts has the former one again: programs that still use select(2) cannot take more than 1024.
void raise_open_files();
// Takes that back; for a child between fork and exec, so only async-signal-safe calls.
void restore_open_files();

// The hard limit.
std::size_t most_open_files();

}  // namespace dtrain
