#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "trainer/core/error.hpp"
#include "trainer/data/sample_error.hpp"
#include "trainer/data/sampler.hpp"

namespace dtrain::train {

// Where a loader's time went, since it was made.
struct LoaderStats {
  std::int64_t batches = 0;           // given out
  std::chrono::nanoseconds waited{};  // in next(), by the training
  std::chrono::nanoseconds made{};    // by all threads together, making batches
};

struct LoaderOptions {
  std::int64_t batch_size = 1;
  int workers = 1;         // threads that make batches; 0 makes each one inside of next()
  int prefetch = 2;        // batches ready or being made, for each worker; bounds the memory
  bool drop_last = false;  // leave out the last batch of an epoch when it is not full
};

// Makes the batches of one pass over a sampler, on threads of its own, and gives them out in
// order. A batch comes from `make`, which gets the indices of its samples and may run on several
// threads at once. What `make` throws is thrown by next(), at that batch's turn; there is no next
// batch after that. The sampler is copied: setting its epoch later changes nothing here.
//
// next() belongs to one thread. Destroying the loader waits for the batches being made.
template <typename Batch>
class Loader {
 public:
  using Make = std::function<Batch(std::span<const std::int64_t> indices)>;

  Loader(DistributedSampler sampler, LoaderOptions options, Make make)
      : sampler_(sampler), options_(options), make_(std::move(make)) {
    if (options.batch_size < 1) throw Error("loader: batch_size must be at least 1");
    if (options.workers < 0 || options.prefetch < 1) {
      throw Error("loader: workers must be at least 0 and prefetch at least 1");
    }
    const std::int64_t samples = sampler_.remaining();
    batches_ = options.drop_last ? samples / options.batch_size
                                 : (samples + options.batch_size - 1) / options.batch_size;
    for (int i = 0; i < options.workers; ++i) {
      workers_.emplace_back([this](std::stop_token stop) { work(stop); });
    }
  }

  ~Loader() {
    for (std::jthread& worker : workers_) worker.request_stop();
    changed_.notify_all();
  }
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  std::int64_t batches() const { return batches_; }
  // Samples of the batches given out, also those that `make` has left out of them.
  std::int64_t dealt() const {
    return std::min(given_ * options_.batch_size, sampler_.remaining());
  }
  LoaderStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  // The next batch, or nullopt after the last one.
  std::optional<Batch> next() {
    if (given_ >= batches_) return std::nullopt;
    const auto started = Clock::now();
    if (workers_.empty()) {
      const std::int64_t number = std::exchange(given_, batches_);
      Batch batch = make_(indices_of(number));  // when it throws, this pass is over
      given_ = number + 1;
      const auto took = Clock::now() - started;
      const std::lock_guard lock(mutex_);
      stats_ = {stats_.batches + 1, stats_.waited + took, stats_.made + took};
      return batch;
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ready_.contains(given_); });
    auto node = ready_.extract(given_);
    if (node.mapped().error) {
      given_ = batches_;
      std::rethrow_exception(node.mapped().error);
    }
    ++given_;
    ++stats_.batches;
    stats_.waited += Clock::now() - started;
    lock.unlock();
    changed_.notify_all();
    return std::move(node.mapped().batch);
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Made {
    std::optional<Batch> batch;
    std::exception_ptr error;
  };

  std::vector<std::int64_t> indices_of(std::int64_t number) const {
    const std::int64_t first = number * options_.batch_size;
    const std::int64_t end = std::min(first + options_.batch_size, sampler_.remaining());
    std::vector<std::int64_t> indices;
    indices.reserve(static_cast<std::size_t>(end - first));
    for (std::int64_t i = first; i < end; ++i) indices.push_back(sampler_.at(i));
    return indices;
  }

  void work(std::stop_token stop) {
    const std::int64_t window = std::int64_t{options_.prefetch} * options_.workers;
    for (;;) {
      std::int64_t number = 0;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, stop, [&] { return taken_ >= batches_ || taken_ < given_ + window; });
        if (stop.stop_requested() || taken_ >= batches_) return;
        number = taken_++;
      }
      Made made;
      const auto started = Clock::now();
      try {
        made.batch = make_(indices_of(number));
      } catch (...) {
        made.error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        stats_.made += Clock::now() - started;
        if (made.error) taken_ = batches_;  // nothing behind it will be asked for
        ready_.emplace(number, std::move(made));
      }
      changed_.notify_all();
    }
  }

  const DistributedSampler sampler_;
  const LoaderOptions options_;
  const Make make_;
  std::int64_t batches_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  LoaderStats stats_;
  std::int64_t taken_ = 0;  // the next batch that a worker will make
  std::int64_t given_ = 0;  // the next batch that next() will give
  std::map<std::int64_t, Made> ready_;
  std::vector<std::jthread> workers_;  // last: they end before what they use
};

}  // namespace dtrain::train
