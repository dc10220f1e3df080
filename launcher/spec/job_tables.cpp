#include "launcher/spec/limits.hpp"
#include "launcher/spec/table.hpp"

namespace dtrain::spec {

using nlohmann::json;

namespace {

const json kNumber{{"type", "number"}};
const json kWord{{"type", {"string", "number", "boolean"}}};

json at_least_one_of(json first, json second) {
  return json{{"anyOf", json::array({std::move(first), std::move(second)})}};
}

json secrets_schema() {
  json from_file{{"type", "object"},
                 {"properties", {{"file", {{"type", "string"}}}}},
                 {"required", json::array({"file"})},
                 {"additionalProperties", false}};
  json named{{"type", "object"},
             {"propertyNames", {{"pattern", "^[A-Za-z_][A-Za-z0-9_]*$"}}},
             {"additionalProperties", from_file}};
  json one = named;
  one["minProperties"] = 1;
  one["maxProperties"] = 1;
  json name{{"type", "string"}, {"pattern", "^[A-Za-z_][A-Za-z0-9_]*$"}};
  return at_least_one_of(
      {{"type", "array"}, {"items", at_least_one_of(std::move(name), std::move(one))}},
      std::move(named));
}

}  // namespace

const Table& job_resources_table() {
  static const Table table{
      "resources",
      {
          example(key("CPU", Shape::number(0, limits::kCpus), nullptr,
                      "CPUs of each rank. 1 if neither CPU nor GPU is given and `nproc_per_node` "
                      "is not `gpu`."),
                  "CPU: 4"),
          example(
              key("GPU",
                  Shape::special(
                      "whole number, or a part of one (0.25)",
                      at_least_one_of({{"type", json::array({"integer", "null"})},
                                       {"minimum", 0},
                                       {"maximum", limits::kGpus}},
                                      {{"type", "number"}, {"minimum", 0}, {"maximum", 1}})),
                  nullptr,
                  "GPUs of each rank; below 1 in ten-thousandths: a part of one, which ranks of "
                  "other jobs have the rest of. 1 with `nproc_per_node: gpu`."),
              "GPU: 1, or GPU: 0.25"),
          example(
              key("memory",
                  Shape::special("amount of memory (4GiB, 500MB, or bytes)",
                                 json{{"type", {"string", "integer", "null"}}}),
                  nullptr,
                  "Memory of each rank: the head places by it, and the node holds the rank to it "
                  "where it can."),
              "memory: 4GiB"),
      },
      true};
  return table;
}

const Table& job_checkpoint_table() {
  static const Table table{
      "checkpoint",
      {
          example(
              key("num_to_keep", Shape::whole(1, limits::kKept), nullptr,
                  "How many checkpoints to keep: the best by `score_attribute`, else the newest. "
                  "The newest is always kept. Absent: all."),
              "num_to_keep: 3"),
          example(key("score_attribute", Shape::text(), nullptr,
                      "The metric that says which checkpoint is better."),
                  "score_attribute: val_accuracy"),
          key("score_order", Shape::choice({"max", "min"}), "max",
              "Whether more or less of it is better."),
      }};
  return table;
}

const Table& job_restart_table() {
  static const Table table{
      "restart",
      {
          example(
              key("on",
                  Shape::special("list of failures",
                                 json{{"type", "array"},
                                      {"items", {{"type", {"string", "integer"}}}},
                                      {"minItems", 1}}),
                  nullptr,
                  "After which failures: `exit_code`, `signal`, `out_of_memory`, "
                  "`not_started`, `node_lost`, `preempted`, `hang`, `other`, or single exit codes "
                  "(`75`) and signals (`SIGUSR1`). Absent: after each."),
              "on: [75, SIGKILL, node_lost, preempted]"),
          example(key("count",
                      Shape::special("list of node_lost and preempted",
                                     json{{"type", "array"},
                                          {"items", {{"enum", {"node_lost", "preempted"}}}}}),
                      json::array(),
                      "Which of these count among `max_restarts` as well. They are no failure of "
                      "the job's: without it the job begins anew however often."),
                  "count: [node_lost]"),
          example(key("window_s", Shape::whole(1, static_cast<double>(limits::kTimeoutSeconds)),
                      nullptr,
                      "Seconds in which there may be `max_restarts`. Absent: over the whole job."),
                  "window_s: 86400"),
          key("backoff_s", Shape::whole(0, static_cast<double>(limits::kBackoffSeconds)), 0,
              "Seconds from a failure to the next attempt, twice as long after each further one "
              "without a new checkpoint, at most an hour. None after `preempted`."),
          key("same_failure", Shape::choice({"stop", "restart"}), "stop",
              "`stop`: the same failure at the same step twice in a row ends the job, whatever is "
              "left of `max_restarts`."),
      }};
  return table;
}

const Table& job_table() {
  static const Table table{
      "a job YAML",
      {
          example(key("name", Shape::text(), nullptr,
                      "1 to 40 of a-z A-Z 0-9 . _ -. Absent: the program's file name."),
                  "name: mnist"),
          example(required(key(
                      "command",
                      Shape::special(
                          "list of words, or text for a shell",
                          at_least_one_of({{"type", "string"}, {"minLength", 1}},
                                          {{"type", "array"}, {"items", kWord}, {"minItems", 1}})),
                      nullptr,
                      "What each rank runs: a list is started as it is, a text goes to "
                      "/bin/sh -c.")),
                  "command: [./train, --epochs, 3]"),
          example(expands(key("workdir", Shape::text(), nullptr,
                              "Where the ranks run. Relative to the YAML; absent: the YAML's "
                              "folder.")),
                  "workdir: ."),
          example(expands(key("env",
                              Shape::special(
                                  "mapping of names to texts",
                                  json{{"type", "object"},
                                       {"propertyNames", {{"pattern", "^[A-Za-z_][A-Za-z0-9_]*$"}}},
                                       {"additionalProperties", kWord}}),
                              json::object(), "Environment variables of the ranks.")),
                  "env: {OMP_NUM_THREADS: 4}"),
          example(key("secrets",
                      Shape::special("list of names, or mapping of names to {file: PATH}",
                                     secrets_schema()),
                      json::array(),
                      "Environment variables whose values are not written down: taken from the "
                      "environment of `dtrain submit`, or from a file. Never a value."),
                  "secrets: [HF_TOKEN], or secrets: {HF_TOKEN: {file: ~/.hf_token}}"),
          key("setup", Shape::text(), "",
              "Shell lines that run once on each node before the job's first ranks there."),
          example(key("nnodes",
                      Shape::special(
                          "whole number, or \"min:max\"",
                          at_least_one_of(
                              {{"type", "integer"}, {"minimum", 1}, {"maximum", limits::kNodes}},
                              {{"type", "string"}, {"pattern", "^[0-9]+(:[0-9]+)?$"}})),
                      1, "How many nodes, 1 to 10000, as torchrun's --nnodes."),
                  "nnodes: 4, or nnodes: \"2:8\""),
          example(key("nproc_per_node",
                      Shape::special("whole number, gpu or cpu",
                                     at_least_one_of({{"type", "integer"},
                                                      {"minimum", 1},
                                                      {"maximum", limits::kProcsPerNode}},
                                                     {{"enum", {"gpu", "cpu"}}})),
                      1,
                      "How many ranks a node, 1 to 4096; `gpu`: one for each GPU, `cpu`: one for "
                      "each CPU."),
                  "nproc_per_node: 2, or nproc_per_node: gpu"),
          key("max_restarts", Shape::whole(0, limits::kRestarts), 0,
              "How many times all ranks are started anew, from the newest checkpoint, after one "
              "has failed."),
          example(key("restart", Shape::mapping(job_restart_table()), nullptr,
                      "After which failures that is done, and when."),
                  "restart: {on: [75, node_lost, preempted], backoff_s: 10}"),
          key("spares", Shape::whole(0, limits::kSpares), 0,
              "Nodes beyond its own that are kept for the job, prepared, while it runs: the next "
              "attempt takes them in the place of lost ones. Wished: it starts without them."),
          example(key("resources", Shape::mapping(job_resources_table()), nullptr,
                      "What each rank needs; beside these, names of your own that `resources` of "
                      "node types has."),
                  "resources: {CPU: 4, GPU: 1, memory: 8GiB}"),
          example(key("label_selector",
                      Shape::special(
                          "mapping of labels to what they are to be",
                          json{{"type", "object"}, {"additionalProperties", {{"type", "string"}}}}),
                      json::object(),
                      "Which nodes will do, by the `labels` of their type: `VALUE`, `!VALUE`, "
                      "`in(A, B)` or `!in(A, B)`, as in Ray."),
                  "label_selector: {tier: gold}"),
          example(expands(key("storage_path", Shape::text(), nullptr,
                              "A folder that all nodes see, for checkpoints. Relative to the YAML; "
                              "absent: on the head.")),
                  "storage_path: /shared/checkpoints"),
          example(key("checkpoint", Shape::mapping(job_checkpoint_table()), nullptr,
                      "Which checkpoints are kept."),
                  "checkpoint: {num_to_keep: 3, score_attribute: val_accuracy}"),
          key("bundle", Shape::choice({"auto", "off"}), "auto",
              "`auto`: the program's shared libraries go along to nodes that lack them."),
          key("on_head_lost", Shape::choice({"continue", "stop"}), "continue",
              "What ranks do when their node no longer reaches the head: go on, or stop before "
              "the head may start them elsewhere."),
          key("launcher", Shape::choice({"direct", "srun"}), "direct",
              "`srun`: on nodes of one Slurm allocation each rank is a task of srun with PMIx, for "
              "programs that find each other by MPI."),
          key("cpu_bind", Shape::choice({"none", "cores"}), "none",
              "`cores`: each rank runs on CPUs of its own, as many as `resources` says, whole "
              "cores "
              "of one NUMA node where there are; as Slurm's --cpu-bind."),
          key("stop_grace_s", Shape::whole(0, static_cast<double>(limits::kGraceSeconds)), 30,
              "Seconds from SIGTERM to SIGKILL."),
          example(
              key("timeout_s", Shape::whole(1, static_cast<double>(limits::kTimeoutSeconds)),
                  nullptr, "Seconds that the job may run, over all attempts. Absent: no limit."),
              "timeout_s: 3600"),
          example(
              key("queue_timeout_s", Shape::whole(0, static_cast<double>(limits::kTimeoutSeconds)),
                  nullptr, "Seconds that the job may wait in the queue. Absent: no limit."),
              "queue_timeout_s: 600"),
          example(
              key("hang_timeout_s", Shape::whole(1, static_cast<double>(limits::kTimeoutSeconds)),
                  nullptr,
                  "Seconds in which some rank must get further. Absent: ten times the median step, "
                  "at least 5 minutes, once 20 steps were reported; else no limit."),
              "hang_timeout_s: 600"),
          key("on_hang", Shape::choice({"report", "restart", "nothing"}), "report",
              "What follows when none does: it is said which rank lags, or the attempt fails for "
              "that, or nothing."),
          example(key("log_limit",
                      Shape::special("amount of bytes (4GiB, 500MB, or bytes)",
                                     json{{"type", {"string", "integer", "null"}}}),
                      nullptr,
                      "How much of what each rank wrote is kept, of stdout and of stderr each: the "
                      "newest, at least 16 MiB; 0: all of it. Absent: 1 GiB."),
                  "log_limit: 4GiB"),
          key("priority", Shape::whole(-limits::kPriority, limits::kPriority), 0,
              "The larger goes first; of equals the older."),
      }};
  return table;
}

}  // namespace dtrain::spec
