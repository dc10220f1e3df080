#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace dtrain::train {

// A thread that does one piece of work at a time, behind the training: at low priority (a tenth of
// a core where all are busy), so that steps beside it are hardly slower. The thread is started by
// the first piece. For one owner's thread; the work itself must not touch this object.
class Background {
 public:
  using Work = std::function<void(std::stop_token)>;

  Background() = default;
  // Asks the work to stop, and waits for it.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Hands over a piece of work. Waits first if one is being done; throws what that one threw, and
  // then does not take the new one.
  void start(Work work);
  // Waits until nothing is being done. Throws what the last piece threw, once.
  void wait();
  // Lets the work know that it is to give up.
  void stop() { thread_.request_stop(); }

 private:
  void loop(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  Work work_;  // set from start() until it is done
  std::exception_ptr error_;
  std::jthread thread_;  // last: it ends before what it uses
};

}  // namespace dtrain::train
