#include "trainer/schedule/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

using nlohmann::json;

void require(bool condition, const std::string& what) {
  if (!condition) throw Error("schedule: " + what);
}

// A schedule that is one formula.
class Formula : public Schedule {
 public:
  using Rule = std::function<Rate(double base, std::int64_t done)>;
  Formula(json description, Rule rule)
      : description_(std::move(description)), rule_(std::move(rule)) {}
  Rate at(double base, std::int64_t done) const override {
    return rule_(base, std::max<std::int64_t>(done, 0));
  }
  json describe() const override { return description_; }

 private:
  json description_;
  Rule rule_;
};

SchedulePtr formula(json description, Formula::Rule rule) {
  return std::make_shared<Formula>(std::move(description), std::move(rule));
}

// Half a cosine from `from` at 0 to `to` at 1.
double half_cosine(double from, double to, double part) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

struct Phase {
  double end = 0;  // the step at which it is over
  double from_lr = 0;
  double to_lr = 0;
  double from_momentum = 0;
  double to_momentum = 0;
};

std::vector<Phase> phases_of(const OneCycle& c) {
  const double first = c.max_lr / c.div_factor;
  const double last = first / c.final_div_factor;
  const double low = c.base_momentum;
  const double high = c.max_momentum;
  const auto total = static_cast<double>(c.total_steps);
  const double up = c.pct_start * total;
  if (c.three_phase) {
    return {{up - 1, first, c.max_lr, high, low},
            {2 * up - 2, c.max_lr, first, low, high},
            {total - 1, first, last, high, high}};
  }
  return {{up - 1, first, c.max_lr, high, low}, {total - 1, c.max_lr, last, low, high}};
}

constexpr const char* kLengths[]{"total_steps", "steps", "first"};

json without_lengths(json description) {
  for (const char* key : kLengths) description.erase(key);
  if (description.contains("milestones")) {
    description["milestones"] = description["milestones"].size();
  }
  if (description.contains("schedules")) {
    for (json& part : description["schedules"]) part = without_lengths(std::move(part));
  }
  return description;
}

// Until its last change, or the first restart.
std::int64_t length_of(const json& description) {
  std::int64_t length = 0;
  for (const char* key : kLengths) length += description.value(key, std::int64_t{0});
  if (const auto found = description.find("milestones");
      found != description.end() && !found->empty()) {
    length += found->back().get<std::int64_t>();
  }
  if (const auto found = description.find("schedules"); found != description.end()) {
    length += length_of(found->back());
  }
  return length;
}

}  // namespace

SchedulePtr lambda_schedule(std::function<double(std::int64_t)> factor) {
  require(factor != nullptr, "a lambda schedule needs a function");
  return formula({{"kind", "lambda"}}, [factor = std::move(factor)](double base, std::int64_t n) {
    return Rate{base * factor(n), std::nullopt};
  });
}

SchedulePtr linear_schedule(double start, double end, std::int64_t steps) {
  require(start > 0 && start <= 1 && end >= 0 && end <= 1 && steps >= 1,
          "a linear one needs a start above 0 and an end, both at most 1, and 1 step or more");
  return formula({{"kind", "linear"}, {"start", start}, {"end", end}, {"steps", steps}},
                 [=](double base, std::int64_t n) {
                   const double part =
                       static_cast<double>(std::min(n, steps)) / static_cast<double>(steps);
                   return Rate{base * (start + (end - start) * part), std::nullopt};
                 });
}

SchedulePtr exponential_schedule(double gamma) {
  require(gamma > 0, "gamma must be above 0");
  return formula({{"kind", "exponential"}, {"gamma", gamma}}, [gamma](double base, std::int64_t n) {
    return Rate{base * std::pow(gamma, static_cast<double>(n)), std::nullopt};
  });
}

SchedulePtr multi_step_schedule(std::vector<std::int64_t> milestones, double gamma) {
  require(gamma > 0, "gamma must be above 0");
  require(std::is_sorted(milestones.begin(), milestones.end()), "milestones must not fall");
  json description = {{"kind", "multi_step"}, {"milestones", milestones}, {"gamma", gamma}};
  return formula(std::move(description),
                 [milestones = std::move(milestones), gamma](double base, std::int64_t n) {
                   const auto reached = std::upper_bound(milestones.begin(), milestones.end(), n) -
                                        milestones.begin();
                   return Rate{base * std::pow(gamma, static_cast<double>(reached)), std::nullopt};
                 });
}

