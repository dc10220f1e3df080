#include "launcher/core/error.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace dtrain {
namespace {

constexpr std::array<std::pair<ErrorCode, const char*>, 11> kCodeNames{{
    {ErrorCode::usage, "usage"},
    {ErrorCode::invalid, "invalid"},
    {ErrorCode::not_found, "not_found"},
    {ErrorCode::conflict, "conflict"},
    {ErrorCode::unreachable, "unreachable"},
    {ErrorCode::denied, "denied"},
    {ErrorCode::timeout, "timeout"},
    {ErrorCode::exhausted, "exhausted"},
    {ErrorCode::io, "io"},
    {ErrorCode::failed, "failed"},
    {ErrorCode::internal, "internal"},
}};

}  // namespace

const char* to_string(ErrorCode code) noexcept {
  for (const auto& [value, name] : kCodeNames) {
    if (value == code) return name;
  }
  return "internal";
}

ErrorCode error_code_from(const std::string& name) noexcept {
  for (const auto& [value, known] : kCodeNames) {
    if (name == known) return value;
  }
  return ErrorCode::internal;
}

std::string Location::str() const {
  std::string text = file;
  if (line > 0) text += ":" + std::to_string(line);
  if (line > 0 && column > 0) text += ":" + std::to_string(column);
  return text;
}

Error::Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {
  compose();
}

Error& Error::while_doing(std::string doing) {
  context_.push_back(std::move(doing));
  compose();
  return *this;
}

Error& Error::with_hint(std::string hint) {
  hint_ = std::move(hint);
  return *this;
}

Error& Error::at(Location location) {
  location_ = std::move(location);
  compose();
  return *this;
}

const char* Error::what() const noexcept {
  return what_.c_str();
}

void Error::compose() {
  what_.clear();
  if (location_) what_ = location_->str() + ": ";
  what_ += message_;
  for (const std::string& doing : context_) what_ += ", while " + doing;
}

Error errno_error(const std::string& what, int error_number) {
  ErrorCode code = ErrorCode::io;
  if (error_number == ENOENT) code = ErrorCode::not_found;
  if (error_number == EACCES || error_number == EPERM) code = ErrorCode::denied;
  if (error_number == ENOSPC || error_number == EDQUOT) code = ErrorCode::exhausted;
  std::array<char, 128> buffer{};
  return Error(code, what + ": " + strerror_r(error_number, buffer.data(), buffer.size()));
}

Error as_error(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error)) return *known;
  return Error(ErrorCode::io, error.what());
}

Error as_defect(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error)) return *known;
  return Error(ErrorCode::internal, std::string("a defect: ") + error.what());
}

}  // namespace dtrain
