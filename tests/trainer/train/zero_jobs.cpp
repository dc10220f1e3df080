// Ranks that share an optimizer's state and gradients; and activations that are computed again.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "tests/trainer/support/require.hpp"
#include "tests/trainer/train/jobs.hpp"
#include "tests/trainer/train/small_model.hpp"
#include "trainer/core/error.hpp"
#include "trainer/train/activation_checkpoint.hpp"
#include "trainer/train/ddp.hpp"
#include "trainer/train/gradients.hpp"
#include "trainer/train/preemption.hpp"
#include "trainer/train/session.hpp"
#include "trainer/train/zero.hpp"

namespace dtrain::train::test {
namespace {

template <typename Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// So large that its matrices are cut among three ranks, with an odd rest, and its biases are not.
constexpr SmallOptions kCut{.hidden = 1029};
// Several buckets, the same ones with any optimizer.
const DdpOptions kBuckets{
    .bucket_bytes = 16 << 10, .first_bucket_bytes = 4 << 10, .tune_buckets = false};

// It says nothing of elements: whole parameters only.
class WholeSgd final : public Sgd {
 public:
  using Sgd::Sgd;
  bool updates_elementwise() const override { return false; }
};

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const torch::nn::Module&)>;

const std::map<std::string, MakeOptimizer>& optimizers() {
  static const std::map<std::string, MakeOptimizer> all{
      {"adam",
       [](const auto& m) {
         return std::make_unique<Adam>(named_parameters(m), AdamOptions{.amsgrad = true});
       }},
      {"adamw",
       [](const auto& m) {
         return std::make_unique<AdamW>(decay_groups(m), AdamWOptions{.weight_decay = 0.1});
       }},
      {"sgd",
       [](const auto& m) {
         return std::make_unique<Sgd>(named_parameters(m), SgdOptions{.momentum = 0.9});
       }},
      {"plain sgd",
       [](const auto& m) { return std::make_unique<Sgd>(named_parameters(m), SgdOptions{}); }},
      {"whole sgd",
       [](const auto& m) {
         return std::make_unique<WholeSgd>(named_parameters(m), SgdOptions{.momentum = 0.9});
       }},
      {"rmsprop",
       [](const auto& m) {
         return std::make_unique<RmsProp>(named_parameters(m),
                                          RmsPropOptions{.momentum = 0.9, .centered = true});
       }},
      {"adagrad",
       [](const auto& m) {
         return std::make_unique<Adagrad>(named_parameters(m), AdagradOptions{});
       }},
  };
  return all;
}

enum class Way { whole_gradients, zero1, zero2 };

std::unique_ptr<ZeroOptimizer> make_zero(std::unique_ptr<Optimizer> inside, Context& context,
                                         DistributedDataParallel& ddp, Way way) {
  return std::make_unique<ZeroOptimizer>(
      std::move(inside), context, way == Way::whole_gradients ? nullptr : &ddp,
      way == Way::zero2 ? ZeroStage::gradients : ZeroStage::state);
}

// A GPU's norm depends in its last bits on how a gradient is shared out: there nothing is clipped
// by it, so that all else is bit for bit the same.
double most() {
  return here().is_cpu() ? 0.05 : 1e9;
}
bool same_norm(double a, double b) {
  return here().is_cpu() ? a == b : std::abs(a / b - 1) < 1e-5;
}

void require_equal(const torch::nn::Module& mine, const torch::nn::Module& theirs,
                   const std::string& what) {
  const auto expected = theirs.named_parameters();
  for (const auto& item : mine.named_parameters()) {
    require(item.value().equal(expected[item.key()]), what + ": " + item.key() + " is the same");
  }
}

void backward(Ddp<SmallModel>& ddp, const Examples& examples) {
  at::cross_entropy_loss(ddp(examples.inputs), examples.labels).backward();
}

// Each optimizer, shared out, trains bit for bit as unshared, with clipping and accumulation.
int zero_equal(Context& context, const std::filesystem::path& /*folder*/) {
  for (const Way way : {Way::whole_gradients, Way::zero1, Way::zero2}) {
    // Over Gloo the buckets of the first step, which zero2 has smaller, decide the last bits.
    if (way == Way::zero2 && context.transport() == Transport::gloo) continue;
    for (const auto& [its, make] : optimizers()) {
      const std::string name = its + " " + std::to_string(static_cast<int>(way));
      Ddp shared(make_small_model(1, kCut), context, kBuckets);
      Ddp whole(make_small_model(1, kCut), context, kBuckets);
      const auto zero = make_zero(make(shared.module()), context, shared, way);
      const std::unique_ptr<Optimizer> plain = make(whole.module());
      require(zero->gradients_are_sharded() == (way != Way::whole_gradients), name + ": as asked");
      for (int step = 0; step < 5; ++step) {
        for (auto* ddp : {&shared, &whole}) {
          if (step % 2 == 1) {
            const auto silent = ddp->no_sync();
            backward(*ddp, share_of(context, make_examples(100 + step)));
          }
          backward(*ddp, share_of(context, make_examples(step)));
        }
        if (zero->gradients_are_sharded()) {
          for (const auto& p : shared.module().parameters()) {
            require(p.grad().sizes() == p.sizes() && p.grad().isnan().all().item<bool>(),
                    name + ": nobody takes a part for the whole");
          }
        }
        const double norm = clip_gradient_norm(*zero, most());
        require(norm > 0.05 && same_norm(norm, clip_gradient_norm(*plain, most())),
                name + ": the same norm");
        zero->step();
        plain->step();
        if (step % 2 == 0) {
          zero->zero_grad();
        } else {
          train::zero_grad(shared.module());
        }
        plain->zero_grad();
        require_equal(shared.module(), whole.module(), name);
      }
      for (const auto& p : shared.module().parameters()) {
        require(!p.grad().defined(), name + ": no gradient is left");
      }
      // Each state is with one rank, whole, and all are there.
      const std::map<std::string, at::Tensor> all = plain->state();
      double states = 0;
      for (const auto& [key, tensor] : zero->state()) {
        require(tensor.equal(all.at(key)), name + ": state " + key);
        ++states;
      }
      require(context.all_reduce_sum(states) == static_cast<double>(all.size()),
              name + ": every state once");
      // And back: two optimizers that began apart go on alike.
      Ddp other(make_small_model(1, kCut), context, kBuckets);
      const auto loaded = make_zero(make(other.module()), context, other, way);
      {
        const at::NoGradGuard no_grad;
        for (const auto& item : other.module().named_parameters()) {
          item.value().copy_(shared.module().named_parameters()[item.key()]);
        }
      }
      loaded->load_state(all);
      for (auto* each : {&shared, &other}) backward(*each, share_of(context, make_examples(9)));
      zero->step();
      loaded->step();
      if (context.transport() == Transport::shared_memory) {
        require_equal(other.module(), shared.module(), name + ", loaded");
      }
      std::map<std::string, at::Tensor> wrong = all;
      wrong["no.such/step"] = at::zeros({});
      require(contains(message_of([&] { zero->load_state(wrong); }), "not known"),
              name + ": an unknown state is refused");
      if (all.empty()) continue;
      wrong = all;
      wrong.erase(wrong.begin());
      require(contains(message_of([&] { zero->load_state(wrong); }), "missing"),
              name + ": a missing state is refused, on every rank");
    }
  }
  return 0;
}

// A backward without zero_grad() before it adds to the averages; by whatever name it is called.
int zero_accumulates(Context& context, const std::filesystem::path& /*folder*/) {
  for (const Way way : {Way::zero1, Way::zero2}) {
    Ddp shared(make_small_model(1, kCut), context, kBuckets);
    Ddp whole(make_small_model(1, kCut), context, kBuckets);
    const auto zero = make_zero(optimizers().at("sgd")(shared.module()), context, shared, way);
    const auto plain = optimizers().at("sgd")(whole.module());
    for (int step = 0; step < 4; ++step) {
      for (auto* ddp : {&shared, &whole}) {
        // After the forward, as some do it.
        at::Tensor loss =
            at::cross_entropy_loss((*ddp)(make_examples(step).inputs), make_examples(step).labels);
        train::zero_grad(ddp->module());
        loss.backward();
        if (step % 2 == 1) {
          const auto silent = ddp->no_sync();
          backward(*ddp, share_of(context, make_examples(20 + step)));
        }
        backward(*ddp, share_of(context, make_examples(10 + step)));
      }
      require(std::abs(zero->gradient_norm() / plain->gradient_norm() - 1) < 1e-5,
              "both are there");
      zero->step();
      plain->step();
    }
    const auto expected = whole.module().named_parameters();
    for (const auto& item : shared.module().named_parameters()) {
      require(item.value().allclose(expected[item.key()], 1e-5, 1e-6), item.key() + " is the same");
    }
  }
  return 0;
}

// Ranks with different numbers of batches.
int zero_join(Context& context, const std::filesystem::path& /*folder*/) {
  for (const Way way : {Way::zero1, Way::zero2}) {
    if (way == Way::zero2 && context.transport() == Transport::gloo) continue;  // as above
    Ddp shared(make_small_model(1, kCut), context, kBuckets);
    Ddp whole(make_small_model(1, kCut), context, kBuckets);
    const auto zero = make_zero(optimizers().at("adamw")(shared.module()), context, shared, way);
    const auto plain = optimizers().at("adamw")(whole.module());
    const auto train = [&](Ddp<SmallModel>& ddp, Optimizer& optimizer) {
      DistributedDataParallel::Join join(ddp);
      const auto step = [&] {
        clip_gradient_norm(optimizer, most());
        optimizer.step();
        optimizer.zero_grad();
      };
      for (int batch = 0; batch < 2 + 2 * context.rank(); ++batch) {
        backward(ddp, share_of(context, make_examples(batch)));
        step();
      }
      join.finish(step);
      backward(ddp, share_of(context, make_examples(50)));  // and all of them again
      step();
    };
    train(shared, *zero);
    train(whole, *plain);
    require_equal(shared.module(), whole.module(), "joined");
  }
  return 0;
}

// With a communication thread, while it still has calls that nobody has waited for: what ranks
// agree on at each step, and a sum of the program's own.
int zero_beside(Context& context, const std::filesystem::path& /*folder*/) {
  require(context.transport() == Transport::shared_memory, "shared memory");
  const double ranks = context.world_size();
  for (const Way way : {Way::whole_gradients, Way::zero1, Way::zero2}) {
    Ddp shared(make_small_model(1, kCut), context, kBuckets);
    Ddp whole(make_small_model(1, kCut), context, kBuckets);
    const auto zero = make_zero(optimizers().at("adamw")(shared.module()), context, shared, way);
    const auto plain = optimizers().at("adamw")(whole.module());
    Preemption preemption(context);
    for (int step = 0; step < 5; ++step) {
      require(!preemption.agreed(), "nobody is told to go");
      std::vector<at::Tensor> sum{at::ones({1 << 22})};
      const auto before_backward = context.process_group()->allreduce(sum);
      backward(shared, share_of(context, make_examples(step)));
      std::vector<at::Tensor> other{at::ones({1 << 22})};
      const auto before_step = context.process_group()->allreduce(other);
      zero->step();
      zero->zero_grad();
      before_backward->wait();
      before_step->wait();
      require(sum[0].eq(ranks).all().item<bool>() && other[0].eq(ranks).all().item<bool>(),
              "sums beside it");
      backward(whole, share_of(context, make_examples(step)));
      plain->step();
      plain->zero_grad();
      require_equal(shared.module(), whole.module(), "beside other calls");
    }
  }
  return 0;
}

// A parameter without elements.
class WithEmpty : public torch::nn::Module {
 public:
  WithEmpty()
      : layer_(register_module("layer", torch::nn::Linear(8, 3))),
        empty_(register_parameter("empty", at::zeros({0}))) {}
  at::Tensor forward(const at::Tensor& x) { return layer_->forward(x) + empty_.sum(); }

