#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

// Machines that the head asks a provider for by itself, and that join by themselves: what `up` says
// of them (POST /v1/machines).
namespace dtrain::wire {

struct WantedMachines {
  static constexpr int kMost = 4000;  // of all types: of so many there are credentials at a time
  static constexpr int kMostCpus = 65536;  // of one machine
  static constexpr int kMostGpus = 1024;
  static constexpr int kLeastAtOnce = 5;  // whatever upscaling_speed is, as with Ray

  struct Type {
    std::string name;
    int count = 0;
    std::string launch;                // launch_hash() of it
    std::vector<std::string> options;  // what the provider's program is given for one of it
    nlohmann::json config = nlohmann::json::object();  // the same, where dtrain-scaler asks
    // So many there may be when jobs wait; not more than `count`: only that.
    int max_workers = 0;
    std::chrono::milliseconds idle_timeout{0};  // those above `count` go after so long
    int priority = 0;                           // of types that fit as well, the larger
    // What one has, where that is known before it is there.
    std::optional<double> cpus;
    std::optional<int> gpus;
    std::optional<std::uint64_t> memory;  // bytes

    int most() const { return std::max(count, max_workers); }
    bool grows() const { return max_workers > count; }
    bool operator==(const Type&) const = default;
  };

  // How the head asks for the machine of its successor, where it has one of its own that ends.
  struct Head {
    std::vector<std::string> options;  // what the provider's program is given
    std::string script;                // that the machine runs
    bool operator==(const Head&) const = default;
  };

  // The cluster goes down by itself once nothing has run for so long: its machines are given back,
  // and that of the head is stopped, or given back too.
  struct DownWhenIdle {
    std::chrono::milliseconds after{0};
    bool terminate = false;
    bool operator==(const DownWhenIdle&) const = default;
  };

  std::string provider;  // "slurm", "aws"; empty: the head asks nobody
  // Where it is not Slurm: dtrain-scaler, on the head's machine, which asks for the head; and what
  // it is to know of the provider, and nobody else.
  std::string scaler;
  nlohmann::json config = nlohmann::json::object();
  // On storage that the head's machine shares with those that it asks for: what they start with.
  std::string boot;
  std::vector<std::string> environment;  // NAME=VALUE, of the provider's programs
  std::vector<std::string> addresses;    // of the head, besides those that it has itself
  std::vector<Type> types;
  int max_workers = kMost;  // of all types
  // Of a type so many times as many as are here may be coming, or kLeastAtOnce; absent: any number.
  std::optional<double> upscaling_speed;
  bool replace = false;  // those of another launch configuration give way
  // Those that nobody needs are stopped, and started before others are made.
  bool cache_stopped_nodes = false;
  std::optional<Head> head;
  std::optional<DownWhenIdle> down_when_idle;

  bool operator==(const WantedMachines&) const = default;
};

nlohmann::json to_json(const WantedMachines& wanted);
// Error(invalid) names what is wrong.
WantedMachines wanted_machines_from_json(const nlohmann::json& json);

}  // namespace dtrain::wire
