// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

/// Everything at once. It costs a few seconds a translation unit: a program in earnest includes the headers it uses.

#include "qkflow/flow/closed_form.hpp"
#include "qkflow/flow/first_integral.hpp"
#include "qkflow/flow/rate_factor.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/kernel/simd.hpp"
#include "qkflow/kernel/vector_exp.hpp"
#include "qkflow/kernel/vector_softmax.hpp"
#include "qkflow/math/log_difference.hpp"
#include "qkflow/math/log_sum_exp.hpp"
#include "qkflow/math/quadrature.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/math/roots.hpp"
#include "qkflow/math/wright_omega.hpp"
#include "qkflow/report/atomic_file.hpp"
#include "qkflow/report/csv.hpp"
#include "qkflow/report/figure.hpp"
#include "qkflow/report/gnuplot.hpp"
#include "qkflow/report/interrupt.hpp"
#include "qkflow/report/progress.hpp"
#include "qkflow/report/table.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "qkflow/task/block_task.hpp"
#include "qkflow/task/dataset.hpp"
#include "qkflow/version.hpp"
