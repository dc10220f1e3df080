#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trainer/core/error.hpp"
#include "trainer/data/sample_error.hpp"

namespace dtrain::train {

// Which of how many equal parts of a data set a stream is to give.
struct StreamShare {
  int part = 0;
  int parts = 1;
};

// A data set that cannot be indexed: samples one after the other, until there are no more.
template <typename Sample>
class SampleStream {
 public:
  virtual ~SampleStream() = default;
  virtual std::optional<Sample> next() = 0;
};

struct StreamOptions {
  std::int64_t batch_size = 1;
  int rank = 0;
  int ranks = 1;
  int workers = 1;   // threads, each with a stream of its own; at least 1
  int prefetch = 2;  // batches ready for each worker; bounds the memory
  bool drop_last = false;
  std::int64_t skip = 0;  // batches of this rank that were given out before: a resume
};

// Makes batches from streams, on threads of its own: rank r's worker w reads part r * workers + w
// of ranks * workers. Batches are given out in a fixed order, the workers' in turn, so that the
// order is a function of the streams, ranks and workers alone; a worker whose stream has ended is
// passed over. What a stream or `collate` throws arrives, with the data set's name and the number
// of the sample within its part, at that batch's turn. A stream cannot seek: `skip` reads what it
// leaves out.
//
// next() belongs to one thread. Destroying the loader waits for the batches being made.
template <typename Sample, typename Batch>
class StreamLoader {
 public:
  using Open = std::function<std::unique_ptr<SampleStream<Sample>>(StreamShare)>;
  using Collate = std::function<Batch(std::vector<Sample>)>;

  StreamLoader(std::string dataset, StreamOptions options, Open open, Collate collate)
      : dataset_(std::move(dataset)),
        options_(options),
        open_(std::move(open)),
        collate_(std::move(collate)) {
    if (options.batch_size < 1 || options.workers < 1 || options.prefetch < 1 || options.skip < 0 ||
        options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks) {
      throw Error("stream loader: batch_size, workers, prefetch and ranks must be at least 1");
    }
    lanes_.resize(static_cast<std::size_t>(options.workers));
    for (int i = 0; i < options.workers; ++i) {
      workers_.emplace_back([this, i](std::stop_token stop) { work(i, stop); });
    }
    for (std::int64_t i = 0; i < options.skip; ++i) {
      if (!next()) break;
    }
  }

  ~StreamLoader() {
    for (std::jthread& worker : workers_) worker.request_stop();
    changed_.notify_all();
  }
  StreamLoader(const StreamLoader&) = delete;
  StreamLoader& operator=(const StreamLoader&) = delete;

  // The next batch, or nullopt when all streams have ended.
  std::optional<Batch> next() {
    std::unique_lock lock(mutex_);
    for (std::size_t ended = 0; ended < lanes_.size();) {
      Lane& lane = lanes_[turn_];
      changed_.wait(lock, [&] { return lane.ended || !lane.ready.empty(); });
      turn_ = (turn_ + 1) % lanes_.size();
      if (lane.ready.empty()) {
        if (lane.error) {
          const std::exception_ptr error = lane.error;
          for (Lane& each : lanes_) each = Lane{.ended = true};
          std::rethrow_exception(error);
        }
        ++ended;
        continue;
      }
      Batch batch = std::move(lane.ready.front());
      lane.ready.pop_front();
      lock.unlock();
      changed_.notify_all();
      return batch;
    }
    return std::nullopt;
  }

 private:
  struct Lane {
    std::deque<Batch> ready;
    std::exception_ptr error;  // after what is ready
    bool ended = false;
  };

  void work(int worker, const std::stop_token& stop) {
    Lane& lane = lanes_[static_cast<std::size_t>(worker)];
    std::exception_ptr error;
    std::int64_t count = 0;
    try {
      const auto stream =
          open_({options_.rank * options_.workers + worker, options_.ranks * options_.workers});
      for (bool more = true; more;) {
        std::vector<Sample> samples;
        while (more && static_cast<std::int64_t>(samples.size()) < options_.batch_size) {
          if (stop.stop_requested()) return;
          std::optional<Sample> sample = stream->next();
          more = sample.has_value();
          if (more) samples.push_back(std::move(*sample));
          if (more) ++count;
        }
        const bool full = static_cast<std::int64_t>(samples.size()) == options_.batch_size;
        if (samples.empty() || (!full && options_.drop_last)) break;
        Batch batch = collate_(std::move(samples));
        std::unique_lock lock(mutex_);
        const auto room = static_cast<std::size_t>(options_.prefetch);
        if (!changed_.wait(lock, stop, [&] { return lane.ready.size() < room; })) return;
        if (lane.ended) return;  // another one's error has ended all
        lane.ready.push_back(std::move(batch));
        lock.unlock();
        changed_.notify_all();
      }
    } catch (const std::exception& failed) {
      error = std::make_exception_ptr(SampleError(dataset_, count, failed.what()));
    } catch (...) {
      error = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      lane.ended = true;
      if (error) lane.error = error;
    }
    changed_.notify_all();
  }

  const std::string dataset_;
  const StreamOptions options_;
  const Open open_;
  const Collate collate_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::size_t turn_ = 0;
  std::vector<Lane> lanes_;            // by worker
  std::vector<std::jthread> workers_;  // last: they end before what they use
};

}  // namespace dtrain::train
