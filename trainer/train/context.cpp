#include "trainer/train/context.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef DTRAIN_CUDA
#include <c10/cuda/CUDAFunctions.h>

#include "trainer/train/named_nccl.hpp"
#endif

#include "trainer/comm/backend.hpp"
#include "trainer/core/error.hpp"
#include "trainer/core/stacks.hpp"
#include "trainer/train/group_store.hpp"
#include "trainer/train/named_gloo.hpp"
#include "trainer/train/processor.hpp"
#include "trainer/train/tensor_cache.hpp"
#include "trainer/train/watch.hpp"

namespace dtrain::train {
namespace {

constexpr std::chrono::seconds kGoodbye{10};
constexpr const char* kLeftKey = "dtrain/left";

using GlooDevice = std::shared_ptr<::gloo::transport::Device>;

std::vector<GlooDevice> gloo_devices(const Environment& env) {
  std::vector<GlooDevice> devices;
  const std::string interfaces = process_variable("GLOO_SOCKET_IFNAME").value_or("");
  for (std::string::size_type begin = 0; begin < interfaces.size();) {
    const auto end = std::min(interfaces.find(',', begin), interfaces.size());
    const std::string name = interfaces.substr(begin, end - begin);
    if (name.empty()) throw Error("GLOO_SOCKET_IFNAME='" + interfaces + "' has an empty name");
    devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
    begin = end + 1;
  }
  if (!devices.empty()) return devices;
  if (env.one_node()) return {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  if (!env.node_ips.empty()) {
    const std::string& address = env.node_ips[static_cast<std::size_t>(env.node_rank)];
    return {c10d::ProcessGroupGloo::createDeviceForHostname(address)};
  }
  return {c10d::ProcessGroupGloo::createDefaultDevice()};
}

c10::Device pick_device([[maybe_unused]] const Environment& env) {
#ifdef DTRAIN_CUDA
  const int visible = c10::cuda::device_count();
  if (visible > 0) {
    const auto index = static_cast<c10::DeviceIndex>(gpu_index(env, visible));
    c10::cuda::set_device(index);
    return {c10::kCUDA, index};
  }
#endif
  return c10::Device(c10::kCPU);
}

Transport wanted_transport(const Context::Options& options) {
  const std::string name = process_variable("DTRAIN_TRANSPORT").value_or("");
  if (name.empty()) return options.transport;
  if (name == "gloo") return Transport::gloo;
  if (name == "shared_memory") return Transport::shared_memory;
  throw Error("environment: DTRAIN_TRANSPORT='" + name + "' is neither gloo nor shared_memory");
}

}  // namespace

struct Context::State {
  Environment environment;
  c10::Device device{c10::kCPU};
  c10::intrusive_ptr<c10d::TCPStore> tcp_store;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::shared_ptr<comm::SharedGroup> shared;       // null: CPU tensors go through Gloo
  std::shared_ptr<Calls> calls;                    // over Gloo and NCCL; null: there are none
  std::shared_ptr<std::weak_ptr<Watch>> explains;  // set before the first call
  std::shared_ptr<Watch> watch;
  bool communication_thread = false;  // through which all calls to `shared` go
  std::string no_shared_memory;
  std::uint64_t notes = 0;
  int exceptions_at_birth = std::uncaught_exceptions();

