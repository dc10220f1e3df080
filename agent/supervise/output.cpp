#include "agent/supervise/output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/core/kept_log.hpp"
#include "launcher/core/no_signals.hpp"
#include "launcher/core/pipe.hpp"

namespace dtrain::supervise {
namespace {

constexpr std::size_t kWorkersMax = 4;
constexpr std::size_t kBuffer = std::size_t{256} << 10;      // bytes of one read
constexpr std::size_t kTurn = std::size_t{8} << 20;          // bytes of one stream before the next
constexpr std::size_t kWorthwhile = std::size_t{128} << 10;  // bytes that pay for a wake-up
constexpr std::chrono::milliseconds kNap{1};                 // to let more come, when it was less
constexpr std::chrono::seconds kRetry{1};                    // after a full disk

void signal_eventfd(int fd) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = ::write(fd, &one, sizeof one);
}

void clear_eventfd(int fd) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd, &count, sizeof count);
}

UniqueFd make_eventfd() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) throw errno_error("cannot make an eventfd", errno);
  return fd;
}

}  // namespace

// What the threads tell the owner. Outlives it while a thread hangs.
struct Output::Shared {
  UniqueFd notify = make_eventfd();
  std::atomic<std::uint64_t> dropped{0};
  std::mutex mutex;  // guards the notes
  std::vector<Note> notes;

  void note(Note note) {
    {
      const std::lock_guard lock(mutex);
      notes.push_back(std::move(note));
    }
    signal_eventfd(notify.get());
  }
};

// One pipe and its file; lives in the thread.
struct Output::Stream {
  int number = 0;
  UniqueFd pipe;
  UniqueFd file;
  // Set before bytes leave the pipe and cleared when they are in the file.
  std::shared_ptr<std::atomic<bool>> moving;
  bool dropping = false;
  std::chrono::steady_clock::time_point retry_at;
  std::uint64_t missing = 0;  // bytes that were dropped since the last mark
  std::string mark;           // what of a mark is still to be written
  bool in_line = false;       // the file's last byte ends no line
  std::string reason;         // why bytes were dropped

  enum class Step : std::uint8_t { moved, nothing, ended };

  // Moves what one read gives; `moved` grows by its size. Not splice(2): with a file as its end it
  // goes page by page, took twice the processor time of read and write on ext4, and keeps the
  // writer out of the pipe meanwhile.
  Step step(Shared& shared, std::vector<char>& buffer, std::size_t& moved) {
    moving->store(true);
    const Step done = move(shared, buffer, moved);
    moving->store(false);
    return done;
  }

 private:
  Step move(Shared& shared, std::vector<char>& buffer, std::size_t& moved) {
    const ssize_t got = ::read(pipe.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EAGAIN) return Step::nothing;
    if (got < 0 && errno == EINTR) return Step::moved;
    if (got <= 0) {  // a pipe that cannot be read has no more to say
      write_mark();
      return Step::ended;
    }
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
    moved += bytes.size();
    if (dropping && std::chrono::steady_clock::now() < retry_at) {
      drop(shared, bytes.size());
      return Step::moved;
    }
    dropping = false;
    const std::size_t wrote = write_mark() ? write_out(bytes) : 0;
    if (wrote < bytes.size()) {
      dropping = true;
      retry_at = std::chrono::steady_clock::now() + kRetry;
      reason = std::strerror(errno);
      shared.note({number, Note::What::dropping, reason});
      drop(shared, bytes.size() - wrote);
    }
    return Step::moved;
  }

  void drop(Shared& shared, std::size_t size) {
    missing += size;
    shared.dropped += size;
  }

  // Where bytes are missing, before those that come after them. False, with errno: not the whole of
  // it, or of the one before it.
  bool write_mark() {
    if (mark.empty() && missing == 0) return true;
    if (mark.empty()) {
      mark = (in_line ? "\n" : "") + missing_mark(missing, reason) + "\n";
      missing = 0;
    }
    mark.erase(0, write_out(mark));
    return mark.empty() && (missing == 0 || write_mark());
  }

  // How many bytes of it could be written; where not all, errno says why.
  std::size_t write_out(std::string_view bytes) {
    std::size_t written = 0;
    while (written < bytes.size()) {
      const ssize_t wrote = ::write(file.get(), bytes.data() + written, bytes.size() - written);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) break;
      written += static_cast<std::size_t>(wrote);
    }
    if (written > 0) in_line = bytes[written - 1] != '\n';
    return written;
  }
};

// A stream as its owner sees it: another descriptor of the pipe's reading end, closed at its end.
struct Output::Watched {
  int number = 0;
  UniqueFd pipe;
  std::shared_ptr<std::atomic<bool>> moving;
};

// A thread, and what the owner tells it.
struct Output::Pump {
  std::shared_ptr<Shared> shared;
  UniqueFd wake = make_eventfd();  // a stream is new, or stop
  std::atomic<bool> stop{false};
  std::mutex mutex;  // guards the streams
  std::vector<Stream> incoming;

