#include "trainer/train/preemption.hpp"

#include <ATen/ops/zeros.h>
#include <signal.h>

#include <atomic>
#include <exception>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

volatile sig_atomic_t told_to_go = 0;
std::atomic<bool> in_use{false};

void remember(int /*signal*/) {
  told_to_go = 1;
}

}  // namespace

struct Preemption::State {
  c10d::ProcessGroup* group = nullptr;
  struct sigaction before {};
  at::Tensor words;                     // told to go; wants to stop
  c10::intrusive_ptr<c10d::Work> sent;  // null before the first call
  bool decided = false;
  bool stop_decided = false;
  int exceptions_at_birth = std::uncaught_exceptions();
};

Preemption::Preemption(Context& context) : state_(std::make_unique<State>()) {
  if (in_use.exchange(true)) throw Error("preemption: SIGTERM is handled by another object");
  state_->group = context.process_group();
  told_to_go = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGTERM, &action, &state_->before);
}

Preemption::~Preemption() {
  ::sigaction(SIGTERM, &state_->before, nullptr);
  in_use = false;
  // An exception ends the training: nobody is waited for.
  if (!state_->sent || std::uncaught_exceptions() > state_->exceptions_at_birth) return;
  try {
    state_->sent->wait();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a peer has gone, so do we
  }
}

bool Preemption::agreed(bool stop) {
  State& state = *state_;
  if (state.decided) return true;
  if (state.group == nullptr) {
    state.stop_decided = state.stop_decided || stop;
    return state.decided = told_to_go != 0;
  }
  if (state.sent) {
    std::exchange(state.sent, nullptr)->wait();
    state.decided = state.words[0].item<float>() > 0;
    state.stop_decided = state.stop_decided || state.words[1].item<float>() > 0;
    if (state.decided) return true;
  }
  // On the CPU whatever the device: nothing must wait for it there.
  state.words = at::zeros({2}, at::kFloat);
  if (told_to_go != 0) state.words[0].fill_(1);
  if (stop) state.words[1].fill_(1);
  std::vector<at::Tensor> tensors{state.words};
  state.sent = state.group->allreduce(tensors);
  return false;
}

bool Preemption::told() const {
  return told_to_go != 0;
}

bool Preemption::stop_agreed() const {
  return state_->stop_decided;
}

}  // namespace dtrain::train
