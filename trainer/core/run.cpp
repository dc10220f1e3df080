#include "trainer/core/run.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "trainer/core/environment.hpp"
#include "trainer/core/stacks.hpp"

namespace dtrain::train {
namespace {

// c10::Error's what() carries a native stack trace below its message; people want the message.
std::string without_trace(std::string text) {
  const auto trace = text.find("\nException raised from");
  if (trace != std::string::npos) text.resize(trace);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::list<std::function<void()>>& at_failure() {
  // Never destroyed: those who are in it may be static too, and end after it.
  static auto& all = *new std::list<std::function<void()>>;
  return all;
}

void tell(const std::string& message) {
  std::fflush(stdout);
  std::fprintf(stderr, "error: %s\n", message.c_str());
  std::fflush(stderr);
  if (const auto file = process_variable("TORCHELASTIC_ERROR_FILE"); file && !file->empty()) {
    write_error_file(*file, message);
  }
}

[[noreturn]] void end_with(const std::string& message) {
  tell(message);
  for (const std::function<void()>& each : at_failure()) each();
  std::_Exit(1);
}

}  // namespace

bool write_error_file(const std::filesystem::path& path, const std::string& message) noexcept {
  try {
    const auto now = std::chrono::duration_cast<std::chrono::seconds>(
        std::chrono::system_clock::now().time_since_epoch());
    nlohmann::json extra = {{"timestamp", std::to_string(now.count())}};
    if (const std::string stacks = noted_stacks(); !stacks.empty()) extra["native_stack"] = stacks;
    const nlohmann::json document = {{"message", {{"message", message}, {"extraInfo", extra}}}};
    // Whole or not at all: the process may be killed meanwhile. Another thread may write one too.
    std::filesystem::path part = path;
    part += "." + std::to_string(::gettid());
    std::ofstream out(part, std::ios::trunc);
    out << document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    out.close();
    std::error_code failed;
    if (out.good()) std::filesystem::rename(part, path, failed);
    if (out.good() && !failed) return true;
    std::filesystem::remove(part, failed);
    return false;
  } catch (...) {
    return false;
  }
}

AtFailure::AtFailure(std::function<void()> what)
    : its_(at_failure().insert(at_failure().end(), std::move(what))) {}

AtFailure::~AtFailure() {
  at_failure().erase(its_);
}

int run(const std::function<int()>& body) {
  install_crash_reports();
  // stdio buffers whole blocks into a pipe; a person who follows the job wants whole lines.
  if (process_variable("RANK")) std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::string message;
  try {
    const int code = body();
    std::fflush(stdout);
    return code;
  } catch (const SystemExit& leaving) {
    std::fflush(stdout);
    return leaving.code;
  } catch (const std::exception& error) {
    message = without_trace(error.what());
  } catch (...) {
    message = "an exception of unknown type";
  }
  end_with(message);
}

void end_for(const std::exception& error) {
  end_with(without_trace(error.what()));
}

void end_now(const std::exception& error) {
  tell(without_trace(error.what()));
  std::_Exit(1);
}

}  // namespace dtrain::train