  void run();
};

void Output::Pump::run() {
  std::vector<Stream> streams;
  std::vector<pollfd> polled;
  std::vector<char> buffer(kBuffer);
  bool nap = false;
  while (!stop) {
    {
      const std::lock_guard lock(mutex);
      for (Stream& stream : incoming) streams.push_back(std::move(stream));
      incoming.clear();
    }
    polled.assign(1, {wake.get(), POLLIN, 0});
    // Without the pipes the poll is a nap that only a command ends.
    if (!nap) {
      for (const Stream& stream : streams) polled.push_back({stream.pipe.get(), POLLIN, 0});
    }
    if (::poll(polled.data(), polled.size(), nap ? static_cast<int>(kNap.count()) : -1) < 0) {
      continue;
    }
    if (polled[0].revents != 0) clear_eventfd(wake.get());
    const bool all_streams = std::exchange(nap, false);

    std::size_t moved = 0;
    for (std::size_t i = 0; i < streams.size();) {
      Stream& stream = streams[i];
      const bool ready = all_streams || polled.size() <= i + 1 || polled[i + 1].revents != 0;
      auto step = Stream::Step::nothing;
      std::size_t turn = 0;
      while (ready && turn < kTurn) {
        step = stream.step(*shared, buffer, turn);
        if (step != Stream::Step::moved) break;
      }
      moved += turn;
      if (step == Stream::Step::ended) {
        const int number = stream.number;
        streams.erase(streams.begin() + static_cast<std::ptrdiff_t>(i));
        if (polled.size() > i + 1)
          polled.erase(polled.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        shared->note({number, Note::What::ended, ""});
      } else {
        ++i;
      }
    }
    nap = moved > 0 && moved < kWorthwhile;
  }
}

Output::Output() : shared_(std::make_shared<Shared>()), notify_fd_(shared_->notify.get()) {}

Output::~Output() {
  for (Worker& worker : workers_) {
    worker.pump->stop = true;
    signal_eventfd(worker.pump->wake.get());
  }
  for (Worker& worker : workers_) {
    if (worker.done.wait_for(std::chrono::seconds(1)) == std::future_status::ready) {
      worker.thread.join();
    } else {
      worker.thread.detach();
    }
  }
}

int Output::add(UniqueFd pipe, UniqueFd file) {
  const int number = next_stream_++;
  // The two streams of a rank go to one thread.
  const std::size_t index = static_cast<std::size_t>(number / 2) % kWorkersMax;
  if (index >= workers_.size()) {
    auto pump = std::make_shared<Pump>();
    pump->shared = shared_;
    std::packaged_task<void()> task([pump] { pump->run(); });
    auto done = task.get_future();
    const NoSignals none;  // a file size limit is an error there
    workers_.push_back({pump, std::thread(std::move(task)), std::move(done)});
  }
  Pump& pump = *workers_[index].pump;
  Stream stream;
  stream.number = number;
  stream.pipe = std::move(pipe);
  stream.file = std::move(file);
  stream.moving = std::make_shared<std::atomic<bool>>(false);
  UniqueFd copy(::fcntl(stream.pipe.get(), F_DUPFD_CLOEXEC, 0));
  if (copy) open_.push_back({number, std::move(copy), stream.moving});
  {
    const std::lock_guard lock(pump.mutex);
    pump.incoming.push_back(std::move(stream));
  }
  signal_eventfd(pump.wake.get());
  return number;
}

std::vector<Output::Note> Output::take_notes() {
  clear_eventfd(notify_fd_);
  std::vector<Note> notes;
  {
    const std::lock_guard lock(shared_->mutex);
    notes = std::exchange(shared_->notes, {});
  }
  for (const Note& note : notes) {
    if (note.what != Note::What::ended) continue;
    std::erase_if(open_, [&](const Watched& each) { return each.number == note.stream; });
  }
  return notes;
}

bool Output::busy() const {
  for (const Watched& stream : open_) {
    // In this order: bytes that left the pipe before the first look are seen by the second.
    int waiting = 0;
    if (::ioctl(stream.pipe.get(), FIONREAD, &waiting) == 0 && waiting > 0) return true;
    if (*stream.moving) return true;
  }
  return false;
}

std::uint64_t Output::dropped_bytes() const noexcept {
  return shared_->dropped;
}

OutputPipe make_output_pipe() {
  auto [reader, writer] = make_pipe();
  OutputPipe made{std::move(reader), std::move(writer)};
  ::fcntl(made.reader.get(), F_SETFL, O_NONBLOCK);
  // Users without privileges have a limit on all their pipes together.
  for (const int size : {1 << 20, 1 << 18}) {
    if (::fcntl(made.reader.get(), F_SETPIPE_SZ, size) >= 0) break;
  }
  return made;
}

}  // namespace dtrain::supervise
