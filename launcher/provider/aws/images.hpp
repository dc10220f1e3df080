#pragma once

#include <string>

#include "launcher/provider/aws/client.hpp"

namespace dtrain::aws {

// The image of a node_config's ImageId: one that is no alias is itself (also resolve:ssm:NAME,
// which EC2 resolves). The aliases:
//   latest_dlami         AWS's deep-learning base image with NVIDIA's driver, Ubuntu; also where
//                        `image` is empty
//   latest_ubuntu        Ubuntu 24.04
//   latest_amazon_linux  Amazon Linux 2023
// The newest as AWS's public parameters say it, else as its list of images does. The GPUs of P2, P3
// and G3 instances are too old for NVIDIA's open driver: they get the image that has the other.
// Throws ApiError, or Error(not_found, invalid).
std::string image_of(Client& client, const std::string& image, const std::string& instance_type);

}  // namespace dtrain::aws
