// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "qkflow/train/evaluation.hpp"
#include "qkflow/train/initial_weights.hpp"
#include "qkflow/train/topic_sampler.hpp"
#include "qkflow/train/trainer.hpp"

namespace qkflow_program {

/// One training run on the topic task, described in full.
struct TopicRun {
  std::string name;  ///< of the checkpoint file, and in messages
  qkflow::TopicSamplerOptions task{};
  qkflow::OneHotShape shape{};
  qkflow::TrainingOptions<float> training{};
  qkflow::InitialWeights start{};
  std::uint64_t evaluation_batches = 200;
};

struct TopicRunResult {
  qkflow::TrainingResult training;
  qkflow::Evaluation evaluation;
  double seconds = 0;  ///< of training, in this process
};

/// Runs all, as many at a time as there are threads (0: one a core); results do not depend on that. Shows progress on a
/// terminal. Where `folder` is not empty each run keeps a checkpoint there, and is taken up from it if it is there
/// already; finished runs cost nothing the second time.
///
/// Errors: qkflow::Interrupted, with word of the checkpoints; qkflow::IoError for a checkpoint of another run.
std::vector<TopicRunResult> run_all(const std::vector<TopicRun>& runs, int threads, const std::filesystem::path& folder,
                                    const std::string& label);

/// Learning rates, schedule, start and early stop in the terms of the published experiments.
struct PublishedSettings {
  std::string parameterization;
  char start_qk = 'D', start_ov = 'D';  ///< D: uniform as torch.nn.Linear; I: identity * 1e-6
  double rate_qk = 0.01, rate_ov = 0.01;
  double rate_qk_end = 1;  ///< factor reached linearly at the end
  int length = 64;
  std::uint64_t steps_per_epoch = 100, epochs = 1000;
  bool early_stop = false;
};
TopicRun topic_run(const PublishedSettings& settings, std::uint64_t seed, bool pytorch);

/// Makes a folder if need be. Throws qkflow::IoError.
void make_folder(const std::filesystem::path& folder);

}  // namespace qkflow_program
