#include "trainer/api/place_counter.hpp"

#include <string>

#include "trainer/core/error.hpp"

namespace dtrain::train {

void PlaceCounter::begin_epochs() {
  if (in_loop_) throw Error("epochs(): there is one already around it");
  begin_epoch(next_epoch());
  in_epoch_ = false;
  counts_ = in_loop_ = true;
}

std::int64_t PlaceCounter::next_epoch() const {
  const bool is_over = pass_ == Pass::ended || pass_ == Pass::left || stepped_outside_;
  return place_.epoch + static_cast<std::int64_t>(is_over);
}

void PlaceCounter::begin_epoch(std::int64_t epoch) {
  in_epoch_ = true;
  if (epoch == place_.epoch && next_epoch() == epoch) return;
  place_ = {place_.step, epoch, 0};
  pass_ = Pass::none;
  stepped_outside_ = has_given_ = has_stepped_ = false;
}

void PlaceCounter::end_epochs() {
  in_loop_ = in_epoch_ = false;
}

std::int64_t PlaceCounter::begin_pass(std::int64_t epoch) {
  if (!in_epoch_) {
    throw Error(
        "loader.epoch() of a prepared loader belongs into `for (const auto epoch : epochs(n))`, "
        "which knows where a resume goes on; without it there is loader.pass(epoch, position)");
  }
  if (epoch != place_.epoch) {
    throw Error("loader.epoch(" + std::to_string(epoch) + ") in epoch " +
                std::to_string(place_.epoch) + " of epochs()");
  }
  if (pass_ != Pass::none) {
    throw Error("a second prepared loader is gone through in epoch " + std::to_string(epoch) +
                ", and a checkpoint's place is that of one: prepare a loader that evaluates with "
                "prepare_data_loader(loader, /*evaluates=*/true), or count the place by hand "
                "(loader.pass() and report(metrics, place))");
  }
  pass_ = Pass::open;
  return place_.position;
}

void PlaceCounter::end_pass(std::int64_t position) {
  pass_ = Pass::ended;
  end_ = position;
}

void PlaceCounter::leave_pass() {
  if (pass_ == Pass::open) pass_ = Pass::left;
}

void PlaceCounter::step() {
  ++place_.step;
  if (!in_epoch_) return;
  if (pass_ != Pass::none) {
    has_stepped_ = true;
    if (pass_ == Pass::ended) place_.position = end_;
    return;
  }
  if (place_.position > 0) {
    throw Error("the checkpoint stood within epoch " + std::to_string(place_.epoch) +
                ", and no prepared loader's epoch() has gone on from there");
  }
  stepped_outside_ = true;
}

Place PlaceCounter::place_to_save() const {
  if (!counts_) {
    throw Error(
        "save_checkpoint() knows the place where a training goes through "
        "`for (const auto epoch : epochs(n))`; without it there is report(metrics, place)");
  }
  if (has_given_ && !has_stepped_) {
    throw Error(
        "save_checkpoint(): batches were given in epoch " + std::to_string(place_.epoch) +
        ", and no step was counted: each is an optimizer_step(), or, where a program steps its "
        "optimizers itself, a count_step()");
  }
  if (pass_ == Pass::ended || pass_ == Pass::left) return {place_.step, place_.epoch + 1, 0};
  if (stepped_outside_) {
    throw Error("save_checkpoint(): epoch " + std::to_string(place_.epoch) +
                " has had steps and no prepared loader's epoch(): how much of it is done is not "
                "known. Go through prepare_data_loader(loader).epoch(epoch), or count the place "
                "by hand (loader.pass() and report(metrics, place))");
  }
  return place_;
}

}  // namespace dtrain::train
