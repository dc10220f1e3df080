// Activations that are computed again for backward (activation_checkpoint.hpp).
#include <ATen/ATen.h>
#include <c10/util/intrusive_ptr.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/jobs.hpp"
#include "trainer/core/error.hpp"
#include "trainer/models/vision_transformer.hpp"
#include "trainer/train/activation_checkpoint.hpp"
#include "trainer/train/precision.hpp"

using namespace dtrain::train;
using test::contains;
using test::launch;
using test::message_of;
using test::read_file;
using test::TemporaryFolder;

namespace {

using Tensors = std::vector<at::Tensor>;
using Storages = std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>;

struct Block : torch::nn::Module {
  Block()
      : first(register_module("first", torch::nn::Linear(8, 32))),
        second(register_module("second", torch::nn::Linear(32, 8))) {}
  // Saves its activations' storages where it is told to.
  at::Tensor forward(const at::Tensor& x, Storages* storages = nullptr) {
    const at::Tensor hidden = torch::dropout(at::tanh(first->forward(x)), 0.5, true);
    if (storages != nullptr) {
      storages->emplace_back(hidden.storage().getWeakStorageImpl());
    }
    return x + second->forward(hidden);
  }
  torch::nn::Linear first;
  torch::nn::Linear second;
};

std::shared_ptr<Block> make_block() {
  at::manual_seed(11);
  return std::make_shared<Block>();
}

Tensors gradients_of(const torch::nn::Module& module) {
  Tensors all;
  for (const at::Tensor& p : module.parameters()) all.push_back(p.grad().clone());
  return all;
}

// The gradients of three blocks and of their input, and what the generator is at afterwards.
template <typename Forward>
Tensors train(const std::shared_ptr<Block>& block, Forward forward) {
  block->zero_grad();
  at::Tensor x = (at::arange(32, at::kFloat).view({4, 8}) / 32).set_requires_grad(true);
  at::manual_seed(5);
  const at::Tensor y = forward(x);
  const at::Tensor after = at::rand({3});
  y.square().sum().backward();
  Tensors all = gradients_of(*block);
  all.insert(all.end(), {x.grad(), y.detach(), after, at::rand({3})});
  return all;
}

void check_equal(const Tensors& a, const Tensors& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(a[i].equal(b[i]));
  }
}

std::size_t alive(const Storages& storages) {
  std::size_t count = 0;
  for (const auto& each : storages) count += each.use_count() > 0 ? 1 : 0;
  return count;
}

}  // namespace

TEST_CASE("a checkpoint's gradients are those without it, with dropout, bit for bit") {
  const auto block = make_block();
  const auto once = [&](const at::Tensor& x) { return block->forward(x); };
  const Tensors expected = train(block, [&](at::Tensor x) { return once(once(once(x))); });
  check_equal(train(block,
                    [&](at::Tensor x) {
                      for (int i = 0; i < 3; ++i) x = checkpoint(once, x);
                      return x;
                    }),
              expected);
  // One in another, twice.
  check_equal(train(block,
                    [&](const at::Tensor& x) {
                      return checkpoint(
                          [&](const at::Tensor& a) {
                            return checkpoint(
                                [&](const at::Tensor& b) { return once(checkpoint(once, b)); },
                                once(a));
                          },
                          x);
                    }),
              expected);
}

TEST_CASE("activations are dropped until backward asks for them") {
  const auto block = make_block();
  const at::Tensor x = at::ones({4, 8});  // needs no gradient: the parameters do
  Storages storages;
  const auto once = [&](const at::Tensor& in) { return block->forward(in, &storages); };
  at::Tensor y = once(once(once(x)));
  CHECK(alive(storages) == 3);
  y.sum().backward();
  storages.clear();
  block->zero_grad();
  at::manual_seed(3);
  y = checkpoint(once, checkpoint(once, checkpoint(once, x)));
  CHECK(storages.size() == 3);
  CHECK(alive(storages) == 0);
  y.sum().backward();
  CHECK(storages.size() == 6);
  CHECK(alive(storages) == 0);
  CHECK(block->first->weight.grad().defined());
  // The inner one's input is dropped by the outer one: of four blocks' activations none is there.
  storages.clear();
  c10::weak_intrusive_ptr<c10::StorageImpl> inner_input =
      at::ones({1}).storage().getWeakStorageImpl();
  y = checkpoint(
      [&](const at::Tensor& a) {
        const at::Tensor in = once(a);
        inner_input = in.storage().getWeakStorageImpl();
        return once(checkpoint(once, in));
      },
      x);
  CHECK(alive(storages) == 0);
  CHECK(inner_input.use_count() == 0);
  y.sum().backward();
}

