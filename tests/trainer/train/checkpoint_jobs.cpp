#include <ATen/ATen.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "tests/trainer/train/jobs.hpp"
#include "tests/trainer/train/small_model.hpp"
#include "trainer/core/error.hpp"
#include "trainer/data/random.hpp"
#include "trainer/train/batches.hpp"
#include "trainer/train/ddp.hpp"
#include "trainer/train/scheduler.hpp"
#include "trainer/train/session.hpp"
#include "trainer/train/session_start.hpp"
#include "trainer/train/tensors.hpp"

namespace dtrain::train::test {
namespace {

constexpr std::uint64_t kSeed = 3;
constexpr std::int64_t kSteps = 14;
constexpr std::int64_t kSamples = 40;

int number_of(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

struct Batch {
  at::Tensor inputs;
  at::Tensor labels;
  std::vector<std::int64_t> indices;
};

// An image as one of the small model's inputs, flipped and shifted as (seed, epoch, index) say.
Loader<Batch>::Make augmented(const std::shared_ptr<const LabelledImages>& data,
                              std::int64_t epoch) {
  return [data, epoch](std::span<const std::int64_t> indices) {
    Batch batch{at::empty({static_cast<std::int64_t>(indices.size()), 8}),
                at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong),
                {indices.begin(), indices.end()}};
    for (std::size_t i = 0; i < indices.size(); ++i) {
      SampleRandom random(kSeed, epoch, indices[i]);
      const bool flip = random.coin();
      const auto shift = static_cast<float>(random.uniform());
      for (std::size_t pixel = 0; pixel < 8; ++pixel) {
        const std::size_t from = flip ? 7 - pixel : pixel;
        const std::uint8_t value =
            data->images.pixels[static_cast<std::size_t>(indices[i]) * 8 + from];
        batch.inputs[static_cast<std::int64_t>(i)][static_cast<std::int64_t>(pixel)] =
            static_cast<float>(value) / 255.0F + shift;
      }
      batch.labels[static_cast<std::int64_t>(i)] =
          data->labels[static_cast<std::size_t>(indices[i])];
    }
    return batch;
  };
}

std::unique_ptr<Optimizer> make_optimizer(const torch::nn::Module& model) {
  if (std::getenv("TEST_SGD") != nullptr) {
    return std::make_unique<Sgd>(decay_groups(model),
                                 SgdOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01});
  }
  return std::make_unique<AdamW>(decay_groups(model),
                                 AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
}

// A training with everything that a resume must bring back: shuffled and augmented data, dropout,
// batch norm, momenta, a schedule. Writes each step's loss and samples, and the weights at the end.
//
// TEST_DIE_AFTER=STEP kills the rank; TEST_TERM_AFTER=STEP sends SIGTERM to the last rank;
// TEST_EVERY=N steps between checkpoints; TEST_SAMPLES_OF_SCHEDULE=N makes the schedule as many
// steps long as N samples are with this number of ranks.
int train(Context& context, const std::filesystem::path& folder) {
  const int die_after = number_of("TEST_DIE_AFTER", -1);
  const int term_after = number_of("TEST_TERM_AFTER", -1);
  const int every = number_of("TEST_EVERY", 3);
  context.seed(7);
  auto model = make_small_model(1, {.batch_norm = true, .dropout = true});
  DdpOptions ddp_options;
  ddp_options.first_bucket_bytes = 256;
  ddp_options.bucket_bytes = 1024;
  // With three ranks over Gloo the layout of the buckets decides about the order of sums: this
  // way it is the same from the first step on.
  ddp_options.find_unused_parameters = context.world_size() > 2;
  Ddp ddp(model, context, ddp_options);
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(*model);
  const int of_schedule = number_of("TEST_SAMPLES_OF_SCHEDULE", 0);
  Scheduler scheduler(
      *optimizer,
      cosine_schedule(of_schedule > 0 ? of_schedule / (4 * context.world_size()) : kSteps));
  Session session(context, {.storage = folder / "storage", .retention = {}});
  session.keep("scheduler", {.save = [&] { return scheduler.state(); },
                             .load = [&](const auto& state) { scheduler.load_state(state); },
                             .alike = true,
                             .load_of_other_ranks =
                                 [&](const auto& state, const Warn& warn) {
                                   scheduler.load_state_of_other_ranks(state, warn);
                                 }});
  Place place = session.resume(*model, *optimizer).value_or(Place{});
  std::printf("begins at step %lld of the schedule\n", static_cast<long long>(scheduler.done()));
  std::fflush(stdout);
  const auto data = make_images(kSamples);
  DistributedSampler sampler(data->size(), context.rank(), context.world_size(), {.seed = kSeed});
  const std::string rank = std::to_string(context.rank());
  for (; place.step < kSteps; ++place.epoch, place.position = 0) {
    sampler.set_epoch(place.epoch, place.position);
    Loader<Batch> batches(sampler, {.batch_size = 4, .workers = 2}, augmented(data, place.epoch));
    std::int64_t taken = 0;
    while (auto batch = batches.next()) {
      at::Tensor loss =
          at::cross_entropy_loss(ddp(batch->inputs.to(here())), batch->labels.to(here()));
      loss.backward();
      optimizer->step();
      optimizer->zero_grad();
      scheduler.after_step();
      ++place.step;
      taken += batch->inputs.size(0);
      place.position = sampler.position_after(taken);
      std::FILE* losses = std::fopen((folder / ("losses-" + rank)).c_str(), "a");
      std::fprintf(losses, "%lld %a", static_cast<long long>(place.step), loss.item<double>());
      for (const auto i : batch->indices) std::fprintf(losses, " %lld", static_cast<long long>(i));
      std::fprintf(losses, "\n");
      std::fclose(losses);
      const bool last_rank = context.rank() + 1 == context.world_size();
      if (place.step == term_after && last_rank) ::raise(SIGTERM);
      if (term_after >= 0 && session.preempted()) {
        session.report(place, {}, *model, *optimizer);
        session.finish();
        return kExitPreempted;
      }
      if (place.step % every == 0) session.report(place, {{"loss", 0.5}}, *model, *optimizer);
      if (place.step == die_after) ::raise(SIGKILL);
      if (place.step == kSteps) break;
    }
  }
  session.finish();
  ddp.sync_buffers();
  FileSink sink(folder / ("final-" + rank + ".safetensors"));
  write_tensors(sink, state_dict(*model));
  sink.finish();
  return 0;
}

// The last rank cannot write its shard: every rank learns of it.
int broken_shard(Context& context, const std::filesystem::path& folder) {
  auto model = make_small_model(1);
  AdamW optimizer(named_parameters(*model), {});
  Session session(context, {.storage = folder / "storage", .retention = {}});
  if (context.rank() + 1 == context.world_size()) {
    session.keep_tensors(std::string(300, 'n'), [] { return TensorMap{}; });
  }
  session.report(Place{}, {}, *model, optimizer);
  try {
    session.finish();
  } catch (const Error& error) {
    std::printf("told: %s\n", error.what());
    std::fflush(stdout);
    return 7;
  }
  return 0;
}

// Each rank with a folder of its own, as on nodes to which a launcher has brought checkpoints.
int choose(Context& context, const std::filesystem::path& folder) {
  const auto node = folder / ("node-" + std::to_string(context.rank()));
  const auto chosen = choose_checkpoint(
      context,
      {.checkpoint = node / "checkpoints/checkpoint_000002", .storage = {}, .falls_back = true},
      [](const std::string& text) { std::printf("warned: %s\n", text.c_str()); });
  std::printf("chose step %lld\n", static_cast<long long>(chosen.value().manifest.step));
  std::fflush(stdout);
  return 0;
}

}  // namespace

int run_checkpoint_job(const std::string& name, Context& context,
                       const std::filesystem::path& folder) {
  const std::map<std::string, std::function<int(Context&, const std::filesystem::path&)>> jobs{
      {"train", train}, {"broken_shard", broken_shard}, {"choose", choose}};
  return jobs.at(name)(context, folder);
}

}  // namespace dtrain::train::test