 private:
  torch::nn::Linear layer_;
  at::Tensor empty_;
};

// It has a state too, its counter at least: with one rank, once.
int zero_empty(Context& context, const std::filesystem::path& /*folder*/) {
  for (const Way way : {Way::whole_gradients, Way::zero1, Way::zero2}) {
    for (const char* const its : {"adam", "sgd", "whole sgd"}) {
      const std::string name = std::string(its) + " " + std::to_string(static_cast<int>(way));
      at::manual_seed(5);
      Ddp shared(std::make_shared<WithEmpty>(), context, kBuckets);
      at::manual_seed(5);
      Ddp whole(std::make_shared<WithEmpty>(), context, kBuckets);
      const auto zero = make_zero(optimizers().at(its)(shared.module()), context, shared, way);
      const auto plain = optimizers().at(its)(whole.module());
      const auto train = [&](int step) {
        for (auto* ddp : {&shared, &whole}) {
          const Examples mine = share_of(context, make_examples(step));
          at::cross_entropy_loss((*ddp)(mine.inputs), mine.labels).backward();
        }
        require(std::abs(zero->gradient_norm() / plain->gradient_norm() - 1) < 1e-5,
                name + ": the same norm");
        zero->step();
        plain->step();
        zero->zero_grad();
        plain->zero_grad();
      };
      const auto require_equal_states = [&] {
        const std::map<std::string, at::Tensor> all = plain->state();
        require(all.contains("empty/step"), name + ": it has a state");
        double states = 0;
        for (const auto& [key, tensor] : zero->state()) {
          require(tensor.allclose(all.at(key), 1e-5, 1e-6), name + ": state " + key);
          ++states;
        }
        require(context.all_reduce_sum(states) == static_cast<double>(all.size()),
                name + ": every state once");
      };
      train(0);
      train(1);
      require_equal_states();
      zero->load_state(plain->state());
      train(2);
      require_equal_states();
      const auto expected = whole.module().named_parameters();
      for (const auto& item : shared.module().named_parameters()) {
        require(item.value().allclose(expected[item.key()], 1e-5, 1e-6), name + ": " + item.key());
      }
    }
  }
  return 0;
}

// Saved by all ranks, shared out; then loaded with and without it.
int zero_checkpoint(Context& context, const std::filesystem::path& folder) {
  const char* const stage = std::getenv("TEST_ZERO");
  Ddp ddp(make_small_model(1, kCut), context);
  std::unique_ptr<Optimizer> optimizer = optimizers().at("adamw")(ddp.module());
  if (stage != nullptr) {
    optimizer = make_zero(std::move(optimizer), context, ddp,
                          std::string(stage) == "2" ? Way::zero2 : Way::zero1);
  }
  Session session(context, {.storage = folder / "storage", .retention = {}});
  Place place = session.resume(ddp.module(), *optimizer).value_or(Place{});
  for (int i = 0; i < 3; ++i) {
    // Every rank the same batch: then any number of ranks computes the same.
    backward(ddp, make_examples(static_cast<int>(place.step)));
    optimizer->step();
    optimizer->zero_grad();
    ++place.step;
  }
  session.report(place, {}, ddp.module(), *optimizer);
  session.finish();
  if (place.step == 9) {  // after three runs: as if there had been one
    auto reference = make_small_model(1, kCut);
    const auto plain = optimizers().at("adamw")(*reference);
    for (int step = 0; step < 9; ++step) {
      const Examples all = make_examples(step);
      at::cross_entropy_loss(reference->forward(all.inputs), all.labels).backward();
      plain->step();
      plain->zero_grad();
    }
    const auto expected = reference->named_parameters();
    for (const auto& item : ddp.module().named_parameters()) {
      require(item.value().allclose(expected[item.key()], 1e-5, 1e-6), item.key() + " went on");
    }
  }
  return 0;
}

class Stubborn final : public Sgd {
 public:
  using Sgd::Sgd;
  bool updates_apart() const override { return false; }
};

int zero_refuses(Context& context, const std::filesystem::path& /*folder*/) {
  const auto stubborn = [&] {
    auto model = make_small_model(1);
    ZeroOptimizer(std::make_unique<Stubborn>(named_parameters(*model), SgdOptions{}), context);
  };
  require(contains(message_of(stubborn), "updates_apart"), "one that looks at its neighbours");

  DdpOptions options = kBuckets;
  options.find_unused_parameters = true;
  Ddp searching(make_small_model(1), context, options);
  const auto adam = [](Ddp<SmallModel>& ddp) { return optimizers().at("adam")(ddp.module()); };
  require(contains(message_of([&] { make_zero(adam(searching), context, searching, Way::zero2); }),
                   "find_unused_parameters"),
          "zero2 needs all gradients");
  require(!make_zero(adam(searching), context, searching, Way::zero1)->gradients_are_sharded(),
          "zero1 takes them whole");

  options = kBuckets;
  options.gradient_as_bucket_view = false;
  Ddp viewless(make_small_model(1), context, options);
  require(contains(message_of([&] { make_zero(adam(viewless), context, viewless, Way::zero2); }),
                   "gradient_as_bucket_view"),
          "zero2 needs gradients that live in the buckets");
  {
    const auto zero = make_zero(adam(viewless), context, viewless, Way::zero1);
    require(zero->gradients_are_sharded(), "zero1 does not");
    for (int step = 0; step < 2; ++step) {
      backward(viewless, make_examples(step));
      zero->step();
      zero->zero_grad();
    }
  }

  Ddp ddp(make_small_model(1), context, kBuckets);
  const auto zero = make_zero(adam(ddp), context, ddp, Way::zero1);
  {
    const auto silent = ddp.no_sync();
    backward(ddp, make_examples(0));
  }
  require(contains(message_of([&] { zero->step(); }), "no_sync"), "what was never sent");
  backward(ddp, make_examples(0));
  at::Tensor first = ddp.module().parameters()[0];
  first.set_data(first.detach().clone());
  require(contains(message_of([&] { zero->step(); }), "was replaced"), "parameters that moved");
  return 0;
}

// Stage 2 holds a bucket or two, not all of them, from the first step on.
int zero2_memory(Context& context, const std::filesystem::path& /*folder*/) {
  const auto peak = [&](Way way) {
    Ddp ddp(make_small_model(1, {.hidden = 1 << 15}), context,
            {.bucket_bytes = 1 << 18, .first_bucket_bytes = 1 << 18, .tune_buckets = false});
    const auto zero = make_zero(optimizers().at("sgd")(ddp.module()), context, ddp, way);
    for (int step = 0; step < 3; ++step) {
      backward(ddp, make_examples(step));
      zero->step();
      zero->zero_grad();
    }
    return ddp.peak_bucket_bytes();
  };
  // Three layers' worth: 2^15 of 8 and 3 columns and a bias, four bytes each.
  require(peak(Way::zero1) >= (std::int64_t{1} << 15) * 12 * 4, "all of them");
  require(peak(Way::zero2) <= 2 * (std::int64_t{1} << 15) * 8 * 4, "two of the largest");
  return 0;
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0;
  file >> pages >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

// A rank without batches gives back what it takes for each step of the others, which is some 1.5
// MB.
int zero2_join_memory(Context& context, const std::filesystem::path& /*folder*/) {
  Ddp ddp(make_small_model(1, {.hidden = 1 << 15}), context,
          {.bucket_bytes = 1 << 18, .first_bucket_bytes = 1 << 18, .tune_buckets = false});
  const auto zero = make_zero(optimizers().at("sgd")(ddp.module()), context, ddp, Way::zero2);
  constexpr int kSteps = 100;
  DistributedDataParallel::Join join(ddp);
  std::vector<std::int64_t> resident;
  const auto step = [&] {
    zero->step();
    zero->zero_grad();
    resident.push_back(resident_bytes());
  };
  for (int batch = 0; batch < (context.is_first() ? kSteps : 1); ++batch) {
    backward(ddp, make_examples(batch));
    step();
  }
  join.finish(step);
  require(resident.size() == kSteps, "as many steps on each");
  require(resident.back() - resident[kSteps / 10] < std::int64_t{64} << 20, "no gradient a step");
  return 0;
}

// The same weights whether activations are kept or computed again, with DDP and each stage.
int checkpointed(Context& context, const std::filesystem::path& /*folder*/) {
  SmallOptions options = kCut;
  options.dropout = true;
  const auto train = [&](bool checkpoints, std::optional<Way> way) {
    Ddp ddp(make_small_model(1, options), context, kBuckets);
    std::unique_ptr<Optimizer> optimizer = optimizers().at("adam")(ddp.module());
    if (way) optimizer = make_zero(std::move(optimizer), context, ddp, *way);
    context.seed(17);
    const auto forward = [&](const at::Tensor& x) { return ddp.module().forward(x); };
    for (int step = 0; step < 4; ++step) {
      const Examples mine = share_of(context, make_examples(step));
      ddp.prepare_forward();
      const at::Tensor out = ddp.prepare_backward(
          {checkpoints ? checkpoint(forward, mine.inputs) : forward(mine.inputs)})[0];
      at::cross_entropy_loss(out, mine.labels).backward();
      optimizer->step();
      optimizer->zero_grad();
    }
    return ddp.module_ptr();
  };
  const auto expected = train(false, std::nullopt);
  for (const std::optional<Way> way :
       {std::optional<Way>(), std::optional(Way::zero1), std::optional(Way::zero2)}) {
    require_equal(*train(true, way), *expected, "computed again");
  }
  return 0;
}

}  // namespace

const std::map<std::string, Job>& zero_jobs() {
  static const std::map<std::string, Job> jobs{{"zero_equal", zero_equal},
                                               {"zero_accumulates", zero_accumulates},
                                               {"zero_join", zero_join},
                                               {"zero_beside", zero_beside},
                                               {"zero_empty", zero_empty},
                                               {"zero_checkpoint", zero_checkpoint},
                                               {"zero_refuses", zero_refuses},
                                               {"zero2_memory", zero2_memory},
                                               {"zero2_join_memory", zero2_join_memory},
                                               {"checkpointed", checkpointed}};
  return jobs;
}

}  // namespace dtrain::train::test