TEST_CASE("several inputs and outputs, a graph that is kept, and gradients by name") {
  const at::Tensor a = at::rand({5}).set_requires_grad(true);
  const at::Tensor b = at::rand({5}).set_requires_grad(true);
  const at::Tensor index = at::tensor({4, 1, 0, 2, 3});
  const auto function = [](const Tensors& in) {
    const at::Tensor product = (in[0] * in[1]).exp();
    return Tensors{product.index_select(0, in[2]), product.sin(), at::Tensor()};
  };
  const auto gradients = [&](const Tensors& out) {
    CHECK(!out[2].defined());
    const at::Tensor loss = (out[0] * out[1]).sum();
    const Tensors first = torch::autograd::grad({loss}, {a, b}, {}, /*retain_graph=*/true);
    check_equal(torch::autograd::grad({loss}, {a, b}), first);
    return first;
  };
  check_equal(gradients(checkpoint(function, {a, b, index})), gradients(function({a, b, index})));
  const at::NoGradGuard no_grad;
  CHECK(!checkpoint(function, {a, b, index})[0].requires_grad());
}

TEST_CASE("autocast is as it was in the first call") {
  const auto block = make_block();
  const auto forward = [&](bool checkpoints) {
    return [&, checkpoints](const at::Tensor& x) {
      const Autocast autocast(c10::Device(c10::kCPU), Precision::bf16);
      const auto once = [&](const at::Tensor& in) { return block->forward(in); };
      const at::Tensor y = checkpoints ? checkpoint(once, x) : once(x);
      return y.to(at::kFloat);
    };
  };
  check_equal(train(block, forward(true)), train(block, forward(false)));
}

TEST_CASE("what cannot be computed again is an error") {
  const auto block = make_block();
  const at::Tensor x = at::ones({4, 8});
  int calls = 0;
  const at::Tensor fickle = checkpoint(
      [&](const at::Tensor& in) { return ++calls == 1 ? block->forward(in).sin() : in.clone(); },
      x);
  CHECK(contains(message_of<Error>([&] { fickle.sum().backward(); }), "other tensors"));
  at::Tensor changed = at::ones({4, 8});
  const at::Tensor y =
      checkpoint([&](const at::Tensor& in) { return block->forward(in); }, changed);
  changed.add_(1);
  CHECK(contains(message_of<c10::Error>([&] { y.sum().backward(); }), "inplace"));
}

TEST_CASE("a chain of modules in segments") {
  at::manual_seed(2);
  torch::nn::Sequential chain;
  for (int i = 0; i < 5; ++i) {
    chain->push_back(torch::nn::Linear(8, 8));
    chain->push_back(torch::nn::Dropout(0.3));
  }
  const auto gradients = [&](auto forward) {
    chain->zero_grad();
    at::manual_seed(6);
    forward(at::ones({3, 8})).square().sum().backward();
    return gradients_of(*chain);
  };
  const Tensors expected = gradients([&](const at::Tensor& x) { return chain->forward(x); });
  for (const std::int64_t segments : {1, 3, 10}) {
    check_equal(
        gradients([&](const at::Tensor& x) { return checkpoint_sequential(chain, segments, x); }),
        expected);
  }
  CHECK(contains(message_of<Error>([&] {
                   checkpoint_sequential(chain, 11, at::ones({3, 8}));
                 }),
                 "11 segments of 10"));
}

TEST_CASE("a VisionTransformer that computes its blocks again") {
  VisionTransformerOptions options{.image_size = 8,
                                   .patch_size = 4,
                                   .layers = 2,
                                   .heads = 2,
                                   .hidden = 16,
                                   .mlp = 32,
                                   .dropout = 0.1};
  const auto gradients = [&](bool checkpoints) {
    options.checkpoint_activations = checkpoints;
    at::manual_seed(1);
    VisionTransformer model(options);
    {
      const at::NoGradGuard no_grad;  // zeros let no gradient through
      for (at::Tensor p : model->parameters()) p.add_(0.01);
    }
    at::manual_seed(8);
    model->forward(at::rand({2, 3, 8, 8})).square().sum().backward();
    return gradients_of(*model);
  };
  check_equal(gradients(true), gradients(false));
}

TEST_CASE("under DDP and ZeRO the weights are the same with checkpoints and without") {
  const TemporaryFolder folder;
  const auto exits = launch("checkpointed", 2, folder.path());
  for (std::size_t rank = 0; rank < exits.size(); ++rank) {
    CHECK_MESSAGE(exits[rank].code == 0,
                  read_file(folder / ("rank-" + std::to_string(rank) + ".log")));
  }
}
