// Ranks that compare what DDP does with what one process does with the joined batch.
#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <stdexcept>

#include "tests/trainer/support/require.hpp"
#include "tests/trainer/train/jobs.hpp"
#include "tests/trainer/train/small_model.hpp"
#include "trainer/comm/allocator.hpp"
#include "trainer/core/error.hpp"
#include "trainer/train/context.hpp"
#include "trainer/train/ddp.hpp"
#include "trainer/train/optimizer.hpp"
#include "trainer/train/tensors.hpp"

namespace dtrain::train::test {
namespace {

// A model in which parameters are used in all the ways that a reducer must cope with.
class Branches : public torch::nn::Module {
 public:
  Branches()
      : first_(register_module("first", torch::nn::Linear(8, 8))),
        twice_(register_module("twice", torch::nn::Linear(8, 8))),
        left_(register_module("left", torch::nn::Linear(8, 3))),
        right_(register_module("right", torch::nn::Linear(8, 3))),
        never_(register_module("never", torch::nn::Linear(8, 3))) {}

  std::vector<at::Tensor> forward(const at::Tensor& inputs) {
    at::Tensor x = at::tanh(first_->forward(inputs));
    if (uses_twice) x = at::tanh(twice_->forward(x));
    x = at::tanh(twice_->forward(x));
    std::vector<at::Tensor> outputs{left_->forward(x)};
    if (two_outputs) outputs.push_back(right_->forward(x));
    return outputs;
  }

  bool uses_twice = false;
  bool two_outputs = false;

