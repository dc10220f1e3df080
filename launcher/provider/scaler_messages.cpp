#include "launcher/provider/scaler_messages.hpp"

#include <utility>

#include "launcher/core/framed.hpp"
#include "launcher/wire/fields.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {
namespace {

MachineState machine_state_of(const std::string& name) {
  for (const MachineState state :
       {MachineState::pending, MachineState::running, MachineState::stopping, MachineState::stopped,
        MachineState::gone}) {
    if (name == to_string(state)) return state;
  }
  throw Error(ErrorCode::invalid, "is no machine's state");
}

// All that is known of a machine, and not what cluster.json remembers of it.
struct WholeMachine {
  Machine machine;
};

}  // namespace

template <>
inline constexpr auto wire::kReader<MachineState> = machine_state_of;
template <>
inline constexpr auto wire::kReader<wire::WantedMachines> = wire::wanted_machines_from_json;

namespace {

void fields(wire::Is<WholeMachine> auto& m, auto&& f) {
  auto& machine = m.machine;
  f("node", machine.node, "type", machine.type, "instance_type",
    wire::if_set(machine.instance_type), "id", machine.id, "state", machine.state, "reason",
    machine.reason, "address", machine.address, "external_address", machine.external_address,
    "zone", machine.zone, "cluster", wire::any_id(machine.cluster), "launch", machine.launch,
    "created", machine.created, "head", machine.head, "joins", machine.joins, "spot",
    wire::if_set(machine.spot), "taken_back", wire::if_set(machine.taken_back));
}

}  // namespace

void fields(wire::Is<ScalerBegin> auto& m, auto&& f) {
  f("cluster_name", m.cluster_name, "notes", m.notes, "wanted", m.wanted);
}

void fields(wire::Is<ScalerRequest> auto& m, auto&& f) {
  f("type", m.type, "cluster", m.cluster, "launch", m.launch, "nodes", m.nodes, "scripts",
    m.scripts);
}

namespace {

struct WholeTask {
  ScalerTask::Kind kind = ScalerTask::Kind::list;
  std::vector<ScalerRequest> requests;
  std::vector<WholeMachine> machines;
  std::map<std::string, std::string> scripts;
};
BOOST_DESCRIBE_STRUCT(WholeTask, (), (kind, requests, machines, scripts))

struct WholeOutcome {
  std::optional<WholeMachine> machine;
  std::optional<Error> error;
};
BOOST_DESCRIBE_STRUCT(WholeOutcome, (), (machine, error))

template <typename M>
M from(const std::string& text, const char* what) {
  M message;
  wire::read(wire::parse_json(text, what, FramedStream::kLimit), message);
  return message;
}

}  // namespace

std::string to_text(const ScalerBegin& begin) {
  return wire::dump(wire::written(begin));
}

std::string to_text(const ScalerTask& task) {
  WholeTask whole{task.kind, task.requests, {}, task.scripts};
  for (const Machine& machine : task.machines) whole.machines.push_back({machine});
  return wire::dump(wire::written(whole));
}

std::string to_text(const ScalerOutcome& outcome) {
  WholeOutcome whole{{}, outcome.error};
  if (outcome.machine) whole.machine = WholeMachine{*outcome.machine};
  return wire::dump(wire::written(whole));
}

ScalerBegin scaler_begin_from(const std::string& text) {
  return from<ScalerBegin>(text, "what the head wants");
}

ScalerTask scaler_task_from(const std::string& text) {
  WholeTask whole = from<WholeTask>(text, "the head's task");
  ScalerTask task{whole.kind, std::move(whole.requests), {}, std::move(whole.scripts)};
  for (WholeMachine& each : whole.machines) task.machines.push_back(std::move(each.machine));
  return task;
}

ScalerOutcome scaler_outcome_from(const std::string& text) {
  WholeOutcome whole = from<WholeOutcome>(text, "dtrain-scaler's answer");
  ScalerOutcome outcome{{}, std::move(whole.error)};
  if (whole.machine) outcome.machine = std::move(whole.machine->machine);
  return outcome;
}

}  // namespace dtrain
