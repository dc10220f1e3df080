#include "launcher/cluster/head_desk.hpp"

#include <utility>

namespace dtrain {

template <typename Ready>
void HeadDesk::wait(std::unique_lock<std::mutex>& lock, const std::stop_token& stop, Ready ready) {
  changed_.wait(lock, stop, [&] { return error_.has_value() || ready(); });
  if (ready()) return;
  if (error_) {
    const auto code =
        error_->code() == ErrorCode::not_found ? ErrorCode::not_found : ErrorCode::failed;
    throw Error(code, "the head is not there: " + error_->message());
  }
  throw Error(ErrorCode::failed, "stopped");
}

void HeadDesk::open(Head head, std::function<std::string(const NodeId&, const std::string&)> sign) {
  const std::lock_guard lock(mutex_);
  if (head_) return;  // the head's thread goes through its steps again: others hold on to this
  head_ = std::move(head);
  sign_ = std::move(sign);
  changed_.notify_all();
}

void HeadDesk::open_files(fs::path folder) {
  const std::lock_guard lock(mutex_);
  files_ = std::move(folder);
  changed_.notify_all();
}

void HeadDesk::fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  error_ = error;
  changed_.notify_all();
}

HeadDesk::Head HeadDesk::head(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  wait(lock, stop, [&] { return head_.has_value(); });
  return *head_;
}

std::optional<HeadDesk::Head> HeadDesk::head_if_open() {
  const std::lock_guard lock(mutex_);
  return head_;
}

std::string HeadDesk::sign(const NodeId& node, const std::string& request) {
  const std::lock_guard lock(signing_);
  return while_doing("asking the head for a certificate", [&] { return sign_(node, request); });
}

fs::path HeadDesk::files(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  wait(lock, stop, [&] { return files_.has_value(); });
  return *files_;
}

}  // namespace dtrain
