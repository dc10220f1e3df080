#pragma once

// The role `task`: what srun starts for each rank where the launcher is srun. It stands for the
// rank in Slurm, and has nothing to do but that (srun_launcher.hpp).
//
// It connects to the supervisor of its node and sends the line "RANK SIZE" and SIZE bytes, its
// environment as NAME=VALUE, each ended by NUL. Then it says its rank in a line on stdout, for srun
// to bring to the supervisor of node rank 0. The supervisor's answer is the line of the rank's exit
// code (128+n for a signal), with which the task ends. It ends too when the supervisor does, and by
// no signal that Slurm sends to all processes of an allocation, for the rank may have its grace
// yet.
namespace dtrain::supervise {

// In its environment: "SECRET FIRST…", of the step, and by node rank the first rank of each.
inline constexpr const char* kLaunch = "DTRAIN_LAUNCH";

// Returns the process's exit code. What fails is a line on stderr.
int task_main();

}  // namespace dtrain::supervise