  const std::shared_ptr<Calls>& outside_calls();
  Explain explain();
  void connect(const Options& options);
  void connect_cpu(const Options& options);
  void begin_watch(const Options& options);
  void leave();
  void end_gpu_group(bool is_orderly);
};

// Of what does not go through shared memory.
const std::shared_ptr<Calls>& Context::State::outside_calls() {
  if (!calls) calls = std::make_shared<Calls>();
  return calls;
}

// By a weak reference: Gloo's and NCCL's threads may outlive all else when an exception ends the
// training.
Explain Context::State::explain() {
  if (!explains) explains = std::make_shared<std::weak_ptr<Watch>>();
  return [by = explains](const Call& failed) {
    const std::shared_ptr<Watch> its = by->lock();
    return its ? its->explain(failed) : std::string();
  };
}

void Context::State::connect_cpu(const Options& options) {
  const Environment& env = environment;
  const Transport wanted = wanted_transport(options);
  if (wanted != Transport::gloo) {
    comm::BackendOptions shared_options;
    shared_options.timeout = options.timeout;
    shared_options.join_timeout = options.join_timeout;
    shared_options.thread = options.communication_thread;
    comm::SharedBackend made =
        comm::make_shared_backend(c10::make_intrusive<c10d::PrefixStore>("shared_memory", store),
                                  env.rank, env.world_size, shared_options);
    if (made.backend) {
      shared = std::move(made.group);
      communication_thread = options.communication_thread;
      group->setBackend(c10::kCPU, c10d::ProcessGroup::CUSTOM, made.backend);
      group->setDefaultBackend(c10d::ProcessGroup::CUSTOM);
      return;
    }
    if (wanted == Transport::shared_memory) {
      throw Error("the ranks cannot share memory: " + made.problem);
    }
    no_shared_memory = std::move(made.problem);
    if (env.rank == 0) {
      std::fprintf(stderr, "note: the ranks talk by Gloo, not by shared memory: %s\n",
                   no_shared_memory.c_str());
    }
  }
  auto gloo_options = c10d::ProcessGroupGloo::Options::create(options.timeout);
  gloo_options->devices = gloo_devices(env);
  auto gloo = make_named_gloo(c10::make_intrusive<c10d::PrefixStore>("gloo", store), env.rank,
                              env.world_size, gloo_options, outside_calls(), explain());
  group->setBackend(c10::kCPU, c10d::ProcessGroup::GLOO, gloo);
  group->setDefaultBackend(c10d::ProcessGroup::GLOO);
}

void Context::State::connect(const Options& options) {
  const Environment& env = environment;
  tcp_store = open_group_store(env, options.join_timeout);
  store = c10::make_intrusive<c10d::PrefixStore>(
      "/worker/attempt_" + std::to_string(env.attempt - 1), tcp_store);
  // Below, `group` must live on the heap: its operations take references of it.
  group = c10::make_intrusive<c10d::ProcessGroup>(store, env.rank, env.world_size);
#ifdef DTRAIN_CUDA
  if (device.is_cuda()) group->setBoundDeviceId(device);  // before setBackend, which hands it on
#endif
  connect_cpu(options);
#ifdef DTRAIN_CUDA
  if (device.is_cuda()) {
    auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
    nccl_options->timeout = options.timeout;
    auto nccl = make_named_nccl(c10::make_intrusive<c10d::PrefixStore>("nccl", store), env.rank,
                                env.world_size, nccl_options, outside_calls(), explain());
    group->setBackend(c10::kCUDA, c10d::ProcessGroup::NCCL, nccl);
    group->setDefaultBackend(c10d::ProcessGroup::NCCL);
  }
#endif
}

void Context::State::begin_watch(const Options& options) {
  Watch::Joined joined;
  joined.group = shared;
  joined.calls = calls;
  // What a GPU waits for is not seen from here, and what a thread of its own does beside the
  // training is no time of the training's.
  const bool tells = device.is_cpu();
  if (shared && communication_thread) {
    joined.collective_time = [] { return std::optional<CollectiveTime>(); };
  } else if (shared) {
    joined.collective_time = [its = shared, tells] {
      const comm::SharedGroup::Spent spent = its->spent();
      return CollectiveTime{spent.inside - spent.waiting, spent.waiting, tells, tells};
    };
  } else if (group) {
    joined.collective_time = [its = calls, tells] {
      return CollectiveTime{{}, its->waited(), false, tells};
    };
  }
  if (store) {
    joined.board.write = [to = store](const std::string& name, const std::string& text) {
      to->set(name, std::vector<std::uint8_t>(text.begin(), text.end()));
    };
    joined.board.read = [from = store](const std::string& name) -> std::optional<std::string> {
      if (!from->check({name})) return std::nullopt;
      const std::vector<std::uint8_t> text = from->get(name);
      return std::string(text.begin(), text.end());
    };
  }
  Watch::Options its;
  // Several times within a collective's timeout, so that what the ranks say of themselves is new.
  its.beat = std::clamp(options.timeout / 4, std::chrono::milliseconds(10), its.beat);
  watch = std::make_shared<Watch>(environment, std::move(joined), its);
  if (explains) *explains = watch;
}

// NCCL's communicators go while the store, which they look at, is still there, and in a thread that
// may be left behind: a peer that is gone must not keep this rank from ending. In order where all
// ranks have come here; else aborted, which sets peers free that wait for this rank.
void Context::State::end_gpu_group(bool is_orderly) {
  if (!device.is_cuda() || !group) return;
  auto done = std::make_shared<std::promise<void>>();
  std::future<void> ends = done->get_future();
  std::thread([done, is_orderly, on = device, to = store, ranks = environment.world_size,
               backend = group->getBackend(device.type())] {
    try {
      const c10::DeviceGuard guard(on);
      if (is_orderly) {
        // Nobody's last collective may still read from a rank that ends.
        c10::impl::VirtualGuardImpl(on.type()).synchronizeDevice(on.index());
        if (to->add("dtrain/gpus_idle", 1) == ranks)
          to->set("dtrain/all_gpus_idle", std::vector<std::uint8_t>{1});
        to->wait({"dtrain/all_gpus_idle"}, kGoodbye);
        backend->shutdown();
      } else {
        backend->abort();
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "warning: NCCL did not end in order: %s\n", error.what());
    }
    done->set_value();
  }).detach();
  if (ends.wait_for(2 * kGoodbye) != std::future_status::ready) {
    std::fprintf(stderr, "warning: NCCL did not end within %lld s: its communicators are left\n",
                 2LL * kGoodbye.count());
  }
}

// Rank 0 hosts the store: it stays until every other rank has said that it is done.
void Context::State::leave() {
  // It looks at the store, which is about to go.
  if (!watch->end()) static_cast<void>(new std::shared_ptr<Watch>(std::move(watch)));
  if (!group) return;
  const bool is_orderly = std::uncaught_exceptions() <= exceptions_at_birth;
  if (!is_orderly) {
    end_gpu_group(is_orderly);
    // Gloo's threads may wait for a peer for as long as its timeout. The process is about to end.
    static_cast<void>(group.release());
    static_cast<void>(store.release());
    static_cast<void>(tcp_store.release());
    return;
  }
  try {
    if (!shared) {  // shared memory outlives the ranks, connections do not
      at::Tensor token = at::zeros({1}, at::kFloat);
      std::vector<at::Tensor> tensors{token};
      group->getBackend(c10::kCPU)->allreduce(tensors)->wait(kGoodbye);
    }
    end_gpu_group(is_orderly);
    if (!environment.agent_store) {
      const std::int64_t left = store->add(kLeftKey, 1);
      if (left == environment.world_size)
        store->set("dtrain/all_left", std::vector<std::uint8_t>{1});
      if (environment.rank == 0) store->wait({"dtrain/all_left"}, kGoodbye);
    }
  } catch (const std::exception&) {
    // A peer that is gone already. This rank's work is done and checked; it just leaves.
  }
}

Context::Context(std::unique_ptr<State> state) : state_(std::move(state)) {}
Context::Context(Context&&) noexcept = default;
Context::~Context() {
  if (state_) state_->leave();
}

Context Context::join() {
  return join(read_environment(), Options{});
}

Context Context::join(const Environment& environment, const Options& options) {
  prepare_processor(environment.local_rank == 0);
  if (options.num_threads > 0) at::set_num_threads(options.num_threads);
  auto state = std::make_unique<State>();
  state->environment = environment;
  state->device = pick_device(environment);
  if (state->device.is_cpu()) install_tensor_cache();
  if (environment.world_size > 1) state->connect(options);
  state->begin_watch(options);
  return Context(std::move(state));
}

const Environment& Context::environment() const {
  return state_->environment;
}
int Context::rank() const {
  return state_->environment.rank;
}
int Context::world_size() const {
  return state_->environment.world_size;
}
c10::Device Context::device() const {
  return state_->device;
}
Transport Context::transport() const {
  if (!state_->group) return Transport::automatic;
  return state_->shared ? Transport::shared_memory : Transport::gloo;
}
const std::string& Context::no_shared_memory() const {
  return state_->no_shared_memory;
}
c10d::ProcessGroup* Context::process_group() const {
  return state_->group.get();
}

comm::SharedGroup* Context::shared_group() const {
  return state_->communication_thread ? nullptr : state_->shared.get();
}

void Context::barrier() {
  all_reduce_sum(at::zeros({1}, at::kFloat));
}

void Context::all_reduce_sum(at::Tensor tensor) {
  if (!state_->group) return;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  state_->group->allreduce(tensors)->wait();
}

double Context::all_reduce_sum(double value) {
  return all_reduce_sum(std::vector{value}).front();
}

std::vector<double> Context::all_reduce_sum(std::vector<double> values) {
  // On the CPU in double, whatever the device: these are a few numbers, and must be exact.
  at::Tensor tensor =
      at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kDouble);
  all_reduce_sum(tensor);
  return values;
}

void Context::broadcast(at::Tensor tensor, int from) {
  if (!state_->group) return;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = from;
  state_->group->broadcast(tensors, options)->wait();
}

std::string Context::broadcast(const std::string& text, int from) {
  if (!state_->group) return text;
  at::Tensor size = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  broadcast(size, from);
  at::Tensor bytes = at::zeros({size.item<std::int64_t>()}, at::kByte);
  if (rank() == from) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  if (bytes.numel() > 0) broadcast(bytes, from);
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<std::size_t>(bytes.numel())};
}

