#include "trainer/api/module.hpp"

#include "trainer/core/error.hpp"
#include "trainer/train/objects.hpp"

namespace dtrain::train {

template <typename Value>
void MetricLog::add(const std::string& name, const Value& value, std::int64_t samples,
                    const LogOptions& options) {
  Entry& entry = entries_[name];  // stays where it is until all is read
  entry.options = options;
  entry.on_step = options.on_step.value_or(on_step_);
  entry.on_epoch = options.on_epoch.value_or(on_epoch_);
  entry.is_new = true;
  late_.add(value, [this, name, &entry, bar = options.prog_bar,
                    count = static_cast<double>(samples)](double read) {
    entry.last = read;
    entry.sum += read * count;
    entry.samples += count;
    if (bar) progress_bar_[name] = read;
  });
}

template void MetricLog::add(const std::string&, const double&, std::int64_t, const LogOptions&);
template void MetricLog::add(const std::string&, const at::Tensor&, std::int64_t,
                             const LogOptions&);

// With both, the two are told apart as in Lightning.
std::string MetricLog::step_name(const std::string& name, const Entry& entry) const {
  return entry.on_step && entry.on_epoch ? name + "_step" : name;
}

Metrics MetricLog::take_step(Context& context, bool flushes) {
  if (flushes) late_.read();
  Metrics metrics;
  std::vector<double> synced;
  for (auto& [name, entry] : entries_) {
    if (!entry.on_step || !entry.is_new) continue;
    entry.is_new = false;
    if (!flushes) continue;
    if (entry.options.sync_dist) synced.push_back(entry.last);
    metrics[step_name(name, entry)] = entry.last;
  }
  if (!flushes || synced.empty()) return metrics;
  synced = context.all_reduce_sum(std::move(synced));
  std::size_t next = 0;
  for (const auto& [name, entry] : entries_) {
    const auto found = metrics.find(step_name(name, entry));
    if (found == metrics.end() || !entry.options.sync_dist) continue;
    found->second = synced[next++] / context.world_size();
  }
  return metrics;
}

Metrics MetricLog::means(Context& context) {
  late_.read();
  // A rank without batches knows no names: the sums go as objects.
  nlohmann::json mine = nlohmann::json::object();
  for (const auto& [name, entry] : entries_) {
    if (!entry.on_epoch) continue;
    const std::string shown = entry.on_step ? name + "_epoch" : name;
    mine[shown] = {entry.options.sync_dist, entry.sum, entry.samples};
  }
  struct Sum {
    double sum = 0;
    double samples = 0;
  };
  std::map<std::string, Sum> sums;
  const std::vector<nlohmann::json> all = all_gather_objects(context, mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto& [name, value] : all[rank].items()) {
      const bool own = static_cast<int>(rank) == context.rank();
      // What is not synced stays this rank's own.
      if (!value.at(0).get<bool>() && !own) continue;
      sums[name].sum += value.at(1).get<double>();
      sums[name].samples += value.at(2).get<double>();
    }
  }
  Metrics metrics;
  for (const auto& [name, sum] : sums) {
    if (sum.samples > 0) metrics[name] = sum.sum / sum.samples;
  }
  return metrics;
}

Metrics MetricLog::take_epoch(Context& context) {
  Metrics its = means(context);
  entries_.clear();
  progress_bar_.clear();
  return its;
}

nlohmann::json MetricLog::state() {
  late_.read();
  nlohmann::json state = nlohmann::json::object();
  for (const auto& [name, entry] : entries_) {
    state[name] = {{"sync_dist", entry.options.sync_dist},
                   {"on_step", entry.on_step},
                   {"on_epoch", entry.on_epoch},
                   // As metrics: a sum may be infinite, or no number.
                   {"sums", metrics_to_json({{"sum", entry.sum}, {"samples", entry.samples}})}};
  }
  return state;
}

void MetricLog::load_state(const nlohmann::json& state) {
  late_.read();
  entries_.clear();
  for (const auto& [name, saved] : state.items()) {
    Entry& entry = entries_[name];
    entry.options.sync_dist = saved.at("sync_dist").get<bool>();
    entry.on_step = saved.at("on_step").get<bool>();
    entry.on_epoch = saved.at("on_epoch").get<bool>();
    const Metrics sums = metrics_from_json(saved.at("sums"));
    entry.sum = sums.at("sum");
    entry.samples = sums.at("samples");
  }
}

void Module::validation_step(const Batch& /*batch*/, std::int64_t /*batch_index*/) {
  throw Error("the module has a val_dataloader but no validation_step");
}

LogOptions Module::log_options(const std::string& name, LogOptions options) const {
  if (log_ == nullptr) throw Error("log('" + name + "'): no Trainer runs this module");
  if (!in_epoch_hook_) return options;
  if (options.on_step.value_or(false) || !options.on_epoch.value_or(true)) {
    throw Error("log('" + name + "'): in a hook of an epoch there is no step: on_epoch alone");
  }
  options.on_step = false;
  options.on_epoch = true;
  return options;
}

void Module::log(const std::string& name, double value, const LogOptions& options) {
  const LogOptions its = log_options(name, options);
  log_->add(name, value, samples_, its);
}

void Module::log(const std::string& name, const at::Tensor& value, const LogOptions& options) {
  const LogOptions its = log_options(name, options);
  if (!value.defined() || value.numel() != 1) {
    throw Error("log('" + name + "'): the tensor is not one number");
  }
  log_->add(name, value, samples_, its);
}

std::vector<NamedParameter> Module::trained_parameters() const {
  return train::named_parameters(*this);
}

Trainer& Module::trainer() const {
  if (trainer_ == nullptr) throw Error("no Trainer has this module yet");
  return *trainer_;
}

}  // namespace dtrain::train