 private:
  torch::nn::Linear first_;
  torch::nn::Linear twice_;
  torch::nn::Linear left_;
  torch::nn::Linear right_;
  torch::nn::Linear never_;  // used by no forward
};

struct Case {
  std::string name;
  bool uses_twice = false;
  bool two_outputs = false;  // of which the loss uses one
  bool all_used = false;     // parameters that no step uses are frozen
  std::vector<bool> syncs{true, true, true, true};
};

std::shared_ptr<Branches> make_branches(const Case& c, std::uint64_t seed) {
  at::manual_seed(seed);
  auto model = std::make_shared<Branches>();
  model->uses_twice = c.uses_twice;
  model->two_outputs = c.two_outputs;
  if (c.all_used) {
    for (const auto& item : model->named_parameters()) {
      if (item.key().starts_with("never") || item.key().starts_with("right")) {
        item.value().set_requires_grad(false);
      }
    }
  }
  model->to(here());
  return model;
}

Examples part_of(const Examples& all, std::int64_t begin, std::int64_t size) {
  return {all.inputs.narrow(0, begin, size), all.labels.narrow(0, begin, size)};
}

void descend(torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  for (at::Tensor parameter : model.parameters()) {
    if (!parameter.grad().defined()) continue;
    parameter.add_(parameter.grad(), -0.5);
    parameter.mutable_grad().reset();
  }
}

void require_equal_on_all(Context& context, const torch::nn::Module& model,
                          const std::string& what) {
  for (const auto& item : model.named_parameters()) {
    for (const at::Tensor& theirs : context.all_gather(item.value().detach())) {
      require(theirs.equal(item.value()), what + ": " + item.key() + " is equal on all ranks");
    }
  }
}

void require_near(const torch::nn::Module& a, const torch::nn::Module& b, const std::string& what,
                  double tolerance = 1e-5) {
  const auto theirs = b.named_parameters();
  for (const auto& item : a.named_parameters()) {
    const at::Tensor& expected = theirs[item.key()];
    require(item.value().allclose(expected, tolerance, tolerance),
            what + ": " + item.key() + " is as in one process, differs by " +
                std::to_string((item.value() - expected).abs().max().item<double>()));
  }
}

// Trains for a few steps under DDP, and beside it one process with the joined batches.
void train_case(Context& context, const Case& c, DdpOptions options) {
  const auto world = static_cast<std::int64_t>(context.world_size());
  Ddp ddp(make_branches(c, 10 + static_cast<std::uint64_t>(context.rank())), context, options);
  auto reference = make_branches(c, 10);
  for (std::size_t step = 0; step < c.syncs.size(); ++step) {
    const Examples all = make_examples(static_cast<int>(step));
    const std::int64_t size = all.inputs.size(0) / world;
    const Examples mine = part_of(all, context.rank() * size, size);
    const auto backward = [&] {
      at::cross_entropy_loss(ddp(mine.inputs)[0], mine.labels).backward();
    };
    at::cross_entropy_loss(reference->forward(all.inputs)[0], all.labels).backward();
    if (c.syncs[step]) {
      backward();
      descend(ddp.module());
      descend(*reference);
    } else {
      const auto guard = ddp.no_sync();
      backward();
    }
  }
  require_equal_on_all(context, ddp.module(), c.name);
  require_near(ddp.module(), *reference, c.name);
}

DdpOptions small_buckets() {
  DdpOptions options;
  options.first_bucket_bytes = 64;
  options.bucket_bytes = 256;
  return options;
}

int static_graph(Context& context, const std::filesystem::path& /*folder*/) {
  const std::vector<Case> cases{
      {.name = "plain", .all_used = true},
      {.name = "reused", .uses_twice = true, .all_used = true},
      {.name = "unused"},
      {.name = "several outputs", .two_outputs = true},
      {.name = "first step without sync", .uses_twice = true, .syncs = {false, true, true, true}},
      {.name = "second step without sync",
       .uses_twice = true,
       .syncs = {true, false, false, true, false, true}},
  };
  for (const bool views : {true, false}) {
    for (Case c : cases) {
      DdpOptions options = small_buckets();
      options.static_graph = true;
      options.gradient_as_bucket_view = views;
      std::printf("%s\n", c.name.c_str());  // for the log of a rank that fails
      c.name += views ? " with views" : " without views";
      train_case(context, c, options);
    }
  }
  return 0;
}

int find_unused(Context& context, const std::filesystem::path& /*folder*/) {
  for (const bool views : {true, false}) {
    DdpOptions options = small_buckets();
    options.find_unused_parameters = true;
    options.gradient_as_bucket_view = views;
    train_case(context, {.name = "unused"}, options);
    train_case(context, {.name = "several outputs", .two_outputs = true}, options);
    train_case(context,
               {.name = "with accumulation", .syncs = {true, false, true, false, false, true}},
               options);
  }
  return 0;
}

// Parameters that are not used, and nobody asked to look for them.
int unused_error(Context& context, const std::filesystem::path& /*folder*/) {
  train_case(context, {.name = "unused"}, small_buckets());
  return 0;
}

int zero_grad_trap(Context& context, const std::filesystem::path& /*folder*/) {
  const Case c{.name = "plain", .all_used = true};
  Ddp ddp(make_branches(c, 1), context);
  torch::optim::SGD theirs(ddp.module().parameters(), 0.1);
  std::string message;
  for (int step = 0; step < 3 && message.empty(); ++step) {
    const Examples all = make_examples(step);
    at::cross_entropy_loss(ddp(all.inputs)[0], all.labels).backward();
    try {
      theirs.zero_grad(/*set_to_none=*/false);
    } catch (const c10::Error& error) {
      message = error.what_without_backtrace();
    }
  }
  require(message.find("Can't detach views in-place") != std::string::npos,
          "torch::optim's zero_grad throws on views: '" + message + "'");
  // Ours does not, and forgets.
  zero_grad(ddp.module());
  for (const at::Tensor& parameter : ddp.module().parameters()) {
    require(!parameter.grad().defined(), "no gradient is left");
  }
  return 0;
}

int halves(Context& context, const std::filesystem::path& /*folder*/) {
  for (const GradientType type : {GradientType::fp16, GradientType::bf16}) {
    for (const bool views : {true, false}) {
      const Case c{.name = "plain", .all_used = true};
      DdpOptions options = small_buckets();
      options.gradient_type = type;
      options.gradient_as_bucket_view = views;
      Ddp ddp(make_branches(c, 10), context, options);
      auto reference = make_branches(c, 10);
      for (int step = 0; step < 3; ++step) {
        const Examples all = make_examples(step);
        const std::int64_t size = all.inputs.size(0) / context.world_size();
        const Examples mine = part_of(all, context.rank() * size, size);
        at::cross_entropy_loss(ddp(mine.inputs)[0], mine.labels).backward();
        at::cross_entropy_loss(reference->forward(all.inputs)[0], all.labels).backward();
        const at::Tensor gradient = ddp.module().parameters()[0].grad();
        require(!gradient.equal(reference->parameters()[0].grad()), "it was rounded");
        const at::ScalarType half = type == GradientType::fp16 ? at::kHalf : at::kBFloat16;
        require(gradient.to(half).to(at::kFloat).equal(gradient), "to that type");
        descend(ddp.module());
        descend(*reference);
      }
      require_equal_on_all(context, ddp.module(), "halves");
      require_near(ddp.module(), *reference, "halves", 2e-2);
    }
  }
  return 0;
}

// Rank r has 3 + 2r batches; some of them accumulate. Everything stays equal on all ranks.
int uneven(Context& context, const std::filesystem::path& /*folder*/) {
  for (const bool finds : {false, true}) {
    DdpOptions options = small_buckets();
    options.find_unused_parameters = finds;
    Case c{.name = "uneven", .all_used = !finds};
    Ddp ddp(make_branches(c, 10 + static_cast<std::uint64_t>(context.rank())), context, options);
    auto reference = make_branches(c, 10);
    Adam optimizer(named_parameters(ddp.module()), {.lr = 1e-2});
    Adam reference_optimizer(named_parameters(*reference), {.lr = 1e-2});
    const auto update = [&] {
      optimizer.step();
      optimizer.zero_grad();
    };
    const int batches = 3 + 2 * context.rank();
    const int most = 3 + 2 * (context.world_size() - 1);
    {
      DistributedDataParallel::Join join(ddp);
      for (int batch = 0; batch < batches; ++batch) {
        const Examples mine = part_of(make_examples(batch), 4 * context.rank(), 4);
        const bool accumulates = batch == 1 || batch == 4;
        std::optional<DistributedDataParallel::NoSync> guard;
        if (accumulates) guard.emplace(ddp);
        at::cross_entropy_loss(ddp(mine.inputs)[0], mine.labels).backward();
        if (!accumulates) update();
      }
      join.finish(update);
    }
    // One process: the sum of what was gathered, over the number of those that still have a batch.
    at::Tensor loss = at::zeros({});
    for (int batch = 0; batch < most; ++batch) {
      int active = 0;
      for (int rank = 0; rank < context.world_size(); ++rank) {
        if (batch >= 3 + 2 * rank) continue;
        const Examples theirs = part_of(make_examples(batch), 4 * rank, 4);
        loss = loss + at::cross_entropy_loss(reference->forward(theirs.inputs)[0], theirs.labels);
        ++active;
      }
      if (batch == 1 || batch == 4) continue;
      (loss / active).backward();
      loss = at::zeros({});
      reference_optimizer.step();
      reference_optimizer.zero_grad();
    }
    require_equal_on_all(context, ddp.module(), c.name);
    require_near(ddp.module(), *reference, c.name, 1e-4);
    for (const auto& [key, tensor] : optimizer.state()) {
      for (const at::Tensor& theirs : context.all_gather(tensor)) {
        require(theirs.equal(tensor), "the optimizer's " + key + " is equal on all ranks");
      }
    }
    // And it goes on as if nothing had been.
    const Examples mine = part_of(make_examples(99), 4 * context.rank(), 4);
    at::cross_entropy_loss(ddp(mine.inputs)[0], mine.labels).backward();
    update();
    require_equal_on_all(context, ddp.module(), "after it");
  }
  return 0;
}

// A rank without any batch, and buckets that the others make anew meanwhile.
int no_batches(Context& context, const std::filesystem::path& /*folder*/) {
  const Case c{.name = "plain", .all_used = true};
  Ddp ddp(make_branches(c, 10), context, small_buckets());
  const auto update = [&] { descend(ddp.module()); };
  DistributedDataParallel::Join join(ddp);
  for (int batch = 0; batch < (context.rank() == 0 ? 0 : 5); ++batch) {
    const Examples mine = make_examples(batch);
    at::cross_entropy_loss(ddp(mine.inputs)[0], mine.labels).backward();
    update();
  }
  join.finish(update);
  require_equal_on_all(context, ddp.module(), "after it");
  require(!ddp.module().parameters()[0].equal(make_branches(c, 10)->parameters()[0]), "it moved");
  require(ddp.bucket_layout().size() > 2, "buckets were made anew");
  return 0;
}

TensorMap train_small(Context& context, DdpOptions options, int steps,
                      BucketLayout* layout = nullptr) {
  Ddp ddp(make_small_model(100), context, std::move(options));
  for (int step = 0; step < steps; ++step) {
    const Examples all = make_examples(step);
    const std::int64_t size = all.inputs.size(0) / context.world_size();
    const Examples mine = part_of(all, context.rank() * size, size);
    at::cross_entropy_loss(ddp(mine.inputs), mine.labels).backward();
    descend(ddp.module());
  }
  if (layout != nullptr) *layout = ddp.bucket_layout();
  require(!ddp.tuning() || steps < 20, "tuning ends");
  TensorMap weights;
  for (const auto& item : ddp.module().named_parameters()) {
    weights.emplace(item.key(), item.value().detach().clone());
  }
  require_equal_on_all(context, ddp.module(), "trained");
  return weights;
}

// With sums in the order of the ranks no layout changes a bit, so that tuning cannot either.
int layouts(Context& context, const std::filesystem::path& /*folder*/) {
  require(context.transport() == Transport::shared_memory, "the ranks share memory");
  DdpOptions plain;
  plain.tune_buckets = false;
  BucketLayout large;
  BucketLayout small;
  const TensorMap expected = train_small(context, plain, 20, &large);
  const auto same = [&](const TensorMap& weights, const std::string& what) {
    for (const auto& [name, tensor] : expected) {
      require(weights.at(name).equal(tensor), what + ": " + name + " has the same bits");
    }
  };
  same(train_small(context, small_buckets(), 20, &small), "small buckets");
  require(large.size() == 1 && small.size() > 1, "the layouts differ");
  DdpOptions tuned;
  same(train_small(context, tuned, 20), "tuned");
  DdpOptions given;
  given.bucket_layout = small;
  BucketLayout kept;
  same(train_small(context, given, 20, &kept), "given");
  return 0;
}

// The layout of a checkpoint is the one that a restart begins and stays with.
int given_layout(Context& context, const std::filesystem::path& /*folder*/) {
  DdpOptions given;
  given.bucket_layout =
      BucketLayout{{"last.bias", "first.bias"}, {"first.weight"}, {"last.weight"}};
  for (const int steps : {0, 1, 4}) {
    BucketLayout kept;
    train_small(context, given, steps, &kept);
    require(kept == *given.bucket_layout, "the layout stays");
  }
  given.bucket_layout->pop_back();
  std::string message;
  try {
    train_small(context, given, 1);
  } catch (const Error& error) {
    message = error.what();
  }
  require(message == "DDP: the layout of buckets misses 'last.weight'", message);
  given.bucket_layout->push_back({"other"});
  try {
    train_small(context, given, 1);
  } catch (const Error& error) {
    message = error.what();
  }
  require(message.find("names 'other'") != std::string::npos, message);
  return 0;
}

// Buckets are reduced where they lie: nothing is staged once they are made.
int in_place(Context& context, const std::filesystem::path& /*folder*/) {
  at::manual_seed(1);
  torch::nn::Linear model(512, 512);  // too large for a call that carries its data
  Ddp ddp(model.ptr(), context, {.tune_buckets = false});
  for (int step = 0; step < 3; ++step) {
    ddp(at::randn({4, 512})).sum().backward();
    require(comm::is_shared(model->weight.grad()), "the gradient lies in shared memory");
    zero_grad(*model);
  }
  require(!comm::is_shared(at::empty({1 << 20})), "other tensors do not");
  return 0;
}

}  // namespace

const std::map<std::string, Job>& ddp_jobs() {
  static const std::map<std::string, Job> jobs{{"static_graph", static_graph},
                                               {"find_unused", find_unused},
                                               {"unused_error", unused_error},
                                               {"zero_grad_trap", zero_grad_trap},
                                               {"halves", halves},
                                               {"uneven", uneven},
                                               {"no_batches", no_batches},
                                               {"layouts", layouts},
                                               {"given_layout", given_layout},
                                               {"in_place", in_place}};
  return jobs;
}

}  // namespace dtrain::train::test
