#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "cli/context.hpp"

namespace dtrain::cli {

// Whether what the job's setup writes is printed, line by line with its node.
enum class SetupOutput { none, too, alone };

struct FollowOptions {
  std::string job;  // its id
  bool follow = true;
  bool logs = true;
  bool states = true;  // say states and events; else only log bytes
  std::optional<int> rank;
  std::optional<int> attempt;
  std::optional<int> tail;
  std::string stream;  // "out", "err", or empty: both
  bool prefix = true;
  SetupOutput setup = SetupOutput::none;
};

struct FollowResult {
  std::string state;             // of the job, as it was last said
  std::optional<int> exit_code;  // of the rank that was the root cause
  bool any_output = false;       // of ranks, or of setup
  int interrupted = 0;           // the signal that detached us; 0: followed to the end
  bool torn = false;             // within a line, whose reader has stopped
};

// Prints what a job says until its end (or, without `follow`, what there is). When the head goes
// away under it, waits for it and goes on where it was: no byte missing, none twice. Ctrl-C
// detaches. Throws Error(unreachable) when the head stays away for a minute.
FollowResult follow(const Context& context, const wire::ApiClient& client,
                    const FollowOptions& options);

// What is said after following: how to come back when detached, the root cause when it failed.
// Gives the exit code. `stop` ends the asking for the cause.
int finish_following(const Context& context, const std::string& job, const FollowResult& result,
                     const std::stop_token& stop = {});

// The exit code of `submit` and `logs -f` for a job's last state.
int exit_code_for_state(const std::string& state) noexcept;

// The line that says why a failed job failed; asks the head. Empty when it does not say.
std::string failure_line(const wire::ApiClient& client, const std::string& job);

// Whether `now` is news to whoever has read `before` as the reason why a job waits: seconds that
// run down, fewer of the same that it waits for, and an estimated start that moves by less than
// kLittle are not.
bool other_wait(const std::string& before, const std::string& now);
inline constexpr std::chrono::minutes kLittle{10};

// For live lines: "epoch 2  step 230/469 49 %  loss 0.41".
std::string progress_line(const nlohmann::json& progress);

}  // namespace dtrain::cli