SchedulePtr cosine_schedule(std::int64_t steps, double min) {
  require(steps >= 1, "a cosine needs 1 step or more");
  return formula({{"kind", "cosine"}, {"steps", steps}, {"min", min}},
                 [=](double base, std::int64_t n) {
                   const double part = static_cast<double>(n) / static_cast<double>(steps);
                   return Rate{half_cosine(base, min, part), std::nullopt};
                 });
}

SchedulePtr cosine_restarts_schedule(std::int64_t first, std::int64_t factor, double min) {
  require(first >= 1 && factor >= 1, "the first length and the factor must be at least 1");
  return formula({{"kind", "cosine_restarts"}, {"first", first}, {"factor", factor}, {"min", min}},
                 [=](double base, std::int64_t n) {
                   std::int64_t length = first;
                   if (factor == 1) {
                     n %= length;
                   } else {
                     for (; n >= length; length *= factor) n -= length;
                   }
                   const double part = static_cast<double>(n) / static_cast<double>(length);
                   return Rate{half_cosine(base, min, part), std::nullopt};
                 });
}

SchedulePtr one_cycle_schedule(const OneCycle& c) {
  require(c.max_lr > 0 && c.total_steps >= 1 && c.div_factor > 0 && c.final_div_factor > 0,
          "one cycle needs max_lr, total_steps and both factors above 0");
  require(c.pct_start >= 0 && c.pct_start <= 1, "pct_start must be from 0 to 1");
  json description = {{"kind", "one_cycle"},
                      {"max_lr", c.max_lr},
                      {"total_steps", c.total_steps},
                      {"pct_start", c.pct_start},
                      {"cosine", c.cosine},
                      {"cycle_momentum", c.cycle_momentum},
                      {"base_momentum", c.base_momentum},
                      {"max_momentum", c.max_momentum},
                      {"div_factor", c.div_factor},
                      {"final_div_factor", c.final_div_factor},
                      {"three_phase", c.three_phase}};
  return formula(std::move(description), [c, phases = phases_of(c)](double, std::int64_t n) {
    const auto step = static_cast<double>(std::min(n, c.total_steps - 1));
    double begin = 0;
    std::size_t i = 0;
    for (; i + 1 < phases.size() && step > phases[i].end; ++i) begin = phases[i].end;
    const Phase& phase = phases[i];
    const double length = phase.end - begin;
    const double part = length > 0 ? (step - begin) / length : 1;
    const auto value = [&](double from, double to) {
      return c.cosine ? half_cosine(from, to, part) : from + (to - from) * part;
    };
    Rate rate{value(phase.from_lr, phase.to_lr), std::nullopt};
    if (c.cycle_momentum) rate.momentum = value(phase.from_momentum, phase.to_momentum);
    return rate;
  });
}

SchedulePtr sequential_schedule(std::vector<SchedulePtr> schedules,
                                std::vector<std::int64_t> milestones) {
  require(!schedules.empty() && milestones.size() + 1 == schedules.size(),
          "a sequence needs one milestone less than schedules");
  require(std::is_sorted(milestones.begin(), milestones.end()), "milestones must not fall");
  json parts = json::array();
  for (const SchedulePtr& schedule : schedules) {
    require(schedule != nullptr, "a sequence has an empty schedule");
    parts.push_back(schedule->describe());
  }
  json description = {
      {"kind", "sequential"}, {"milestones", milestones}, {"schedules", std::move(parts)}};
  return formula(std::move(description), [schedules = std::move(schedules),
                                          milestones = std::move(milestones)](double base,
                                                                              std::int64_t n) {
    const auto reached = static_cast<std::size_t>(
        std::upper_bound(milestones.begin(), milestones.end(), n) - milestones.begin());
    const auto begin_of = [&](std::size_t part) { return part == 0 ? 0 : milestones[part - 1]; };
    Rate rate = schedules[reached]->at(base, n - begin_of(reached));
    // A momentum that a part has moved stays where its last step left it until another moves it.
    for (std::size_t part = reached; !rate.momentum && part-- > 0;) {
      const std::int64_t length = begin_of(part + 1) - begin_of(part);
      if (length > 0) rate.momentum = schedules[part]->at(base, length - 1).momentum;
    }
    return rate;
  });
}

std::optional<double> times_as_long(const json& one, const json& other) {
  if (without_lengths(one) != without_lengths(other)) return std::nullopt;
  const std::int64_t length = length_of(one);
  const std::int64_t others = length_of(other);
  if (length < 1 || others < 1) return std::nullopt;
  return static_cast<double>(length) / static_cast<double>(others);
}

}  // namespace dtrain::train