std::vector<at::Tensor> Context::all_gather(const at::Tensor& tensor) {
  if (!state_->group) return {tensor.clone()};
  std::vector<at::Tensor> inputs{tensor.contiguous()};
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int i = 0; i < world_size(); ++i) outputs[0].push_back(at::empty_like(inputs[0]));
  state_->group->allgather(outputs, inputs)->wait();
  return outputs[0];
}

std::vector<std::string> Context::all_gather(const std::string& text) {
  if (!state_->group) return {text};
  const auto size = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> sizes;
  std::int64_t longest = 0;
  for (const at::Tensor& each : all_gather(at::full({1}, size, at::kLong))) {
    sizes.push_back(each.item<std::int64_t>());
    longest = std::max(longest, sizes.back());
  }
  std::vector<std::string> texts(sizes.size());
  if (longest == 0) return texts;
  const at::Tensor bytes = at::zeros({longest}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  const std::vector<at::Tensor> all = all_gather(bytes);
  for (std::size_t i = 0; i < all.size(); ++i) {
    texts[i].assign(static_cast<const char*>(all[i].const_data_ptr()),
                    static_cast<std::size_t>(sizes[i]));
  }
  return texts;
}

std::string Context::new_note() {
  return "dtrain/note/" + std::to_string(++state_->notes);
}

void Context::write_note(const std::string& name, const std::string& text) const {
  state_->watch->write(name, text);
}

std::optional<std::string> Context::read_note(const std::string& name) const {
  return state_->watch->read(name);
}

void Context::set_step(std::int64_t step) {
  set_crash_step(step);
  state_->watch->set_step(step);
  if (state_->shared) state_->shared->set_step(step);
}

const char* Context::set_phase(const char* phase) {
  return state_->watch->set_phase(phase);
}

std::optional<StepSums> Context::step_sums() const {
  return state_->watch->step_sums();
}

void Context::seed(std::uint64_t seed) const {
  at::manual_seed(seed + static_cast<std::uint64_t>(rank()));
}

}  // namespace dtrain::train
