#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <string>

// What EC2 says to an instance of itself: its metadata service, version 2, at an address that only
// the instance has. No proxy is asked.
namespace dtrain::node {

struct MetadataOptions {
  std::string endpoint = "http://169.254.169.254";  // an IP address; a port may follow
  std::chrono::milliseconds limit{2000};            // of each request
};
// With the endpoint that AWS_EC2_METADATA_SERVICE_ENDPOINT names, as in AWS's own tools.
MetadataOptions metadata_options();

// One request at a time, on the executor's thread.
class Metadata {
 public:
  Metadata(boost::asio::any_io_executor executor, MetadataOptions options);

  static constexpr int kOk = 200;
  static constexpr int kNotFound = 404;
  struct Answer {
    int status = 0;  // HTTP's
    std::string body;
  };
  // "latest/meta-data/…". With a token that is kept; one that has expired is replaced. Throws Error
  // when there is no answer, Error(denied) when there is no token.
  boost::asio::awaitable<Answer> get(std::string path);

 private:
  boost::asio::awaitable<Answer> ask(bool put, std::string path);

  boost::asio::any_io_executor executor_;
  MetadataOptions options_;
  std::string token_;  // empty: none yet
};

}  // namespace dtrain::node
