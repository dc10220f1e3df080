// What is said of a job that is, or was, followed.
#include <algorithm>
#include <cstdlib>
#include <sstream>

#include <nlohmann/json.hpp>

#include "cli/follow.hpp"
#include "cli/jobs.hpp"
#include "cli/render.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::cli {
namespace {

// A reason, what runs down in it, and the estimate: "waits in partition gpu: Priority, starts about
// 14:20", "waits until the lease of a lost node has run out (25 s)".
struct Wait {
  explicit Wait(std::string reason) : text(std::move(reason)) {
    constexpr std::string_view kStarts = ", starts about ";
    if (const std::size_t at = text.rfind(kStarts); at != std::string::npos) {
      start = text.substr(at + kStarts.size());
      text.resize(at);
    }
    // Of what it waits for one after the other comes: "waits for gpu-1, gpu-2: it joins".
    constexpr std::string_view kFor = "waits for ";
    const std::size_t colon = text.find(": ");
    if (text.starts_with(kFor) && colon != std::string::npos) {
      text.erase(kFor.size(), colon - kFor.size());
    }
    const std::size_t open = text.rfind(" (");
    const bool runs_down = open != std::string::npos && text.ends_with(')') &&
                           open + 2 < text.size() && text[open + 2] >= '0' && text[open + 2] <= '9';
    if (runs_down) text.resize(open);
  }
  std::string text;
  std::string start;  // "14:20", "2026-11-26 14:20"
};

std::string day_of(const std::string& start) {
  return start.substr(0,
                      start.find_last_of(' ') == std::string::npos ? 0 : start.find_last_of(' '));
}

int minutes_of(const std::string& start) {
  const std::string clock = start.substr(start.find_last_of(' ') + 1);
  int hours = 0;
  int minutes = 0;
  char colon = 0;
  std::istringstream(clock) >> hours >> colon >> minutes;
  return 60 * hours + minutes;
}

}  // namespace

bool other_wait(const std::string& before, const std::string& now) {
  const Wait first(before);
  const Wait second(now);
  if (first.text != second.text) return true;
  if (second.start.empty()) return false;  // there is no estimate any more, for a moment maybe
  return first.start.empty() || day_of(first.start) != day_of(second.start) ||
         std::abs(minutes_of(first.start) - minutes_of(second.start)) >= kLittle.count();
}

int finish_following(const Context& context, const std::string& job, const FollowResult& result,
                     const std::stop_token& stop) {
  if (result.interrupted != 0) {
    const std::string option = context.cluster_option();
    if (context.globals.json && !result.torn) {
      context.print_json({{"type", "detached"}, {"job", job}, {"state", result.state}});
    } else {
      context.warn("detached; " + job + " goes on. Back to it: dtrain logs -f" + option + " " +
                   job + "; end it: dtrain stop" + option + " " + job);
    }
    return 128 + result.interrupted;
  }
  if (result.state == "failed" && !context.globals.json) {
    std::string why;
    try {
      why = failure_line(context.client(stop), job);
    } catch (const Error&) {  // the state is known, the reason is an extra
    }
    if (!why.empty()) context.warn("root cause: " + why);
    context.note("more: dtrain result" + context.cluster_option() + " " + job);
  }
  return exit_code_for_state(result.state);
}

int exit_code_for_state(const std::string& state) noexcept {
  if (state == "succeeded") return 0;
  if (state == "stopped") return 3;
  return 1;
}

std::string failure_line(const wire::ApiClient& client, const std::string& job) {
  const nlohmann::json all = client.get(job_target(job));
  const nlohmann::json& error = child(all, "error");
  if (error.is_null()) return text_or(all, "reason");
  std::string line = text_or(error, "message");
  if (const std::string said = text_or(error, "error_message"); !said.empty()) {
    line += (line.empty() ? "" : ": ") + said.substr(0, said.find('\n'));
  }
  return line;
}

std::string progress_line(const nlohmann::json& progress) {
  if (!progress.is_object()) return {};
  std::string line;
  const auto add = [&](const std::string& text) {
    if (text.empty()) return;
    if (!line.empty()) line += "  ";
    line += text;
  };
  if (progress.contains("epoch") && progress["epoch"].is_number()) {
    add("epoch " + number(progress["epoch"]));
  }
  if (progress.contains("step") && progress["step"].is_number()) {
    std::string step = "step " + number(progress["step"]);
    const long long total = number_or(progress, "total", 0);
    if (total > 0) {
      const long long done = number_or(progress, "step", 0);
      step += "/" + std::to_string(total) + " " +
              std::to_string(std::clamp(done * 100 / total, 0LL, 100LL)) + " %";
    }
    add(step);
  }
  add(metrics_line(child(progress, "metrics")));
  add(printable(text_or(progress, "message"), false));
  return line;
}

}  // namespace dtrain::cli
