#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The qkflow authors
# SPDX-License-Identifier: MIT
"""The circuit gradient of benchmarks/gradient_benchmark.cpp in NumPy: whole-array operations, indices made beforehand.
Debian: apt-get install python3-numpy."""

import gradient_case

chosen = gradient_case.arguments()

import numpy as np  # noqa: E402: after the number of threads is set


class Gradient:
    def __init__(self, case):
        self.case = case
        self.cell = case.query[:, None] * case.tokens + case.token  # which entry of W_QK
        self.everyone = np.arange(case.sequences)
        # Entries by token: what is added to a column of W_OV becomes one run.
        self.order = np.argsort(case.token, axis=None, kind="stable")
        self.owner = self.order // case.entries
        present, self.first = np.unique(case.token.ravel()[self.order], return_index=True)
        assert len(present) == case.tokens

    def __call__(self):
        case = self.case
        score = case.w_qk.ravel().take(self.cell)
        high = np.maximum(score.max(1), 0)
        mass = np.exp(score - high[:, None])
        mass /= (mass.sum(1) + case.null_count * np.exp(-high))[:, None]
        value = case.w_ov.take(case.token, 0)
        z = np.matmul(mass[:, None, :], value)[:, 0]
        z -= z.max(1, keepdims=True)
        at_label = z[self.everyone, case.label]
        error = np.exp(z, out=z)
        total = error.sum(1)
        loss = np.mean(np.log(total) - at_label)
        error /= total[:, None]
        error[self.everyone, case.label] -= 1
        error /= -case.sequences  # minus the derivative of the mean over the logits
        alignment = np.matmul(value, error[:, :, None])[:, :, 0]
        moved = mass * (alignment - (mass * alignment).sum(1, keepdims=True))
        g_qk = np.bincount(self.cell.ravel(), moved.ravel(), case.queries * case.tokens)
        spread = error.take(self.owner, 0)
        spread *= mass.ravel().take(self.order)[:, None]
        g_ov = np.add.reduceat(spread, self.first, 0)
        return loss, g_qk.reshape(case.queries, case.tokens), g_ov


if __name__ == "__main__":
    case = gradient_case.Case(chosen)
    gradient_case.report(f"NumPy {np.__version__}", Gradient(case), case, chosen.seconds)
